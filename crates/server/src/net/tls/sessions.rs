//! Sessions that clients may resume: so many, for so long.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustls::server::StoresServerSessions;

use crate::observability::lock;

/// Sessions by their ids, the oldest of which are forgotten first.
pub struct Sessions {
    /// How many are kept at most.
    most: usize,
    /// How long one can be resumed.
    lifetime: Duration,
    kept: Mutex<CachedSession>,
}

#[derive(Default)]
struct CachedSession {
    by_id: HashMap<Vec<u8>, (Vec<u8>, Instant)>,
    /// Ids in the order in which they came; some may be gone from the map.
    order: VecDeque<(Vec<u8>, Instant)>,
}

impl Sessions {
    /// Keeps `most` sessions (0: any number) for `lifetime`.
    pub fn new(most: usize, lifetime: Duration) -> Self {
        Sessions {
            most: if most == 0 { usize::MAX } else { most },
            lifetime,
            kept: Mutex::default(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, CachedSession> {
        lock(&self.kept)
    }
}

impl CachedSession {
    /// Forgets what is too old or too much, and what is gone already.
    fn trim(&mut self, most: usize, lifetime: Duration) {
        while let Some((id, since)) = self.order.front() {
            let stands = self.by_id.get(id).is_some_and(|(_, at)| at == since);
            if stands && since.elapsed() <= lifetime && self.by_id.len() <= most {
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

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let now = Instant::now();
        let mut kept = self.kept();
        kept.by_id.insert(key.clone(), (value, now));
        kept.order.push_back((key, now));
        kept.trim(self.most, self.lifetime);
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let kept = self.kept();
        let (value, since) = kept.by_id.get(key)?;
        (since.elapsed() <= self.lifetime).then(|| value.clone())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (value, since) = self.kept().by_id.remove(key)?;
        (since.elapsed() <= self.lifetime).then_some(value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is kept is secret.
        formatter
            .debug_struct("Sessions")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}
