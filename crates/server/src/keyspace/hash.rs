//! The one keyed hash of a key: its top bits choose the slot, the rest place it in the slot's table.

use std::hash::{BuildHasher, Hasher};

use super::SLOTS;

/// Bits of the hash that choose a slot.
const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// A hash keyed by secrets from the operating system, so that nobody outside can aim keys at one slot.
pub struct KeyHasher {
    state: ahash::RandomState,
}

impl KeyHasher {
    /// A hasher with fresh secrets.
    pub fn from_os() -> Self {
        let mut seed = [[0u8; 8]; 4];
        for word in &mut seed {
            // Without OS randomness the clock still differs between starts.
            if getrandom::fill(word).is_err() {
                *word = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |since| since.as_nanos() as u64)
                    .to_le_bytes();
            }
        }
        let [a, b, c, d] = seed.map(u64::from_le_bytes);
        KeyHasher {
            state: ahash::RandomState::with_seeds(a, b, c, d),
        }
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.state.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// The slot that a hash belongs to outside cluster mode.
    #[inline]
    pub const fn slot(hash: u64) -> usize {
        (hash >> (u64::BITS - SLOT_BITS)) as usize
    }
}
