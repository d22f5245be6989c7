//! Compares the sequences with those of Valkey 9.1.2.

use super::{Arc, Random, SharedSequence};

fn integer(random: &Random, below: f64) -> u64 {
    (random.draw() * below).floor() as u64 + 1
}

#[test]
fn unseeded_and_seeded_sequences_are_those_of_valkey() {
    let random = Random::new(Arc::new(SharedSequence::default()));
    assert_eq!(format!("{:.14}", random.draw()), "0.39646477363839");
    random.seed(5);
    assert_eq!([integer(&random, 100.0), integer(&random, 100.0)], [53, 28]);
    random.seed(-7);
    assert_eq!(integer(&random, 100.0), 8);
    assert_eq!(integer(&random, f64::from(i32::MAX)), 1_756_144_978);
}

#[test]
fn threads_share_a_sequence_until_a_script_seeds() {
    let shared = Arc::new(SharedSequence::default());
    let (one, other) = (Random::new(shared.clone()), Random::new(shared));
    let drawn = one.draw();
    assert_ne!(other.draw(), drawn, "nobody draws the same number twice");
    one.seed(5);
    other.draw();
    assert_eq!(integer(&one, 100.0), 53, "others do not disturb a seeded sequence");
    one.end_script(false);
    assert_eq!(integer(&other, 100.0), 28, "it goes on for all");
}

#[test]
fn a_restarted_script_leaves_no_seed() {
    let random = Random::new(Arc::new(SharedSequence::default()));
    random.seed(5);
    random.end_script(true);
    assert_eq!(format!("{:.14}", random.draw()), "0.39646477363839");
}
