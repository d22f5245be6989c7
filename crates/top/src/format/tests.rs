//! Tests of short texts.

use super::{bytes, bytes_per_s, count, decimal, duration, integer, microseconds, percent};

#[test]
fn units_grow_with_the_figure() {
    assert_eq!(count(Some(0.0)), "0");
    assert_eq!(count(Some(0.5)), "0.5");
    assert_eq!(count(Some(999.0)), "999");
    assert_eq!(count(Some(999.9)), "1.0K");
    assert_eq!(count(Some(12_345.0)), "12.3K");
    assert_eq!(count(Some(1e30)), "1000000000000000P");
    assert_eq!(bytes(Some(1536.0)), "1.5 KiB");
    assert_eq!(bytes_per_s(Some(0.0)), "0 B/s");
    assert_eq!(microseconds(Some(1500.0)), "1.5 ms");
    assert_eq!(duration(Some(59)), "59s");
    assert_eq!(duration(Some(3_720)), "1h 2m");
    assert_eq!(duration(Some(90_000)), "1d 1h");
    assert_eq!(percent(Some(0.123)), "12.3 %");
}

#[test]
fn unknown_figures_are_a_dash() {
    let texts = [
        count(None),
        bytes(None),
        percent(None),
        microseconds(None),
        duration(None),
        integer(None),
        decimal(None, 2),
    ];
    assert!(texts.iter().all(|text| text == "-"));
}
