//! Tests of sessions that threads lend to each other.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{is_lent, is_locked, lock, next_request, run_on_other_thread, unlock};
use crate::session::fake::FakeSession;
use crate::session::{Session, current};

/// Returns the address of a session.
fn address(session: &mut dyn Session) -> usize {
    std::ptr::from_mut(session).cast::<u8>() as usize
}

#[test]
fn a_thread_gets_the_session_of_another_one_while_it_holds_the_lock() {
    let mut session = FakeSession::default();
    let own = address(&mut session);
    let (seen, shown) = mpsc::channel();
    let borrower = thread::spawn(move || {
        assert!(current(address).is_none(), "no session before");
        assert!(!unlock(), "it has locked nothing");
        lock();
        lock();
        assert!(is_locked() && is_lent());
        seen.send(current(address)).expect("the test waits");
        assert!(unlock());
        seen.send(current(address)).expect("the test waits");
        assert!(unlock() && !is_locked());
        seen.send(current(address)).expect("the test waits");
    });
    let request = loop {
        if let Some(request) = next_request(Duration::from_millis(10)) {
            break request;
        }
    };
    request.lend(&mut session);
    borrower.join().expect("the thread ends well");
    let addresses: Vec<Option<usize>> = shown.iter().collect();
    assert_eq!(addresses, [Some(own), Some(own), None]);
}

#[test]
fn a_session_is_used_on_another_thread_until_its_work_has_ended() {
    let mut session = FakeSession::default();
    let own = address(&mut session);
    let (jobs, received) = mpsc::channel::<super::LentJob>();
    let worker = thread::spawn(move || received.iter().for_each(|job| job()));
    let here = thread::current().id();
    let found = run_on_other_thread(
        &mut session,
        |session| (address(session), thread::current().id()),
        |job| jobs.send(job).expect("the worker runs"),
        |_| true,
    );
    let (there, thread) = found.expect("the work has run");
    assert_eq!(there, own);
    assert_ne!(thread, here);
    drop(jobs);
    worker.join().expect("the worker ends well");
}

#[test]
fn work_that_no_thread_begins_can_be_given_up() {
    let mut session = FakeSession::default();
    let mut kept = None;
    let mut attempts = 0;
    let result = run_on_other_thread(
        &mut session,
        |_| panic!("nobody runs it"),
        |job| kept = Some(job),
        |_| {
            attempts += 1;
            attempts < 3
        },
    );
    let result: Option<()> = result;
    assert_eq!((result, attempts), (None, 3));
    // The other thread may still find the job. It does nothing.
    thread::spawn(kept.expect("the job was sent"))
        .join()
        .expect("the job ends well");
}
