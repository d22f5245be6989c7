//! Tests of which keys are evicted, and of the state after their deletion.

use std::collections::BTreeSet;

use weft_base::{DbIndex, ThreadIndex};
use weft_table::NewValue;

use super::*;
use crate::keyspace::Seat;
use crate::keyspace::hash::KeyHasher;

/// A keyspace, and the access clock for sampling its keys.
struct Fixture {
    keyspace: Keyspace,
    seat: Seat,
    clock: AccessClock,
    effects: Effects,
}

const NOW_S: u64 = 1_800_000_000;

impl Fixture {
    fn new() -> Self {
        let keyspace = Keyspace::new(4, 2);
        let seat = keyspace.slots.join().expect("a seat is free");
        let effects = Effects::for_keyspace(&keyspace);
        let clock = AccessClock {
            now_s: NOW_S,
            is_lfu: false,
            lfu_log_factor: 10,
            lfu_decay_minutes: 1,
        };
        Fixture {
            keyspace,
            seat,
            clock,
            effects,
        }
    }

    fn put(&mut self, db: DbIndex, name: &str, expire_at_ms: Option<u64>, clock: u32) {
        let hash = self.keyspace.hasher.hash(name.as_bytes());
        let pass = self.seat.enter();
        let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
        let (header, slot) = lease.parts_mut();
        let table = slot.table_mut(db);
        drop(table.insert(hash, name.as_bytes(), NewValue::Int(1), expire_at_ms, clock));
        if let Some(at_ms) = expire_at_ms {
            header.hint.lower_due(at_ms);
        }
        publish_header(header, slot);
        let expiring = i64::from(expire_at_ms.is_some());
        self.keyspace.counts.add(ROW, db, 1, expiring);
    }

    fn evict(&mut self, chooser: &mut EvictionPool, policy: EvictionPolicy) -> (EvictionAttempt, Vec<String>) {
        let pass = self.seat.enter();
        let context = EvictionContext {
            keyspace: &self.keyspace,
            thread_index: ROW,
            clock: self.clock,
            samples: 5,
            is_lazy: true,
        };
        let attempt = chooser.evict(
            policy,
            &context,
            &mut EvictionAccess::Passage(&pass),
            &mut self.effects,
            &mut |_| {},
        );
        let gone = std::mem::take(&mut self.effects.removed);
        let name = |(removed, cause): (weft_table::Removed<Value>, RemovalCause)| {
            assert_eq!(cause, RemovalCause::Eviction);
            String::from_utf8_lossy(removed.key()).into_owned()
        };
        (attempt, gone.into_iter().map(name).collect())
    }

    /// Evicts until nothing is left, and returns the names in order.
    fn evict_all(&mut self, policy: EvictionPolicy) -> Vec<String> {
        let (mut chooser, mut order) = (EvictionPool::default(), Vec::new());
        loop {
            match self.evict(&mut chooser, policy) {
                (EvictionAttempt::Evicted, names) => order.extend(names),
                (EvictionAttempt::Busy, _) => panic!("nobody else is here"),
                (EvictionAttempt::NoCandidate, _) => return order,
            }
        }
    }
}

const ROW: ThreadIndex = ThreadIndex::FIRST;

fn policy(name: &str) -> EvictionPolicy {
    EvictionPolicy::from_name(name).expect("a policy that evicts")
}

#[test]
fn policies_are_parsed_from_their_names() {
    assert_eq!(EvictionPolicy::from_name("noeviction"), None);
    let ttl = policy("volatile-ttl");
    assert_eq!((ttl.order, ttl.is_volatile_only), (EvictionOrder::Ttl, true));
    let lfu = policy("allkeys-lfu");
    assert_eq!((lfu.order, lfu.is_volatile_only), (EvictionOrder::Lfu, false));
    assert_eq!(policy("volatile-random").order, EvictionOrder::Random);
}

#[test]
fn every_key_is_evicted_and_subtracted_from_the_counts() {
    for name in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
        let mut scene = Fixture::new();
        for number in 0..300 {
            scene.put(DbIndex::new(number % 3), &format!("key:{number}"), None, 0);
        }
        let gone: BTreeSet<String> = scene.evict_all(policy(name)).into_iter().collect();
        assert_eq!(gone.len(), 300, "{name}");
        assert!((0..4).all(|db| scene.keyspace.counts.keys(DbIndex::new(db)) == 0));
        assert!((0..SLOTS).all(|slot| !scene.keyspace.slots.header(slot).may_hold_any()));
    }
}

#[test]
fn volatile_policies_evict_no_keys_without_an_expiry() {
    for name in ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"] {
        let mut scene = Fixture::new();
        for number in 0..200u64 {
            let expires = number.is_multiple_of(10).then_some(NOW_S * 1000 + number);
            scene.put(DbIndex::FIRST, &format!("key:{number}"), expires, 0);
        }
        let gone = scene.evict_all(policy(name));
        assert_eq!(gone.len(), 20, "{name}");
        assert!(gone.iter().all(|key| key.ends_with('0')), "{name}: {gone:?}");
        assert_eq!(scene.keyspace.counts.keys(DbIndex::FIRST), 180);
    }
}

/// Returns the expiry and the clock of the key with a number.
type ExpiryAndClock = fn(u64) -> (Option<u64>, u32);

#[test]
fn the_best_candidates_are_evicted_early() {
    let cases: [(&str, ExpiryAndClock); 3] = [
        // The higher the number, the longer ago the key was used.
        ("allkeys-lru", |number| {
            (None, (NOW_S - 10 * number) as u32 & ((1 << 24) - 1))
        }),
        ("allkeys-lfu", |number| {
            (None, ((NOW_S / 60) as u32 & 0xffff) << 8 | (255 - number as u32 / 4))
        }),
        ("volatile-ttl", |number| (Some((NOW_S + 10_000 - number) * 1000), 0)),
    ];
    for (name, of) in cases {
        let mut scene = Fixture::new();
        scene.clock.is_lfu = name == "allkeys-lfu";
        for number in 0..1000 {
            let (expires, clock) = of(number);
            scene.put(DbIndex::FIRST, &format!("{number}"), expires, clock);
        }
        let (mut chooser, mut sum) = (EvictionPool::default(), 0u64);
        for _ in 0..100 {
            let (attempt, names) = scene.evict(&mut chooser, policy(name));
            assert_eq!((attempt, names.len()), (EvictionAttempt::Evicted, 1));
            sum += names[0].parse::<u64>().expect("a number");
        }
        // With random selection the mean would be 500.
        assert!(sum / 100 > 800, "{name}: {}", sum / 100);
    }
}

#[test]
fn slots_in_use_are_skipped() {
    let mut scene = Fixture::new();
    scene.put(DbIndex::FIRST, "only", None, 0);
    let slot = KeyHasher::slot(scene.keyspace.hasher.hash(b"only"));
    let mut other = scene.keyspace.slots.join().expect("a seat is free");
    let pass = other.enter();
    let lease = pass.try_write(slot).expect("the slot is free");
    let mut chooser = EvictionPool::default();
    assert_eq!(
        scene.evict(&mut chooser, policy("allkeys-lru")).0,
        EvictionAttempt::Busy
    );
    drop(lease);
    assert_eq!(
        scene.evict(&mut chooser, policy("allkeys-lru")).0,
        EvictionAttempt::Evicted
    );
    assert_eq!(
        scene.evict(&mut chooser, policy("allkeys-lru")).0,
        EvictionAttempt::NoCandidate
    );
}

#[test]
fn keys_that_are_being_imported_are_no_candidates() {
    for (name, expire_at_ms) in [
        ("allkeys-lru", None),
        ("allkeys-random", None),
        ("volatile-ttl", Some(NOW_S * 1000)),
    ] {
        let mut scene = Fixture::new();
        scene.put(DbIndex::FIRST, "imported", expire_at_ms, 0);
        let slot = KeyHasher::slot(scene.keyspace.hasher.hash(b"imported"));
        scene.keyspace.slots.header(slot).set_importing(true);
        assert!(scene.evict_all(policy(name)).is_empty(), "{name}");
        scene.put(DbIndex::FIRST, "own", expire_at_ms, 0);
        assert_eq!(scene.evict_all(policy(name)), ["own"], "{name}");
        scene.keyspace.slots.header(slot).set_importing(false);
        assert_eq!(scene.evict_all(policy(name)), ["imported"], "{name}");
    }
}
