//! A client that caches what it reads, and the check of the invalidations that it received.
//!
//! Its connection has CLIENT TRACKING on. A value leaves the cache when its key is invalidated. In the end, when all
//! other clients are done, each value that is left in the cache must be the one in the store. And a key must have been
//! invalidated as often as the client read another value of it than before: each read makes the server remember the
//! client until it has sent one invalidation.

use std::time::Duration;

use fastrand::Rng;
use weft_os::thread;

use crate::client::{Client, ClientEnd};
use crate::operation::{KEYS_PER_TYPE, Operation};
use crate::reply::SeenReply;

/// A client with a cache of strings.
pub struct Tracker {
    client: Client,
    cache: [Option<SeenReply>; KEYS_PER_TYPE],
    /// The value of each key that was read last, whatever was invalidated since.
    last_read: [Option<SeenReply>; KEYS_PER_TYPE],
    /// The number of times that a key had another value than at the read before.
    changes: [usize; KEYS_PER_TYPE],
    /// The number of invalidations of each key.
    invalidations: [usize; KEYS_PER_TYPE],
}

impl Tracker {
    /// Switches tracking on.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn new(mut client: Client) -> Result<Tracker, ClientEnd> {
        client.ask(&["HELLO", "3"])?;
        client.ask(&["CLIENT", "TRACKING", "ON"])?;
        Ok(Tracker {
            client,
            cache: Default::default(),
            last_read: Default::default(),
            changes: Default::default(),
            invalidations: Default::default(),
        })
    }

    /// Reads random keys, at random times.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn read_keys(&mut self, random: &mut Rng, count: usize) -> Result<(), ClientEnd> {
        for _ in 0..count {
            let key = random.usize(..KEYS_PER_TYPE);
            let value = self.read(key)?;
            self.cache[key] = Some(value);
            if random.bool() {
                thread::sleep(Duration::from_micros(random.u64(..1000)));
            }
        }
        Ok(())
    }

    fn read(&mut self, key: usize) -> Result<SeenReply, ClientEnd> {
        let value = self.ask(Operation::Get(key))?;
        let before = self.last_read[key].replace(value.clone());
        self.changes[key] += usize::from(before.is_some_and(|before| before != value));
        Ok(value)
    }

    /// Returns this client if it still has its connection.
    pub fn if_connected(mut self) -> Option<Tracker> {
        self.ask(Operation::GetAll).is_ok().then_some(self)
    }

    /// Compares the cache with the store, which no other client changes any more.
    ///
    /// # Errors
    /// If a value in the cache is not in the store, or the connection ends.
    pub fn finish(mut self) -> Result<(), String> {
        let failed = |end: ClientEnd| format!("the tracking client: {end:?}");
        // After the reply, no invalidation is under way.
        self.ask(Operation::GetAll).map_err(failed)?;
        let cache = std::mem::take(&mut self.cache);
        for (key, cached) in cache.into_iter().enumerate() {
            let stored = self.read(key).map_err(failed)?;
            if cached.as_ref().is_some_and(|cached| *cached != stored) {
                return Err(format!(
                    "key s{key} is {stored:?}, the tracking client has {cached:?} in its cache"
                ));
            }
            if self.changes[key] > self.invalidations[key] {
                return Err(format!(
                    "key s{key} has changed {} times between two reads of the tracking client, invalidated {} times",
                    self.changes[key], self.invalidations[key]
                ));
            }
        }
        Ok(())
    }

    /// Sends a request, and handles invalidations up to its reply.
    fn ask(&mut self, operation: Operation) -> Result<SeenReply, ClientEnd> {
        self.client.send(vec![operation])?;
        loop {
            match self.client.receive_message()? {
                SeenReply::Push(parts) => self.invalidate(&parts)?,
                reply => return Ok(reply),
            }
        }
    }

    fn invalidate(&mut self, parts: &[SeenReply]) -> Result<(), ClientEnd> {
        match parts.get(1) {
            Some(SeenReply::Null) => {
                self.cache = Default::default();
                self.invalidations.iter_mut().for_each(|count| *count += 1);
            }
            Some(SeenReply::Array(names)) => {
                for key in 0..KEYS_PER_TYPE {
                    if names.contains(&SeenReply::Bulk(format!("s{key}").into_bytes())) {
                        self.cache[key] = None;
                        self.invalidations[key] += 1;
                    }
                }
            }
            _ => return Err(ClientEnd::Failed(format!("a push of {parts:?}"))),
        }
        Ok(())
    }
}
