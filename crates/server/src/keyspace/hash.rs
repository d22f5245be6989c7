//! The keyed hash of a key. Its top bits are the slot. The other bits determine the place in the slot's table.
//!
//! Outside cluster mode the slot is taken from the hash itself. In cluster mode it is the slot that all nodes and
//! clients compute, the CRC16 of the key or of its hash tag. It replaces the hash's top bits, so that the hash contains
//! the slot in either mode.

use std::hash::{BuildHasher, Hasher};

use sha2::{Digest, Sha256};

use weft_base::slots::{SLOT_BITS, cluster_slot};

/// Is set if keys share two slots. It is read on every access to a key, which must not be a scheduling point.
#[cfg(feature = "simulated")]
static SHARED_SLOTS: std::sync::OnceLock<()> = std::sync::OnceLock::new();

/// Puts all keys of servers that start later into two slots, so that the few keys of a simulation have neighbours.
#[cfg(feature = "simulated")]
pub fn share_slots() {
    let _ = SHARED_SLOTS.set(());
}

/// Derives the secrets from `hash-seed`.
pub fn secrets_from_seed(seed: &[u8]) -> [u64; 4] {
    let digest = Sha256::digest(seed);
    std::array::from_fn(|word| {
        let bytes: [u8; 8] = std::array::from_fn(|byte| digest[8 * word + byte]);
        u64::from_le_bytes(bytes)
    })
}

/// A hash keyed by secrets from the operating system, so that attackers cannot choose keys that fall into one slot.
#[derive(Clone)]
pub struct KeyHasher {
    state: ahash::RandomState,
    is_clustered: bool,
}

impl KeyHasher {
    /// Creates a hasher with fresh secrets, in cluster mode or outside it.
    pub fn from_os(clustered: bool) -> Self {
        let mut seed = [[0u8; 8]; 4];
        for word in &mut seed {
            // Without randomness from the operating system, the clock still differs between starts.
            if getrandom::fill(word).is_err() {
                *word = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |since| since.as_nanos() as u64)
                    .to_le_bytes();
            }
        }
        KeyHasher::with_secrets(seed.map(u64::from_le_bytes), clustered)
    }

    /// Creates a hasher with the given secrets. The same secrets give keys the same order.
    pub fn with_secrets([a, b, c, d]: [u64; 4], clustered: bool) -> Self {
        KeyHasher {
            state: ahash::RandomState::with_seeds(a, b, c, d),
            is_clustered: clustered,
        }
    }

    /// Returns `true` if slots are those of a cluster.
    #[inline]
    pub fn is_clustered(&self) -> bool {
        self.is_clustered
    }

    /// A number that differs between hashers with different secrets, and with it the order of keys. It is never 0.
    pub fn fingerprint(&self) -> u32 {
        let mut hasher = self.state.build_hasher();
        hasher.write(b"order of keys");
        (hasher.finish() as u32).max(1)
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        match self.is_clustered {
            false => self.hash_in::<false>(key),
            true => self.hash_in::<true>(key),
        }
    }

    /// The hash of a key, for callers that know at compile time if slots are those of a cluster.
    #[inline]
    pub fn hash_in<const CLUSTERED: bool>(&self, key: &[u8]) -> u64 {
        debug_assert_eq!(CLUSTERED, self.is_clustered);
        let mut hasher = self.state.build_hasher();
        hasher.write(key);
        let hash = hasher.finish();
        if CLUSTERED {
            return hash << SLOT_BITS >> SLOT_BITS | u64::from(cluster_slot(key).get()) << (u64::BITS - SLOT_BITS);
        }
        #[cfg(feature = "simulated")]
        if SHARED_SLOTS.get().is_some() {
            // The slot is 0 or 1.
            return hash & (u64::MAX >> (SLOT_BITS - 1));
        }
        hash
    }

    /// The slot that a hash belongs to.
    #[inline]
    pub const fn slot(hash: u64) -> usize {
        (hash >> (u64::BITS - SLOT_BITS)) as usize
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the hash in a cluster.

    use super::*;

    #[test]
    fn a_clustered_hash_carries_the_cluster_slot() {
        let hasher = KeyHasher::from_os(true);
        for number in 0..1000 {
            let key = format!("key:{number}").into_bytes();
            assert_eq!(KeyHasher::slot(hasher.hash(&key)), cluster_slot(&key).index());
        }
    }
}
