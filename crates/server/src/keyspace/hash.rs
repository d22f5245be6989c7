//! The keyed hash of a key. Its top bits are the slot. The other bits determine the place in the slot's table.
//!
//! Outside cluster mode the slot is taken from the hash itself. In cluster mode it is the slot that all nodes and
//! clients compute, the CRC16 of the key or of its hash tag. It replaces the hash's top bits, so that the hash contains
//! the slot in either mode.

use std::hash::{BuildHasher, Hasher};

use crc::{CRC_16_XMODEM, Crc, Table};
use sha2::{Digest, Sha256};

use super::SLOTS;

/// The number of hash bits that select a slot.
pub const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// The polynomial of Valkey's cluster specification.
const CRC16: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_XMODEM);

/// The slot of a key on all nodes of a cluster. If the key has a hash tag, that is, a non-empty part between the first
/// `{` and the next `}`, only the tag determines the slot.
pub fn cluster_slot(key: &[u8]) -> u16 {
    static TABLES: Crc<u16, Table<16>> = CRC16;
    TABLES.checksum(hash_tag(key)) & (SLOTS as u16 - 1)
}

/// The part of a key that determines its slot in a cluster.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'{', key) else {
        return key;
    };
    let inside = &key[open + 1..];
    match memchr::memchr(b'}', inside) {
        Some(0) | None => key,
        Some(close) => &inside[..close],
    }
}

/// The slot of all keys that match a glob pattern; `None` if they may have different slots. A slot is known if the
/// pattern has no special character before the end of its hash tag, or none at all if it has no hash tag.
pub fn slot_of_pattern(pattern: &[u8]) -> Option<u16> {
    let mut open = None;
    for (index, byte) in pattern.iter().enumerate() {
        match (byte, open) {
            (b'*' | b'?' | b'[' | b'\\', _) => return None,
            (b'{', None) => open = Some(index),
            (b'}', Some(open)) if index != open + 1 => return Some(cluster_slot(&pattern[..=index])),
            _ => {}
        }
    }
    Some(cluster_slot(pattern))
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
            return hash << SLOT_BITS >> SLOT_BITS | u64::from(cluster_slot(key)) << (u64::BITS - SLOT_BITS);
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
    //! Tests of the slots of keys in a cluster.

    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        for (key, slot) in [
            (&b"a"[..], 15495),
            (b"", 0),
            (b"123456789", 0x31c3),
            (b"{x}", 16287),
            (b"l{x}", 16287),
            (b"l{x}{y}", 16287),
            (b"{a}b{c}", 15495),
        ] {
            assert_eq!(cluster_slot(key), slot, "{key:?}");
        }
        assert_ne!(cluster_slot(b"{}a"), cluster_slot(b"a"), "an empty tag is none");
        assert_eq!(hash_tag(b"{a"), b"{a");
        assert_eq!(hash_tag(b"}a{"), b"}a{");
    }

    #[test]
    fn a_clustered_hash_carries_the_cluster_slot() {
        let hasher = KeyHasher::from_os(true);
        for number in 0..1000 {
            let key = format!("key:{number}").into_bytes();
            assert_eq!(KeyHasher::slot(hasher.hash(&key)), usize::from(cluster_slot(&key)));
        }
    }

    #[test]
    fn patterns_with_a_plain_tag_have_a_slot() {
        for (pattern, slot) in [
            (&b"{x}*"[..], Some(16287)),
            (b"l{x}*", Some(16287)),
            (b"*{x}", None),
            (b"{x*}", None),
            (b"{}*", None),
            (b"l?{x}", None),
            (b"{x", Some(cluster_slot(b"{x"))),
            (b"l{x}", Some(16287)),
            (b"a", Some(15495)),
            (b"", Some(0)),
            (b"a\\{x}", None),
        ] {
            assert_eq!(slot_of_pattern(pattern), slot, "{pattern:?}");
        }
    }
}
