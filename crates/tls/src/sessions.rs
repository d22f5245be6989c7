//! The cache of TLS sessions that clients may resume, limited in number and age.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use rustls::server::StoresServerSessions;

use weft_os::sync::{Mutex, MutexGuard};
use weft_os::time::Instant;

/// TLS sessions by id; the oldest are dropped first.
pub struct SessionCache {
    /// The maximum number of sessions.
    capacity: usize,
    /// The time for which a session can be resumed.
    lifetime: Duration,
    entries: Mutex<SessionEntries>,
}

#[derive(Default)]
struct SessionEntries {
    by_id: HashMap<Vec<u8>, (Vec<u8>, Instant)>,
    /// The ids in the order of insertion; some may no longer be in the map.
    order: VecDeque<(Vec<u8>, Instant)>,
}

impl SessionCache {
    /// Creates a cache for `most` sessions (0: no limit) of age `lifetime`.
    pub fn new(capacity: usize, lifetime: Duration) -> Self {
        SessionCache {
            capacity: if capacity == 0 { usize::MAX } else { capacity },
            lifetime,
            entries: Mutex::default(),
        }
    }

    fn lock_entries(&self) -> MutexGuard<'_, SessionEntries> {
        self.entries.lock()
    }
}

/// The entries of the order beyond twice the number of sessions that may belong to sessions which have been resumed.
const MAX_RESUMED: usize = 64;

impl SessionEntries {
    /// Drops the places of sessions that were resumed, if there are many: the oldest session may stay for long.
    fn forget_resumed(&mut self) {
        if self.order.len() > 2 * self.by_id.len() + MAX_RESUMED {
            let by_id = &self.by_id;
            self.order
                .retain(|(id, since)| by_id.get(id).is_some_and(|(_, at)| at == since));
        }
    }

    /// Drops sessions that are too old or too many, and entries that are no longer in the map.
    fn trim(&mut self, capacity: usize, lifetime: Duration) {
        while let Some((id, since)) = self.order.front() {
            let stands = self.by_id.get(id).is_some_and(|(_, at)| at == since);
            if stands && since.elapsed() <= lifetime && self.by_id.len() <= capacity {
                return;
            }
            if let Some((id, _)) = self.order.pop_front()
                && stands
            {
                self.by_id.remove(&id);
            }
        }
    }
}

impl StoresServerSessions for SessionCache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let now = Instant::now();
        let mut kept = self.lock_entries();
        kept.by_id.insert(key.clone(), (value, now));
        kept.order.push_back((key, now));
        kept.forget_resumed();
        kept.trim(self.capacity, self.lifetime);
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let kept = self.lock_entries();
        let (value, since) = kept.by_id.get(key)?;
        (since.elapsed() <= self.lifetime).then(|| value.clone())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (value, since) = self.lock_entries().by_id.remove(key)?;
        (since.elapsed() <= self.lifetime).then_some(value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl fmt::Debug for SessionCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The sessions are secret.
        formatter
            .debug_struct("Sessions")
            .field("most", &self.capacity)
            .finish_non_exhaustive()
    }
}
