//! The cached scripts, by digest. Those that EVAL brought are evicted when they are too many.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sha1::{Digest as _, Sha1};

use super::profile::Habits;
use super::shebang::Flags;

/// Scripts of EVAL that are kept.
const EVALUATED_MAX: usize = 500;
/// What a script takes beside its source: its digest and its place.
const OVERHEAD_BYTES: usize = 150;

/// The digest of a script: 40 hexadecimal digits in lower case.
pub type Digest = [u8; 40];

/// The digest of a source.
pub fn digest_of(source: &[u8]) -> Digest {
    let mut digest = [0; 40];
    // Two digits for each of 20 bytes: it always fits.
    let _ = hex::encode_to_slice(Sha1::digest(source), &mut digest);
    digest
}

/// A cached script.
#[derive(Debug)]
pub struct Script {
    /// Its digest.
    pub digest: Digest,
    /// Its source.
    pub source: Vec<u8>,
    /// Its flags; `None` without a first line that has some.
    pub flags: Option<Flags>,
    /// What earlier runs tell.
    pub profile: Habits,
    /// Whether it may be evicted: SCRIPT LOAD did not ask for it.
    evictable: AtomicBool,
    /// Whether it still is in the cache.
    alive: AtomicBool,
    /// When it was last used, on the cache's clock.
    used: AtomicU64,
}

impl Script {
    /// Whether it still is in the cache.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }
}

/// The cached scripts.
#[derive(Default)]
pub struct Cache {
    scripts: RwLock<HashMap<Digest, Arc<Script>, ahash::RandomState>>,
    clock: AtomicU64,
    flushes: AtomicU64,
    evicted: AtomicU64,
    evictable: AtomicU64,
    bytes: AtomicU64,
}

impl Cache {
    /// The script with a digest, in any case.
    pub fn find(&self, digest: &[u8]) -> Option<Arc<Script>> {
        let mut lower = Digest::try_from(digest).ok()?;
        lower.make_ascii_lowercase();
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        scripts.get(&lower).cloned()
    }

    /// Adds a script that compiles; if it is there already, that one is returned.
    pub fn add(&self, digest: Digest, source: &[u8], flags: Option<Flags>, evictable: bool) -> Arc<Script> {
        let mut scripts = self.scripts.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(script) = scripts.get(&digest) {
            return script.clone();
        }
        if evictable {
            while self.evictable.load(Ordering::Relaxed) >= EVALUATED_MAX as u64 {
                if !self.evict(&mut scripts) {
                    break;
                }
            }
            self.evictable.fetch_add(1, Ordering::Relaxed);
        }
        let script = Arc::new(Script {
            digest,
            source: source.to_vec(),
            flags,
            profile: Habits::of_new(source),
            evictable: AtomicBool::new(evictable),
            alive: AtomicBool::new(true),
            used: AtomicU64::new(self.tick()),
        });
        self.bytes
            .fetch_add((source.len() + OVERHEAD_BYTES) as u64, Ordering::Relaxed);
        scripts.insert(digest, script.clone());
        script
    }

    /// Drops the script that was not used for the longest time; whether there was one.
    fn evict(&self, scripts: &mut HashMap<Digest, Arc<Script>, ahash::RandomState>) -> bool {
        let oldest = scripts
            .values()
            .filter(|script| script.evictable.load(Ordering::Relaxed))
            .min_by_key(|script| script.used.load(Ordering::Relaxed))
            .map(|script| script.digest);
        let Some(script) = oldest.and_then(|digest| scripts.remove(&digest)) else {
            return false;
        };
        script.alive.store(false, Ordering::Relaxed);
        self.bytes
            .fetch_sub((script.source.len() + OVERHEAD_BYTES) as u64, Ordering::Relaxed);
        self.evictable.fetch_sub(1, Ordering::Relaxed);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Keeps a script for good, as SCRIPT LOAD does.
    pub fn keep(&self, script: &Script) {
        if script.evictable.swap(false, Ordering::Relaxed) {
            self.evictable.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A script was used.
    #[inline]
    pub fn touch(&self, script: &Script) {
        // The order among few scripts is what counts, and one that is the latest stays it.
        if script.evictable.load(Ordering::Relaxed)
            && script.used.load(Ordering::Relaxed) != self.clock.load(Ordering::Relaxed)
        {
            script.used.store(self.tick(), Ordering::Relaxed);
        }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Drops all scripts.
    pub fn flush(&self) {
        let mut scripts = self.scripts.write().unwrap_or_else(PoisonError::into_inner);
        for script in scripts.values() {
            script.alive.store(false, Ordering::Relaxed);
        }
        scripts.clear();
        self.evictable.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.flushes.fetch_add(1, Ordering::Release);
    }

    /// How often all scripts were dropped.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Scripts.
    pub fn len(&self) -> usize {
        self.scripts.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What they take, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Scripts evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Forgets how many were evicted.
    pub fn reset_statistics(&self) {
        self.evicted.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
