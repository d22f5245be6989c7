//! Tests of the client loop against a server inside the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::*;
use crate::draw::KeyOrder;
use crate::load::LoadParameters;

/// Sends `reply` for every `*` it receives, and sleeps once: after `stall_after` requests, for `stall`. Serves one
/// connection until the client closes it.
fn serve(reply: &'static [u8], stall_after: usize, stall: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client connects");
        stream.set_nodelay(true).expect("a socket option");
        let mut answered = 0;
        let mut buffer = [0; 64 * 1024];
        // A PING is 14 bytes and has one '*'.
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            for _ in buffer[..count].iter().filter(|byte| **byte == b'*') {
                if answered == stall_after {
                    thread::sleep(stall);
                }
                answered += 1;
                if stream.write_all(reply).is_err() {
                    return;
                }
            }
        }
    });
    address
}

fn ping() -> Workload {
    let order = KeyOrder::Uniform { keys: 1 };
    let subject = LoadParameters {
        order,
        value_size: 8,
        expire_s: None,
        verify_every: 1,
    };
    Workload::from_name("ping", &subject).expect("a known load")
}

fn window(from_ms: u64, until_ms: u64, drain_ms: u64) -> MeasurementWindow {
    let ns = |milliseconds| milliseconds * 1_000_000;
    MeasurementWindow {
        begin: Instant::now(),
        from_ns: ns(from_ms),
        until_ns: ns(until_ms),
        drain_ns: ns(drain_ms),
    }
}

fn drive(
    address: SocketAddr,
    pipeline: u64,
    pace: RequestPace,
    window: MeasurementWindow,
    budget: u64,
) -> Result<LoadTally> {
    let stream = TcpStream::connect(address).expect("the test's server listens");
    let stream = LoadStream::Plain(stream);
    let connections = vec![LoadConnection::new(stream, 1, budget).expect("a connection")];
    let workload = ping();
    let stop = AtomicBool::new(false);
    let plan = ThreadPlan {
        workload: &workload,
        pipeline,
        pace,
        window,
        stop: &stop,
        interruption: &Interruption::default(),
    };
    let outcome = Driver::new(plan, connections).expect("a driver").run();
    assert_eq!(stop.load(Ordering::Relaxed), outcome.is_err());
    outcome
}

fn open(per_s: f64) -> RequestPace {
    RequestPace::Open {
        interval_ns: 1e9 / per_s,
        offset_ns: 0.0,
    }
}

const MS: u64 = 1_000_000;

#[test]
fn a_stall_adds_latency_to_every_request_that_comes_due_during_it() {
    let address = serve(b"+PONG\r\n", 300, Duration::from_millis(400));
    let tally = drive(address, 1000, open(1000.0), window(0, 1000, 5000), u64::MAX).expect("right replies");
    assert_eq!(tally.latencies.len(), 1000, "each due request has one latency");
    assert_eq!(tally.all_replies, 1000);
    assert_eq!(tally.unanswered, 0);
    let quantile = |quantile| tally.latencies.value_at_quantile(quantile);
    assert!(quantile(0.999) >= 390 * MS, "p99.9 is {} ns", quantile(0.999));
    // About 400 requests came due in the stall and waited 0 to 400 ms: one in five of all requests waited at least 200
    // ms. Latencies counted from the send time would show a single slow request.
    assert!(quantile(0.82) >= 200 * MS, "p82 is {} ns", quantile(0.82));
}

#[test]
fn a_full_pipeline_delays_sending_but_not_the_due_time() {
    let address = serve(b"+PONG\r\n", 300, Duration::from_millis(400));
    let tally = drive(address, 1, open(1000.0), window(0, 1000, 5000), u64::MAX).expect("right replies");
    assert_eq!(tally.latencies.len(), 1000);
    assert!(tally.latencies.value_at_quantile(0.82) >= 200 * MS);
}

#[test]
fn requests_due_in_the_warm_up_are_not_recorded() {
    let address = serve(b"+PONG\r\n", usize::MAX, Duration::ZERO);
    let tally = drive(address, 16, open(2000.0), window(250, 500, 5000), u64::MAX).expect("right replies");
    assert_eq!(tally.all_replies, 1000);
    assert_eq!(tally.latencies.len(), 500);
}

#[test]
fn unanswered_requests_count_with_their_waiting_time() {
    let address = serve(b"+PONG\r\n", 50, Duration::from_secs(3600));
    let tally = drive(address, 16, open(1000.0), window(0, 100, 300), u64::MAX).expect("no wrong replies");
    assert_eq!(tally.all_replies, 50);
    assert_eq!(tally.unanswered, 50);
    assert_eq!(tally.latencies.len(), 100);
    assert!(tally.latencies.max() >= 340 * MS);
}

#[test]
fn a_closed_loop_sends_its_budget_and_ends() {
    let address = serve(b"+PONG\r\n", usize::MAX, Duration::ZERO);
    let tally = drive(address, 7, RequestPace::Closed, window(0, 60_000, 0), 1000).expect("right replies");
    assert_eq!(
        (tally.replies, tally.all_replies, tally.latencies.len()),
        (1000, 1000, 1000)
    );
}

#[test]
fn a_closed_loop_ends_with_its_window() {
    let has_replies_before_and_within = |length_ms: u64| {
        let address = serve(b"+PONG\r\n", usize::MAX, Duration::ZERO);
        let window = window(length_ms / 2, length_ms / 2 + length_ms, 5000);
        let tally = drive(address, 4, RequestPace::Closed, window, u64::MAX).expect("right replies");
        assert_eq!(tally.latencies.len(), tally.replies);
        assert_eq!(tally.all_replies % 4, 0, "a batch was left behind");
        tally.replies > 0 && tally.replies < tally.all_replies
    };
    // On a busy machine, the test may sleep through a short window.
    assert!([100, 1000, 10_000].into_iter().any(has_replies_before_and_within));
}

#[test]
fn a_server_that_stops_replying_fails_a_closed_loop() {
    let address = serve(b"+PONG\r\n", 10, Duration::from_secs(3600));
    let outcome = drive(address, 4, RequestPace::Closed, window(0, 100, 100), u64::MAX);
    assert!(matches!(outcome, Err(Error::Server(_))), "{outcome:?}");
}

#[test]
fn a_wrong_reply_fails_the_run() {
    for reply in [
        b"+PANG\r\n".as_slice(),
        b"-ERR no\r\n",
        b"+PONG\r\n+PONG\r\n",
        b"PONG\r\n",
    ] {
        let address = serve(reply, usize::MAX, Duration::ZERO);
        let outcome = drive(address, 1, RequestPace::Closed, window(0, 5000, 1000), u64::MAX);
        assert!(matches!(outcome, Err(Error::WrongReply(_))), "{reply:?}: {outcome:?}");
    }
}

#[test]
fn merged_tallies_have_the_quantiles_of_all_latencies() {
    let mut merged = LoadTally::new();
    let mut whole = latency_histogram();
    for thread in 0..4u64 {
        let mut tally = LoadTally::new();
        for step in 1..=1000 {
            let latency_ns = step * 10_000 * (thread + 1);
            tally.latencies.saturating_record(latency_ns);
            whole.saturating_record(latency_ns);
        }
        (tally.replies, tally.all_replies, tally.misses, tally.unanswered) = (1000, 1100, 3, 2);
        merged.merge(&tally);
    }
    let counts = (merged.replies, merged.all_replies, merged.misses, merged.unanswered);
    assert_eq!(counts, (4000, 4400, 12, 8));
    for quantile in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
        assert_eq!(
            merged.latencies.value_at_quantile(quantile),
            whole.value_at_quantile(quantile)
        );
    }
    assert_eq!(merged.latencies.len(), 4000);
}

#[test]
fn latencies_beyond_the_histogram_are_recorded_at_its_maximum() {
    let mut latencies = latency_histogram();
    latencies.saturating_record(u64::MAX);
    latencies.saturating_record(0);
    assert_eq!(latencies.len(), 2);
    assert!(latencies.max() >= MAX_LATENCY_NS);
}
