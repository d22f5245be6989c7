//! Tests of the reactor over real sockets: echo, back-pressure, pausing, moving, waking, stale tokens, ended streams.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use rustix::net;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const LONG_TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const NO_TIMEOUT: Option<Duration> = Some(Duration::ZERO);

fn tcp_pair() -> (Socket, TcpStream) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (served, _) = listener.accept().unwrap();
    (served.into(), client)
}

fn unix_pair() -> (Socket, UnixStream) {
    let (served, client) = UnixStream::pair().unwrap();
    (served.into(), client)
}

fn turn(reactor: &mut Reactor, timeout: Option<Duration>) -> Vec<Event> {
    let mut events = Vec::new();
    reactor.wait(timeout, &mut events, 128).unwrap();
    events
}

/// Waits until `wanted` accepts an event. Fails the test after 20 seconds.
fn wait_for(reactor: &mut Reactor, what: &str, mut wanted: impl FnMut(&Event) -> bool) -> Event {
    let begun = Instant::now();
    loop {
        let events = turn(reactor, Some(Duration::from_millis(100)));
        if let Some(event) = events.into_iter().find(|event| wanted(event)) {
            return event;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{what} did not come");
    }
}

fn wait_readable(reactor: &mut Reactor, token: Token) {
    wait_for(
        reactor,
        "input",
        |event| matches!(event, Event::Readable(at) if *at == token),
    );
}

fn output(bytes: &[u8]) -> Output {
    let mut output = Output::new();
    output.bytes.extend_from_slice(bytes);
    output
}

/// Receives until the socket is empty.
fn drain(reactor: &mut Reactor, token: Token, room: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut part = Vec::new();
        match reactor.receive(token, &mut part, room).unwrap() {
            ReceiveOutcome::Bytes { count, more } => {
                assert_eq!(count, part.len());
                all.extend_from_slice(&part);
                if !more {
                    return all;
                }
            }
            ReceiveOutcome::WouldBlock | ReceiveOutcome::Closed => return all,
        }
    }
}

#[test]
fn accepted_connections_echo_over_tcp_and_unix() {
    let path = std::env::temp_dir().join(format!("weft-echo-{}.sock", std::process::id()));
    let mut reactor = Reactor::new().unwrap();
    let tcp = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0, 128).unwrap();
    let address = tcp.local_address().unwrap();
    reactor.register_listener(0, tcp).unwrap();
    reactor
        .register_listener(1, Listener::unix(&path, None, 128).unwrap())
        .unwrap();
    let clients: Vec<_> = (0..40)
        .map(|number| {
            let path = path.clone();
            thread::spawn(move || {
                let text = format!("client {number}: {}", "x".repeat(number * 1000));
                if number % 2 == 0 {
                    echo_rounds(TcpStream::connect(address).unwrap(), &text);
                } else {
                    echo_rounds(UnixStream::connect(path).unwrap(), &text);
                }
            })
        })
        .collect();
    let (mut arrived, mut gone) = (0, 0);
    let mut input = Vec::new();
    while gone < clients.len() {
        let events = turn(&mut reactor, LONG_TIMEOUT);
        assert!(
            !events.is_empty(),
            "{arrived} arrived, {gone} gone, and nothing happens"
        );
        for event in events {
            match event {
                Event::Accepted(listener, socket) => {
                    assert_eq!(listener == 1, socket.is_unix());
                    reactor.register(2 + arrived, socket).unwrap();
                    arrived += 1;
                }
                Event::Readable(token) => {
                    input.clear();
                    match reactor.receive(token, &mut input, 16 * 1024).unwrap() {
                        ReceiveOutcome::Bytes { .. } => {
                            reactor.send(token, &mut output(&input)).unwrap();
                        }
                        ReceiveOutcome::WouldBlock => {}
                        ReceiveOutcome::Closed => {
                            reactor.deregister(token).unwrap();
                            gone += 1;
                        }
                    }
                }
                Event::Writable(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(reactor.deregister_listener(0).is_some() && reactor.deregister_listener(0).is_none());
    assert!(TcpStream::connect(address).is_err(), "a dropped listener refuses");
    std::fs::remove_file(path).unwrap();
}

fn echo_rounds(mut stream: impl Read + Write, text: &str) {
    for _ in 0..5 {
        stream.write_all(text.as_bytes()).unwrap();
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(back == text.as_bytes());
    }
}

/// A shared value that counts itself as long as it is alive.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns about 50 MB in outputs of copied and shared bytes, and the same bytes in one vector.
fn large_outputs(alive: &Arc<AtomicUsize>) -> (Vec<Output>, Vec<u8>) {
    let (mut outputs, mut flat) = (Vec::new(), Vec::new());
    let mut random = fastrand::Rng::with_seed(7);
    while flat.len() < 50_000_000 {
        let mut output = Output::new();
        for _ in 0..random.usize(1..30) {
            let copied: Vec<u8> = (0..random.usize(0..300)).map(|_| random.u8(..)).collect();
            output.bytes.extend_from_slice(&copied);
            flat.extend_from_slice(&copied);
            if random.u8(..4) == 0 {
                let value = vec![random.u8(..); random.usize(0..300_000)];
                flat.extend_from_slice(&value);
                alive.fetch_add(1, Ordering::Relaxed);
                output.push_shared(Box::new(Counted(value, alive.clone())));
            }
        }
        outputs.push(output);
    }
    (outputs, flat)
}

fn slow_reader<S: Read + Send + 'static>(mut stream: S, total: usize) -> thread::JoinHandle<(Vec<u8>, S)> {
    thread::spawn(move || {
        let mut received = vec![0; total];
        let mut at = 0;
        while at < total {
            let until = (at + 200_000).min(total);
            let count = stream.read(&mut received[at..until]).unwrap();
            assert!(count > 0, "the stream ended at {at} of {total}");
            at += count;
            if at % 7 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
        }
        (received, stream)
    })
}

fn check_slow_reader(served: Socket, client: impl Read + Send + 'static) {
    let alive = Arc::new(AtomicUsize::new(0));
    let (outputs, flat) = large_outputs(&alive);
    let mut reactor = Reactor::new().unwrap();
    reactor.register(3, served).unwrap();
    let mut in_flight = 0;
    for mut output in outputs {
        let sent = reactor.send(3, &mut output).unwrap();
        assert!(output.is_empty());
        in_flight = match sent {
            SendOutcome::Done => 0,
            SendOutcome::InFlight(bytes) => bytes,
        };
        assert_eq!(reactor.in_flight(3), in_flight);
    }
    assert!(
        in_flight > 40_000_000,
        "nobody has read yet, but only {in_flight} bytes are in flight"
    );
    let reader = slow_reader(client, flat.len());
    let mut turns = 0;
    while reactor.in_flight(3) > 0 {
        let events = turn(&mut reactor, LONG_TIMEOUT);
        assert!(reactor.in_flight(3) < in_flight, "a turn without progress: spinning");
        in_flight = reactor.in_flight(3);
        let finished = matches!(events[..], [Event::Writable(3)]);
        assert_eq!(finished, in_flight == 0, "{events:?}");
        turns += 1;
    }
    assert!(turns < 100_000);
    assert_eq!(alive.load(Ordering::Relaxed), 0, "sent values are given back");
    let (received, client) = reader.join().unwrap();
    assert!(received == flat, "the stream differs");
    assert!(
        turn(&mut reactor, NO_TIMEOUT).is_empty(),
        "output is of no more interest"
    );
    drop(client);
    wait_readable(&mut reactor, 3);
}

#[test]
fn a_slow_tcp_reader_gets_everything_in_order() {
    let (served, client) = tcp_pair();
    check_slow_reader(served, client);
}

#[test]
fn a_slow_unix_reader_gets_everything_in_order() {
    let (served, client) = unix_pair();
    check_slow_reader(served, client);
}

#[test]
fn a_short_receive_empties_the_socket_and_a_full_one_is_reported_readable_again() {
    let (served, mut client) = tcp_pair();
    let mut reactor = Reactor::new().unwrap();
    reactor.register(0, served).unwrap();
    client.write_all(&[1; 1000]).unwrap();
    wait_readable(&mut reactor, 0);
    let mut input = Vec::with_capacity(600);
    let room = input.capacity();
    let received = reactor.receive(0, &mut input, 1).unwrap();
    assert_eq!(
        received,
        ReceiveOutcome::Bytes {
            count: room,
            more: true
        }
    );
    wait_readable(&mut reactor, 0);
    let received = reactor.receive(0, &mut input, 4096).unwrap();
    assert_eq!(
        received,
        ReceiveOutcome::Bytes {
            count: 1000 - room,
            more: false
        }
    );
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty(), "an emptied socket is quiet");
    assert_eq!(reactor.receive(0, &mut input, 1).unwrap(), ReceiveOutcome::WouldBlock);
    assert_eq!(input, [1; 1000]);
}

#[test]
fn input_that_is_not_received_is_reported_in_every_turn() {
    let (served, mut client) = unix_pair();
    let mut reactor = Reactor::new().unwrap();
    reactor.register(0, served).unwrap();
    client.write_all(b"PING").unwrap();
    for _ in 0..3 {
        wait_readable(&mut reactor, 0);
    }
    assert_eq!(drain(&mut reactor, 0, 100), b"PING");
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty());
}

#[test]
fn connections_are_served_round_robin_and_no_turn_exceeds_its_limit() {
    let mut reactor = Reactor::new().unwrap();
    let mut clients: Vec<_> = (0..20)
        .map(|token| {
            let (served, client) = unix_pair();
            reactor.register(token, served).unwrap();
            client
        })
        .collect();
    for client in &mut clients {
        client.write_all(&[0; 64]).unwrap();
    }
    // All connections stay readable: one byte is received at a time.
    let mut reported = [0; 20];
    let mut events = Vec::new();
    for _ in 0..40 {
        reactor.wait(LONG_TIMEOUT, &mut events, 4).unwrap();
        assert!((1..=4).contains(&events.len()), "{events:?}");
        for event in &events {
            let Event::Readable(token) = event else {
                panic!("{event:?}")
            };
            reported[*token] += 1;
            let mut byte = Vec::with_capacity(1);
            assert!(matches!(
                reactor.receive(*token, &mut byte, 1).unwrap(),
                ReceiveOutcome::Bytes { .. }
            ));
        }
    }
    assert_eq!(reported, [8; 20]);
}

#[test]
fn a_paused_connection_reports_nothing_and_resuming_reports_its_input() {
    let (served, mut client) = tcp_pair();
    let mut reactor = Reactor::new().unwrap();
    reactor.register(5, served).unwrap();
    reactor.pause(5);
    assert!(reactor.is_paused(5));
    client.write_all(b"while paused").unwrap();
    assert!(turn(&mut reactor, Some(Duration::from_millis(50))).is_empty());
    assert!(
        turn(&mut reactor, Some(Duration::from_millis(10))).is_empty(),
        "and does not spin"
    );
    reactor.resume(5);
    wait_readable(&mut reactor, 5);
    reactor.pause(5);
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty(), "paused after the report");
    reactor.resume(5);
    wait_readable(&mut reactor, 5);
    assert_eq!(drain(&mut reactor, 5, 1000), b"while paused");
    reactor.pause(5);
    reactor.resume(5);
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty(), "nothing came");
}

#[test]
fn output_is_sent_while_paused() {
    let (served, client) = unix_pair();
    let mut reactor = Reactor::new().unwrap();
    reactor.register(0, served).unwrap();
    reactor.pause(0);
    assert!(matches!(
        reactor.send(0, &mut output(&vec![1; 5_000_000])).unwrap(),
        SendOutcome::InFlight(_)
    ));
    let reader = slow_reader(client, 5_000_000);
    wait_for(&mut reactor, "the end of the output", |event| {
        matches!(event, Event::Writable(0))
    });
    reader.join().unwrap();
}

#[test]
fn the_end_of_a_paused_peer_is_reported_once() {
    for paused_first in [true, false] {
        let (served, mut client) = tcp_pair();
        let mut reactor = Reactor::new().unwrap();
        reactor.register(0, served).unwrap();
        if paused_first {
            reactor.pause(0);
        }
        client.write_all(b"last words").unwrap();
        drop(client);
        if !paused_first {
            wait_for(&mut reactor, "the end", |event| {
                matches!(event, Event::Readable(0)) && {
                    thread::sleep(Duration::from_millis(5));
                    true
                }
            });
            reactor.pause(0);
        }
        wait_for(&mut reactor, "the end", |event| matches!(event, Event::Closed(0)));
        assert!(
            turn(&mut reactor, Some(Duration::from_millis(20))).is_empty(),
            "told once"
        );
        reactor.resume(0);
        wait_readable(&mut reactor, 0);
        let mut input = Vec::new();
        let received = reactor.receive(0, &mut input, 100).unwrap();
        assert_eq!(received, ReceiveOutcome::Bytes { count: 10, more: true });
        wait_readable(&mut reactor, 0);
        assert_eq!(reactor.receive(0, &mut input, 100).unwrap(), ReceiveOutcome::Closed);
    }
}

#[test]
fn input_and_end_that_arrive_together_are_both_reported() {
    for _ in 0..50 {
        let (served, mut client) = tcp_pair();
        client.write_all(b"PING").unwrap();
        drop(client);
        let mut reactor = Reactor::new().unwrap();
        reactor.register(0, served).unwrap();
        let (mut input, mut closed) = (Vec::new(), false);
        while !closed {
            wait_readable(&mut reactor, 0);
            closed = reactor.receive(0, &mut input, 100).unwrap() == ReceiveOutcome::Closed;
        }
        assert_eq!(input, b"PING");
    }
}

#[test]
fn a_connection_moves_with_unsent_output_and_unread_input() {
    let (served, mut client) = tcp_pair();
    let (mut first, mut second) = (Reactor::new().unwrap(), Reactor::new().unwrap());
    first.register(1, served).unwrap();
    client.write_all(&[9; 300]).unwrap();
    wait_readable(&mut first, 1);
    let mut input = Vec::with_capacity(100);
    first.receive(1, &mut input, 1).unwrap();
    let mut flat = Vec::new();
    for part in 0..40u8 {
        let mut output = output(&[part; 1000]);
        output.push_shared(Box::new(vec![part + 100; 300_000]));
        flat.extend_from_slice(&[part; 1000]);
        flat.extend_from_slice(&vec![part + 100; 300_000]);
        first.send(1, &mut output).unwrap();
    }
    let in_flight = first.in_flight(1);
    let moved = first.deregister(1).unwrap();
    assert!(in_flight > 0 && moved.unsent.len() == in_flight);
    assert_eq!(first.in_flight(1), 0);
    let reader = slow_reader(client.try_clone().unwrap(), flat.len());
    let moving = thread::spawn(move || {
        second.adopt(77, moved).unwrap();
        let (mut read, mut written) = (input, false);
        while read.len() < 301 || !written {
            for event in turn(&mut second, LONG_TIMEOUT) {
                match event {
                    Event::Readable(77) => read.extend(drain(&mut second, 77, 50)),
                    Event::Writable(77) => written = true,
                    other => panic!("{other:?}"),
                }
            }
        }
        read
    });
    client.write_all(&[9]).unwrap();
    assert!(reader.join().unwrap().0 == flat);
    assert_eq!(moving.join().unwrap(), [9; 301]);
    assert!(turn(&mut first, NO_TIMEOUT).is_empty());
}

#[test]
fn no_wake_up_is_lost() {
    const WAKES: usize = 10_000;
    let mut reactor = Reactor::new().unwrap();
    let waker = reactor.waker();
    let (asked, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let waking = thread::spawn({
        let (asked, answered) = (asked.clone(), answered.clone());
        move || {
            for number in 1..=WAKES {
                asked.store(number, Ordering::Release);
                waker.wake();
                if number % 3 == 0 {
                    while answered.load(Ordering::Acquire) < number {
                        thread::yield_now();
                    }
                }
            }
        }
    });
    let mut events = Vec::new();
    while answered.load(Ordering::Relaxed) < WAKES {
        let woken = reactor.wait(LONG_TIMEOUT, &mut events, 128).unwrap();
        assert!(woken, "a wake-up was lost after {answered:?}");
        answered.store(asked.load(Ordering::Acquire), Ordering::Release);
    }
    waking.join().unwrap();
    reactor.wait(NO_TIMEOUT, &mut events, 128).unwrap();
    assert!(
        !reactor.wait(NO_TIMEOUT, &mut events, 128).unwrap(),
        "an old wake-up is not told again"
    );
}

#[test]
fn a_reused_token_gets_no_events_of_its_predecessor() {
    let mut reactor = Reactor::new().unwrap();
    let (served, mut old_client) = unix_pair();
    reactor.register(4, served).unwrap();
    old_client.write_all(b"old").unwrap();
    wait_readable(&mut reactor, 4);
    // The old connection is in the list of reported connections, and gets a new edge.
    old_client.write_all(b"old").unwrap();
    let old = reactor.deregister(4).unwrap();
    let (served, mut new_client) = unix_pair();
    reactor.register(4, served).unwrap();
    old_client.write_all(b"old").unwrap();
    assert!(turn(&mut reactor, Some(Duration::from_millis(20))).is_empty());
    new_client.write_all(b"new").unwrap();
    assert!(
        matches!(turn(&mut reactor, LONG_TIMEOUT)[..], [Event::Readable(4)]),
        "once"
    );
    assert_eq!(drain(&mut reactor, 4, 100), b"new");
    drop(old);
}

#[test]
fn events_of_an_older_generation_are_dropped() {
    let mut reactor = Reactor::new().unwrap();
    let (served, _client) = unix_pair();
    reactor.register(0, served).unwrap();
    let generation = reactor.generation;
    let mut events = Vec::new();
    reactor.process_event(0, generation - 1, epoll::EventFlags::IN, &mut events);
    assert!(reactor.ready.is_empty());
    reactor.process_event(0, generation, epoll::EventFlags::IN, &mut events);
    assert_eq!(reactor.ready, [0]);
}

#[test]
fn a_token_must_match_completely_and_is_refused_while_in_use() {
    let mut reactor = Reactor::new().unwrap();
    let (served, mut client) = unix_pair();
    let token = 8 << 32 | 2;
    reactor.register(token, served).unwrap();
    client.write_all(b"PING").unwrap();
    wait_readable(&mut reactor, token);
    let stale = 7 << 32 | 2;
    let mut input = Vec::new();
    let error = reactor.receive(stale, &mut input, 10).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let mut reply = output(b"x");
    assert_eq!(
        reactor.send(stale, &mut reply).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    assert_eq!(reply.bytes, b"x");
    reactor.pause(stale);
    assert!(!reactor.is_paused(token) && reactor.deregister(stale).is_none());
    for (taken, kind) in [
        (stale, io::ErrorKind::AlreadyExists),
        (MAX_ENTRIES, io::ErrorKind::InvalidInput),
    ] {
        assert_eq!(reactor.register(taken, unix_pair().0).unwrap_err().kind(), kind);
    }
    assert_eq!(drain(&mut reactor, token, 10), b"PING");
    assert!(reactor.socket(token).is_some_and(Socket::is_unix));
}

/// Closes the connection with input unread, so that the other side gets a reset.
fn reset(reactor: &mut Reactor, token: Token, client: TcpStream) {
    reactor.send(token, &mut output(b"never read")).unwrap();
    let mut byte = [0];
    client.peek(&mut byte).unwrap();
    drop(client);
}

#[test]
fn a_reset_is_an_error_of_receive_and_of_send() {
    let (served, client) = tcp_pair();
    let mut reactor = Reactor::new().unwrap();
    reactor.register(0, served).unwrap();
    reset(&mut reactor, 0, client);
    wait_readable(&mut reactor, 0);
    let error = reactor.receive(0, &mut Vec::new(), 100).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let mut reply = output(b"reply");
    assert_eq!(
        reactor.send(0, &mut reply).unwrap_err().kind(),
        io::ErrorKind::BrokenPipe
    );
    assert!(reply.is_empty());
}

#[test]
fn a_reset_drops_the_output_in_flight() {
    let (served, client) = tcp_pair();
    let mut reactor = Reactor::new().unwrap();
    reactor.register(0, served).unwrap();
    let alive = Arc::new(AtomicUsize::new(1));
    let mut much = output(&vec![0; 20_000_000]);
    much.push_shared(Box::new(Counted(vec![0; 100], alive.clone())));
    assert!(matches!(reactor.send(0, &mut much).unwrap(), SendOutcome::InFlight(_)));
    drop(client);
    wait_for(&mut reactor, "the failure", |event| {
        matches!(event, Event::SendFailed(0))
    });
    assert_eq!((reactor.in_flight(0), alive.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn output_waits_until_connected_and_a_refusal_is_reported() {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mut reactor = Reactor::new().unwrap();
    reactor.register(0, Socket::connect_tcp(address).unwrap()).unwrap();
    reactor.send(0, &mut output(b"PING")).unwrap();
    let (mut served, _) = listener.accept().unwrap();
    let mut request = [0; 4];
    while reactor.in_flight(0) > 0 {
        turn(&mut reactor, LONG_TIMEOUT);
    }
    served.read_exact(&mut request).unwrap();
    assert_eq!(&request, b"PING");
    // A socket that is bound and does not listen keeps the port from others.
    let refusing = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::bind(&refusing, &std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = std::net::SocketAddr::try_from(net::getsockname(&refusing).unwrap()).unwrap();
    reactor.register(1, Socket::connect_tcp(address).unwrap()).unwrap();
    wait_readable(&mut reactor, 1);
    let error = reactor.receive(1, &mut Vec::new(), 10).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn many_connections_are_accepted_over_several_turns() {
    let mut reactor = Reactor::new().unwrap();
    let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0, 128).unwrap();
    let address = listener.local_address().unwrap();
    reactor.register_listener(9, listener).unwrap();
    let clients: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (mut accepted, mut events) = (0, Vec::new());
    while accepted < clients.len() {
        reactor.wait(LONG_TIMEOUT, &mut events, 8).unwrap();
        assert!((1..=8).contains(&events.len()));
        assert!(
            events.iter().all(|event| matches!(event, Event::Accepted(9, _))),
            "{events:?}"
        );
        accepted += events.len();
    }
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty());
}

#[test]
fn a_wait_lasts_for_its_timeout() {
    let mut reactor = Reactor::new().unwrap();
    let begun = Instant::now();
    assert!(turn(&mut reactor, Some(Duration::from_micros(29_500))).is_empty());
    let passed = begun.elapsed();
    assert!(
        passed >= Duration::from_micros(29_500) && passed < Duration::from_secs(10),
        "{passed:?}"
    );
}

const STARVED: &str = "WEFT_STARVED_SCENARIO";

/// Runs in a process of its own, because it uses up all descriptors.
#[test]
#[ignore = "another test runs it in a process of its own"]
fn starved_scenario() {
    assert!(std::env::var(STARVED).is_ok(), "it needs a process of its own");
    let mut reactor = Reactor::new().unwrap();
    let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0, 128).unwrap();
    let _client = TcpStream::connect(listener.local_address().unwrap()).unwrap();
    reactor.register_listener(0, listener).unwrap();
    let lowest_free = reactor.epoll.try_clone().unwrap().as_raw_fd() as u64;
    let before = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(lowest_free),
            ..before
        },
    )
    .unwrap();
    let begun = Instant::now();
    let mut failures = 0;
    for _ in 0..5 {
        for event in turn(&mut reactor, Some(Duration::from_millis(40))) {
            let Event::AcceptFailed(0, error) = event else {
                panic!("{event:?}")
            };
            assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
            failures += 1;
        }
    }
    assert_eq!(failures, 5, "told in every turn");
    assert!(begun.elapsed() >= Duration::from_millis(160), "it spins");
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(matches!(turn(&mut reactor, NO_TIMEOUT)[..], [Event::Accepted(0, _)]));
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty());
    println!("starved and recovered");
}

#[test]
fn a_listener_without_descriptors_reports_it_and_retries_without_spinning() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "epoll::tests::starved_scenario", "--nocapture"])
        .env(STARVED, "yes")
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && report.contains("starved and recovered"),
        "{output:?}"
    );
}

#[test]
fn a_requested_writable_event_comes_when_the_socket_accepts_output() {
    let mut reactor = Reactor::new().unwrap();
    let (served, _client) = tcp_pair();
    reactor.register(4, served).unwrap();
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty());
    for _ in 0..3 {
        reactor.request_writable(4).unwrap();
        reactor.request_writable(4).unwrap();
        wait_for(&mut reactor, "room", |event| matches!(event, Event::Writable(4)));
        assert!(turn(&mut reactor, NO_TIMEOUT).is_empty(), "it is told once");
    }
    let full = vec![7u8; 64 << 20];
    assert!(matches!(
        reactor.send(4, &mut output(&full)).unwrap(),
        SendOutcome::InFlight(_)
    ));
    reactor.request_writable(4).unwrap();
    assert!(
        turn(&mut reactor, Some(Duration::from_millis(20))).is_empty(),
        "what is in flight comes first"
    );
    assert!(reactor.request_writable(9).is_err());
}

#[test]
fn a_requested_readable_event_comes_without_input() {
    let mut reactor = Reactor::new().unwrap();
    let (served, _client) = tcp_pair();
    reactor.register(4, served).unwrap();
    reactor.request_readable(4);
    wait_readable(&mut reactor, 4);
    let mut into = Vec::new();
    assert_eq!(reactor.receive(4, &mut into, 10).unwrap(), ReceiveOutcome::WouldBlock);
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty());
    reactor.pause(4);
    reactor.request_readable(4);
    assert!(turn(&mut reactor, NO_TIMEOUT).is_empty(), "not while it is paused");
    reactor.resume(4);
    wait_readable(&mut reactor, 4);
}

#[test]
fn a_long_input_grows_in_small_steps() {
    const STEP: usize = 16 * 1024;
    let mut reactor = Reactor::new().unwrap();
    let (served, mut client) = tcp_pair();
    reactor.register(5, served).unwrap();
    let sent = vec![b'x'; 1_300_000];
    let writer = thread::spawn(move || client.write_all(&sent).map(|()| client));
    let mut into = Vec::new();
    while into.len() < 1_300_000 {
        wait_readable(&mut reactor, 5);
        let received = reactor.receive(5, &mut into, STEP).unwrap();
        assert!(!matches!(received, ReceiveOutcome::Closed));
        let most = (into.len() + into.len() / 8 + STEP).max(2 * 64 * 1024 + STEP);
        assert!(into.capacity() <= most, "{} bytes for {}", into.capacity(), into.len());
    }
    writer.join().unwrap().unwrap();
}

#[test]
fn a_receive_takes_no_more_than_its_limit_into_a_larger_buffer() {
    let mut reactor = Reactor::new().unwrap();
    let (served, mut client) = tcp_pair();
    reactor.register(6, served).unwrap();
    client.write_all(&[1; 1000]).unwrap();
    let mut into = Vec::with_capacity(5000);
    for (count, more) in [(400, true), (400, true), (200, false)] {
        wait_readable(&mut reactor, 6);
        let received = reactor.receive_at_most(6, &mut into, 100, 400).unwrap();
        assert_eq!(received, ReceiveOutcome::Bytes { count, more });
    }
    assert!(into == [1; 1000] && turn(&mut reactor, NO_TIMEOUT).is_empty());
}
