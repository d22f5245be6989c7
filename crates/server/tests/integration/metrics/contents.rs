//! What the endpoint serves: the figures of INFO, while the server is under load and afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{Client, Scrape, request, scrape, start, wait_until};

/// Calls commands of many kinds, some of which fail or do not find their key.
fn work(port: u16, number: usize, rounds: usize) {
    let mut client = Client::connect(port);
    let database = ["0", "1"][number % 2];
    assert_eq!(client.call(&["SELECT", database]), "OK");
    for round in 0..rounds {
        let key = format!("key:{number}:{}", round % 50);
        let list = format!("list:{}", round % 3);
        client.call(&["SET", &key, "value", "EX", "10000"]);
        client.call(&["GET", &key]);
        client.call(&["GET", "missing"]);
        client.call(&["INCR", &key]);
        client.call(&["HSET", "hash", &key, "1"]);
        client.call(&["RPUSH", &list, "a"]);
        client.call(&["BLPOP", &list, "0.001"]);
        client.call(&["MSET", &key, "1", &format!("{key}:b"), "2"]);
        client.call(&["EVAL", "return redis.call('get', KEYS[1])", "1", &key]);
        client.call(&["NOSUCHCOMMAND"]);
    }
}

/// Returns the numbers of a field of INFO such as `calls=1,usec=2`.
fn numbers(field: &str) -> Vec<(String, f64)> {
    let pairs = field.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

fn number(field: &str, name: &str) -> f64 {
    let found = numbers(field).into_iter().find(|(found, _)| found == name);
    found.unwrap_or_else(|| panic!("no {name} in {field}")).1
}

/// Compares the figures of one command with those of INFO.
fn assert_same_command(client: &mut Client, scrape: &Scrape, command: &str) {
    let stats = client.info(&format!("cmdstat_{command}"));
    let labels = [("command", command)];
    for (name, figure) in [
        ("weft_commands_total", "calls"),
        ("weft_rejected_commands_total", "rejected_calls"),
        ("weft_failed_commands_total", "failed_calls"),
        ("weft_command_duration_seconds_count", "calls"),
    ] {
        assert_eq!(scrape.value(name, &labels), number(&stats, figure), "{command} {name}");
    }
    let microseconds = number(&stats, "usec");
    for name in ["weft_command_seconds_total", "weft_command_duration_seconds_sum"] {
        let seconds = scrape.value(name, &labels);
        assert!(
            (seconds * 1e6 - microseconds).abs() <= 1.0,
            "{command} {name}: {seconds} {stats}"
        );
    }
}

#[test]
fn figures_under_load_are_those_of_info() {
    const CLIENTS: usize = 8;
    let (server, port) = start(&[]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let port = server.port;
                scope.spawn(move || work(port, number, 300))
            })
            .collect();
        let scraper = scope.spawn(|| {
            let mut last = scrape(port);
            let mut scrapes = 1;
            while !is_over.load(Ordering::Relaxed) {
                let next = scrape(port);
                next.assert_not_before(&last);
                last = next;
                scrapes += 1;
            }
            scrapes
        });
        let ended = workers.into_iter().all(|worker| worker.join().is_ok());
        is_over.store(true, Ordering::Relaxed);
        let scrapes = scraper.join().expect("every scrape was right");
        assert!(ended && scrapes > 1, "{scrapes} scrapes");
    });
    let mut client = Client::connect(server.port);
    wait_until("the other clients are gone", || {
        scrape(port).value("weft_connected_clients", &[]) == 1.0
    });
    let scrape = scrape(port);
    for command in ["set", "get", "incr", "hset", "rpush", "blpop", "mset", "eval"] {
        assert_same_command(&mut client, &scrape, command);
    }
    assert_same_fields(&mut client, &scrape);
    assert_same_workers(&mut client, &scrape);
    let unused = scrape.find("weft_commands_total", &[("command", "xadd")]);
    assert_eq!(unused, None, "the command was not called");
    assert!(scrape.value("weft_error_replies_by_code_total", &[("code", "ERR")]) >= (CLIENTS * 300) as f64);
    let mode = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("valkey_version", "9.1.2"),
        ("mode", "standalone"),
    ];
    assert_eq!(scrape.value("weft_build_info", &mode), 1.0);
}

/// Compares the figures that INFO itself does not change.
fn assert_same_fields(client: &mut Client, scrape: &Scrape) {
    for (name, field) in [
        ("weft_keyspace_hits_total", "keyspace_hits"),
        ("weft_keyspace_misses_total", "keyspace_misses"),
        ("weft_expired_keys_total", "expired_keys"),
        ("weft_evicted_keys_total", "evicted_keys"),
        ("weft_connected_clients", "connected_clients"),
        ("weft_max_clients", "maxclients"),
        ("weft_blocked_clients", "blocked_clients"),
        ("weft_connections_received_total", "total_connections_received"),
        ("weft_rejected_connections_total", "rejected_connections"),
        ("weft_error_replies_total", "total_error_replies"),
        ("weft_workers", "weft_workers"),
        ("weft_workers_active", "weft_workers_active"),
        ("weft_exclusive_commands_total", "weft_exclusive_commands"),
        ("weft_scripts_undone_total", "weft_scripts_undone"),
        ("weft_cached_scripts", "number_of_cached_scripts"),
        ("weft_memory_startup_bytes", "used_memory_startup"),
        ("weft_memory_max_bytes", "maxmemory"),
        ("weft_rdb_changes_since_last_save", "rdb_changes_since_last_save"),
        ("weft_rdb_last_save_timestamp_seconds", "rdb_last_save_time"),
        ("weft_aof_enabled", "aof_enabled"),
        ("weft_connected_replicas", "connected_slaves"),
        ("weft_replication_offset_bytes", "master_repl_offset"),
        ("weft_replication_backlog_size_bytes", "repl_backlog_size"),
        ("weft_cluster_enabled", "cluster_enabled"),
    ] {
        let expected: f64 = client.info(field).parse().expect("a number");
        assert_eq!(scrape.value(name, &[]), expected, "{name}, {field}");
    }
    let deferrals: f64 = client.info("weft_deferrals").parse().expect("a number");
    assert_eq!(scrape.sum("weft_deferred_commands_total"), deferrals);
    for db in ["0", "1"] {
        let keys = client.info(&format!("db{db}"));
        let labels = [("db", db)];
        assert_eq!(scrape.value("weft_keys", &labels), number(&keys, "keys"));
        assert_eq!(scrape.value("weft_keys_with_expiry", &labels), number(&keys, "expires"));
    }
    assert_eq!(scrape.all("weft_keys").count(), 2, "other databases were not used");
    let used: f64 = client.info("used_memory").parse().expect("a number");
    let scraped = scrape.value("weft_memory_used_bytes", &[]);
    assert!((scraped - used).abs() < 1e6, "{scraped} {used}");
    let uptime: f64 = client.info("uptime_in_seconds").parse().expect("a number");
    assert!((scrape.value("weft_uptime_seconds", &[]) - uptime).abs() < 60.0);
}

fn assert_same_workers(client: &mut Client, scrape: &Scrape) {
    for worker in 0..4 {
        let name = worker.to_string();
        let labels = [("worker", name.as_str())];
        let field = client.info(&format!("weft_worker{worker}"));
        let connections = scrape.value("weft_worker_connections", &labels);
        assert_eq!(connections, number(&field, "connections"));
        let requests = scrape.value("weft_worker_requests_total", &labels);
        assert!(requests > 100.0 && requests <= number(&field, "requests"), "{field}");
        let busy = scrape.value("weft_worker_busy_seconds_total", &labels);
        assert!(
            busy > 0.0 && busy * 1000.0 <= number(&field, "busy_ms") + 1.0,
            "{field}"
        );
    }
    let in_batches = scrape.value("weft_batches_total", &[]);
    assert!(in_batches > 0.0 && in_batches <= scrape.sum("weft_worker_requests_total"));
}

#[test]
fn waiting_clients_and_subscribers_are_counted() {
    let (server, port) = start(&[]);
    let mut waiting: Vec<Client> = (0..5).map(|_| Client::connect(server.port)).collect();
    for (index, client) in waiting.iter_mut().enumerate() {
        client.send(&["BLPOP", &format!("key:{}", index % 2), "0"]);
    }
    let mut subscriber = Client::connect(server.port);
    subscriber.call(&["SUBSCRIBE", "channel"]);
    let mut tracking = Client::connect(server.port);
    tracking.call(&["HELLO", "3"]);
    tracking.call(&["CLIENT", "TRACKING", "ON"]);
    let is_counted = |name: &str, count: f64| scrape(port).value(name, &[]) == count;
    wait_until("five clients wait", || is_counted("weft_blocked_clients", 5.0));
    let metrics = scrape(port);
    for (name, count) in [
        ("weft_blocking_keys", 2.0),
        ("weft_pubsub_clients", 1.0),
        ("weft_pubsub_channels", 1.0),
        ("weft_tracking_clients", 1.0),
    ] {
        assert_eq!(metrics.value(name, &[]), count, "{name}");
    }
    tracking.call(&["RPUSH", "key:0", "a"]);
    drop(waiting.pop());
    wait_until("one was served, one is gone", || {
        is_counted("weft_blocked_clients", 3.0)
    });
}

#[test]
fn durations_are_those_of_latency_tracking() {
    let (server, port) = start(&["--latency-tracking", "no"]);
    let mut client = Client::connect(server.port);
    let labels = [("command", "incr")];
    client.call(&["INCR", "key"]);
    let off = scrape(port);
    assert_eq!(off.value("weft_commands_total", &labels), 1.0);
    assert_eq!(off.find("weft_command_duration_seconds_count", &labels), None);
    client.call(&["CONFIG", "SET", "latency-tracking", "yes"]);
    for _ in 0..3 {
        client.call(&["INCR", "key"]);
    }
    let on = scrape(port);
    assert_eq!(on.value("weft_commands_total", &labels), 4.0);
    assert_eq!(on.value("weft_command_duration_seconds_count", &labels), 3.0);
    client.call(&["CONFIG", "RESETSTAT"]);
    assert_eq!(scrape(port).find("weft_commands_total", &labels), None);
}

/// Scripts make up error codes: these are not UTF-8, need escaping, are very long, or are many.
#[test]
fn error_codes_of_scripts_stay_valid_labels() {
    let (server, port) = start(&[]);
    let mut client = Client::connect(server.port);
    for code in [
        r#"BAD\\CODE"QUOTED""#,
        r"\255\254",
        r"\255\253",
        &"LONG".repeat(1000),
        &("LONG".repeat(1000) + "ER"),
    ] {
        // The test's client expects UTF-8.
        client.send(&["CLIENT", "REPLY", "SKIP"]);
        client.send(&["EVAL", &format!("return redis.error_reply('{code} text')"), "0"]);
    }
    for number in 0..300 {
        client.call(&["EVAL", &format!("return redis.error_reply('CODE{number} text')"), "0"]);
    }
    let metrics = scrape(port);
    let codes: Vec<_> = metrics.all("weft_error_replies_by_code_total").collect();
    assert!(codes.len() < 150, "{}", codes.len());
    assert!(codes.iter().all(|(labels, _)| labels["code"].chars().count() <= 64));
    let quoted = metrics.find("weft_error_replies_by_code_total", &[("code", "BAD\\CODE\"QUOTED\"")]);
    assert_eq!(quoted, Some(1.0));
}

#[test]
fn health_reports_a_load_and_no_metric_waits_for_it() {
    let (mut server, port) = start(&["--enable-debug-command", "yes", "--rdbcompression", "no"]);
    let mut client = Client::connect(server.port);
    let answer = client.call(&["DEBUG", "POPULATE", "3000", "key", "100"]);
    assert_eq!(answer, "OK");
    assert_eq!(client.call(&["SAVE"]), "OK");
    assert_eq!(request(port, "GET", "/health").status, 200);
    server.kill();
    let port = port.to_string();
    // The load takes five minutes, unless the test ends it.
    let slow = [
        "--metrics-port",
        &port,
        "--key-load-delay",
        "100000",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    server.start_again_with(&slow);
    let port = port.parse().expect("a port");
    let health = request(port, "GET", "/health");
    assert_eq!((health.status, health.body.as_str()), (503, "loading\n"));
    let metrics = scrape(port);
    assert_eq!(metrics.value("weft_loading", &[]), 1.0);
    assert!(metrics.value("weft_loading_total_bytes", &[]) > 0.0);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["CONFIG", "SET", "key-load-delay", "0"]), "OK");
    wait_until("the load ends", || request(port, "GET", "/health").status == 200);
    assert_eq!(scrape(port).value("weft_loading", &[]), 0.0);
    assert_eq!(scrape(port).value("weft_keys", &[("db", "0")]), 3000.0);
}

/// Names of keys would be a series each, and anyone may read the metrics.
#[test]
fn figures_of_hot_and_big_keys_contain_no_names() {
    let (server, port) = start(&[]);
    let mut client = Client::connect(server.port);
    let before = scrape(port);
    assert_eq!(before.value("weft_hot_key_sampling", &[]), 0.0);
    assert_eq!(before.find("weft_hot_key_share", &[("keys", "1")]), None);
    assert_eq!(before.find("weft_biggest_key_bytes", &[("type", "hash")]), None);
    assert_eq!(client.call(&["WEFT", "HOTKEYS", "START", "SAMPLE", "1"]), "OK");
    for round in 0..90 {
        client.call(&["HSET", "secret-name", &format!("field:{round}"), "value"]);
        client.call(&["GET", &format!("secret-name:{}", round % 10)]);
    }
    assert_eq!(client.call(&["WEFT", "BIGKEYS", "START"]), "OK");
    wait_until("the scan is complete", || {
        scrape(port).value("weft_big_key_scans_total", &[]) == 1.0
    });
    let after = scrape(port);
    assert_eq!(after.value("weft_hot_key_sampling", &[]), 1.0);
    assert_eq!(after.value("weft_hot_key_samples_total", &[]), 180.0);
    for (keys, share) in [("1", 0.5), ("10", 0.95), ("100", 1.0)] {
        let value = after.value("weft_hot_key_share", &[("keys", keys)]);
        assert!((value - share).abs() < 1e-9, "{keys}: {value}");
    }
    let usage: f64 = client
        .call(&["MEMORY", "USAGE", "secret-name"])
        .parse()
        .expect("a number");
    assert_eq!(after.value("weft_biggest_key_bytes", &[("type", "hash")]), usage);
    assert_eq!(after.value("weft_biggest_key_elements", &[("type", "hash")]), 90.0);
    assert_eq!(after.value("weft_biggest_key_bytes", &[("type", "zset")]), 0.0);
    assert!(!request(port, "GET", "/metrics").body.contains("secret-name"));
    assert_eq!(after.value("weft_current_stalls", &[("kind", "turn")]), 0.0);
}

/// A script that does not end has the lease of its key's slot, and keeps commands out that need exclusive mode.
#[test]
fn deferred_commands_are_counted_by_reason() {
    let workers = ["--io-threads", "4", "--io-threads-always-active", "yes"];
    let (server, port) = start(&[&workers[..], &["--busy-reply-threshold", "600000"]].concat());
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(server.port)).collect();
    let [script, reader, admin] = clients.as_mut_slice() else {
        unreachable!("there are three");
    };
    server.run_script(script, &["EVAL", "while true do end", "1", "key"]);
    let deferred = |reason: &str| scrape(port).value("weft_deferred_commands_total", &[("reason", reason)]);
    let (lease, exclusion) = (deferred("lease"), deferred("script"));
    reader.send(&["GET", "key"]);
    wait_until("a command waits for the lease", || deferred("lease") > lease);
    assert_eq!(deferred("script"), exclusion, "no command waits for exclusive mode");
    admin.send(&["SWAPDB", "2", "3"]);
    wait_until("a command waits for the script", || deferred("script") > exclusion);
    for reason in ["log", "migrate", "mailbox"] {
        assert_eq!(deferred(reason), 0.0, "{reason}");
    }
}

/// A snapshot closes the gate on a background thread, which is no command.
#[test]
fn the_gate_is_counted_when_background_work_closes_it() {
    let (server, port) = start(&[]);
    let mut client = Client::connect(server.port);
    let background_closings = || {
        let scrape = scrape(port);
        scrape.value("weft_gate_closings_total", &[]) - scrape.value("weft_exclusive_commands_total", &[])
    };
    let before = background_closings();
    client.call(&["SET", "key", "value"]);
    assert!(client.call(&["BGSAVE"]).starts_with("Background saving"));
    wait_until("the save ends", || client.info("rdb_last_bgsave_time_sec") != "-1");
    let after = background_closings();
    assert!(after > before, "{after} after {before}");
}

/// A script that does not end holds its slots, and DEBUG SLEEP holds everything.
#[test]
fn a_scrape_waits_for_no_command() {
    let (server, port) = start(&["--busy-reply-threshold", "10", "--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    let endless = "redis.call('get', KEYS[1]) while true do end";
    client.send(&["EVAL", endless, "1", "key"]);
    let is_busy = || scrape(port).value("weft_script_busy", &[]) == 1.0;
    wait_until("the script is busy", is_busy);
    let mut other = Client::connect(server.port);
    assert_eq!(other.call(&["SCRIPT", "KILL"]), "OK");
    wait_until("the script has ended", || !is_busy());
    client.answer();
    client.send(&["DEBUG", "SLEEP", "2"]);
    let mut scrapes = 0;
    while client.is_waiting() {
        scrape(port);
        scrapes += 1;
    }
    assert!(scrapes > 1, "{scrapes}");
    assert_eq!(client.answer(), "OK");
}
