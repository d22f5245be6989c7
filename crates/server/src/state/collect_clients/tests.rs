//! Tests of what the end of a command that cannot be stopped does.

use std::time::Duration;

use weft_base::ThreadIndex;
use weft_config::Config;
use weft_reactor::Reactor;

use super::*;
use crate::start::create_idle_server;

/// Returns `true` if the end of a command wakes the worker, whose client is killed or not.
fn is_woken_at_end(is_killed: bool) -> bool {
    let server = create_idle_server(Config::defaults());
    let mut reactor = Reactor::new().expect("a reactor");
    let waker = server.worker(ThreadIndex::FIRST).waker.set(reactor.waker());
    waker.expect("the worker has no waker yet");
    let mark = KillMark::default();
    assert!(mark.try_begin_lasting());
    if is_killed {
        mark.kill();
    }
    server.end_lasting(&mark);
    assert!(!mark.is_lasting());
    let mut events = Vec::new();
    reactor.wait(Some(Duration::ZERO), &mut events, 1).expect("a turn")
}

#[test]
fn the_end_of_a_killed_command_wakes_workers_whose_answers_wait_for_it() {
    assert!(is_woken_at_end(true));
    assert!(!is_woken_at_end(false), "nobody waits for the end");
}
