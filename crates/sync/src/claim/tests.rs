//! Exactly one claimer wins.

use std::sync::Arc;

use super::Claim;

#[cfg(loom)]
use loom::{model, thread};
#[cfg(not(loom))]
use std::thread;

#[cfg(not(loom))]
fn model(scenario: impl Fn()) {
    (0..200).for_each(|_| scenario());
}

#[test]
fn exactly_one_of_three_claimers_wins() {
    model(|| {
        let claim = Arc::new(Claim::new());
        assert!(!claim.is_claimed());
        let rivals: Vec<_> = (0..2)
            .map(|_| {
                let claim = Arc::clone(&claim);
                thread::spawn(move || claim.try_claim())
            })
            .collect();
        let mut winners = usize::from(claim.try_claim());
        assert!(claim.is_claimed());
        winners += rivals
            .into_iter()
            .filter_map(|rival| rival.join().ok())
            .filter(|won| *won)
            .count();
        assert_eq!(winners, 1);
        assert!(!claim.try_claim());
    });
}

#[cfg(loom)]
#[test]
fn a_loser_sees_what_the_winner_wrote_before_its_claim() {
    use std::sync::atomic::Ordering::Relaxed;

    model(|| {
        let shared = Arc::new((loom::sync::atomic::AtomicUsize::new(0), Claim::new()));
        let winner = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.0.store(7, Relaxed);
                shared.1.try_claim()
            })
        };
        if !shared.1.try_claim() {
            assert_eq!(shared.0.load(Relaxed), 7);
        }
        winner.join().unwrap();
    });
}
