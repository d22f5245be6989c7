//! Tests of the values, of clients against a small server inside the test, and of the results.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use super::client::ClientCounts;
use super::values::{ChurnValue, LARGEST_VALUE, SMALLEST_VALUE, ValueKind, content, mean_bytes};
use super::*;
use crate::content::key_name;
use crate::server_for_tests::serve;

const KINDS: [ValueKind; 5] = [
    ValueKind::String,
    ValueKind::Hash,
    ValueKind::List,
    ValueKind::Set,
    ValueKind::SortedSet,
];

/// The value of a key in the server of a test.
enum StoredValue {
    Text(Vec<u8>),
    Elements(usize),
}

type Store = Arc<Mutex<HashMap<Vec<u8>, StoredValue>>>;

fn answer(request: &[Vec<u8>], store: &Store) -> Vec<u8> {
    let mut store = store.lock().expect("no other holder panics");
    let integer = |number: usize| format!(":{number}\r\n").into_bytes();
    let [name, key, rest @ ..] = request else {
        return b"-ERR wrong number of arguments\r\n".to_vec();
    };
    let mut add = |elements: usize| {
        let is_new = store.insert(key.clone(), StoredValue::Elements(elements)).is_none();
        assert!(is_new, "a collection was not deleted before");
        integer(elements)
    };
    match name.as_slice() {
        b"HSET" | b"ZADD" => add(rest.len() / 2),
        b"RPUSH" => add(rest.len()),
        b"SADD" => add(rest.iter().collect::<HashSet<&Vec<u8>>>().len()),
        b"SET" => {
            store.insert(key.clone(), StoredValue::Text(rest[0].clone()));
            b"+OK\r\n".to_vec()
        }
        b"DEL" => integer(usize::from(store.remove(key).is_some())),
        b"EXISTS" | b"PEXPIRE" => integer(usize::from(store.contains_key(key))),
        b"GET" => match store.get(key) {
            Some(StoredValue::Text(text)) => [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat(),
            _ => b"$-1\r\n".to_vec(),
        },
        b"HLEN" | b"LLEN" | b"SCARD" | b"ZCARD" => match store.get(key) {
            Some(StoredValue::Elements(elements)) => integer(*elements),
            _ => integer(0),
        },
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}

fn client(answer: impl Fn(&[Vec<u8>]) -> Vec<u8> + Send + Sync + 'static, keys: u64) -> ChurnClient {
    ChurnClient::connect(serve(answer), 0, 1, keys, 1).expect("a connection")
}

#[test]
fn the_logarithms_of_sizes_are_uniformly_distributed() {
    let mut sizes: Vec<u64> = (0..4000)
        .map(|key| ChurnValue::new(key, 1, ValueKind::String).element_bytes)
        .collect();
    sizes.sort_unstable();
    assert!(sizes[0] >= SMALLEST_VALUE && sizes[3999] <= LARGEST_VALUE);
    // The quartiles of a distribution from 10 to 102,400: 10 times the 4th root of 10,240, and so on.
    for (place, expected) in [(1000, 100.6), (2000, 1011.9), (3000, 10_180.0)] {
        let ratio = sizes[place] as f64 / expected;
        assert!((0.7..1.4).contains(&ratio), "{} at {place}", sizes[place]);
    }
    let mean = sizes.iter().sum::<u64>() as f64 / 4000.0;
    assert!((mean / mean_bytes() - 1.0).abs() < 0.15, "{mean} and {}", mean_bytes());
}

#[test]
fn values_follow_from_key_version_and_type() {
    for kind in KINDS {
        for key in 0..500 {
            let value = ChurnValue::new(key, 3, kind);
            assert_eq!(value, ChurnValue::new(key, 3, kind));
            assert_ne!(value, ChurnValue::new(key, 4, kind));
            let bytes = value.elements * value.element_bytes;
            assert!((SMALLEST_VALUE..=LARGEST_VALUE).contains(&bytes), "{value:?}");
            assert!(value.elements <= 1000 && value.element_bytes >= SMALLEST_VALUE);
            let tenth = value.tenth();
            let smaller = tenth.elements * tenth.element_bytes;
            assert!(smaller <= (bytes / 10).max(SMALLEST_VALUE), "{value:?}, {tenth:?}");
            assert!(smaller * 2 > bytes / 10 && tenth.element_bytes >= SMALLEST_VALUE);
            assert_eq!(tenth.kind, kind);
        }
    }
    let fifth = (0..5).fold(ValueKind::Set, |kind, _| kind.next());
    assert_eq!(fifth, ValueKind::Set);
}

#[test]
fn clients_change_and_check_their_keys() {
    let store = Store::default();
    let shared = Arc::clone(&store);
    let mut client = client(move |request| answer(request, &shared), 200);
    let values = content();
    for _ in 0..60 {
        client.send_changes(32, &values).expect("sent");
        client.receive(&values).expect("right replies");
    }
    assert!(client.counts.requests >= 60 * 32 && client.counts.refused == 0);
    let kinds = |store: &Store| {
        let store = store.lock().expect("no other holder panics");
        let texts = store.values().filter(|value| matches!(value, StoredValue::Text(_)));
        (texts.count(), store.len())
    };
    let (texts, keys) = kinds(&store);
    assert!(texts > 0 && texts < keys, "{texts} strings of {keys} keys");
}

#[test]
fn shrinking_rewrites_what_exists_and_deletes_nine_of_ten() {
    let store = Store::default();
    let shared = Arc::clone(&store);
    let mut client = client(move |request| answer(request, &shared), 100);
    let (values, interruption) = (content(), Interruption::default());
    for _ in 0..40 {
        client.send_changes(16, &values).expect("sent");
        client.receive(&values).expect("right replies");
    }
    let names = |store: &Store| {
        let store = store.lock().expect("no other holder panics");
        store.keys().cloned().collect::<HashSet<Vec<u8>>>()
    };
    let before = names(&store);
    client
        .shrink(Shrinking::Rewriting, &values, &interruption)
        .expect("right replies");
    assert_eq!(names(&store), before, "missing keys stay missing");
    let largest = LARGEST_VALUE as usize / 10;
    let is_small = |value: &StoredValue| match value {
        StoredValue::Text(text) => text.len() <= largest,
        StoredValue::Elements(elements) => *elements <= largest / SMALLEST_VALUE as usize,
    };
    assert!(store.lock().expect("no other holder panics").values().all(is_small));
    client
        .shrink(Shrinking::Deleting, &values, &interruption)
        .expect("right replies");
    let kept: HashSet<Vec<u8>> = (0..10).map(|number| key_name(10 * number).to_vec()).collect();
    assert!(names(&store).is_subset(&kept));
}

#[test]
fn writes_may_be_refused_and_wrong_replies_may_not() {
    let values = content();
    // The keys keep what they had, of whatever type.
    let mut refused = client(
        |request| match request[0].as_slice() {
            b"DEL" | b"PEXPIRE" => b":0\r\n".to_vec(),
            b"GET" => b"-WRONGTYPE Operation against a key\r\n".to_vec(),
            b"HLEN" | b"LLEN" | b"SCARD" | b"ZCARD" => b":7\r\n".to_vec(),
            _ => b"-OOM command not allowed\r\n".to_vec(),
        },
        1,
    );
    for _ in 0..10 {
        refused.send_changes(32, &values).expect("sent");
        refused.receive(&values).expect("refusals are counted");
    }
    assert!(refused.counts.refused > 0);
    for wrong in ["-ERR unknown command\r\n", ":5\r\n", "$3\r\nfoo\r\n"] {
        let mut client = client(move |_| wrong.as_bytes().to_vec(), 10);
        client.send_changes(8, &values).expect("sent");
        let outcome = client.receive(&values);
        assert!(matches!(outcome, Err(Error::WrongReply(_))), "{wrong:?}: {outcome:?}");
    }
}

fn sample(seconds: f64, rss: u64, used: u64, evicted: u64) -> MemorySample {
    MemorySample {
        seconds,
        rss,
        used,
        evicted,
        expired: 0,
    }
}

fn options() -> ChurnOptions {
    ChurnOptions {
        compare: CompareOptions {
            connections: 50,
            client_cores: vec![1],
            ..CompareOptions::for_tests("weft-bench churn")
        },
        servers: Vec::new(),
        max_memory: 1_000_000,
        duration: Duration::from_secs(4),
        flush_interval: None,
        settle: Duration::from_secs(60),
        keys: None,
        pipeline: 8,
        seed: 1,
    }
}

fn row() -> ChurnRow {
    let mut row = ChurnRow::new("Weft", "weft-server".into());
    row.load = LoadSamples {
        samples: vec![
            sample(1.0, 9_000_000, 500_000, 0),
            sample(2.0, 1_200_000, 1_000_000, 10),
            sample(3.0, 1_500_000, 1_000_000, 20),
            sample(4.0, 1_300_000, 1_000_000, 40),
        ],
        flushes: 1,
        is_complete: true,
    };
    row.counts = ClientCounts {
        requests: 8000,
        refused: 2,
    };
    for (how, last_rss) in [(Shrinking::Rewriting, 14_000_000), (Shrinking::Deleting, 16_000_000)] {
        row.begin_shrink(ShrinkSamples {
            how,
            shrink_time: Duration::from_secs(1),
            before: sample(0.0, 1_000_000, 1_000_000, 0),
            after: vec![
                sample(0.0, 90_000_000, 10_000_000, 0),
                sample(2.5, last_rss, 10_000_000, 0),
            ],
            is_complete: true,
        });
    }
    row
}

#[test]
fn only_samples_after_the_first_eviction_count() {
    let load = row().load;
    assert_eq!(load.after_warmup().len(), 3);
    assert_eq!(load.largest_rss_to(1_000_000), Some(1.5));
    assert_eq!(load.median_rss_to(1_000_000), Some(1.3));
    assert_eq!(load.median_rss_to_used(), Some(1.3));
    assert_eq!(load.evicted_per_s(), Some(10.0));
    let nothing = LoadSamples::default();
    assert_eq!((nothing.largest_rss_to(1), nothing.median_rss_to(1)), (None, None));
}

#[test]
fn memory_has_followed_at_one_and_a_half_of_the_used_one() {
    let row = row();
    assert_eq!(row.shrinks[0].follow_s(), Some(2.5));
    assert_eq!(row.shrinks[1].follow_s(), None);
}

#[test]
fn the_table_has_all_servers_and_says_who_is_left_out() {
    let mut report = ChurnReport::new(&options());
    report.rows.push(row());
    report.leave_out("Valkey, activedefrag", "-ERR it cannot be enabled".into());
    let text = report.markdown();
    for part in [
        "| Weft | 2,000 | 10 | 2 | 1 | 1.50x | 1.30x | 1.30x | 2.5 s | 14 / 10 | > 60 s | 16 / 10 |\n",
        "| Valkey, activedefrag: left out, see below | - | - | - |",
        "Valkey, activedefrag is left out: -ERR it cannot be enabled.",
        "- Weft: `weft-server`\n",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let json = report.json();
    assert_eq!(json["churn"]["rows"][0]["largest_rss_to_maxmemory"], 1.5);
    assert_eq!(json["churn"]["rows"][0]["samples"][1][1], 1_200_000);
    assert_eq!(json["churn"]["rows"][0]["shrinks"][0]["seconds_until_followed"], 2.5);
    assert_eq!(json["churn"]["left_out"][0]["label"], "Valkey, activedefrag");
    for part in ["ended early", "were observed"] {
        assert!(!text.contains(part), "{part} is in\n{text}");
    }
}

#[test]
fn the_table_has_what_was_observed_until_an_early_end() {
    let mut report = ChurnReport::new(&options());
    report.rows.push(row());
    let partial = report.begin_row("Valkey", "valkey-server".into());
    partial.load.samples.push(sample(3.0, 1_100_000, 1_000_000, 10));
    partial.begin_shrink(ShrinkSamples {
        after: vec![sample(2.0, 90_000_000, 10_000_000, 0)],
        is_complete: false,
        ..row().shrinks.remove(0)
    });
    report.begin_row("Valkey, activedefrag", "valkey-server".into());
    report.end(Some("interrupted".into()));
    assert!(report.has_results());
    let text = report.markdown();
    for part in [
        "**The run ended early: interrupted.**",
        "| Valkey | 0 | 3 | 0 | 0 | 1.10x | 1.10x | 1.10x | > 2 s | 90 / 10 | - | - |\n",
        "\nValkey: only 3 of 4 s of churn were observed.\n",
        "\nValkey: values rewritten: only 2 of 60 s were observed.\n",
        "50 clients with 8 requests each, 180 keys, never flushed,",
        "; servers on CPU 0, client on CPU 1. Ratios",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("activedefrag"), "{text}");
    let heads = text.lines().find(|line| line.starts_with("| server")).expect("heads");
    let columns = |line: &str| line.matches('|').count();
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| Weft") || line.starts_with("| Valkey"));
    assert!(rows.clone().count() == 2 && rows.clone().all(|row| columns(row) == columns(heads)));
    let mut nothing = ChurnReport::new(&options());
    nothing.begin_row("Weft", "weft-server".into());
    nothing.end(Some("interrupted".into()));
    assert!(!nothing.has_results());
}

/// Starts a server that requests the end of the run when INFO is asked for the third time.
fn server_that_interrupts(interruption: &Interruption) -> SocketAddr {
    let (store, asked, interruption) = (Store::default(), AtomicU64::new(0), interruption.clone());
    serve(move |request| match request[0].as_slice() {
        b"INFO" => {
            if asked.fetch_add(1, Ordering::Relaxed) == 2 {
                interruption.request();
            }
            let text = "used_memory:1000\r\nevicted_keys:7\r\nexpired_keys:0\r\n";
            format!("${}\r\n{text}\r\n", text.len()).into_bytes()
        }
        _ => answer(request, &store),
    })
}

#[test]
fn an_interrupted_churn_keeps_its_samples() {
    let mut options = options();
    options.compare.client_cores = Vec::new();
    options.compare.connections = 2;
    options.duration = Duration::from_millis(200);
    let address = server_that_interrupts(&options.compare.interruption);
    let mut observed = ObservedServer {
        options: &options,
        label: "Weft",
        pid: std::process::id(),
        control: ControlConnection::connect(address, 2).expect("a connection"),
        clients: ChurnClients::connect(&options, address).expect("connections"),
    };
    let mut load = LoadSamples::default();
    assert!(matches!(observed.churn(&mut load), Err(Error::Interrupted)));
    assert_eq!((load.samples.len(), load.is_complete), (3, false));
    assert_eq!(load.samples[2].evicted, 7);
}

#[test]
fn progress_is_shown_as_ratios_to_the_limit() {
    assert_eq!(
        sample(1.0, 1_150_000, 990_000, 12).text(1_000_000),
        "RSS 1.15x and used memory 0.99x maxmemory, 12 keys evicted, 0 expired"
    );
}

#[test]
fn a_preloaded_jemalloc_returns_free_pages_as_that_of_valkey_does() {
    let mut options = options();
    let environment =
        |options: &ChurnOptions, side: usize| recipe(options, &SIDES[side].1).expect("a side").environment;
    assert!(environment(&options, 2).is_empty());
    options.compare.preload = Some(PathBuf::from("libjemalloc.so.2"));
    assert!(environment(&options, 0).is_empty(), "Weft has an allocator of its own");
    assert_eq!(environment(&options, 2), [("MALLOC_CONF", "background_thread:true")]);
    let command = recipe(&options, &SIDES[3].1).expect("a side").command_text();
    assert!(command.starts_with("LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=background_thread:true valkey-server"));
}

#[test]
fn servers_have_the_limit_and_the_policy() {
    let options = options();
    let command = recipe(&options, &SIDES[3].1).expect("Valkey takes part").command_text();
    assert!(command.ends_with("--io-threads 1 --maxmemory 1000000 --maxmemory-policy allkeys-lru"));
    assert!(SIDES[3].1.before_load.contains("activedefrag"));
    // A million bytes hold about 90 values, and each connection needs a key.
    assert_eq!(options.keys(), 180);
    assert!(check_available(1_000_000, Some(1_999_999)).is_err());
    assert!(check_available(1_000_000, Some(2_000_000)).is_ok());
    assert!(check_available(u64::MAX, None).is_ok());
}
