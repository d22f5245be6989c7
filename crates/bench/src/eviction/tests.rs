//! Tests of the clients against a small server inside the test, of the search for limits, and of the results.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::cache_clients::{CacheCounts, FIRST_PACED_DRAW};
use super::results::HitRow;
use super::*;
use crate::content::key_name;
use crate::draw::{Draw, scramble};
use crate::interruption::Interruption;
use crate::server_for_tests::serve;

const KEYS: u64 = 100;

fn options() -> EvictionOptions {
    EvictionOptions {
        compare: CompareOptions::for_tests("weft-bench eviction"),
        policies: vec!["allkeys-lru".into()],
        exponents: vec![0.9],
        fit: 1000,
        value_size: 32,
        samples: 5,
        rate: 20_000.0,
        pipeline: 16,
        warmup: Duration::from_secs(30),
        window: Duration::from_secs(60),
        write_rate: 10_000.0,
        rounds: 2,
        seed: 1,
    }
}

/// Runs clients at a rate against a server that answers like this. Each phase lasts for this number of requests.
/// Returns the counts and the seconds of the measured phase.
fn run_against(
    answer: impl Fn(&[Vec<u8>]) -> Vec<u8> + Send + Sync + 'static,
    rate: f64,
    requests: u64,
) -> Result<(CacheCounts, f64)> {
    let (zipf, values, interruption) = (Zipf::new(KEYS, 0.9), ValuePool::new(32), Interruption::default());
    let served = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&served);
    let load = CacheLoad {
        address: serve(move |request| {
            counted.fetch_add(1, Ordering::Relaxed);
            answer(request)
        }),
        zipf: &zipf,
        values: &values,
        expire_s: Some(60),
        connections: 3,
        batch: 4,
        rate,
        cores: &[],
        seed: 1,
        interruption: &interruption,
    };
    // Waits until the clients have sent as many requests as a phase has.
    let wait = |phase: &SharedPhase| {
        let (begin, first) = (Instant::now(), served.load(Ordering::Relaxed));
        while served.load(Ordering::Relaxed) < first + requests && phase.current() != CachePhase::Stop {
            if begin.elapsed() > Duration::from_secs(60) {
                return Err(Error::Server("the clients send nothing".into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(begin.elapsed().as_secs_f64())
    };
    let watch = |phase: &SharedPhase| {
        wait(phase)?;
        phase.begin(CachePhase::WarmUp);
        wait(phase)?;
        phase.begin(CachePhase::Measure);
        wait(phase)
    };
    run_clients(&load, watch).map(|(seconds, counts)| (counts, seconds))
}

fn bulk(text: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

#[test]
fn clients_write_what_is_missing_and_find_it_later() {
    type Store = Mutex<HashMap<Vec<u8>, Vec<u8>>>;
    let store: Arc<Store> = Arc::default();
    let (shared, writes) = (Arc::clone(&store), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&writes);
    let (counts, _) = run_against(
        move |request| {
            let mut store = shared.lock().expect("no other holder panics");
            match request {
                [name, key] if name == b"GET" => store.get(key).map_or(b"$-1\r\n".to_vec(), |text| bulk(text)),
                [name, key, value, unit, seconds] if name == b"SET" && unit == b"EX" && seconds == b"60" => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    store.insert(key.clone(), value.clone());
                    b"+OK\r\n".to_vec()
                }
                _ => b"-ERR unknown command\r\n".to_vec(),
            }
        },
        1e6,
        1000,
    )
    .expect("right replies");
    // Nothing is evicted, and one connection is used after the other, so each key is written once.
    assert!(counts.reads > 100 && counts.hits <= counts.reads && counts.refused == 0);
    assert!(counts.hit_rate() > Some(0.8), "{counts:?}");
    assert!(writes.load(Ordering::Relaxed) <= KEYS);
    let values = ValuePool::new(32);
    let store = store.lock().expect("no other holder panics");
    assert_eq!(store[key_name(0).as_slice()], values.value(0));
}

#[test]
fn a_cache_that_keeps_nothing_has_no_hits() {
    let (counts, _) = run_against(
        |request| match request[0].as_slice() {
            b"GET" => b"$-1\r\n".to_vec(),
            _ => b"-OOM command not allowed\r\n".to_vec(),
        },
        1e6,
        100,
    )
    .expect("refusals are counted");
    assert_eq!(counts.hit_rate(), Some(0.0));
    assert!(counts.refused > 0);
    assert_eq!(CacheCounts::default().hit_rate(), None);
}

#[test]
fn a_wrong_value_ends_the_run() {
    let outcome = run_against(|_| bulk(b"not the value of this key"), 1e6, 100);
    assert!(matches!(outcome, Err(Error::WrongReply(_))), "{outcome:?}");
}

#[test]
fn reads_keep_their_rate() {
    let values = ValuePool::new(32);
    let answer = move |request: &[Vec<u8>]| {
        let digits = String::from_utf8_lossy(&request[1][4..]).into_owned();
        bulk(values.value(digits.parse().expect("a number")))
    };
    let (counts, seconds) = run_against(answer, 1000.0, 200).expect("right replies");
    // Reads that were due in the warm-up may be late, and the last batches end after the phase.
    let most = 1000.0 * seconds + 50.0;
    assert!(
        counts.reads > 0 && counts.reads as f64 <= most,
        "{counts:?} in {seconds} s"
    );
    assert_eq!(counts.hits, counts.reads);
}

#[test]
fn all_servers_get_the_same_keys_from_the_warm_up_on() {
    let (zipf, seed) = (Zipf::new(KEYS, 0.9), scramble(1 ^ scramble(0)));
    let key = |number: u64| key_name(zipf.key(&mut Draw::new(seed, FIRST_PACED_DRAW + number))).to_vec();
    // The second server needs more keys until the warm-up.
    for requests in [40, 120] {
        let log: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let shared = Arc::clone(&log);
        let answer = move |request: &[Vec<u8>]| {
            if request[0] != b"GET" {
                return b"+OK\r\n".to_vec();
            }
            let mut log = shared.lock().expect("no other holder panics");
            log.push(request[1].clone());
            b"$-1\r\n".to_vec()
        };
        run_against(answer, 1e6, requests).expect("right replies");
        let log = log.lock().expect("no other holder panics");
        let begins_at = |place: &usize| log[*place..].iter().take(8).cloned().eq((0..8).map(&key));
        let begin = (0..log.len()).find(begins_at).expect("a warm-up");
        let paced = &log[begin..];
        assert!(begin > 0 && paced.len() > 16, "{begin} and {} keys", paced.len());
        let expected: Vec<Vec<u8>> = (0..paced.len() as u64).map(&key).collect();
        assert!(paced == expected.as_slice(), "{requests} requests");
    }
}

#[test]
fn a_phase_never_goes_back() {
    let phase = SharedPhase::new();
    assert_eq!(phase.current(), CachePhase::Fill);
    for (begun, current) in [
        (CachePhase::WarmUp, CachePhase::WarmUp),
        (CachePhase::Stop, CachePhase::Stop),
        (CachePhase::Measure, CachePhase::Stop),
    ] {
        phase.begin(begun);
        assert_eq!(phase.current(), current);
    }
}

#[test]
fn limits_follow_the_number_of_keys() {
    assert_eq!(next_limit(100_000, 100.0, 1000, 1000), 100_000);
    assert_eq!(next_limit(100_000, 100.0, 1000, 900), 110_000);
    assert_eq!(next_limit(100_000, 100.0, 1000, 1100), 90_000);
    assert_eq!(next_limit(100_000, 100.0, 1000, 0), 125_000);
    assert_eq!(next_limit(100_000, 100.0, 1000, 9000), 75_000);
}

#[test]
fn the_best_cache_holds_the_most_popular_keys() {
    assert!((best_hit_rate(100, 100, 0.9) - 1.0).abs() < 1e-12);
    // 1 of the weights 1, 1/2 and 1/3.
    assert!((best_hit_rate(1, 3, 1.0) - 6.0 / 11.0).abs() < 1e-12);
    assert!(best_hit_rate(1000, 10_000, 1.0) > best_hit_rate(1000, 10_000, 0.7));
}

#[test]
fn servers_have_the_limit_and_the_policy() {
    let options = options();
    let runner = PolicyRunner {
        options: &options,
        policy: "volatile-ttl",
        values: ValuePool::new(32),
        expire_s: Some(1),
    };
    let command = runner.recipe(&SIDES[1], 77).expect("Valkey takes part").command_text();
    let end = "--io-threads 1 --maxmemory 77 --maxmemory-policy volatile-ttl --maxmemory-samples 5";
    assert!(command.ends_with(end), "{command}");
}

#[test]
fn unknown_policies_and_exponents_are_refused() {
    assert!(options().check().is_ok());
    let with = |policy: &str, exponent: f64| EvictionOptions {
        policies: vec![policy.into()],
        exponents: vec![exponent],
        ..options()
    };
    assert!(with("volatile-ttl", 1.0).check().is_ok());
    for (policy, exponent) in [
        ("noeviction", 1.0),
        ("", 1.0),
        ("allkeys-lru", 0.0),
        ("allkeys-lru", -1.0),
        ("allkeys-lru", 20.0),
        ("allkeys-lru", f64::NAN),
    ] {
        assert!(with(policy, exponent).check().is_err(), "{policy}, {exponent}");
    }
    let none = EvictionOptions {
        policies: Vec::new(),
        ..options()
    };
    assert!(none.check().is_err());
}

fn hit_side(label: &'static str, max_memory: u64, rates: [f64; 3]) -> HitSide {
    let round = |rate: f64| HitMeasurement {
        hit_rate: Some(rate),
        reads_per_s: 20_000.0,
        keys: 1000.0,
        evicted_per_s: 5000.0,
        refused: 0,
    };
    HitSide {
        label,
        command: format!("the command of {label}"),
        max_memory,
        rounds: rates.map(round).to_vec(),
    }
}

fn hit_row(sides: Vec<HitSide>) -> HitRow {
    HitRow {
        policy: "allkeys-lru".into(),
        exponent: 0.9,
        best: 0.75,
        sides,
    }
}

#[test]
fn the_table_compares_each_weft_with_valkey() {
    let mut report = EvictionReport::new(&options());
    report.hits.push(hit_row(vec![
        hit_side("Weft", 1_000_000, [0.5, 0.51, 0.7]),
        hit_side("Valkey", 2_000_000, [0.5, 0.48, 0.1]),
        hit_side(EQUAL_MEMORY_LABEL, 2_000_000, [0.6, 0.6, 0.6]),
    ]));
    let text = report.markdown();
    for part in [
        "| policy and exponent | best possible % | Weft % | Valkey % | Weft, Valkey's maxmemory % | Weft − Valkey | ",
        " | Weft, Valkey's maxmemory − Valkey | keys | maxmemory MB | reads/s |\n",
        "| allkeys-lru, s = 0.9 | 75.00 | 51.00 | 48.00 | 60.00 | +3.00 | +12.00 | 1000 / 1000 / 1000 | ",
        " | 1.0 / 2.0 / 2.0 | 20000 / 20000 / 20000 |\n",
        "10000 keys of 32 B of which 1000 fit",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let json = report.json();
    assert_eq!(json["hit_rates"][0]["sides"][1]["hit_rate"], 0.48);
    assert_eq!(
        json["hit_rates"][0]["differences_to_valkey"][1]["of"],
        EQUAL_MEMORY_LABEL
    );
}

#[test]
fn weft_alone_is_compared_with_nothing() {
    let mut report = EvictionReport::new(&options());
    report
        .hits
        .push(hit_row(vec![hit_side("Weft", 1_000_000, [0.5, 0.5, 0.5])]));
    let text = report.markdown();
    assert!(
        text.contains("| allkeys-lru, s = 0.9 | 75.00 | 50.00 | 1000 | 1.0 | 20000 |\n"),
        "{text}"
    );
}

#[test]
fn the_tables_have_the_rounds_that_were_finished() {
    let mut report = EvictionReport::new(&options());
    let mut unfinished = hit_side("Valkey", 2_000_000, [0.4, 0.4, 0.4]);
    unfinished.rounds.truncate(1);
    unfinished.rounds[0].reads_per_s = 15_000.0;
    unfinished.rounds[0].refused = 7;
    let mut without_rounds = hit_side("Weft", 1_000_000, [0.5, 0.5, 0.5]);
    without_rounds.rounds.clear();
    for sides in [
        vec![hit_side("Weft", 1_000_000, [0.5, 0.5, 0.5]), unfinished],
        vec![without_rounds],
    ] {
        report.hits.push(hit_row(sides));
    }
    report
        .remarks
        .push("Valkey, allkeys-lru: 900 keys fit and not 1000 after 10 trials".into());
    report.end(Some("interrupted".into()));
    assert_eq!(report.hits.len(), 1);
    let text = report.markdown();
    for part in [
        "**The run ended early: interrupted.**",
        "- allkeys-lru, Weft: `the command of Weft`\n- allkeys-lru, Valkey: `the command of Valkey`\n\n|",
        "\nValkey, allkeys-lru: 900 keys fit and not 1000 after 10 trials.\n",
        "\nallkeys-lru, s = 0.9: 1 of 2 rounds were finished.\n",
        "\nallkeys-lru, s = 0.9, Valkey: 15000 and not 20000 reads/s, so ages",
        "\nallkeys-lru, s = 0.9, Valkey: 7 writes were refused.\n",
        "seed 1; servers on CPU 0, client on any CPU.",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn each_policy_has_a_section_with_its_own_commands() {
    let mut report = EvictionReport::new(&options());
    let row = || LoadRow {
        load: "set-new".into(),
        value_size: 32,
        pipeline: 16,
        notes: Vec::new(),
        sides: vec![Vec::new()],
    };
    for policy in ["allkeys-lru", "allkeys-lfu"] {
        let command = format!("weft-server --maxmemory-policy {policy}");
        let row = report.begin_latencies(policy, vec!["Weft".into()], vec![command], row());
        assert_eq!(row.sides.len(), 1);
    }
    let text = report.markdown();
    for part in [
        "### Writes of new keys at maxmemory, allkeys-lru, 10000 per second, 3 connections\n",
        "- Weft: `weft-server --maxmemory-policy allkeys-lru`\n",
        "### Writes of new keys at maxmemory, allkeys-lfu, ",
        "- Weft: `weft-server --maxmemory-policy allkeys-lfu`\n",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(report.has_results());
    report.end(None);
    assert!(!report.has_results(), "nothing was measured");
}
