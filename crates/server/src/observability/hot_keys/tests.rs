//! Tests of the sketches of hot keys: their bounds, against exact counts, and the sessions of the sampling.

use super::*;

const NOW_MS: u64 = 1_700_000_000_000;

/// Hashes like a keyed hash: any two names differ.
fn hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn key_use(name: &[u8]) -> KeySample<'_> {
    KeySample {
        db: DbIndex::FIRST,
        hash: hash(name),
        name,
        is_write: false,
        nanoseconds: 10,
    }
}

/// Returns random numbers, small ones much more often than large ones.
fn skewed(random: &mut fastrand::Rng, below: f64) -> u64 {
    below.powf(random.f64()) as u64
}

/// Checks the heap, the positions and the index of a sketch.
fn assert_consistent(sketch: &KeySketch) {
    assert!(sketch.counters.len() <= SKETCH_KEYS);
    assert_eq!(sketch.counters.len(), sketch.by_key.len());
    assert_eq!(sketch.counters.len(), sketch.heap.len());
    for (position, index) in sketch.heap.iter().enumerate() {
        let counter = &sketch.counters[*index];
        assert_eq!(counter.position, position);
        assert_eq!(sketch.by_key.get(&(counter.db, counter.hash)), Some(index));
        if position > 0 {
            let parent = &sketch.counters[sketch.heap[(position - 1) / 2]];
            assert!(parent.count <= counter.count);
        }
    }
    let sum: u64 = sketch.counters.iter().map(|counter| counter.count).sum();
    assert_eq!(sum, sketch.samples, "every sample is in one counter");
}

#[test]
fn counts_and_errors_enclose_the_exact_numbers() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut sketch = KeySketch::new(1);
    let mut exact: HashMap<Vec<u8>, u64> = HashMap::new();
    for round in 0..60_000 {
        let name = format!("key:{}", skewed(&mut random, 100_000.0)).into_bytes();
        sketch.add(&key_use(&name));
        *exact.entry(name).or_default() += 1;
        if round % 5000 == 0 {
            assert_consistent(&sketch);
        }
    }
    assert_consistent(&sketch);
    assert!(exact.len() > 10 * SKETCH_KEYS, "most keys have no counter");
    for counter in &sketch.counters {
        let number = exact[&counter.name];
        assert!(counter.count >= number && counter.count - counter.error <= number);
        assert!(counter.error <= sketch.samples / SKETCH_KEYS as u64);
    }
    for (name, number) in exact {
        let has_counter = sketch.by_key.contains_key(&(DbIndex::FIRST, hash(&name)));
        assert!(
            has_counter || number <= sketch.smallest_count(),
            "a key that was used {number} times is missing"
        );
    }
}

#[test]
fn a_report_merges_the_threads_and_keeps_the_bounds() {
    const THREADS: usize = 4;
    let hot_keys = HotKeys::new(THREADS);
    assert!(hot_keys.start(1, NOW_MS, u64::MAX, 0));
    let session = hot_keys.active_session(NOW_MS);
    let mut random = fastrand::Rng::with_seed(8);
    let mut exact: HashMap<Vec<u8>, u64> = HashMap::new();
    for round in 0..80_000 {
        let name = format!("key:{}", skewed(&mut random, 50_000.0)).into_bytes();
        // The threads see different keys in different numbers.
        let thread = ThreadIndex::new((round + name.len()) % THREADS);
        hot_keys.add(thread, session, &key_use(&name));
        *exact.entry(name).or_default() += 1;
    }
    let report = hot_keys.report(20, NOW_MS + 500);
    assert_eq!((report.samples, report.duration_ms, report.ratio), (80_000, 500, 1));
    assert!(report.is_active);
    assert_eq!(report.keys.len(), 20);
    for key in &report.keys {
        let number = exact[&key.name];
        assert!(key.uses >= number && key.uses - key.error <= number, "{key:?} {number}");
        assert!((key.share - key.uses as f64 / 80_000.0).abs() < 1e-9);
    }
    let mut by_number: Vec<(u64, &Vec<u8>)> = exact.iter().map(|(name, number)| (*number, name)).collect();
    by_number.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    let reported: Vec<&Vec<u8>> = report.keys.iter().map(|key| &key.name).collect();
    for (number, name) in by_number.iter().take(5) {
        assert!(reported.contains(name), "{number} uses");
    }
}

#[test]
fn keys_that_are_used_evenly_have_hardly_a_certain_share() {
    const THREADS: usize = 4;
    let hot_keys = HotKeys::new(THREADS);
    assert!(hot_keys.start(8, NOW_MS, u64::MAX, 0));
    let session = hot_keys.active_session(NOW_MS);
    for round in 0..40_000 {
        let thread = ThreadIndex::new(round % THREADS);
        hot_keys.add(thread, session, &key_use(format!("key:{round}").as_bytes()));
        if round % 10 == 0 {
            hot_keys.add(thread, session, &key_use(b"hot"));
        }
    }
    let report = hot_keys.report(100, NOW_MS);
    let estimated: f64 = report.keys.iter().map(|key| key.share).sum();
    assert!(estimated > 0.2, "{estimated}");
    let hot = 4000.0 / 44_000.0;
    assert!((report.certain_share(1) - hot).abs() < 1e-9, "{report:?}");
    let others = report.certain_share(100) - hot;
    assert!((0.0..0.01).contains(&others), "{others}");
    assert_eq!(HotKeyReport::default().certain_share(1), 0.0);
}

#[test]
fn databases_writes_and_times_are_told_apart() {
    let hot_keys = HotKeys::new(2);
    assert!(hot_keys.start(10, NOW_MS, u64::MAX, 0));
    let session = hot_keys.active_session(NOW_MS);
    for round in 0..100 {
        let other = KeySample {
            db: DbIndex::new(3),
            is_write: round % 4 == 0,
            nanoseconds: 30,
            ..key_use(b"key")
        };
        hot_keys.add(ThreadIndex::new(1), session, &other);
        if round % 10 == 0 {
            hot_keys.add(ThreadIndex::new(0), session, &key_use(b"key"));
        }
    }
    let keys = hot_keys.report(10, NOW_MS).keys;
    let seen: Vec<(usize, u64, f64)> = keys
        .iter()
        .map(|key| (key.db.get(), key.uses, key.write_share))
        .collect();
    assert_eq!(seen, [(3, 1000, 0.25), (0, 100, 0.0)]);
    assert!((keys[0].time_share - 3000.0 / 3100.0).abs() < 1e-9);
    assert!(keys.iter().all(|key| key.error == 0 && key.name == b"key"));
}

#[test]
fn memory_is_bounded_whatever_the_names_are() {
    let hot_keys = HotKeys::new(1);
    assert!(hot_keys.start(1, NOW_MS, u64::MAX, 0));
    let session = hot_keys.active_session(NOW_MS);
    let mut name = vec![b'x'; 100_000];
    for number in 0..3 * SKETCH_KEYS as u64 {
        name[..8].copy_from_slice(&number.to_le_bytes());
        let used = KeySample {
            hash: number,
            ..key_use(&name)
        };
        hot_keys.add(ThreadIndex::new(0), session, &used);
    }
    let report = hot_keys.report(usize::MAX, NOW_MS);
    assert_eq!(report.keys.len(), SKETCH_KEYS);
    assert!(
        report
            .keys
            .iter()
            .all(|key| key.name.len() == MAX_NAME_BYTES && key.name_bytes == 100_000)
    );
}

#[test]
fn a_session_ends_at_its_time_or_when_it_is_stopped_and_the_next_one_begins_without_samples() {
    let hot_keys = HotKeys::new(1);
    let thread = ThreadIndex::new(0);
    assert!(!hot_keys.stop(NOW_MS) && hot_keys.active_session(NOW_MS) == 0);
    assert!(hot_keys.start(5, NOW_MS, NOW_MS + 1000, 0));
    assert!(!hot_keys.start(7, NOW_MS + 999, u64::MAX, 0), "it is on");
    let session = hot_keys.active_session(NOW_MS + 999);
    assert_eq!(HotKeys::ratio_of(session), 5);
    hot_keys.add(thread, session, &key_use(b"a"));
    assert_eq!(hot_keys.active_session(NOW_MS + 1000), 0, "its time is over");
    let report = hot_keys.report(10, NOW_MS + 5000);
    assert_eq!((report.is_active, report.samples, report.duration_ms), (false, 1, 1000));

    assert!(hot_keys.start(7, NOW_MS + 6000, u64::MAX, 0));
    hot_keys.add(thread, session, &key_use(b"late"));
    assert_eq!(
        hot_keys.report(10, NOW_MS + 6000).keys,
        [],
        "a sample of the first session"
    );
    let session = hot_keys.active_session(NOW_MS + 6000);
    hot_keys.add(thread, session, &key_use(b"b"));
    assert!(hot_keys.stop(NOW_MS + 7000) && !hot_keys.stop(NOW_MS + 8000));
    let report = hot_keys.report(10, NOW_MS + 9000);
    assert_eq!((report.is_active, report.samples, report.duration_ms), (false, 1, 1000));
    assert_eq!(report.keys[0].name, b"b");

    hot_keys.reset(NOW_MS + 9000);
    assert_eq!(hot_keys.report(10, NOW_MS + 9000).samples, 0);
    assert!(hot_keys.start(7, NOW_MS + 9000, u64::MAX, 0));
    let before = hot_keys.active_session(NOW_MS + 9000);
    hot_keys.reset(NOW_MS + 9500);
    let after = hot_keys.active_session(NOW_MS + 9500);
    assert!(
        after != 0 && after != before,
        "it goes on, and threads notice the reset"
    );
    assert_eq!(HotKeys::ratio_of(after), 7);
}

/// The client that has started the first sampling does not know of the second one.
#[test]
fn a_client_stops_only_the_sampling_that_it_has_started() {
    let hot_keys = HotKeys::new(1);
    assert!(!hot_keys.stop_own(0, NOW_MS) && !hot_keys.stop_own(7, NOW_MS));
    assert!(hot_keys.start(5, NOW_MS, NOW_MS + 1000, 7));
    assert!(!hot_keys.stop_own(8, NOW_MS) && hot_keys.is_active(NOW_MS));
    assert_eq!(hot_keys.report(1, NOW_MS).id, 7);
    hot_keys.reset(NOW_MS);
    assert_eq!(hot_keys.report(1, NOW_MS).id, 7, "it goes on");
    assert!(hot_keys.stop_own(7, NOW_MS + 1) && !hot_keys.stop_own(7, NOW_MS + 2));
    assert!(hot_keys.start(5, NOW_MS + 3, u64::MAX, 0));
    assert!(!hot_keys.stop_own(7, NOW_MS + 4) && hot_keys.is_active(NOW_MS + 4));
}

#[test]
fn each_use_is_sampled_with_the_same_probability() {
    const RATIO: u32 = 20;
    const USES: usize = 400_000;
    fastrand::seed(9);
    let hot_keys = HotKeys::new(1);
    let mut lasting = HotKeySampler::default();
    lasting.follow(&hot_keys, NOW_MS);
    assert!(!lasting.is_on());
    assert!(hot_keys.start(RATIO, NOW_MS, u64::MAX, 0));
    lasting.follow(&hot_keys, NOW_MS);
    assert!(lasting.is_on());
    let expected = USES as f64 / f64::from(RATIO);
    let is_near = |samples: usize| (samples as f64 - expected).abs() < expected / 20.0;
    // Commands with one key, and with many.
    for keys in [1, 7, 1000] {
        let mut samples = 0;
        for _ in 0..USES / keys {
            if lasting.pass_over(keys) {
                continue;
            }
            lasting.sample(keys, |_, index| {
                assert!(index < keys);
                samples += 1;
            });
        }
        assert!(is_near(samples), "{samples} samples with {keys} keys");
    }
    // A background thread creates a sampler for each command.
    let mut samples = 0;
    for _ in 0..USES {
        let mut brief = HotKeySampler::default();
        brief.follow(&hot_keys, NOW_MS);
        brief.sample(1, |_, _| samples += 1);
    }
    assert!(is_near(samples), "{samples} samples");
    hot_keys.stop(NOW_MS);
    lasting.follow(&hot_keys, NOW_MS);
    assert!(!lasting.is_on());
}

#[test]
fn with_a_ratio_of_one_every_use_is_sampled() {
    let hot_keys = HotKeys::new(1);
    assert!(hot_keys.start(1, NOW_MS, u64::MAX, 0));
    let mut sampler = HotKeySampler::default();
    sampler.follow(&hot_keys, NOW_MS);
    for keys in [0, 1, 3] {
        let mut seen = Vec::new();
        sampler.sample(keys, |_, index| seen.push(index));
        assert_eq!(seen, (0..keys).collect::<Vec<_>>());
    }
}

#[test]
fn a_sample_is_lost_rather_than_waiting_for_a_report() {
    let hot_keys = HotKeys::new(1);
    assert!(hot_keys.start(1, NOW_MS, u64::MAX, 0));
    let session = hot_keys.active_session(NOW_MS);
    let held = hot_keys.sketches[0].lock();
    hot_keys.add(ThreadIndex::new(0), session, &key_use(b"a"));
    drop(held);
    hot_keys.add(ThreadIndex::new(0), session, &key_use(b"b"));
    hot_keys.add(ThreadIndex::new(9), session, &key_use(b"c"));
    let report = hot_keys.report(10, NOW_MS);
    assert_eq!(report.samples, 1);
    assert_eq!(report.keys[0].name, b"b");
}
