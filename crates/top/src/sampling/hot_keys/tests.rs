//! Tests of reading the server's report about the most used keys.

use super::parse;
use crate::connection::reply::RespValue;

fn text(text: &str) -> RespValue {
    RespValue::Text(text.as_bytes().to_vec())
}

/// A map, as RESP2 sends it.
fn map(fields: &[(&str, RespValue)]) -> RespValue {
    let pairs = fields.iter().flat_map(|(name, value)| [text(name), value.clone()]);
    RespValue::Array(pairs.collect())
}

fn report(keys: Vec<RespValue>) -> RespValue {
    map(&[
        ("state", text("on")),
        ("sample-ratio", RespValue::Integer(64)),
        ("started-ms", RespValue::Integer(1)),
        ("duration-ms", RespValue::Integer(2000)),
        ("samples", RespValue::Integer(5)),
        ("keys", RespValue::Array(keys)),
    ])
}

fn key(name: &str, share: &str) -> RespValue {
    map(&[
        ("database", RespValue::Integer(3)),
        ("key", text(name)),
        ("key-length", RespValue::Integer(3)),
        ("uses", RespValue::Integer(320)),
        ("error", RespValue::Integer(64)),
        ("share", text(share)),
        ("write-share", text("0")),
        ("time-share", text("0.25")),
    ])
}

#[test]
fn keys_are_read_with_their_rates_and_made_printable() {
    let figures = parse(&report(vec![key("a\u{1b}[2J", "0.5"), key("b", "nan")])).expect("a report");
    assert!(figures.is_sampling);
    assert_eq!((figures.sample_ratio, figures.samples), (64, 5));
    assert_eq!(figures.rows.len(), 1, "a share that is no number makes no row");
    let row = &figures.rows[0];
    assert_eq!((row.name.as_str(), row.database, row.uses), ("a\\u{1b}[2J", 3, 320));
    assert_eq!((row.uses_per_s, row.error), (Some(160.0), 64));
    assert_eq!((row.share, row.write_share, row.time_share), (0.5, 0.0, 0.25));
}

#[test]
fn replies_that_are_no_report_are_refused() {
    for reply in [
        RespValue::Null,
        text("OK"),
        map(&[("state", text("on"))]),
        RespValue::Array(vec![text("x")]),
    ] {
        assert_eq!(parse(&reply), None, "{reply:?}");
    }
}
