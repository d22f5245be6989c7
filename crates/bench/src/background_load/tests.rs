//! Tests of long commands and waiting clients against servers inside the test.

use std::net::TcpListener;

use super::*;

/// Replies to every read on one connection with `reply`, in two parts.
fn serve(reply: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client connects");
        stream.set_nodelay(true).expect("a socket option");
        let mut request = [0; 1024];
        while let Ok(1..) = stream.read(&mut request) {
            let (first, second) = reply.split_at(reply.len() / 2);
            let sent = stream.write_all(first).and_then(|()| {
                thread::sleep(Duration::from_millis(2));
                stream.write_all(second)
            });
            if sent.is_err() {
                return;
            }
        }
    });
    address
}

const COMMANDS: &[LongCommand] = &[LongCommand {
    line: "KEYS *",
    expected: 2,
}];

#[test]
fn long_commands_are_repeated_until_the_stop_flag_is_set() {
    let mut client = LongCommandClient::connect(serve(b"*2\r\n$1\r\na\r\n$1\r\nb\r\n")).expect("connects");
    let stop = AtomicBool::new(false);
    let done = thread::scope(|scope| {
        let running = scope.spawn(|| client.run(COMMANDS, &stop));
        thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
        running.join().expect("does not panic").expect("right replies")
    });
    let count: u64 = done.split(' ').next().expect("a count").parse().expect("a number");
    assert!(count > 1, "{done}");
}

#[test]
fn a_paced_command_is_sent_at_its_rate() {
    let mut client = LongCommandClient::connect(serve(b":1\r\n")).expect("connects");
    let command = LongCommand {
        line: "BENCH.NOP",
        expected: 1,
    };
    let stop = AtomicBool::new(false);
    let done = thread::scope(|scope| {
        let running = scope.spawn(|| client.run_paced(&command, 100, &stop));
        thread::sleep(Duration::from_millis(205));
        stop.store(true, Ordering::Relaxed);
        running.join().expect("does not panic").expect("right replies")
    });
    let seconds = done
        .split(' ')
        .nth(3)
        .expect("seconds")
        .parse::<f64>()
        .expect("a number");
    let count = done
        .split(' ')
        .next()
        .expect("a count")
        .parse::<f64>()
        .expect("a number");
    // The first command is due at once.
    assert!(count > 1.0 && count <= seconds * 100.0 + 6.0, "{done}");
}

#[test]
fn a_wrong_answer_to_a_long_command_is_an_error() {
    for reply in [&b"*1\r\n$1\r\na\r\n"[..], b":3\r\n", b"-ERR no\r\n", b"$1\r\na\r\n"] {
        let mut client = LongCommandClient::connect(serve(reply)).expect("connects");
        let outcome = client.run(COMMANDS, &AtomicBool::new(false));
        assert!(matches!(outcome, Err(Error::WrongReply(_))), "{outcome:?}");
    }
}

fn waiter(reply: &'static [u8]) -> WaitingClient {
    let mut stream = TcpStream::connect(serve(reply)).expect("connects");
    let request = encode("BLPOP awaited 0");
    stream.write_all(&request).expect("sends");
    WaitingClient {
        stream,
        request,
        received: Vec::new(),
    }
}

#[test]
fn a_client_that_received_an_element_waits_again() {
    let mut waiter = waiter(b"*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    for _ in 0..3 {
        let mut reads = 0;
        while !waiter.receive().expect("an element") {
            reads += 1;
            assert!(reads < 10, "the pieces never make an element");
        }
    }
}

#[test]
fn a_reply_without_an_element_is_an_error() {
    for reply in [&b"*-1\r\n"[..], b"-ERR timeout\r\n", b"+OK\r\n"] {
        let mut waiter = waiter(reply);
        let outcome = (0..10).map(|_| waiter.receive()).find(|outcome| outcome.is_err());
        assert!(matches!(outcome, Some(Err(Error::WrongReply(_)))), "{outcome:?}");
    }
}

#[test]
fn notes_of_different_background_loads_differ() {
    let waiting = |clients, same_list| BackgroundLoad::Waiting { clients, same_list };
    let cases = [
        BackgroundLoad::None,
        BackgroundLoad::LongCommands(COMMANDS),
        waiting(10, false),
        waiting(10, true),
        waiting(9, true),
        BackgroundLoad::Subscribers { count: 1 },
        BackgroundLoad::Subscribers { count: 100 },
    ];
    for (place, background_load) in cases.iter().enumerate() {
        assert!(
            cases[..place]
                .iter()
                .all(|other| other.note() != background_load.note())
        );
    }
}
