//! The dashboard, the alert rules and the documentation name metrics that exist.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{Client, scrape, start, wait_until};
use crate::harness::port::free_port;
use crate::harness::server::Server;

fn read(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the words of a text that begin with `weft_`.
fn names(text: &str) -> BTreeSet<String> {
    let is_inner = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = text.split(|character| !is_inner(character));
    words
        .filter(|word| word.starts_with("weft_"))
        .map(str::to_owned)
        .collect()
}

/// Returns the names of the metrics and of the series that a primary with an append-only file, its replica, and a
/// cluster node serve.
fn served_names() -> (BTreeSet<String>, BTreeSet<String>) {
    let (primary, primary_metrics) = start(&["--appendonly", "yes"]);
    let follows = format!("127.0.0.1 {}", primary.port);
    let (replica, replica_metrics) = start(&["--replicaof", &follows]);
    let node_metrics = free_port();
    let node = Server::start_node(&["--metrics-port", &node_metrics.to_string()]);
    let mut client = Client::connect(primary.port);
    client.call(&["WEFT", "HOTKEYS", "START", "SAMPLE", "1"]);
    client.call(&["SET", "key", "value"]);
    client.call(&["NOSUCHCOMMAND"]);
    client.call(&["WEFT", "BIGKEYS", "START"]);
    wait_until("the scan is complete", || {
        scrape(primary_metrics).value("weft_big_key_scans_total", &[]) == 1.0
    });
    Client::connect(replica.port).wait_for_info("master_link_status", "up");
    wait_until("the replica is online", || {
        client.info("slave0").contains("state=online")
    });
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    wait_until("a save starts", || {
        client.call(&["BGSAVE"]).starts_with("Background saving")
    });
    wait_until("the save ends", || client.info("rdb_last_bgsave_time_sec") != "-1");
    wait_until("a rewrite starts", || {
        client.call(&["BGREWRITEAOF"]).starts_with("Background append")
    });
    wait_until("the rewrite ends", || client.info("aof_last_rewrite_time_sec") != "-1");
    let mut names = (BTreeSet::new(), BTreeSet::new());
    for port in [primary_metrics, replica_metrics, node_metrics] {
        let scrape = scrape(port);
        names.0.append(&mut scrape.metrics());
        names.1.append(&mut scrape.series_names());
    }
    drop(node);
    names
}

#[test]
fn dashboard_rules_and_documentation_name_what_is_served() {
    let (metrics, series) = served_names();
    let documented = names(&read("docs/metrics.md"));
    let undocumented: Vec<_> = metrics.difference(&documented).collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
    // These exist only during a load, and while a link is broken.
    let rare = [
        "weft_loading_loaded_bytes",
        "weft_loading_total_bytes",
        "weft_replication_link_down_seconds",
    ];
    let is_missing = |name: &&String| !metrics.contains(*name) && !rare.contains(&name.as_str());
    let missing: Vec<_> = documented.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "documented, but not served: {missing:?}");
    for path in ["packaging/grafana/weft.json", "packaging/grafana/alerts.yml"] {
        let used = names(&read(path));
        let unknown: Vec<_> = used
            .difference(&series)
            .filter(|name| !rare.contains(&name.as_str()))
            .collect();
        assert!(used.len() > 10 && unknown.is_empty(), "{path}: {unknown:?}");
    }
}

/// Grafana refuses a file with two panels of the same id, and overlapping panels are hidden.
#[test]
fn the_dashboard_is_valid() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("packaging/grafana/weft.json")).expect("valid JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "every panel has an id of its own");
    let mut cells = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        let position = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().expect("a position"));
        let [x, y, width, height] = position;
        assert!(x + width <= 24, "{title} is outside the grid");
        for cell in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{title} covers another panel");
        }
        if panel["type"] != "row" {
            let targets = panel["targets"].as_array().expect("it has queries");
            let has_query =
                |target: &serde_json::Value| target["expr"].as_str().is_some_and(|query| query.contains("weft_"));
            assert!(!targets.is_empty() && targets.iter().all(has_query), "{title}");
        }
    }
}

/// The metrics of the topics that an operator must find on the dashboard.
const DASHBOARD_TOPICS: &[(&str, &[&str])] = &[
    (
        "load",
        &[
            "weft_commands_total",
            "weft_worker_busy_seconds_total",
            "weft_cpu_seconds_total",
        ],
    ),
    (
        "latencies",
        &[
            "weft_command_duration_seconds_bucket",
            "histogram_quantile(0.5,",
            "histogram_quantile(0.99,",
            "histogram_quantile(0.999,",
        ],
    ),
    (
        "errors",
        &[
            "weft_failed_commands_total",
            "weft_rejected_commands_total",
            "weft_error_replies_by_code_total",
        ],
    ),
    (
        "contention",
        &[
            "weft_deferred_commands_total",
            "{{reason}}",
            "weft_exclusive_commands_total",
            "weft_gate_closings_total",
        ],
    ),
    ("messages between workers", &["weft_worker_unread_messages"]),
    ("stalls", &["weft_stalls_total", "weft_current_stalls"]),
    (
        "hot and big keys",
        &[
            "weft_hot_key_share",
            "weft_biggest_key_bytes",
            "weft_biggest_key_elements",
        ],
    ),
    (
        "memory",
        &[
            "weft_memory_used_bytes",
            "weft_memory_max_bytes",
            "weft_memory_resident_bytes",
            "weft_evicted_keys_total",
        ],
    ),
    (
        "snapshots",
        &[
            "weft_snapshot_last_pause_seconds",
            "weft_snapshot_keys_done",
            "weft_rdb_changes_since_last_save",
        ],
    ),
    ("append-only file", &["weft_aof_size_bytes", "weft_aof_buffer_bytes"]),
    (
        "replication",
        &[
            "weft_replication_backlog_bytes",
            "weft_replica_lag_seconds",
            "weft_replication_link_up",
        ],
    ),
    (
        "cluster",
        &[
            "weft_cluster_slots",
            "weft_cluster_failing_nodes",
            "weft_slot_migrations_in_progress",
        ],
    ),
    (
        "scripts",
        &[
            "(eval|evalsha|fcall)(_ro)?",
            "weft_command_seconds_total",
            "weft_scripts_undone_total",
        ],
    ),
];

#[test]
fn the_dashboard_covers_every_topic() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("packaging/grafana/weft.json")).expect("valid JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: String = targets
        .flat_map(|target| [&target["expr"], &target["legendFormat"]])
        .filter_map(serde_json::Value::as_str)
        .map(|text| format!("{text}\n"))
        .collect();
    for (topic, texts) in DASHBOARD_TOPICS {
        for text in *texts {
            assert!(queries.contains(text), "{topic}: no panel has {text}");
        }
    }
}

/// Conditions under which operators must be alerted.
const ALERTS: &[&str] = &[
    "WeftDown",
    "WeftStalled",
    "WeftStallsOften",
    "WeftMemoryNearLimit",
    "WeftResidentMemoryHigh",
    "WeftWorkersBusy",
    "WeftSaveFailed",
    "WeftNotSaved",
    "WeftAppendOnlyFileFailing",
    "WeftReplicaLinkDown",
    "WeftClusterDown",
];

/// Every rule has an alert, an expression, a severity and a summary.
#[test]
fn the_alert_rules_are_complete() {
    let text = read("packaging/grafana/alerts.yml");
    assert!(text.starts_with("groups:\n") && !text.contains('\t'));
    let rules: Vec<&str> = text.split("      - alert: ").skip(1).collect();
    assert!(rules.len() > 5);
    let mut alerts = BTreeSet::new();
    for rule in rules {
        let name = rule.lines().next().expect("a name");
        assert!(alerts.insert(name), "{name} twice");
        for part in ["\n        expr: ", "\n          severity: ", "\n          summary: "] {
            assert!(rule.contains(part), "{name} has no {}", part.trim());
        }
    }
    for name in ALERTS {
        assert!(alerts.contains(name), "{name} is missing");
    }
}
