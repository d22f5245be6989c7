//! Tests the dialogue between a debugger and its user.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::reply::append_readable;
use super::request::{ParsedRequest, parse};
use super::{Console, Debugger, DebuggerCommand, help, leading_number};

/// A user whose input is prepared in advance.
#[derive(Default)]
struct ScriptedConsole {
    input: VecDeque<Vec<u8>>,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Console for ScriptedConsole {
    fn send(&mut self, bytes: &[u8]) {
        self.sent.lock().expect("no panic").extend_from_slice(bytes);
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        let piece = self.input.pop_front();
        into.extend_from_slice(piece.as_deref().unwrap_or_default());
        piece.is_some()
    }

    fn is_over(&mut self, _: bool) -> bool {
        false
    }
}

fn session(source: &str, input: &[&str]) -> (Debugger, Arc<Mutex<Vec<u8>>>) {
    let requests = input.iter().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        request.into_bytes()
    });
    let console = ScriptedConsole {
        input: requests.collect(),
        sent: Arc::default(),
    };
    let sent = console.sent.clone();
    (Debugger::new(Box::new(console), source.as_bytes()), sent)
}

#[test]
fn malformed_requests_are_tolerated_as_in_valkey() {
    let words = |words: &[&str]| ParsedRequest::Words(words.iter().map(|word| word.as_bytes().to_vec()).collect());
    for (input, expected) in [
        ("", ParsedRequest::Incomplete),
        ("hello", ParsedRequest::Malformed),
        ("*", ParsedRequest::Incomplete),
        ("*1\r\n", ParsedRequest::Incomplete),
        ("*1\r\n$1\r\n", ParsedRequest::Incomplete),
        ("*1\r\n$1\r\ns", ParsedRequest::Incomplete),
        ("*1\r\n$1\r\ns\r", ParsedRequest::Incomplete),
        ("*1\r\n$1\r\ns\r\n", words(&["s"])),
        ("junk*1\r\n$1\r\ns\r\n*1\r\n", words(&["s"])),
        ("*1x\r\n$2y\r\nab\r\n", words(&["ab"])),
        ("*2\r\n$1\r\na\r\n$3\r\n\0\r\n\r\n", words(&["a", "\0\r\n"])),
        ("*0\r\n", ParsedRequest::Malformed),
        ("*-1\r\n", ParsedRequest::Malformed),
        ("*1025\r\n", ParsedRequest::Malformed),
        ("*1\r\n+a\r\n", ParsedRequest::Malformed),
        ("*1\r\n$0\r\n\r\n", ParsedRequest::Malformed),
        ("*1\r\n$1025\r\n", ParsedRequest::Malformed),
        ("*1\r\n$1\r\nab\r\n", ParsedRequest::Malformed),
        ("*1\r\n\0", ParsedRequest::Incomplete),
    ] {
        assert_eq!(parse(input.as_bytes()), expected, "{input:?}");
    }
}

#[test]
fn replies_are_shown_by_their_types() {
    for (reply, expected) in [
        (":12\r\n", "12"),
        ("$3\r\na\"b\r\n", "\"a\\\"b\""),
        ("$-1\r\n", "NULL"),
        ("*-1\r\n", "NULL"),
        ("+OK\r\n", "\"+OK\""),
        ("-ERR no\r\n", "\"-ERR no\""),
        ("*2\r\n:1\r\n*1\r\n$1\r\na\r\n", "[1,[\"a\"]]"),
        ("*0\r\n", "[]"),
        ("~2\r\n:1\r\n:2\r\n", "~(1,2)"),
        ("%1\r\n$1\r\na\r\n#t\r\n", "{\"a\" => #true}"),
        ("_\r\n", "(null)"),
        ("#f\r\n", "#false"),
        (",1.5\r\n", "(double) 1.5"),
        ("(123\r\n", ""),
        ("*2\r\n(123\r\n:1\r\n", "[,]"),
        ("$5\r\nab", "\"\""),
        ("", ""),
    ] {
        let mut shown = Vec::new();
        append_readable(reply.as_bytes(), &mut shown);
        assert_eq!(String::from_utf8_lossy(&shown), expected, "{reply:?}");
    }
}

#[test]
fn commands_have_names_and_short_names() {
    let command = |line: &str| {
        let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        help::command(&words)
    };
    for (line, expected) in [
        ("s", Some("step")),
        ("S", Some("step")),
        ("step", Some("step")),
        ("ste", None),
        ("step 1", None),
        ("max", Some("maxlen")),
        ("m", None),
        ("v", None),
        ("v ping", Some("valkey")),
        ("r a b c", Some("redis")),
        ("server ping", Some("server")),
        ("ser ping", None),
        ("e", None),
        ("e 1 + 1", Some("eval")),
        ("list 1 2", Some("list")),
        ("list 1 2 3", None),
        ("a", Some("abort")),
    ] {
        assert_eq!(command(line), expected, "{line}");
    }
}

#[test]
fn numbers_are_read_as_c_reads_them() {
    for (word, expected) in [
        ("5", 5),
        (" +7x", 7),
        ("-3", -3),
        ("x", 0),
        ("", 0),
        ("99999999999", i64::from(i32::MAX)),
    ] {
        assert_eq!(leading_number(word.as_bytes()), expected, "{word:?}");
    }
}

#[test]
fn commands_without_lua_are_executed_before_the_next_command() {
    let (mut debugger, sent) = session("one\ntwo\nthree\n\n", &["b 2", "b", "b 0", "print x"]);
    debugger.set_line(1);
    assert_eq!(debugger.take_stop_reason(), Some("step over"));
    assert_eq!(debugger.take_stop_reason(), None, "it stops once");
    assert_eq!(debugger.next_command(), DebuggerCommand::Print(Some(b"x".to_vec())));
    let expected = "*3\r\n+-> 1   one\r\n+  #2   two\r\n+   3   three\r\n\
                    *2\r\n+1 breakpoints set:\r\n+  #2   two\r\n\
                    *1\r\n+All breakpoints removed.\r\n";
    assert_eq!(String::from_utf8_lossy(&sent.lock().expect("no panic")), expected);
    assert_eq!(debugger.next_command(), DebuggerCommand::Disconnected);
}

#[test]
fn a_breakpoint_stops_a_script_that_continues() {
    let (mut debugger, _) = session("one\ntwo", &["b 2", "c"]);
    debugger.set_line(1);
    assert!(debugger.take_stop_reason().is_some());
    assert_eq!(debugger.next_command(), DebuggerCommand::Continue);
    debugger.set_line(1);
    assert_eq!(debugger.take_stop_reason(), None);
    debugger.set_line(2);
    assert_eq!(debugger.take_stop_reason(), Some("break point"));
    debugger.stop_at_next_line();
    debugger.set_line(1);
    assert_eq!(debugger.take_stop_reason(), Some("server.breakpoint() called"));
}

#[test]
fn long_values_are_trimmed_and_the_hint_is_shown_once() {
    let (mut debugger, sent) = session("one", &[]);
    for _ in 0..2 {
        debugger.log_trimmed(vec![b'x'; 300]);
    }
    debugger.flush();
    let sent = String::from_utf8_lossy(&sent.lock().expect("no panic")).into_owned();
    assert!(sent.starts_with("*3\r\n"), "{sent}");
    assert_eq!(sent.matches(&format!("+{} ...\r\n", "x".repeat(256))).count(), 2);
    assert_eq!(sent.matches("+<hint> ").count(), 1);
}
