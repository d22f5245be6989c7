//! Order, batches, and that no wake-up is lost.

use std::sync::Arc;

use super::Mailbox;
use crate::loom::{Condvar, Mutex, lock, wait};

#[cfg(loom)]
use loom::thread;
#[cfg(not(loom))]
use std::thread;

/// Stands for the kernel counter that wakes a real owner: a wake-up sent while it is awake is not lost.
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self {
            rung: Mutex::new(false),
            heard: Condvar::new(),
        }
    }

    fn ring(&self) {
        *lock(&self.rung) = true;
        self.heard.notify_one();
    }

    /// Sleeps until the bell rings or has rung.
    fn sleep(&self) {
        let mut rung = lock(&self.rung);
        while !*rung {
            rung = wait(&self.heard, rung);
        }
        *rung = false;
    }
}

/// Sends from two threads; the owner sleeps whenever the mailbox looks empty and must receive every message.
fn send_and_receive(messages_each: usize, at_most: usize) {
    let shared = Arc::new((Mailbox::new(), Bell::new()));
    let senders: Vec<_> = (0..2)
        .map(|sender| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for number in 0..messages_each {
                    if shared.0.push((sender, number)) {
                        shared.1.ring();
                    }
                }
            })
        })
        .collect();
    let (mailbox, bell) = &*shared;
    let mut received = Vec::new();
    while received.len() < 2 * messages_each {
        if mailbox.is_empty_hint() {
            bell.sleep();
        }
        assert!(mailbox.drain(&mut received, at_most) <= at_most);
    }
    for sender in senders {
        sender.join().unwrap();
    }
    assert!(mailbox.is_empty());
    for sender in 0..2 {
        let numbers = received
            .iter()
            .filter(|message| message.0 == sender)
            .map(|message| message.1);
        assert!(numbers.eq(0..messages_each), "each sender's messages arrive in order");
    }
}

#[cfg(loom)]
#[test]
fn an_owner_that_sleeps_between_batches_misses_nothing() {
    crate::loom::explore(3, || send_and_receive(1, 2));
    crate::loom::explore(2, || send_and_receive(2, 1));
}

#[cfg(not(loom))]
#[test]
fn an_owner_that_sleeps_between_batches_misses_nothing() {
    for at_most in [1, 7, 1000] {
        send_and_receive(20_000, at_most);
    }
}

#[cfg(not(loom))]
#[test]
fn only_the_first_message_of_a_batch_asks_for_a_wake_up() {
    let mailbox = Mailbox::new();
    let mut taken = Vec::new();
    assert!(mailbox.is_empty_hint());
    assert!(mailbox.push(1));
    assert!(!mailbox.push(2));
    assert!(!mailbox.push_all([3, 4]));
    assert_eq!((mailbox.len(), mailbox.is_empty_hint()), (4, false));

    assert_eq!(mailbox.drain(&mut taken, 3), 3);
    assert!(
        !mailbox.push(5),
        "the owner left messages behind and returns without a wake-up"
    );
    assert_eq!(mailbox.drain(&mut taken, 3), 2);
    assert_eq!(taken, [1, 2, 3, 4, 5]);
    assert_eq!(mailbox.drain(&mut taken, 3), 0);

    assert!(!mailbox.push_all([]), "there is no message to wake the owner for");
    assert!(mailbox.push_all([6, 7]));
    assert!(!mailbox.push(8));
}

#[cfg(not(loom))]
#[test]
fn a_drained_mailbox_frees_the_memory_of_a_flood() {
    let mailbox = Mailbox::new();
    assert!(mailbox.push_all(0..super::KEPT_CAPACITY + 1));
    let mut taken = Vec::new();
    mailbox.drain(&mut taken, usize::MAX);
    assert_eq!(taken.len(), super::KEPT_CAPACITY + 1);
    assert_eq!(lock(&mailbox.queue).capacity(), 0);
}

#[cfg(not(loom))]
#[test]
fn a_panic_while_a_batch_is_added_does_not_suppress_the_next_wake_up() {
    let mailbox = Mailbox::new();
    let breaks = (0..3).inspect(|number| assert!(*number < 2, "broken"));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| mailbox.push_all(breaks)));
    assert!(caught.is_err());
    assert!(mailbox.push(9));
    let mut taken = Vec::new();
    mailbox.drain(&mut taken, 10);
    assert_eq!(taken, [0, 1, 9]);
}
