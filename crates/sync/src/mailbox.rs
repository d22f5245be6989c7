//! A mailbox: many senders, one owner, one wake-up per batch.
//!
//! The queue is behind a mutex; next to it is the owner's *alarm*.
//!
//! ```text
//!            push (returns "wake the owner")
//!   armed ────────────────────────────────► rung ──┐ push (returns nothing)
//!     ▲                                      │ ▲───┘
//!     └──────────────────────────────────────┘
//!            drain that leaves nothing behind
//! ```
//!
//! 1. The alarm is rung whenever the queue is not empty. Both change under the mutex.
//! 2. The sender that rings it must wake the owner: that sender alone, once per batch, after the message is in the
//!    queue.
//! 3. Only a drain that empties the queue arms the alarm again. If messages stay behind, the owner must come back
//!    without a wake-up: before it sleeps it checks [`Mailbox::is_empty_hint`], which is reliable for its own
//!    leftovers.
//!
//! So no wake-up is lost. A message finds the alarm either armed (then its sender wakes the owner) or rung. In the
//! second case the wake-up of the sender that rang it comes before the owner's emptying drain, and that drain takes
//! this message too.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::loom::{AtomicUsize, Mutex, MutexGuard, lock};

#[cfg(test)]
mod tests;

/// The queue's capacity above which an empty queue frees its memory.
const KEPT_CAPACITY: usize = 4096;

/// Messages from any thread to one owner, in the order of arrival.
pub struct Mailbox<T> {
    queue: Mutex<VecDeque<T>>,
    /// The queue's length, changed under its mutex, read without it. The alarm is rung while it is above zero.
    length: AtomicUsize,
}

impl<T> Mailbox<T> {
    /// Returns an empty mailbox with its alarm armed.
    #[must_use]
    pub fn new() -> Self {
        Self {
            queue: Mutex::new(VecDeque::new()),
            length: AtomicUsize::new(0),
        }
    }

    /// Adds a message. Returns `true` if the caller must wake the owner now.
    #[must_use = "the owner sleeps on if it is not woken"]
    pub fn push(&self, message: T) -> bool {
        let mut queue = lock(&self.queue);
        let was_empty = self.is_empty_hint();
        queue.push_back(message);
        self.publish_length(&queue);
        was_empty
    }

    /// Adds messages as one batch. Returns `true` if the caller must wake the owner now.
    ///
    /// The iterator runs under the mailbox's mutex and must not use this mailbox.
    #[must_use = "the owner sleeps on if it is not woken"]
    pub fn push_all(&self, messages: impl IntoIterator<Item = T>) -> bool {
        let mut queue = lock(&self.queue);
        let was_empty = self.is_empty_hint();
        queue.extend(messages);
        self.publish_length(&queue);
        was_empty && !queue.is_empty()
    }

    /// Returns `true` if the queue was empty at the time of one atomic load. For the owner, `false` is reliable, and
    /// after `true` a later message rings the alarm.
    #[inline]
    #[must_use]
    pub fn is_empty_hint(&self) -> bool {
        self.length.load(Acquire) == 0
    }

    /// Returns the number of messages at the time of one atomic load.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length.load(Acquire)
    }

    /// The same as [`is_empty_hint`](Self::is_empty_hint).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_empty_hint()
    }

    /// Moves up to `at_most` messages to the end of `into` and returns their number. Only the owner calls it.
    ///
    /// If messages stay behind, the owner is not woken for them: it must come back as long as
    /// [`is_empty_hint`](Self::is_empty_hint) returns `false`.
    pub fn drain(&self, into: &mut Vec<T>, at_most: usize) -> usize {
        let mut queue = lock(&self.queue);
        let taken = queue.len().min(at_most);
        into.extend(queue.drain(..taken));
        if queue.is_empty() && queue.capacity() > KEPT_CAPACITY {
            *queue = VecDeque::new();
        }
        self.publish_length(&queue);
        taken
    }

    fn publish_length(&self, queue: &MutexGuard<'_, VecDeque<T>>) {
        self.length.store(queue.len(), Release);
    }
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self::new()
    }
}
