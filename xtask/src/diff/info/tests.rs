//! Tests of the comparison of INFO.

use super::*;

const EXCEPTIONS: &str = "== info Modules | module
reason: there are none
== values Server
reason: each process has its own
fields: pid
== values Commandstats
reason: durations
fields: cmdstat_*.usec
";

fn differs(weft: &str, valkey: &str) -> Option<(String, String)> {
    first_difference(weft, valkey, &Exceptions::parse(EXCEPTIONS).unwrap())
}

#[test]
fn names_and_values_are_compared() {
    let valkey = "# Server\r\nmode:standalone\r\npid:1\r\n\r\n# Modules\r\nmodule:lua\r\n";
    let same = "# Server\r\nweft_version:1\r\nmode:standalone\r\npid:2\r\n\r\n# Modules\r\n\r\n# Weft\r\nweft_a:1\r\n";
    assert_eq!(differs(same, valkey), None);
    assert_eq!(differs(&format!("txt:{same}"), valkey), None);
    for (weft, expected) in [
        (same.replace("pid", "process"), ("Server/process:2", "Server/pid")),
        (
            same.replace("standalone", "cluster"),
            ("Server/mode:cluster", "Server/mode:standalone"),
        ),
        (same.replace("pid:2\r\n", ""), ("# Modules", "Server/pid")),
        (same.replace("\r\n# Modules\r\n", ""), ("(end)", "# Modules")),
        (same.replace("weft_a", "other"), ("# Weft", "(end)")),
    ] {
        let expected = (expected.0.to_string(), expected.1.to_string());
        assert_eq!(differs(&weft, valkey), Some(expected), "{weft}");
    }
}

#[test]
fn fields_of_single_threads_are_left_out() {
    let valkey = "# CPU\r\nused_active_time_main_thread:1.5\r\n";
    let fields = |name: &str| format!("{valkey}{name}:0.5\r\n");
    assert_eq!(differs(&fields("used_active_time_io_thread_1"), valkey), None);
    assert!(differs(&fields("used_active_time_io_thread_"), valkey).is_some());
    assert!(differs(&fields("used_active_time_io_thread_x"), valkey).is_some());
    assert!(differs(&fields("used_time_io_thread_1"), valkey).is_some());
}

#[test]
fn parts_of_values_are_compared_by_themselves() {
    let valkey = "# Commandstats\r\ncmdstat_get:calls=1,usec=3\r\ncmdstat_set:calls=1,usec=2\r\n";
    let turned = "# Commandstats\r\ncmdstat_set:calls=1,usec=9\r\ncmdstat_get:calls=1,usec=8\r\n";
    assert_eq!(differs(turned, valkey), None);
    assert!(differs(&turned.replace("calls=1,usec=9", "calls=2,usec=2"), valkey).is_some());
    assert!(differs(&turned.replace("usec=9", "sec=9"), valkey).is_some());
}
