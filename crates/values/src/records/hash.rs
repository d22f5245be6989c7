//! The keyed hash of the members of collections.

use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

static STATE: OnceLock<ahash::RandomState> = OnceLock::new();

/// Sets the secrets that key the hash, so that collections of several servers have the same order. Returns `false` if
/// the hash was already in use, in which case the secrets are ignored.
pub fn set_hash_secrets([a, b, c, d]: [u64; 4]) -> bool {
    STATE.set(ahash::RandomState::with_seeds(a, b, c, d)).is_ok()
}

/// Returns the hash of a key.
#[inline]
pub fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = STATE.get_or_init(keyed_state).build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// Creates a hasher state keyed by the randomness that the standard library obtained from the operating system.
#[cold]
fn keyed_state() -> ahash::RandomState {
    let seed = || std::hash::RandomState::new().hash_one(0);
    ahash::RandomState::with_seeds(seed(), seed(), seed(), seed())
}
