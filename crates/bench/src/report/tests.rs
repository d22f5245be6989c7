//! Tests of tables and ratios.

use super::*;

fn measurement(requests_per_s: f64, server_cpu_us: f64, server_busy: f64) -> Measurement {
    Measurement {
        requests_per_s,
        server_cpu_us: Some(server_cpu_us),
        server_busy_cores: Some(server_busy),
        server_cpu_us_per_delivery: None,
        client_cpu_us: 0.2,
        p50_us: 100.0,
        p99_us: 200.0,
        p999_us: 300.0,
        max_us: 400.0,
        replies: 1000,
        all_replies: 1300,
        misses: 0,
        unanswered: 0,
        server_rss_bytes: None,
    }
}

fn report() -> Report {
    let weft = vec![
        measurement(2_000_000.0, 0.5, 0.8),
        measurement(900_000.0, 0.6, 0.8),
        measurement(2_200_000.0, 0.4, 0.8),
    ];
    let valkey = vec![
        measurement(1_000_000.0, 1.0, 1.0),
        measurement(300_000.0, 3.0, 1.0),
        measurement(1_100_000.0, 1.0, 1.0),
    ];
    let loads = vec![LoadRow {
        load: "get".into(),
        value_size: 512,
        pipeline: 16,
        notes: vec!["Weft: 7 long commands".into()],
        sides: vec![weft, valkey],
    }];
    let memory = vec![MemoryRow {
        what: "",
        value_size: 64,
        ttl: true,
        keys: 10,
        bytes_per_key: vec![100.0, 125.0],
    }];
    let environment = RunEnvironment {
        date: "2026-11-29 12:00 UTC".into(),
        processor: "a processor".into(),
        processors: 2,
        memory_bytes: Some(8 << 30),
        kernel: "6.1".into(),
    };
    let mut report = Report::new(environment, "weft-bench compare --set strings".into(), json!({}));
    let version = "valkey_version 9.1.2, LD_PRELOAD libjemalloc.so.2".to_string();
    report.versions.push(("Valkey".into(), version));
    report.sections.push(Section {
        title: "Strings".into(),
        labels: vec!["Weft".into(), "Valkey".into()],
        commands: vec!["weft-server --io-threads 1".into(), "valkey-server".into()],
        remarks: vec!["A remark".into()],
        pinned: true,
        loads,
        memory,
        worker_points: Vec::new(),
    });
    report.idle.push(IdleRow {
        label: "64 threads".into(),
        seconds: 10.0,
        cpu_ms: 5.0,
    });
    report
}

#[test]
fn the_median_is_the_middle_value() {
    let cases: [(&[f64], Option<f64>); 4] = [
        (&[], None),
        (&[3.0], Some(3.0)),
        (&[9.0, 1.0, 5.0], Some(5.0)),
        (&[4.0, 1.0, 2.0, 100.0], Some(3.0)),
    ];
    for (values, expected) in cases {
        assert_eq!(median(values.iter().copied()), expected);
    }
}

#[test]
fn ratios_are_taken_within_rounds() {
    let report = report();
    let row = &report.sections[0].loads[0];
    // The ratios of the rounds are 2.0, 3.0 and 2.0. The slow second round does not mix with the other two.
    assert_eq!(row.ratio(REQUESTS, 1), Some(2.0));
    assert_eq!(row.ratio(SERVER_CPU, 1), Some(0.4));
    assert_eq!(row.median(0, REQUESTS), Some(2_000_000.0));
}

#[test]
fn markdown_has_the_numbers_and_marks_a_limiting_client() {
    let text = report().markdown();
    let expected = [
        "a processor, 2 logical CPUs, 8.0 GiB of memory, Linux 6.1, 2026-11-29 12:00 UTC.",
        "Command line: `weft-bench compare --set strings`.",
        "- Valkey: valkey_version 9.1.2, LD_PRELOAD libjemalloc.so.2.",
        "### Strings",
        "- Weft: `weft-server --io-threads 1`",
        "- A remark.",
        "| load | Weft req/s | Valkey req/s | ratio |",
        "| get 512 B P16 | 2,000,000 † | 1,000,000 | 2.00x | 0.50 | 1.00 | 0.40x | 100 / 200 / 300 |",
        "† The server used less than 95% of its core",
        "| 10 keys, 64 B with expiry | 100.0 | 125.0 | 0.80x |",
        "| 64 threads | 10 | 5.0 | 0.050% |",
    ];
    for line in expected {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert_columns_match(&text);
    assert!(!text.contains(DELIVERY_UNIT));
}

#[test]
fn an_early_end_is_the_first_thing_after_the_versions() {
    let mut report = report();
    assert!(report.has_rows() && !report.markdown().contains("ended early"));
    report.early_end = Some("interrupted".into());
    let text = report.markdown();
    let (place, table) = (
        text.find("**The run ended early: interrupted.**"),
        text.find("| load |"),
    );
    assert!(place.is_some() && place < table, "{text}");
    assert_eq!(report.json()["early_end"], "interrupted");
    report.idle.clear();
    report.sections[0].loads.clear();
    report.sections[0].memory.clear();
    assert!(!report.has_rows());
}

fn assert_columns_match(text: &str) {
    let columns = |line: &str| line.matches('|').count();
    let rows: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| load") || line.starts_with("| get"))
        .collect();
    assert_eq!(columns(rows[0]), columns(rows[1]));
}

#[test]
fn the_first_side_is_compared_with_each_other_side() {
    let mut report = report();
    let section = &mut report.sections[0];
    section.labels.push("Third".into());
    section.loads[0].sides.push(vec![measurement(500_000.0, 2.0, 1.0); 3]);
    section.memory[0].bytes_per_key.push(50.0);
    let row = &section.loads[0];
    assert_eq!(
        (row.ratio(REQUESTS, 1), row.ratio(REQUESTS, 2), row.ratio(REQUESTS, 3)),
        (Some(2.0), Some(4.0), None)
    );
    let text = report.markdown();
    let expected = [
        "| load | Weft req/s | Valkey req/s | Third req/s | ratio to Valkey | ratio to Third |",
        "| get 512 B P16 | 2,000,000 † | 1,000,000 | 500,000 | 2.00x | 4.00x | 0.50 | 1.00 | 2.00 | 0.40x | 0.25x |",
        "| 10 keys, 64 B with expiry | 100.0 | 125.0 | 50.0 | 0.80x | 2.00x |",
    ];
    for line in expected {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert_columns_match(&text);
    let json = report.json();
    let ratios = &json["sections"][0]["loads"][0]["ratios"];
    assert_eq!(ratios[1]["to"], "Third");
    assert_eq!(ratios[1]["ratio"]["requests_per_s"], 4.0);
}

#[test]
fn deliveries_have_columns_if_there_are_any() {
    let mut report = report();
    for (side, cost) in report.sections[0].loads[0].sides.iter_mut().zip([0.25, 0.5]) {
        for measured in side {
            measured.server_cpu_us_per_delivery = Some(cost);
        }
    }
    let text = report.markdown();
    for line in [
        "| Weft CPU-µs/delivery | Valkey CPU-µs/delivery | ratio |",
        "| 0.250 | 0.500 | 0.50x |",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert_columns_match(&text);
}

#[test]
fn one_side_alone_has_no_ratios() {
    let mut report = report();
    report.versions.clear();
    let section = &mut report.sections[0];
    section.labels.pop();
    section.loads[0].sides.pop();
    section.memory[0].bytes_per_key.pop();
    let text = report.markdown();
    assert!(!text.contains("ratio |") && !text.contains("Valkey"), "{text}");
    assert!(report.json()["sections"][0]["loads"][0]["ratio"]["requests_per_s"].is_null());
}

#[test]
fn json_has_medians_ratios_and_every_round() {
    let json = report().json();
    let load = &json["sections"][0]["loads"][0];
    assert_eq!(load["ratio"]["requests_per_s"], 2.0);
    assert_eq!(load["sides"][0]["median"]["p999_us"], 300.0);
    assert_eq!(load["sides"][1]["rounds"].as_array().map(Vec::len), Some(3));
    assert_eq!(load["sides"][1]["rounds"][1]["requests_per_s"], 300_000.0);
    assert_eq!(json["sections"][0]["memory"][0]["ratio"], 0.8);
    assert_eq!(json["idle"][0]["cpu_ms"], 5.0);
}

#[test]
fn numbers_are_grouped_by_thousands() {
    let cases = [
        (0.0, "0"),
        (999.4, "999"),
        (1000.0, "1,000"),
        (12_345_678.0, "12,345,678"),
    ];
    for (value, text) in cases {
        assert_eq!(format_thousands(Some(value)), text);
    }
}
