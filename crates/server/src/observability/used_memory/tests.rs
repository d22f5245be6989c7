//! Tests that the allocations of threads are visible at once and add up.

use weft_base::ThreadIndex;

use super::*;

#[test]
fn a_thread_sees_its_own_allocations_at_once() {
    let used = UsedMemory::new(2);
    let mut cell = used.cell(ThreadIndex::new(1)).expect("a worker");
    assert!(used.cell(ThreadIndex::new(2)).is_none(), "only workers have cells");
    let before = used.used_bytes() as i64;
    let bytes = vec![1u8; 1 << 20];
    used.store_balance(&mut cell);
    let grown = used.used_bytes() as i64 - before;
    assert!((1 << 20..(1 << 20) + 4096).contains(&grown), "{grown}");
    drop(bytes);
    used.store_balance(&mut cell);
    let left = used.used_bytes() as i64 - before;
    assert!(left.abs() < 4096, "{left}");
}

#[test]
fn memory_queued_for_freeing_counts_as_free_once() {
    let used = UsedMemory::new(1);
    used.base.store(10 << 20, Ordering::Relaxed);
    let mut worker = used.cell(ThreadIndex::new(0)).expect("a worker");
    let bytes = vec![1u8; 1 << 20];
    used.store_balance(&mut worker);
    let before = used.used_bytes();
    used.queue_for_freeing(bytes.len());
    assert_eq!(used.used_bytes(), before - (1 << 20));
    let mut cell = used.freeing_cell();
    used.note_freeing_started();
    drop(bytes);
    used.note_freed(1 << 20, &mut cell);
    let off = used.used_bytes() as i64 - (before as i64 - (1 << 20));
    assert!(off.abs() < 4096, "{off}");
}

#[test]
fn memory_freed_without_a_cell_counts_as_free_at_once() {
    let used = UsedMemory::new(1);
    used.base.store(10 << 20, Ordering::Relaxed);
    let mut worker = used.cell(ThreadIndex::new(0)).expect("a worker");
    let bytes = vec![1u8; 1 << 20];
    used.store_balance(&mut worker);
    let before = used.used_bytes() as i64;
    used.queue_for_freeing(bytes.len());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            used.free_without_cell(bytes.len(), || {
                let freed = before - used.used_bytes() as i64;
                assert_eq!(freed, 1 << 20, "the next writes have its memory already");
                drop(bytes);
            });
        });
    });
    let freed = before - used.used_bytes() as i64;
    assert!((freed - (1 << 20)).abs() < 4096, "{freed}");
}

#[test]
fn no_calibration_takes_place_until_all_threads_have_freed() {
    let used = UsedMemory::new(1);
    let is_calibrated = || {
        used.base.store(i64::MIN, Ordering::Relaxed);
        used.calibrate_unless_freeing();
        used.base.load(Ordering::Relaxed) != i64::MIN
    };
    assert!(is_calibrated());
    let mut cell = used.freeing_cell();
    used.note_freeing_started();
    used.note_freeing_started();
    assert!(!is_calibrated());
    used.note_freed(0, &mut cell);
    assert!(!is_calibrated(), "the other one is still at it");
    used.note_freed(0, &mut cell);
    assert!(is_calibrated());
}

/// A thread without a cell of its own that evicts meanwhile does not make the calibration void.
#[test]
fn a_calibration_counts_what_the_shared_cell_gets_meanwhile() {
    let used = UsedMemory::new(1);
    let (mut count, mut freed) = (50 << 20, 0);
    let is_calibrated = used.calibrate_from(
        || true,
        || {
            let reading = BaseReading {
                base: count - used.cells.sum(0),
                used: count as u64,
            };
            used.add_to_shared_cell(-1000);
            (count, freed) = (count - 1000, freed + 1000);
            Some(reading)
        },
    );
    assert!(is_calibrated && freed > 0);
    assert_eq!(used.used_bytes(), (50 << 20) - freed);
}

/// Returns the base that follows from these readings, and how many of them were taken.
fn agreed_base(present: i64, readings: &[i64]) -> (Option<i64>, usize) {
    let mut taken = 0;
    let agreed = agreed_reading(present, || {
        let base = readings.get(taken).copied()?;
        taken += 1;
        Some(BaseReading {
            base,
            used: base as u64 + 1,
        })
    });
    assert!(agreed.is_none_or(|reading| reading.used == reading.base as u64 + 1));
    (agreed.map(|reading| reading.base), taken)
}

#[test]
fn a_reading_that_is_far_off_does_not_become_the_base() {
    const MIB: i64 = 1 << 20;
    const NEAR: i64 = AGREEMENT_BYTES as i64;
    /// What is read, the base before, the readings, the base that is agreed upon, and the number of readings taken.
    type Case = (&'static str, i64, &'static [i64], Option<i64>, usize);
    let cases: [Case; 9] = [
        ("no change", MIB, &[MIB], Some(MIB), 1),
        ("a small change", MIB, &[MIB - NEAR], Some(MIB - NEAR), 1),
        ("a high first one", MIB, &[9 * MIB, MIB + 1, MIB], Some(MIB + 1), 3),
        ("a low first one", MIB, &[0, MIB + 1, MIB], Some(MIB), 3),
        ("a high second one", MIB, &[0, 9 * MIB, 1], Some(1), 3),
        ("another base", MIB, &[3 * MIB, 3 * MIB + NEAR], Some(3 * MIB + NEAR), 2),
        ("no base before", i64::MIN, &[MIB, MIB], Some(MIB), 2),
        ("no agreement", MIB, &[4 * MIB, 2 * MIB, 3 * MIB], Some(3 * MIB), 3),
        ("no count", MIB, &[], None, 0),
    ];
    for (name, present, readings, base, taken) in cases {
        assert_eq!(agreed_base(present, readings), (base, taken), "{name}");
    }
}

#[test]
fn what_is_freed_during_a_calibration_is_not_lost() {
    let used = UsedMemory::new(1);
    let is_calm = || used.freeing_threads.load(Ordering::Relaxed) == 0;
    let reading = |base: i64| BaseReading {
        base,
        used: base as u64,
    };
    assert!(used.calibrate_from(is_calm, || Some(reading(10 << 20))));
    assert_eq!(used.base.load(Ordering::Relaxed), 10 << 20);
    // A thread begins to free memory between two readings.
    let stale = reading(20 << 20);
    let begins = || {
        used.note_freeing_started();
        Some(stale)
    };
    assert!(!used.calibrate_from(is_calm, begins));
    assert_eq!(used.base.load(Ordering::Relaxed), 10 << 20);
    while !is_calm() {
        used.end_freeing(0);
    }
    // A thread without a cell has freed memory, and has subtracted it from the base.
    let subtracts = || {
        used.base.fetch_sub(1 << 20, Ordering::Relaxed);
        Some(stale)
    };
    assert!(used.calibrate_from(is_calm, subtracts));
    // Twice, and there is no calibration.
    assert_eq!(used.base.load(Ordering::Relaxed), 8 << 20);
}

#[test]
fn calibration_includes_threads_without_a_cell() {
    let used = UsedMemory::new(1);
    let finds = || {
        let first = used.calibrate().expect("there are figures");
        let bytes = std::thread::spawn(|| vec![1u8; 64 << 20]).join().expect("it allocates");
        let second = used.calibrate().expect("there are figures");
        assert_eq!(used.used_bytes(), second);
        drop(bytes);
        second.abs_diff(first) > 40 << 20
    };
    // Other tests run at the same time, and may free as much meanwhile.
    assert!((0..20).any(|_| finds()));
}

#[test]
fn the_time_above_the_limit_adds_up() {
    let used = UsedMemory::new(1);
    used.note_limit(true);
    assert_eq!(used.exceeded_us(), (0, 0));
    used.note_limit(false);
    std::thread::sleep(std::time::Duration::from_millis(2));
    used.note_limit(false);
    let (total_us, current_us) = used.exceeded_us();
    assert!(total_us >= 2000 && current_us >= 2000, "{total_us} {current_us}");
    used.note_limit(true);
    let (total_us, current_us) = used.exceeded_us();
    assert!(total_us >= 2000 && current_us == 0);
    used.reset_statistics();
    assert_eq!(used.exceeded_us(), (0, 0));
}

#[test]
fn entries_are_counted_one_by_one_in_any_slab_run() {
    const KEYS: u64 = 10_000;
    let used = UsedMemory::new(1);
    let mut cell = used.cell(ThreadIndex::new(0)).expect("a worker");
    let mut table = weft_table::Table::<u8>::new();
    let hash = |number: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let before = used.used_bytes();
    for number in 0..KEYS {
        let (key, value) = (format!("key:{number:012}"), [b'v'; 64]);
        drop(table.insert(
            hash(number),
            key.as_bytes(),
            weft_table::NewValue::Bytes(&value),
            None,
            0,
        ));
    }
    used.store_balance(&mut cell);
    let full = used.used_bytes();
    let expected = KEYS * 88 + table.memory_bytes() as u64;
    assert!(
        (full - before).abs_diff(expected) < 16 << 10,
        "{full} {before} {expected}"
    );
    // Half of the entries is removed, from all runs.
    let arrays = table.memory_bytes() as u64;
    for number in (0..KEYS).step_by(2) {
        let key = format!("key:{number:012}");
        drop(table.remove(hash(number), key.as_bytes()).expect("is there"));
    }
    used.store_balance(&mut cell);
    let freed = KEYS / 2 * 88 + arrays - table.memory_bytes() as u64;
    assert!(
        (full - used.used_bytes()).abs_diff(freed) < 16 << 10,
        "{} {freed}",
        full - used.used_bytes()
    );
    drop(table);
    used.store_balance(&mut cell);
    assert!(
        used.used_bytes().abs_diff(before) < 16 << 10,
        "{} {before}",
        used.used_bytes()
    );
}

#[test]
fn memory_kept_for_reuse_is_not_used() {
    let used = UsedMemory::new(2);
    used.base.store(10 << 20, Ordering::Relaxed);
    let before = used.used_bytes();
    used.add_reusable(ThreadIndex::new(0), 1 << 20);
    used.add_reusable(ThreadIndex::new(1), 3 << 20);
    used.add_reusable(ThreadIndex::new(1), -(1 << 20));
    assert_eq!((used.reusable_bytes(), before - used.used_bytes()), (3 << 20, 3 << 20));
}
