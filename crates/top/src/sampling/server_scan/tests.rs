//! Tests of reading the server's report about the biggest keys.

use super::parse;
use crate::connection::reply::RespValue;
use crate::sampling::keys::BiggestKeys;

fn text(text: &str) -> RespValue {
    RespValue::Text(text.as_bytes().to_vec())
}

/// A map, as RESP2 sends it.
fn map(fields: &[(&str, RespValue)]) -> RespValue {
    let pairs = fields.iter().flat_map(|(name, value)| [text(name), value.clone()]);
    RespValue::Array(pairs.collect())
}

fn key(name: &str, bytes: i64, elements: i64) -> RespValue {
    map(&[
        ("database", RespValue::Integer(2)),
        ("key", text(name)),
        ("bytes", RespValue::Integer(bytes)),
        ("elements", RespValue::Integer(elements)),
    ])
}

fn of_type(name: &str, keys: Vec<RespValue>) -> RespValue {
    map(&[("type", text(name)), ("biggest", RespValue::Array(keys))])
}

#[test]
fn keys_of_all_types_are_ordered_by_their_memory() {
    let types = vec![
        of_type("string", vec![key("s\u{7}", 500, 480)]),
        of_type("list", Vec::new()),
        of_type("hash", vec![key("big", 9000, 70), key("small", 100, 3)]),
    ];
    let reply = map(&[
        ("state", text("complete")),
        ("keys", RespValue::Integer(12)),
        ("types", RespValue::Array(types)),
    ]);
    let report = parse(&reply).expect("a report");
    assert!(report.is_complete && !report.is_running);
    assert_eq!(report.keys, 12);
    let rows = report.biggest.merged(&BiggestKeys::default());
    let seen: Vec<(&str, &str, u64, Option<u64>)> = rows
        .iter()
        .map(|row| (row.name.as_str(), row.kind.as_str(), row.memory_bytes, row.elements))
        .collect();
    let expected = [
        ("big", "hash", 9000, Some(70)),
        ("s\\u{7}", "string", 500, Some(480)),
        ("small", "hash", 100, Some(3)),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn replies_that_are_no_report_are_refused() {
    let without_types = map(&[("state", text("running")), ("keys", RespValue::Integer(1))]);
    for reply in [RespValue::Null, text("OK"), without_types] {
        assert!(parse(&reply).is_none(), "{reply:?}");
    }
}
