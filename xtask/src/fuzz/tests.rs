//! Tests of reading what libFuzzer reports.

use super::final_line;

#[test]
fn a_report_without_a_run_is_none_of_a_target_that_ran() {
    let report = "INFO: Seed: 1\n#2\tINITED cov: 5\n#4096\tDONE   cov: 7\nDone 4096 runs in 31 second(s)\n";
    assert_eq!(final_line(report), Some("Done 4096 runs in 31 second(s)"));
    for report in [
        "",
        "INFO: Seed: 1\n",
        "Done 0 runs in 30 second(s)\n",
        "Done many runs in 30 second(s)\n",
        "Done \n",
        "not Done 5 runs in 1 second(s)\n",
    ] {
        assert_eq!(final_line(report), None, "{report:?}");
    }
}
