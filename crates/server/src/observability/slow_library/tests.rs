//! Tests when slow code is reported.

use super::*;

#[test]
fn slow_code_is_reported_once() {
    let report = SlowLibraryReport::new("A test");
    let after = |seconds| report.since + Duration::from_secs(seconds);
    assert!(!report.is_due(after(4)));
    assert!(report.is_due(after(5)));
    assert!(!report.is_due(after(5)) && !report.is_due(after(60)));
}
