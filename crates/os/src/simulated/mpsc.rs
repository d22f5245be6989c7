//! Channels with the interface of the standard library's, on the simulated locks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

use super::sync::{Condvar, Mutex};
use super::time::Instant;

struct Queue<T> {
    items: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
    /// The number of items that were taken, for senders that wait until theirs was (a capacity of zero).
    taken: u64,
    sent: u64,
}

struct Channel<T> {
    queue: Mutex<Queue<T>>,
    capacity: Option<usize>,
    changed: Condvar,
}

/// The sending half of a channel without a bound.
pub struct Sender<T>(Arc<Channel<T>>);

/// The sending half of a bounded channel.
pub struct SyncSender<T>(Arc<Channel<T>>);

/// The receiving half of a channel.
pub struct Receiver<T>(Arc<Channel<T>>);

/// Creates a channel without a bound.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = new_channel(None);
    (Sender(channel.clone()), Receiver(channel))
}

/// Creates a channel for at most `capacity` items.
pub fn sync_channel<T>(capacity: usize) -> (SyncSender<T>, Receiver<T>) {
    let channel = new_channel(Some(capacity));
    (SyncSender(channel.clone()), Receiver(channel))
}

fn new_channel<T>(capacity: Option<usize>) -> Arc<Channel<T>> {
    Arc::new(Channel {
        queue: Mutex::new(Queue {
            items: VecDeque::new(),
            senders: 1,
            has_receiver: true,
            taken: 0,
            sent: 0,
        }),
        capacity,
        changed: Condvar::new(),
    })
}

impl<T> Channel<T> {
    fn send(&self, item: T) -> Result<(), SendError<T>> {
        let mut queue = self.queue.lock();
        // A capacity of zero hands the item over: the sender waits until it was taken.
        let limit = self.capacity.map_or(usize::MAX, |capacity| capacity.max(1));
        while queue.has_receiver && queue.items.len() >= limit {
            self.changed.wait(&mut queue);
        }
        if !queue.has_receiver {
            return Err(SendError(item));
        }
        queue.items.push_back(item);
        queue.sent += 1;
        let number = queue.sent;
        self.changed.notify_all();
        while self.capacity == Some(0) && queue.taken < number && queue.has_receiver {
            self.changed.wait(&mut queue);
        }
        Ok(())
    }

    fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        let mut queue = self.queue.lock();
        if !queue.has_receiver {
            return Err(TrySendError::Disconnected(item));
        }
        if self.capacity.is_some_and(|capacity| queue.items.len() >= capacity) {
            return Err(TrySendError::Full(item));
        }
        queue.items.push_back(item);
        queue.sent += 1;
        self.changed.notify_all();
        Ok(())
    }

    fn add_sender(&self) {
        self.queue.lock().senders += 1;
    }

    fn remove_sender(&self) {
        self.queue.lock().senders -= 1;
        self.changed.notify_all();
    }
}

#[allow(missing_docs)]
impl<T> Sender<T> {
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        self.0.send(item)
    }
}

#[allow(missing_docs)]
impl<T> SyncSender<T> {
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        self.0.send(item)
    }
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.0.try_send(item)
    }
}

#[allow(missing_docs)]
impl<T> Receiver<T> {
    pub fn recv(&self) -> Result<T, RecvError> {
        self.receive(None).map_err(|_| RecvError)
    }
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.receive(Some(Instant::now() + timeout))
    }
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut queue = self.0.queue.lock();
        match queue.items.pop_front() {
            Some(item) => {
                queue.taken += 1;
                self.0.changed.notify_all();
                Ok(item)
            }
            None if queue.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }
    fn receive(&self, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
        let mut queue = self.0.queue.lock();
        loop {
            if let Some(item) = queue.items.pop_front() {
                queue.taken += 1;
                self.0.changed.notify_all();
                return Ok(item);
            }
            if queue.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            match deadline {
                None => self.0.changed.wait(&mut queue),
                Some(deadline) => {
                    let is_over = self.0.changed.wait_until(&mut queue, deadline).timed_out();
                    if is_over && queue.items.is_empty() {
                        return Err(RecvTimeoutError::Timeout);
                    }
                }
            }
        }
    }
}

impl<T> Iterator for Receiver<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.recv().ok()
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Box<dyn Iterator<Item = T> + 'a>;
    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.add_sender();
        Sender(self.0.clone())
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        self.0.add_sender();
        SyncSender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.remove_sender();
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.0.remove_sender();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.queue.lock().has_receiver = false;
        self.0.changed.notify_all();
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Sender")
    }
}

impl<T> std::fmt::Debug for SyncSender<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SyncSender")
    }
}

impl<T> std::fmt::Debug for Receiver<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Receiver")
    }
}
