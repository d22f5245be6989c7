//! Tests of the search for big keys.

use std::time::{Duration, Instant};

use super::{BiggestKeys, FoundKey, KEPT_KEYS, KeySearch, parse_page};
use crate::connection::reply::RespValue;

fn insert(keys: &mut BiggestKeys, database: u64, name: &str, memory_bytes: u64) {
    keys.insert(FoundKey {
        database,
        name: name.as_bytes(),
        kind: "string".to_owned(),
        memory_bytes,
        elements: None,
    });
}

#[test]
fn only_the_biggest_keys_are_kept() {
    let mut keys = BiggestKeys::default();
    for size in 0..1000_u64 {
        insert(&mut keys, 0, &format!("key{size}"), size);
        insert(&mut keys, 0, &format!("key{size}"), size);
    }
    let rows = keys.merged(&BiggestKeys::default());
    assert_eq!(rows.len(), KEPT_KEYS);
    assert_eq!(rows[0].memory_bytes, 999);
    assert_eq!(rows[KEPT_KEYS - 1].memory_bytes, 900);
}

#[test]
fn a_key_of_both_passes_is_shown_once_with_its_newer_size() {
    let (mut older, mut newer) = (BiggestKeys::default(), BiggestKeys::default());
    insert(&mut older, 0, "a", 100);
    insert(&mut newer, 0, "a", 50);
    insert(&mut older, 1, "a", 70);
    let sizes: Vec<u64> = newer.merged(&older).iter().map(|row| row.memory_bytes).collect();
    assert_eq!(sizes, [70, 50]);
}

#[test]
fn pages_take_at_most_one_percent_of_the_time() {
    let now = Instant::now();
    let mut search = KeySearch::new(vec![0], now);
    assert_eq!(search.next_page(), now);
    search.record_time(now, Duration::from_millis(2));
    assert_eq!(search.next_page(), now + Duration::from_millis(200));
    search.record_time(now, Duration::from_secs(5));
    assert_eq!(search.next_page(), now + Duration::from_secs(500));
}

#[test]
fn pages_that_are_not_pages_are_refused() {
    let text = |text: &str| RespValue::Text(text.as_bytes().to_vec());
    let page = |cursor: &str| RespValue::Array(vec![text(cursor), RespValue::Array(vec![text("k"), RespValue::Null])]);
    assert_eq!(
        parse_page(Some(&page("12"))),
        Some((b"12".to_vec(), vec![b"k".to_vec()]))
    );
    assert_eq!(parse_page(Some(&page("12\r\nx"))), None);
    assert_eq!(parse_page(Some(&text("x"))), None);
    assert_eq!(parse_page(None), None);
}

#[test]
fn databases_are_replaced_only_between_passes() {
    let mut search = KeySearch::new(vec![0, 3], Instant::now());
    search.advance(b"17".to_vec());
    search.set_databases(vec![5]);
    assert_eq!(search.databases, [0, 3], "the cursor belongs to database 0");
    search.advance(b"0".to_vec());
    search.set_databases(vec![5]);
    assert_eq!(search.databases, [0, 3], "database 3 is still to come");
    search.advance(b"0".to_vec());
    search.set_databases(vec![5]);
    assert_eq!(search.databases, [5]);
}
