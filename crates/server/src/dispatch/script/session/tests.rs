//! Tests of SYNC sessions during which the process ends. No thread runs but that of the test.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use weft_base::slots::SLOTS;
use weft_config::Config;
use weft_reactor::{Reactor, Socket};
use weft_scripting::Console;

use super::*;
use crate::start::create_idle_server_with_workers;

/// The time limit for the end of the connection.
const PATIENCE: Duration = Duration::from_secs(60);
const SET_FIRST: &str = "redis.call('set', 'first', '1')";
const GET_FIRST: &str = "redis.call('get', 'first')";
const SET_SECOND: &str = "redis.call('set', 'second', '1')";
/// The messages and the reply that a user gets last if the script ends by itself.
const LAST_MESSAGES: &str = "*1\r\n+<endsession>\r\n:7\r\n";

/// What happens while the script has stopped at its second line.
#[derive(Clone, Copy, Debug)]
enum Event {
    UserLeaves,
    ShutdownIsPrepared,
    ProcessEnds,
}

/// The console of a user who lets the script run its first line. Then something else happens.
struct InterruptedConsole {
    line: DebuggerConnection,
    receives: usize,
    event: Box<dyn Fn() + Send>,
}

impl Console for InterruptedConsole {
    fn send(&mut self, bytes: &[u8]) {
        self.line.send(bytes);
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        self.receives += 1;
        if self.receives == 2 {
            (self.event)();
        }
        self.line.receive(into)
    }

    fn is_over(&mut self, has_written: bool) -> bool {
        self.line.is_over(has_written)
    }
}

/// What a session has left.
struct Traces {
    /// What its user has received.
    received: String,
    is_logged: bool,
    /// `true` if the data in memory may not be used any more.
    has_unfinished_unit: bool,
    /// The number of slots that other threads can lease.
    free_slots: usize,
}

/// Runs a script of these lines, which returns 7, in a SYNC session on an idle server.
fn run_session(lines: [&str; 2], event: Event) -> Traces {
    let server = create_idle_server_with_workers(Config::defaults(), 2);
    server.keyspace.hooks.set(Hooks::LOG_REPLICAS, true);
    let mut client = Client::new(server.clients.next_client_id(), unix_ms(), ThreadIndex::FIRST);
    client.login = server.acl.new_login();
    client.flags.insert(ClientFlags::DEBUG_SCRIPTS_SYNC);
    let registration = SessionRegistration::new(&server, &client);

    let (socket, mut peer) = UnixStream::pair().expect("a pair of sockets");
    let mut reactor = Reactor::new().expect("a reactor");
    reactor.register(0, Socket::Unix(socket)).expect("registers");
    let registered = reactor.deregister(0).expect("it is registered");
    let (mark, account) = (registration.kill_mark().clone(), client.login.account().clone());
    let line = DebuggerConnection::open(registered, server.clone(), mark, account, true).expect("opens");
    let (ending, leaving) = (server.clone(), peer.try_clone().expect("another handle"));
    let console = InterruptedConsole {
        line,
        receives: 0,
        event: Box::new(move || match event {
            Event::UserLeaves => leaving.shutdown(Shutdown::Write).expect("closes"),
            Event::ShutdownIsPrepared => assert!(ending.lifecycle.shutdown.try_begin()),
            Event::ProcessEnds => ending.scripting.running.stop_all(),
        }),
    };
    peer.write_all(b"*1\r\n$4\r\nstep\r\n").expect("writes");

    let script = [lines[0], lines[1], "return 7"].join("\n");
    let eval = crate::commands::registry().find_by_original_name(b"eval");
    let mut session = DebuggerSession {
        server: server.clone(),
        command: eval.expect("it exists"),
        request: Vec::new(),
        ranges: Vec::new(),
        client,
        registration,
    };
    for word in ["EVAL", script.as_str(), "0"] {
        session.ranges.push(ArgRange {
            start: session.request.len() as u32,
            len: word.len() as u32,
        });
        session.request.extend_from_slice(word.as_bytes());
    }
    let debugger = Rc::new(RefCell::new(Debugger::new(Box::new(console), script.as_bytes())));
    session.run_synchronously(&debugger, Output::new());
    // The connection ends with the debugger.
    drop(debugger);
    let mut received = Vec::new();
    peer.set_read_timeout(Some(PATIENCE)).expect("sets the limit");
    peer.read_to_end(&mut received).expect("the connection has ended");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let pass = seat.enter();
    Traces {
        received: String::from_utf8_lossy(&received).into_owned(),
        is_logged: !server.propagation.last_sequence().is_none(),
        has_unfinished_unit: server.scripting.running.has_unfinished_unit(),
        free_slots: (0..SLOTS).filter(|slot| pass.try_write(*slot).is_some()).count(),
    }
}

/// Rule 9 of scripts.
#[test]
fn nothing_remains_of_a_script_that_the_end_of_the_process_stops() {
    let traces = run_session([SET_FIRST, SET_SECOND], Event::ProcessEnds);
    assert!(traces.has_unfinished_unit && !traces.is_logged);
    assert_eq!(traces.free_slots, 0, "no command sees a part of the script");
    assert!(traces.received.ends_with("+<endsession>\r\n"), "there is no reply");
}

/// The shutdown may be aborted, and its dump must not contain a part of the script.
#[test]
fn a_script_that_has_written_ends_by_itself_while_a_shutdown_is_prepared() {
    for event in [Event::ShutdownIsPrepared, Event::UserLeaves] {
        let traces = run_session([SET_FIRST, SET_SECOND], event);
        assert!(traces.is_logged && !traces.has_unfinished_unit, "{event:?}");
        assert_eq!(traces.free_slots, SLOTS, "{event:?}");
        assert!(traces.received.ends_with(LAST_MESSAGES), "{event:?}");
    }
}

#[test]
fn a_script_that_has_not_written_ends_at_once_when_a_shutdown_is_prepared() {
    for event in [Event::ShutdownIsPrepared, Event::ProcessEnds] {
        let traces = run_session([GET_FIRST, SET_SECOND], event);
        assert!(!traces.is_logged && !traces.has_unfinished_unit, "{event:?}");
        assert_eq!(traces.free_slots, SLOTS, "{event:?}");
        assert!(traces.received.ends_with("+<endsession>\r\n"), "{event:?}");
    }
}
