//! Tests of subscribers against a publisher inside the test.

use std::io::Write;
use std::net::TcpListener;
use std::thread;

use super::*;

fn message(number: u64) -> Vec<u8> {
    let format = MessageFormat::new(20);
    let mut message = format.header.clone();
    format.values.append_name(0, number, &mut message);
    message.extend_from_slice(b"\r\n");
    message
}

/// Connects a subscriber to a publisher that sends `bytes` in two parts.
fn subscriber(bytes: Vec<u8>) -> Subscribers {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the subscriber connects");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        stream.write_all(first).expect("sends");
        thread::sleep(Duration::from_millis(5));
        stream.write_all(second).expect("sends");
        // The connection stays open until the subscriber closes it.
        let _ = stream.read(&mut [0]);
    });
    Subscribers::new(vec![stream], 20).expect("a subscriber")
}

fn run(bytes: Vec<u8>, published: u64) -> (Result<String>, u64) {
    let progress = SubscriberProgress::new();
    progress.published.store(published, Ordering::Relaxed);
    let outcome = subscriber(bytes).run(&progress, &AtomicBool::new(false), &[]);
    (outcome, progress.delivered.load(Ordering::Relaxed))
}

#[test]
fn all_published_messages_are_counted() {
    let bytes: Vec<u8> = (0..1000).flat_map(message).collect();
    let (outcome, delivered) = run(bytes, 1000);
    assert_eq!(outcome.expect("right messages"), "1000 messages to 1 subscribers");
    assert_eq!(delivered, 1000);
}

#[test]
fn a_repeated_message_is_an_error() {
    let (outcome, _) = run((0..3).flat_map(message).collect(), 1);
    assert!(matches!(outcome, Err(Error::WrongReply(_))), "{outcome:?}");
}

#[test]
fn a_lost_message_is_an_error_once_the_time_is_over() {
    let mut subscribers = subscriber(message(0));
    subscribers.subscribers[0].received = 1;
    assert!(!subscribers.have_received(2, false).expect("it may still arrive"));
    assert!(subscribers.have_received(2, true).is_err());
    assert!(subscribers.have_received(1, true).expect("complete"));
}

#[test]
fn wrong_messages_are_errors() {
    let changed = |position: usize| {
        let mut bytes = message(5);
        bytes[position] ^= 1;
        bytes
    };
    let length = message(5).len();
    // A byte of the framing, of the channel's name, of the payload, and of the line end.
    for bytes in [changed(0), changed(22), changed(length - 5), changed(length - 1)] {
        let text = bytes.escape_ascii().to_string();
        let (outcome, _) = run(bytes, 1);
        assert!(matches!(outcome, Err(Error::WrongReply(_))), "{text}: {outcome:?}");
    }
}

#[test]
fn the_stop_flag_ends_the_thread() {
    let outcome = subscriber(Vec::new()).run(&SubscriberProgress::new(), &AtomicBool::new(true), &[]);
    assert_eq!(outcome.expect("no messages are right"), "");
}
