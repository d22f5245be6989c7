//! The index finds exactly the keys that are due, and reads few entries to find them.

use super::ValueDue;
use crate::expiry_unit::{NEVER, ORIGIN_MS, start_of_ms, unit_of};
use crate::{NewValue, Table};

const NOW_MS: u64 = 1_800_000_000_000;

fn hash(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Returns a table in which key `n` expires at `NOW_MS` + `after_ms(n)`.
fn table_of(count: u64, after_ms: impl Fn(u64) -> Option<u64>) -> Table<()> {
    let mut table = Table::new();
    for number in 0..count {
        let expire_at_ms = after_ms(number).map(|after| NOW_MS + after);
        let value = NewValue::Int(0);
        drop(table.insert(hash(number), &number.to_be_bytes(), value, expire_at_ms, 0));
    }
    table
}

fn expired_by(table: &mut Table<()>, now_ms: u64, at_most: usize) -> usize {
    let mut removed = Vec::new();
    while table.expire_due(now_ms, at_most, &mut removed, &mut |_, _| ValueDue::At(None)) {}
    for entry in &removed {
        assert!(entry.expire_at_ms().is_some_and(|at| at < now_ms));
    }
    removed.len()
}

#[test]
fn units_are_lower_bounds() {
    for time_ms in [
        0,
        1,
        ORIGIN_MS - 1,
        ORIGIN_MS,
        ORIGIN_MS + 255,
        NOW_MS,
        1 << 50,
        u64::MAX,
    ] {
        let unit = unit_of(time_ms);
        assert!(unit < NEVER && start_of_ms(unit) <= time_ms, "{time_ms}");
    }
    assert_eq!(start_of_ms(unit_of(NOW_MS)) / 256, NOW_MS / 256);
}

#[test]
fn a_key_is_due_only_after_its_time_has_passed() {
    let mut table = table_of(1, |_| Some(0));
    assert!(
        table
            .next_due_ms()
            .is_some_and(|due| due <= NOW_MS && due > NOW_MS - 256)
    );
    assert_eq!(expired_by(&mut table, NOW_MS - 300, 1), 0);
    assert_eq!(expired_by(&mut table, NOW_MS, 1), 0);
    assert_eq!(expired_by(&mut table, NOW_MS + 1, 1), 1);
    assert_eq!(table.next_due_ms(), None);
}

#[test]
fn every_due_key_is_found_at_any_size() {
    for count in [1, 100, 183, 5_000, 100_000] {
        let period = count * 10;
        let mut table = table_of(count, |number| (number % 3 > 0).then(|| number * 7919 % period));
        let mut left = count - count.div_ceil(3);
        assert_eq!(table.with_expiry() as u64, left);
        for step in 1..=20 {
            let now_ms = NOW_MS + period * step / 20;
            left -= expired_by(&mut table, now_ms, 37) as u64;
            let due = table.iter().filter_map(|entry| entry.expire_at_ms());
            assert!(due.into_iter().all(|at| at >= now_ms), "{count} keys, step {step}");
            assert_eq!(table.with_expiry() as u64, left);
        }
        assert_eq!(left, 0);
        assert_eq!(table.len() as u64, count.div_ceil(3));
        assert_eq!(table.next_due_ms(), None);
    }
}

#[test]
fn a_postponed_expiry_costs_one_examination() {
    let mut table = table_of(183, |_| Some(1_000));
    for number in 0..183 {
        let mut entry = table.find_mut(hash(number), &u64::to_be_bytes(number)).unwrap();
        drop(entry.set_expire(Some(NOW_MS + 9_000)));
    }
    assert!(table.next_due_ms().unwrap() <= NOW_MS + 1_000);
    assert_eq!(expired_by(&mut table, NOW_MS + 2_000, 10), 0);
    assert!(table.next_due_ms().unwrap() > NOW_MS + 8_700);
    assert_eq!(expired_by(&mut table, NOW_MS + 9_001, 1_000), 183);
}

#[test]
fn persisting_all_keys_frees_the_index() {
    let mut table = table_of(100, |_| Some(5));
    let with_index = table.memory_bytes();
    for number in 0..100 {
        let mut entry = table.find_mut(hash(number), &u64::to_be_bytes(number)).unwrap();
        drop(entry.set_expire(None));
    }
    assert_eq!((table.with_expiry(), table.next_due_ms()), (0, None));
    assert!(table.memory_bytes() < with_index);
}

#[test]
fn a_sweep_tolerates_growth_and_new_expiries_in_swept_segments() {
    let mut table = table_of(60_000, |number| Some(number % 1_000));
    let mut removed = Vec::new();
    for round in 0..50 {
        assert!(table.expire_due(NOW_MS + 500, 100, &mut removed, &mut |_, _| ValueDue::At(None)));
        for number in 0..1_000 {
            let number: u64 = 1_000_000 + round * 1_000 + number;
            let expiry = Some(NOW_MS + 100 + number % 7);
            let value = NewValue::Int(0);
            drop(table.insert(hash(number), &number.to_be_bytes(), value, expiry, 0));
        }
    }
    while table.expire_due(NOW_MS + 501, 1_000, &mut removed, &mut |_, _| ValueDue::At(None)) {}
    assert_eq!(removed.len(), 30_060 + 50_000);
    assert!(table.iter().all(|entry| entry.expire_at_ms() >= Some(NOW_MS + 501)));
    assert!(table.next_due_ms().unwrap() > NOW_MS + 200);
}

/// Sweeps until nothing is due. Each value is the times of its parts, of which those before `now_ms` are removed.
fn swept_parts(table: &mut Table<Vec<u64>>, now_ms: u64) -> (usize, usize) {
    let (mut parts, mut removed) = (0, Vec::new());
    let mut look = |_: &[u8], times: &mut Vec<u64>| {
        let before = times.len();
        times.retain(|at_ms| *at_ms >= now_ms);
        parts += before - times.len();
        match times.is_empty() {
            true => ValueDue::Empty,
            false => ValueDue::At(times.iter().min().copied()),
        }
    };
    while table.expire_due(now_ms, 10, &mut removed, &mut look) {}
    (parts, removed.len())
}

#[test]
fn parts_of_values_are_due_without_their_keys_and_through_growth() {
    for count in [3, 3_000_u64] {
        let mut table: Table<Vec<u64>> = Table::new();
        for number in 0..count {
            let key = number.to_be_bytes();
            let (early, late) = (NOW_MS + number % 100, NOW_MS + 1_000_000);
            let times = if number % 3 == 0 {
                vec![early]
            } else {
                vec![late, early]
            };
            drop(table.insert(hash(number), &key, NewValue::Object(times), None, 0));
            let mut entry = table.find_mut(hash(number), &key).unwrap();
            entry.note_value_due(early);
        }
        assert_eq!(table.with_expiry(), 0);
        assert!(table.next_due_ms().is_some_and(|due| due <= NOW_MS));
        assert_eq!(swept_parts(&mut table, NOW_MS), (0, 0));
        let emptied = count.div_ceil(3) as usize;
        assert_eq!(swept_parts(&mut table, NOW_MS + 100), (count as usize, emptied));
        assert_eq!(table.len(), count as usize - emptied);
        assert!(table.next_due_ms().is_some_and(|due| due > NOW_MS + 999_000));
        assert_eq!(swept_parts(&mut table, NOW_MS + 1_000_001).1, count as usize - emptied);
        assert_eq!((table.len(), table.next_due_ms()), (0, None));
    }
}

/// The number of examined values grows with the number of values, not with its square.
#[test]
fn a_sweep_ends_where_the_limit_of_parts_is_reached_and_continues_there() {
    const PARTS_PER_CALL: usize = 10;
    let now_ms = NOW_MS + 1;
    for count in [100, 5_000_u64] {
        let mut table: Table<Vec<u64>> = Table::new();
        for number in 0..count {
            let key = number.to_be_bytes();
            let times = vec![NOW_MS, NOW_MS + 1_000_000];
            drop(table.insert(hash(number), &key, NewValue::Object(times), None, 0));
            table.find_mut(hash(number), &key).unwrap().note_value_due(NOW_MS);
        }
        let (mut calls, mut examined, mut parts, mut removed) = (0, 0, 0, Vec::new());
        let mut has_more = true;
        while has_more {
            let mut left = PARTS_PER_CALL;
            let mut look = |_: &[u8], times: &mut Vec<u64>| {
                examined += 1;
                if times.iter().any(|at_ms| *at_ms < now_ms) {
                    if left == 0 {
                        return ValueDue::LimitReached;
                    }
                    times.retain(|at_ms| *at_ms >= now_ms);
                    (left, parts) = (left - 1, parts + 1);
                }
                ValueDue::At(times.iter().min().copied())
            };
            has_more = table.expire_due(now_ms, 64, &mut removed, &mut look);
            calls += 1;
        }
        assert!(removed.is_empty());
        assert_eq!(
            (parts, calls),
            (count as usize, (count as usize).div_ceil(PARTS_PER_CALL))
        );
        // A call examines values again only in the bucket at which the one before it has ended.
        assert!(examined <= parts + 8 * calls, "{examined} of {count} in {calls} calls");
    }
}

#[test]
fn values_stay_due_after_the_last_expiring_key_is_removed() {
    let mut table: Table<Vec<u64>> = Table::new();
    drop(table.insert(hash(1), b"1", NewValue::Object(vec![NOW_MS]), None, 0));
    table.find_mut(hash(1), b"1").unwrap().note_value_due(NOW_MS);
    drop(table.insert(hash(2), b"2", NewValue::Int(0), Some(NOW_MS + 5), 0));
    drop(table.remove(hash(2), b"2"));
    assert_eq!(swept_parts(&mut table, NOW_MS + 1), (1, 1));
}
