//! Tests that the allocations of threads are visible at once and add up.

use super::*;

#[test]
fn a_thread_sees_its_own_allocations_at_once() {
    let used = UsedMemory::new(2);
    let mut cell = used.cell(1).expect("a worker");
    assert!(used.cell(2).is_none(), "only workers have cells");
    let before = used.now() as i64;
    let bytes = vec![1u8; 1 << 20];
    used.put(&mut cell);
    let grown = used.now() as i64 - before;
    assert!((1 << 20..(1 << 20) + 4096).contains(&grown), "{grown}");
    drop(bytes);
    used.put(&mut cell);
    let left = used.now() as i64 - before;
    assert!(left.abs() < 4096, "{left}");
}

#[test]
fn what_is_about_to_be_freed_is_free_and_is_not_counted_twice() {
    let used = UsedMemory::new(1);
    used.base.store(10 << 20, Ordering::Relaxed);
    let mut worker = used.cell(0).expect("a worker");
    let bytes = vec![1u8; 1 << 20];
    used.put(&mut worker);
    let before = used.now();
    used.leave(bytes.len());
    assert_eq!(used.now(), before - (1 << 20));
    let mut cell = used.freeing_cell();
    drop(bytes);
    used.left(1 << 20, &mut cell);
    let off = used.now() as i64 - (before as i64 - (1 << 20));
    assert!(off.abs() < 4096, "{off}");
}

#[test]
fn calibration_finds_what_threads_without_a_cell_did() {
    let used = UsedMemory::new(1);
    let finds = || {
        let first = used.calibrate().expect("there are figures");
        let bytes = std::thread::spawn(|| vec![1u8; 64 << 20]).join().expect("it allocates");
        let second = used.calibrate().expect("there are figures");
        assert_eq!(used.now(), second);
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
fn entries_count_one_by_one_whatever_run_their_cells_lie_in() {
    const KEYS: u64 = 10_000;
    let used = UsedMemory::new(1);
    let mut cell = used.cell(0).expect("a worker");
    let mut table = weft_table::Table::<u8>::new();
    let hash = |number: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let before = used.now();
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
    used.put(&mut cell);
    let full = used.now();
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
    used.put(&mut cell);
    let freed = KEYS / 2 * 88 + arrays - table.memory_bytes() as u64;
    assert!(
        (full - used.now()).abs_diff(freed) < 16 << 10,
        "{} {freed}",
        full - used.now()
    );
    drop(table);
    used.put(&mut cell);
    assert!(used.now().abs_diff(before) < 16 << 10, "{} {before}", used.now());
}

#[test]
fn what_workers_keep_for_reuse_is_not_used() {
    let used = UsedMemory::new(2);
    used.base.store(10 << 20, Ordering::Relaxed);
    let before = used.now();
    used.keep(0, 1 << 20);
    used.keep(1, 3 << 20);
    used.keep(1, -(1 << 20));
    assert_eq!((used.kept(), before - used.now()), (3 << 20, 3 << 20));
}
