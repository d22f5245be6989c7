//! Tests of the thresholds, of the effort, and of walks in a whole server.

use weft_config::{Config, SetPermissions};
use weft_table::NewValue;
use weft_table::relocation::Mover;

use super::*;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::publish_header;
use crate::start::create_idle_server;
use weft_base::DbIndex;

const PERMISSIONS: SetPermissions = SetPermissions {
    may_set_protected: true,
    is_loading: false,
};

fn config(pairs: &[(&str, &str)]) -> Config {
    let config = Config::defaults();
    set(&config, pairs);
    config
}

fn set(config: &Config, pairs: &[(&str, &str)]) {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect();
    config
        .set(&pairs, PERMISSIONS, &mut |_| Ok(()))
        .expect("the values are valid");
}

#[test]
fn the_effort_follows_the_fragmentation() {
    let config = config(&[("active-defrag-cycle-min", "5"), ("active-defrag-cycle-max", "45")]);
    let percents = [0.0, 10.0, 55.0, 100.0, 1000.0].map(|fragmented| cpu_percent(&config, fragmented));
    assert_eq!(percents, [5, 5, 25, 45, 45]);
    set(&config, &[("active-defrag-cycle-max", "2")]);
    assert_eq!(cpu_percent(&config, 10.0), 2, "the maximum counts");
    set(&config, &[("active-defrag-threshold-upper", "10")]);
    assert_eq!(cpu_percent(&config, 10.0), 2);
}

#[test]
fn cycles_take_their_share_of_the_time() {
    let cycle = Duration::from_micros(500);
    assert_eq!(pause_after(cycle, 25), Duration::from_micros(1500));
    assert_eq!(pause_after(cycle, 1), Duration::from_micros(49_500));
    assert_eq!(pause_after(cycle, 99), Duration::from_nanos(5050));
    assert_eq!(units_per_step(&config(&[])), UNITS_PER_STEP);
    assert_eq!(units_per_step(&config(&[("active-defrag-max-scan-fields", "10")])), 10);
}

#[test]
fn both_thresholds_must_be_exceeded() {
    let config = config(&[]);
    let is_above = |allocated: u64, fragmented: u64| {
        let figures = AllocatorFigures {
            allocated: allocated << 20,
            fragmented: fragmented << 20,
            ..AllocatorFigures::default()
        };
        is_above_thresholds(&config, &figures)
    };
    assert!(is_above(1000, 100) && is_above(10, 500));
    assert!(!is_above(1001, 100) && !is_above(100, 99));
}

#[test]
fn walks_with_little_effect_become_rare() {
    let mut postponement = Postponement::default();
    let now = Instant::now();
    assert!(!postponement.is_running(1000, now));
    postponement.note_walk(1000, 950, now);
    assert!(postponement.is_running(950, now) && postponement.is_running(1100, now));
    assert!(!postponement.is_running(1300, now), "it has grown");
    assert!(!postponement.is_running(950, now + MIN_DELAY));
    for _ in 0..20 {
        postponement.note_walk(1000, 1000, now);
    }
    assert!(postponement.is_running(1000, now + MAX_DELAY - MIN_DELAY));
    assert!(!postponement.is_running(1000, now + MAX_DELAY));
    postponement.note_walk(1000, 100, now);
    assert!(!postponement.is_running(100, now));
}

/// Calls `change` with the table of a key and its hash.
fn with_table<R>(
    server: &Server,
    seat: &mut Seat,
    key: &[u8],
    change: impl FnOnce(&mut crate::keyspace::SlotTable, u64) -> R,
) -> R {
    let hash = server.keyspace.hasher.hash(key);
    let pass = seat.enter();
    let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
    let (header, slot) = lease.parts_mut();
    let result = change(slot.table_mut(DbIndex::FIRST), hash);
    publish_header(header, slot);
    result
}

#[test]
fn a_walk_moves_the_keys_that_are_left_and_shows_its_figures() {
    const KEYS: u32 = 60_000;
    let server = create_idle_server(config(&[
        ("active-defrag-ignore-bytes", "1"),
        ("active-defrag-threshold-lower", "0"),
        ("active-defrag-cycle-min", "99"),
        ("active-defrag-cycle-max", "99"),
    ]));
    let mut seat = server.keyspace.slots.join().expect("a seat is free");
    let key = |number: u32| format!("key:{number}").into_bytes();
    let value = |number: u32| vec![number as u8; 40 + number as usize % 600];
    for number in 0..KEYS {
        with_table(&server, &mut seat, &key(number), |table, hash| {
            drop(table.insert(hash, &key(number), NewValue::Bytes(&value(number)), None, 0));
        });
    }
    for number in (0..KEYS).filter(|number| number % 10 > 0) {
        with_table(&server, &mut seat, &key(number), |table, hash| {
            drop(table.remove(hash, &key(number)));
        });
    }
    memory::return_thread_memory();
    let figures = &server.stats.defragmentation;
    let mover = Mover::for_this_thread();
    if cfg!(not(feature = "jemalloc")) {
        return assert!(mover.is_none(), "only jemalloc says where allocations lie");
    }
    let mover = mover.expect("the allocator is jemalloc");
    let mut defragmenter = Defragmenter::new(mover);
    defragmenter.take_turn(&server, &mut seat);
    assert_eq!(figures.running_percent(), 99);
    assert!(defragmenter.walk.is_some());
    // The first walk is over when another one begins, or none.
    let started = defragmenter.walk.as_ref().map(|walk| walk.started);
    while defragmenter.walk.as_ref().map(|walk| walk.started) == started {
        defragmenter.take_turn(&server, &mut seat);
    }
    let moved = figures.moved.load(Ordering::Relaxed);
    assert!(moved > u64::from(KEYS / 20), "{moved} of {}", KEYS / 10);
    assert!(figures.moved_keys.load(Ordering::Relaxed) > u64::from(KEYS / 20));
    assert!(figures.total() > Duration::ZERO);
    for number in (0..KEYS).step_by(10) {
        with_table(&server, &mut seat, &key(number), |table, hash| {
            let entry = table.find(hash, &key(number)).expect("the key exists");
            assert!(matches!(entry.value(), weft_table::ValueRef::Bytes(bytes) if bytes == value(number)));
        });
    }
    figures.reset();
    assert_eq!(figures.moved.load(Ordering::Relaxed), 0);
}
