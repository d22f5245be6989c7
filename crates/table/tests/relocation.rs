//! Moving out of sparse slabs of the real allocator: the slabs become empty, and every byte is accounted for.
#![cfg(feature = "jemalloc-memory")]

use std::collections::HashSet;
use std::thread;

use weft_table::relocation::Mover;
use weft_table::{NewValue, Table, ValueRef, allocator, cells};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The size of the pages by which memory is returned to the system.
const PAGE_BYTES: usize = 4096;

/// Returns the bytes that this thread has allocated and not freed, with cells instead of runs.
fn thread_balance() -> i64 {
    let number = |name: &[u8]| allocator::number(name, None).expect("the allocator counts");
    number(b"thread.allocated") - number(b"thread.deallocated") + cells::balance()
}

/// Returns the number of pages on which these addresses lie.
fn pages(addresses: impl Iterator<Item = usize>) -> usize {
    addresses
        .map(|address| address / PAGE_BYTES)
        .collect::<HashSet<_>>()
        .len()
}

/// Calls `relocate` until it returns `true`, in steps of a few units of work.
fn run_in_steps(mut relocate: impl FnMut(&mut Mover) -> bool) -> u64 {
    let mut mover = Mover::for_this_thread().expect("the allocator is jemalloc");
    loop {
        mover.begin_step(50);
        if relocate(&mut mover) {
            return mover.take_counts().moved;
        }
    }
}

#[test]
fn boxes_leave_sparse_slabs() {
    let mut boxes: Vec<Box<[u64; 20]>> = (0..40_000).map(|number| Box::new([number; 20])).collect();
    let mut number = 0;
    boxes.retain(|_| {
        number += 1;
        number % 10 == 0
    });
    allocator::command(b"thread.tcache.flush").expect("the cache is emptied");
    let used_pages = |boxes: &[Box<[u64; 20]>]| pages(boxes.iter().map(|boxed| boxed.as_ptr().addr()));
    let (pages_before, balance) = (used_pages(&boxes), thread_balance());
    let mut at = 0;
    let moved = run_in_steps(|mover| {
        while !mover.is_exhausted() && at < boxes.len() {
            mover.boxed(&mut boxes[at]);
            at += 1;
        }
        at == boxes.len()
    });
    assert_eq!(thread_balance(), balance);
    assert!(moved > 1000, "{moved}");
    let pages_after = used_pages(&boxes);
    assert!(
        pages_after < pages_before / 4,
        "{pages_before} pages before, {pages_after} after"
    );
    assert!(
        boxes
            .iter()
            .zip(1..)
            .all(|(boxed, number)| **boxed == [number * 10 - 1; 20])
    );
    assert_eq!(
        allocator::number(b"thread.tcache.enabled", None),
        Ok(1),
        "the mover has restored the setting"
    );
    // A second pass finds little to do.
    let moved_again = run_in_steps(|mover| {
        boxes.iter_mut().for_each(|boxed| mover.boxed(boxed));
        true
    });
    assert!(moved_again < moved / 4, "{moved_again} of {moved}");
}

fn hash(number: u32) -> u64 {
    let number = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Returns the value of a key: cells, size classes of the allocator, strings outside the entry, and blobs.
fn value_of(number: u32) -> Vec<u8> {
    let bytes = match number % 50 {
        0 => 17_000,
        1..3 => 3000,
        3..10 => 500,
        10..30 => 70,
        _ => 20,
    };
    vec![number as u8; bytes + number as usize % 40]
}

fn fill(table: &mut Table<()>, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        let expire_at_ms = number.is_multiple_of(3).then_some(1 << 41);
        let value = value_of(number);
        drop(table.insert(
            hash(number),
            &number.to_be_bytes(),
            NewValue::Bytes(&value),
            expire_at_ms,
            number,
        ));
    }
}

fn run_bytes() -> u64 {
    cells::figures().iter().map(|class| class.run_bytes).sum()
}

/// Fails unless the table has exactly these keys with their values.
fn assert_filled(table: &Table<()>, numbers: impl Iterator<Item = u32> + Clone) {
    assert_eq!(table.len(), numbers.clone().count());
    for number in numbers {
        let entry = table.find(hash(number), &number.to_be_bytes()).expect("the key exists");
        let is_value = match entry.value() {
            ValueRef::Bytes(bytes) => bytes == value_of(number),
            ValueRef::Blob(blob) => blob[..] == value_of(number),
            _ => false,
        };
        assert!(is_value, "{number}");
        assert_eq!(entry.expire_at_ms(), number.is_multiple_of(3).then_some(1 << 41));
        assert_eq!(entry.clock(), number);
    }
}

#[test]
fn entries_leave_sparse_slabs_and_runs() {
    const KEYS: u32 = 80_000;
    let mut table = Table::<()>::new();
    fill(&mut table, 0..KEYS);
    let stay = (0..KEYS).filter(|number| number.is_multiple_of(11));
    (0..KEYS)
        .filter(|number| !number.is_multiple_of(11))
        .for_each(|number| drop(table.remove(hash(number), &number.to_be_bytes())));
    cells::return_free_cells();
    allocator::command(b"thread.tcache.flush").expect("the cache is emptied");
    let used_pages = |table: &Table<()>| pages(table.iter().map(|entry| entry.key().as_ptr().addr()));
    let (runs_before, pages_before, balance) = (run_bytes(), used_pages(&table), thread_balance());
    let mut seen = HashSet::new();
    let (mut cursor, mut scan_cursor) = (Some(0), Some(0));
    let moved = run_in_steps(|mover| {
        if let Some(from) = cursor {
            cursor = table.relocate_entries(from, mover, &mut |_, _, _| {});
        }
        // A scan between the steps sees every key.
        if let Some(from) = scan_cursor {
            scan_cursor = table.scan(from, 3, &mut |entry| {
                seen.insert(entry.key().to_vec());
            });
        }
        cursor.is_none() && scan_cursor.is_none()
    });
    assert_eq!(seen.len(), table.len());
    drop(seen);
    assert_eq!(thread_balance(), balance);
    assert!(moved > 1000, "{moved}");
    assert_filled(&table, stay);
    let (runs_after, pages_after) = (run_bytes(), used_pages(&table));
    assert!(
        runs_after < runs_before / 2,
        "{runs_before} bytes of runs before, {runs_after} after"
    );
    assert!(
        pages_after < pages_before / 2,
        "{pages_before} pages before, {pages_after} after"
    );
}

#[test]
fn free_cells_of_a_thread_return_to_the_pools() {
    let kept = || cells::figures().iter().map(|class| class.kept_bytes).sum::<u64>();
    thread::spawn(move || {
        let mut table = Table::<()>::new();
        fill(&mut table, (0..1000).filter(|number| number % 5 < 2));
        drop(table);
        assert!(kept() > 0);
        let balance = thread_balance();
        cells::return_free_cells();
        assert_eq!(thread_balance(), balance);
        cells::return_free_cells();
    })
    .join()
    .expect("the thread ends well");
}
