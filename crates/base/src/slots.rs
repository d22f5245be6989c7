//! The slots of the keyspace, and the slot of a key in a cluster (see Valkey's cluster specification).

use crate::SlotIndex;

use crc::{CRC_16_XMODEM, Crc, Table};

/// The number of slots in the keyspace, in cluster mode and outside it.
pub const SLOTS: usize = 16384;

/// The number of bits of a slot number.
pub const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// The polynomial of Valkey's cluster specification.
const CRC16: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_XMODEM);

/// The slot of a key on all nodes of a cluster. If the key has a hash tag, that is, a non-empty part between the first
/// `{` and the next `}`, only the tag determines the slot.
pub fn cluster_slot(key: &[u8]) -> SlotIndex {
    static TABLES: Crc<u16, Table<16>> = CRC16;
    SlotIndex::from_index(usize::from(TABLES.checksum(hash_tag(key))) % SLOTS)
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
pub fn slot_of_pattern(pattern: &[u8]) -> Option<SlotIndex> {
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
            assert_eq!(cluster_slot(key).get(), slot, "{key:?}");
        }
        assert_ne!(cluster_slot(b"{}a"), cluster_slot(b"a"), "an empty tag is none");
        assert_eq!(hash_tag(b"{a"), b"{a");
        assert_eq!(hash_tag(b"}a{"), b"}a{");
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
            (b"{x", Some(cluster_slot(b"{x").get())),
            (b"l{x}", Some(16287)),
            (b"a", Some(15495)),
            (b"", Some(0)),
            (b"a\\{x}", None),
        ] {
            assert_eq!(slot_of_pattern(pattern).map(SlotIndex::get), slot, "{pattern:?}");
        }
    }
}
