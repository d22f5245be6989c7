//! The script cache, keyed by digest. The least recently used scripts of EVAL are evicted when there are too many.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sha1::{Digest as _, Sha1};

use super::profile::ScriptProfile;
use super::shebang::ScriptFlags;

use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_os::sync::RwLock;

/// The maximum number of cached EVAL scripts.
const EVAL_SCRIPTS_MAX: usize = 500;
/// The estimated bytes that a script takes in addition to its source: its digest and its entry in the map.
const OVERHEAD_BYTES: usize = 150;

/// The SHA-1 digest of a script: 40 hexadecimal digits in lower case.
pub type Digest = [u8; 40];

/// Computes the digest of a source.
pub fn digest_of(source: &[u8]) -> Digest {
    let mut digest = [0; 40];
    // Two digits for each of 20 bytes: the result always fits.
    let _ = hex::encode_to_slice(Sha1::digest(source), &mut digest);
    digest
}

/// Compiled code, and the name of its engine.
#[derive(Clone)]
pub struct EngineCode {
    /// The name of the engine.
    pub engine: Arc<str>,
    /// The compiled code.
    pub code: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for EngineCode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "code of {}", self.engine)
    }
}

/// A cached script.
#[derive(Debug)]
pub struct Script {
    /// The digest of the source.
    pub digest: Digest,
    /// The source.
    pub source: Vec<u8>,
    /// The flags; `None` if the script has no shebang line.
    pub flags: Option<ScriptFlags>,
    /// The prediction made from earlier runs.
    pub profile: ScriptProfile,
    /// The code that the engine of a module has compiled; `None` for Lua.
    pub engine: Option<EngineCode>,
    /// `true` if the script may be evicted, since it was not loaded by SCRIPT LOAD.
    is_evictable: AtomicBool,
    /// `true` while the script is in the cache.
    is_alive: AtomicBool,
    /// The time of the last use, in ticks of the cache's clock.
    last_used: AtomicU64,
}

impl Script {
    /// Returns `true` if the script is still in the cache.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Relaxed)
    }
}

type ScriptMap = HashMap<Digest, Arc<Script>, ahash::RandomState>;

#[derive(Default)]
struct CachedScripts {
    all: ScriptMap,
    /// Those of them that may be evicted, at most [`EVAL_SCRIPTS_MAX`]. Only these are searched for the oldest one.
    evictable: ScriptMap,
}

/// The cached scripts.
#[derive(Default)]
pub struct ScriptCache {
    scripts: RwLock<CachedScripts>,
    clock: AtomicU64,
    flushes: AtomicU64,
    evicted: AtomicU64,
    bytes: AtomicU64,
}

impl ScriptCache {
    /// Returns the script with a digest, which may be in any case.
    pub fn find(&self, digest: &[u8]) -> Option<Arc<Script>> {
        let mut lower = Digest::try_from(digest).ok()?;
        lower.make_ascii_lowercase();
        let scripts = self.scripts.read();
        scripts.all.get(&lower).cloned()
    }

    /// Adds a script that compiles. If the digest is cached already, returns the cached script instead.
    pub fn add(
        &self,
        digest: Digest,
        source: &[u8],
        flags: Option<ScriptFlags>,
        evictable: bool,
        engine: Option<EngineCode>,
    ) -> Arc<Script> {
        let mut scripts = self.scripts.write();
        if let Some(script) = scripts.all.get(&digest) {
            return script.clone();
        }
        if evictable && scripts.evictable.len() >= EVAL_SCRIPTS_MAX {
            self.evict(&mut scripts);
        }
        let script = Arc::new(Script {
            digest,
            source: source.to_vec(),
            flags,
            profile: ScriptProfile::predict(source),
            engine,
            is_evictable: AtomicBool::new(evictable),
            is_alive: AtomicBool::new(true),
            last_used: AtomicU64::new(self.tick()),
        });
        self.bytes
            .fetch_add((source.len() + OVERHEAD_BYTES) as u64, Ordering::Relaxed);
        scripts.all.insert(digest, script.clone());
        if evictable {
            scripts.evictable.insert(digest, script.clone());
        }
        script
    }

    /// Evicts the least recently used script.
    fn evict(&self, scripts: &mut CachedScripts) {
        let oldest = scripts
            .evictable
            .values()
            .filter(|script| script.is_evictable.load(Ordering::Relaxed))
            .min_by_key(|script| script.last_used.load(Ordering::Relaxed))
            .map(|script| script.digest);
        let Some(script) = oldest.and_then(|digest| scripts.evictable.remove(&digest)) else {
            return;
        };
        scripts.all.remove(&script.digest);
        script.is_alive.store(false, Ordering::Relaxed);
        self.bytes
            .fetch_sub((script.source.len() + OVERHEAD_BYTES) as u64, Ordering::Relaxed);
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Protects a script from eviction, as SCRIPT LOAD does.
    pub fn protect_from_eviction(&self, script: &Script) {
        if script.is_evictable.swap(false, Ordering::Relaxed) {
            let mut scripts = self.scripts.write();
            // After a flush another script may have the digest.
            let cached = scripts.evictable.get(&script.digest);
            if cached.is_some_and(|cached| std::ptr::eq(&raw const **cached, script)) {
                scripts.evictable.remove(&script.digest);
            }
        }
    }

    /// Records that a script was used.
    #[inline]
    pub fn touch(&self, script: &Script) {
        // Only the order among a few scripts matters. A script that is already the most recently used one is not
        // updated.
        if script.is_evictable.load(Ordering::Relaxed)
            && script.last_used.load(Ordering::Relaxed) != self.clock.load(Ordering::Relaxed)
        {
            script.last_used.store(self.tick(), Ordering::Relaxed);
        }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Drops the scripts of an engine.
    pub(crate) fn remove_engine(&self, engine: &str) {
        let mut scripts = self.scripts.write();
        let is_its = |script: &Arc<Script>| script.engine.as_ref().is_some_and(|code| &*code.engine == engine);
        for script in scripts.all.values().filter(|script| is_its(script)) {
            script.is_alive.store(false, Ordering::Relaxed);
            self.bytes
                .fetch_sub((script.source.len() + OVERHEAD_BYTES) as u64, Ordering::Relaxed);
        }
        scripts.all.retain(|_, script| !is_its(script));
        scripts.evictable.retain(|_, script| !is_its(script));
    }

    /// Drops all scripts.
    pub fn flush(&self) {
        let mut scripts = self.scripts.write();
        for script in scripts.all.values() {
            script.is_alive.store(false, Ordering::Relaxed);
        }
        *scripts = CachedScripts::default();
        self.bytes.store(0, Ordering::Relaxed);
        self.flushes.fetch_add(1, Ordering::Release);
    }

    /// Returns how often all scripts were dropped.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Returns the number of cached scripts.
    pub fn script_count(&self) -> usize {
        self.scripts.read().all.len()
    }

    /// Returns the bytes of memory that the cached scripts take.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of scripts that were evicted.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Resets the number of evicted scripts.
    pub fn reset_statistics(&self) {
        self.evicted.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
