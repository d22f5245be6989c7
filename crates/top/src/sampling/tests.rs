//! Tests of parsing and of rates.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::clients::{self, CountersById, MAX_CLIENTS};
use super::info::{InfoFields, InfoPair, part, part_count};
use super::{commands, memory, overview, replication, slots, workers};
use crate::connection::reply::RespValue;

/// Two samples, two seconds apart.
fn samples(earlier: &str, later: &str) -> (InfoFields, InfoFields) {
    let start = Instant::now();
    let second = start + Duration::from_secs(2);
    (
        InfoFields::parse(earlier.as_bytes(), start),
        InfoFields::parse(later.as_bytes(), second),
    )
}

#[test]
fn fields_are_parsed_and_made_printable() {
    let info = InfoFields::parse(
        b"# Server\r\nrun_id:abc\r\nempty:\r\nnoise\r\nevil:\x1b[2J\xff\r\n",
        Instant::now(),
    );
    assert_eq!(info.text("run_id"), Some("abc"));
    assert_eq!(info.text("empty"), None);
    assert_eq!(info.text("evil"), Some("\\u{1b}[2J\\xff"));
    assert_eq!(info.all().count(), 3);
}

#[test]
fn numbers_that_are_not_finite_are_no_numbers() {
    let info = InfoFields::parse(b"a:nan\r\nb:inf\r\nc:12.5%\r\nd:-1\r\n", Instant::now());
    assert_eq!(info.number("a"), None);
    assert_eq!(info.number("b"), None);
    assert_eq!(info.number("c"), Some(12.5));
    assert_eq!(info.count("d"), None);
}

#[test]
fn parts_of_values_are_found_by_their_whole_name() {
    assert_eq!(part("calls=1,usec=2,usec_per_call=3.00", "usec"), Some("2"));
    assert_eq!(part_count("p99=1,p99.9=2", "p99"), Some(1));
    assert_eq!(part("usec_per_call=3", "usec"), None);
}

#[test]
fn rates_are_increases_per_second() {
    let (earlier, later) = samples(
        "run_id:a\nused_cpu_user:1.0\nused_cpu_sys:1.0\ntotal_commands_processed:100\nkeyspace_hits:10\nkeyspace_misses:0",
        "run_id:a\nused_cpu_user:1.5\nused_cpu_sys:1.5\ntotal_commands_processed:2100\nkeyspace_hits:13\nkeyspace_misses:1",
    );
    let figures = overview::figures(&InfoPair::new(Some(&earlier), &later));
    assert_eq!(figures.operations_per_s, Some(1000.0));
    assert_eq!(figures.cpu_cores, Some(0.5));
    assert_eq!(figures.cpu_us_per_command, Some(500.0));
    assert_eq!(figures.hit_ratio, Some(0.75));
    assert_eq!(figures.evicted_keys_per_s, None);
}

#[test]
fn a_restart_or_a_reset_gives_no_rates() {
    let (earlier, later) = samples("run_id:a\nx:100", "run_id:b\nx:200");
    assert_eq!(InfoPair::new(Some(&earlier), &later).rate("x"), None);
    let (earlier, later) = samples("run_id:a\nx:100", "run_id:a\nx:20");
    assert_eq!(InfoPair::new(Some(&earlier), &later).rate("x"), None);
}

#[test]
fn the_clock_of_the_server_is_used_unless_it_jumps() {
    let pair = |before: &str, after: &str| {
        let (earlier, later) = samples(before, after);
        InfoPair::new(Some(&earlier), &later).seconds()
    };
    assert_eq!(pair("server_time_usec:0", "server_time_usec:1900000"), Some(1.9));
    assert_eq!(pair("server_time_usec:0", "server_time_usec:9999999999"), Some(2.0));
    assert_eq!(pair("server_time_usec:9999999999", "server_time_usec:0"), Some(2.0));
}

#[test]
fn workers_of_weft_and_threads_of_valkey_are_shown() {
    let (earlier, later) = samples(
        "weft_worker10:connections=1,requests=0,busy_ms=0\nweft_worker9:connections=1,requests=0,busy_ms=0",
        "weft_workers:2\nweft_worker10:connections=5,requests=20,busy_ms=500\nweft_worker9:connections=1,requests=2,busy_ms=0",
    );
    let figures = workers::figures(&InfoPair::new(Some(&earlier), &later)).unwrap();
    let names: Vec<&str> = figures.threads.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["worker 9", "worker 10"]);
    assert_eq!(figures.threads[1].busy_share, Some(0.25));
    assert_eq!(figures.threads[1].commands_per_s, Some(10.0));

    let (earlier, later) = samples(
        "used_active_time_main_thread:1\nused_active_time_io_thread_1:0",
        "used_active_time_main_thread:2\nused_active_time_io_thread_1:1",
    );
    let figures = workers::figures(&InfoPair::new(Some(&earlier), &later)).unwrap();
    assert_eq!(figures.threads[1].name, "I/O thread 1");
    assert_eq!(figures.threads[1].busy_share, Some(0.5));

    let (earlier, later) = samples("", "");
    assert!(workers::figures(&InfoPair::new(Some(&earlier), &later)).is_err());
}

#[test]
fn commands_have_their_share_of_the_time() {
    let (earlier, later) = samples(
        "cmdstat_get:calls=10,usec=100,usec_per_call=10.00,rejected_calls=0,failed_calls=0",
        "cmdstat_get:calls=30,usec=400,usec_per_call=13.33,rejected_calls=0,failed_calls=2\n\
         cmdstat_set:calls=1,usec=100,usec_per_call=100.00,rejected_calls=0,failed_calls=0\n\
         latency_percentiles_usec_get:p50=9.5,p99=20,p99.9=30",
    );
    let rows = commands::figures(&InfoPair::new(Some(&earlier), &later)).unwrap();
    assert_eq!((rows[0].name.as_str(), rows[0].time_share), ("get", Some(0.75)));
    assert_eq!(rows[0].calls_per_s, Some(10.0));
    assert_eq!(rows[0].us_per_call, Some(15.0));
    assert_eq!(rows[0].failed_per_s, Some(1.0));
    assert_eq!(
        (rows[0].p50_us, rows[0].p99_us, rows[0].p999_us),
        (Some(9.5), Some(20.0), Some(30.0))
    );
    // A command that was first called after the earlier sample.
    assert_eq!(rows[1].calls_per_s, Some(0.5));
}

#[test]
fn clients_are_parsed_and_have_rates() {
    let before = b"id=3 addr=1:2 name=a tot-net-in=100 tot-net-out=0 tot-cmds=1\n";
    let after =
        b"id=3 addr=1:2 name=\x1b[2J cmd=get tot-net-in=300 tot-net-out=50 tot-cmds=5\nid=4 addr=x\nnoise\nid=x\n";
    let (_, counters) = clients::figures(before, &CountersById::new(), None);
    let (figures, _) = clients::figures(after, &counters, Some(2.0));
    assert_eq!(figures.total, 2);
    assert_eq!(figures.rows[0].name, "\\u{1b}[2J");
    assert_eq!(figures.rows[0].in_bytes_per_s, Some(100.0));
    assert_eq!(figures.rows[0].commands_per_s, Some(2.0));
    assert_eq!(figures.rows[1].in_bytes_per_s, None);
}

#[test]
fn the_number_of_kept_clients_is_bounded() {
    let many: String = (0..MAX_CLIENTS + 10).map(|id| format!("id={id} addr=a\n")).collect();
    let (figures, _) = clients::figures(many.as_bytes(), &CountersById::new(), None);
    assert_eq!((figures.total, figures.rows.len()), (MAX_CLIENTS + 10, MAX_CLIENTS));
}

#[test]
fn slots_are_parsed_and_nonsense_is_skipped() {
    let text = |text: &str| RespValue::Text(text.as_bytes().to_vec());
    let slot = |number: i64, us: i64| {
        let figures = vec![
            text("cpu-usec"),
            RespValue::Integer(us),
            text("new-figure"),
            RespValue::Null,
        ];
        RespValue::Array(vec![RespValue::Integer(number), RespValue::Array(figures)])
    };
    let reply = RespValue::Array(vec![
        slot(7, 300),
        slot(-1, 5),
        RespValue::Null,
        RespValue::Array(Vec::new()),
    ]);
    let rows = slots::rows(&reply, &HashMap::from([(7, 100)]), Some(2.0));
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0].slot, rows[0].cpu_us, rows[0].cpu_us_per_s),
        (7, Some(300), Some(100.0))
    );
}

#[test]
fn replicas_and_the_primary_are_found() {
    let now = Instant::now();
    let info = InfoFields::parse(
        b"role:slave\nmaster_host:h\nmaster_port:1\nmaster_link_status:down\nmaster_repl_offset:100\n\
          slave_read_repl_offset:100\nslave_repl_offset:90\nslave_priority:100\n\
          slave0:ip=1.2.3.4,port=5,state=online,offset=60,lag=1,type=replica",
        now,
    );
    let figures = replication::figures(&InfoPair::new(None, &info)).unwrap();
    let primary = figures.primary.unwrap();
    assert_eq!((primary.address.as_str(), primary.status.as_str()), ("h:1", "down"));
    assert_eq!(primary.behind_bytes, Some(10));
    assert_eq!(figures.replicas.len(), 1);
    assert_eq!(figures.replicas[0].address, "1.2.3.4:5");
    assert_eq!(figures.replicas[0].behind_bytes, Some(40));
}

#[test]
fn consumers_of_memory_are_sorted() {
    let info = InfoFields::parse(
        b"used_memory:100\nused_memory_rss:200\nused_memory_dataset:50\nmem_clients_normal:60\nused_memory_human:100B",
        Instant::now(),
    );
    let figures = memory::figures(&info).unwrap();
    let fields: Vec<&str> = figures.consumers.iter().map(|consumer| consumer.field).collect();
    assert_eq!(fields, ["mem_clients_normal", "used_memory_dataset"]);
    assert_eq!(figures.consumers[0].share, Some(0.3));
    assert!(!figures.fields.contains_key("used_memory_human"));
}
