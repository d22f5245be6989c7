//! Tests of whole runs against a small server inside the test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::*;
use crate::draw::KeyOrder;
use crate::load::{FILL_STRINGS, LoadParameters};
use crate::server_for_tests;

type Store = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

fn reply_to(request: &[Vec<u8>], store: &Store) -> Vec<u8> {
    let mut store = store.lock().expect("no other holder panics");
    let bulk = |value: &Vec<u8>| [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
    match request {
        [name, key] if name == b"GET" => store.get(key).map_or(b"$-1\r\n".to_vec(), bulk),
        [name, key, value] if name == b"SET" => {
            store.insert(key.clone(), value.clone());
            b"+OK\r\n".to_vec()
        }
        [name, keys @ ..] if name == b"MGET" => {
            let values: Vec<u8> = keys
                .iter()
                .flat_map(|key| store.get(key).map_or(b"$-1\r\n".to_vec(), bulk))
                .collect();
            [format!("*{}\r\n", keys.len()).into_bytes(), values].concat()
        }
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}

/// Starts a server with GET, SET and MGET.
fn serve(store: Store) -> SocketAddr {
    server_for_tests::serve(move |request| reply_to(request, &store))
}

fn shape(address: SocketAddr) -> RunParameters {
    RunParameters {
        address,
        connections: 5,
        threads: 2,
        pipeline: 8,
        rate: None,
        warmup: Duration::from_millis(20),
        window: Duration::from_millis(200),
        drain: Duration::from_secs(10),
        seed: 1,
        first_new_key: 1000,
        subscribers: None,
        protocol: 2,
        tls: None,
        cores: Vec::new(),
        server_pid: Some(std::process::id()),
        interruption: Interruption::default(),
    }
}

fn subject(order: KeyOrder) -> LoadParameters {
    LoadParameters {
        order,
        value_size: 40,
        expire_s: None,
        verify_every: 1,
    }
}

fn filled_server(keys: u64) -> (SocketAddr, Store) {
    let store = Store::default();
    let address = serve(Arc::clone(&store));
    let fill = Workload::from_command(FILL_STRINGS, "ok", &subject(KeyOrder::Sequential)).expect("valid");
    send_each_once(&shape(address), &fill, keys).expect("a filled server");
    (address, store)
}

#[test]
fn a_fill_creates_each_key_once_with_its_value() {
    let (_, store) = filled_server(103);
    let store = store.lock().expect("no other holder panics");
    let values = crate::content::ValuePool::new(40);
    assert_eq!(store.len(), 103);
    for id in 0..103 {
        assert_eq!(store[format!("key:{id:012}").as_bytes()], values.value(id));
    }
}

#[test]
fn filled_keys_are_read_back_and_measured() {
    let (address, _) = filled_server(200);
    for load in ["get", "mget100", "mixed"] {
        let workload = Workload::from_name(load, &subject(KeyOrder::Uniform { keys: 200 })).expect(load);
        let measured = measure(&shape(address), &workload).expect(load);
        assert!(measured.replies > 0, "{load}: {measured:?}");
        assert!((measured.requests_per_s - measured.replies as f64 / 0.2).abs() < 1.0);
        assert!(measured.p50_us > 0.0 && measured.p50_us <= measured.p99_us);
        assert!(measured.p99_us <= measured.p999_us && measured.p999_us <= measured.max_us * 1.001);
        assert!(measured.server_cpu_us.is_some() && measured.server_rss_bytes.is_some());
    }
}

#[test]
fn a_load_of_new_keys_creates_a_key_per_request() {
    let (address, store) = filled_server(10);
    let workload = Workload::from_name("set-new", &subject(KeyOrder::Uniform { keys: 10 })).expect("set-new");
    let measured = measure(&shape(address), &workload).expect("right replies");
    let store = store.lock().expect("no other holder panics");
    assert!(measured.all_replies > 0);
    assert_eq!(store.len() as u64, 10 + measured.all_replies);
    assert!(store.contains_key(b"key:000000001000".as_slice()));
}

#[test]
fn the_open_loop_keeps_its_total_rate() {
    let (address, _) = filled_server(200);
    let workload = Workload::from_name("get", &subject(KeyOrder::Uniform { keys: 200 })).expect("get");
    let window = Duration::from_millis(1000);
    let shape = RunParameters {
        rate: Some(500.0),
        window,
        ..shape(address)
    };
    let measured = measure(&shape, &workload).expect("right replies");
    assert_eq!(measured.unanswered, 0);
    assert!((400.0..=600.0).contains(&measured.requests_per_s), "{measured:?}");
}

#[test]
fn a_missing_key_is_a_miss_or_a_failure() {
    let (address, _) = filled_server(100);
    let order = KeyOrder::Uniform { keys: 200 };
    let allowed = Workload::from_name("get-or-nil", &subject(order.clone())).expect("get-or-nil");
    let measured = measure(&shape(address), &allowed).expect("misses are right replies");
    assert!(measured.misses > 0);
    let strict = Workload::from_name("get", &subject(order)).expect("get");
    assert!(matches!(measure(&shape(address), &strict), Err(Error::WrongReply(_))));
}

#[test]
fn one_changed_byte_in_a_stored_value_fails_the_run() {
    let (address, store) = filled_server(10);
    store
        .lock()
        .expect("no other holder panics")
        .values_mut()
        .for_each(|value| value[39] ^= 1);
    let workload = Workload::from_name("get", &subject(KeyOrder::Uniform { keys: 10 })).expect("get");
    assert!(matches!(measure(&shape(address), &workload), Err(Error::WrongReply(_))));
}

#[test]
fn an_interruption_ends_a_run_before_its_window() {
    let (address, _) = filled_server(200);
    let workload = Workload::from_name("get", &subject(KeyOrder::Uniform { keys: 200 })).expect("get");
    let shape = RunParameters {
        window: Duration::from_secs(3600),
        ..shape(address)
    };
    let outcome = thread::scope(|scope| {
        let run = scope.spawn(|| measure(&shape, &workload));
        thread::sleep(Duration::from_millis(30));
        shape.interruption.request();
        run.join().expect("no panic")
    });
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
    let fill = Workload::from_command(FILL_STRINGS, "ok", &subject(KeyOrder::Sequential)).expect("valid");
    let outcome = send_each_once(&shape, &fill, 200);
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
}

#[test]
fn a_rate_is_distributed_over_the_threads() {
    for (number, expected_offset_ns) in [(0, 0.0), (1, 1e6), (2, 2e6)] {
        match pace(Some(1000.0), number, 3) {
            RequestPace::Open { interval_ns, offset_ns } => {
                assert_eq!((interval_ns, offset_ns), (3e6, expected_offset_ns));
            }
            RequestPace::Closed => panic!("a rate makes an open loop"),
        }
    }
    assert!(matches!(pace(None, 0, 1), RequestPace::Closed));
}
