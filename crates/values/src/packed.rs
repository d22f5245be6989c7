//! Small collections as plain bytes inside their table entry: one allocation holds the key and all members.
//!
//! ```text
//!   +------+----------------------+
//!   | kind | data of the type     |
//!   +------+----------------------+
//! ```
//!
//! The first byte identifies the type. A collection that exceeds its limits becomes a
//! [`Value`](crate::Value) and is never packed again, as in Valkey.
/// The maximum size of a packed collection in bytes. A larger collection is stored as a value of its own, because a
/// change rewrites a packed collection completely.
pub const MAX_PACKED_BYTES: usize = 2048;

/// The type of a packed collection, which is its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PackedKind {
    /// A list.
    List = 1,
    /// A hash without field expiry.
    Hash = 2,
    /// A set of arbitrary members.
    Set = 3,
    /// A set of integers.
    IntegerSet = 4,
    /// A sorted set.
    SortedSet = 5,
}

impl PackedKind {
    /// Returns the kind of a packed collection.
    ///
    /// # Panics
    ///
    /// Panics if the bytes are not a packed collection. Such bytes never come from outside, because decoders build new
    /// ones.
    #[inline]
    pub fn of(packed: &[u8]) -> Self {
        match packed.first() {
            Some(1) => Self::List,
            Some(2) => Self::Hash,
            Some(3) => Self::Set,
            Some(4) => Self::IntegerSet,
            Some(5) => Self::SortedSet,
            other => panic!("not a packed collection: {other:?}"),
        }
    }

    /// The name of the type, as TYPE and SCAN use it.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Hash => "hash",
            Self::Set | Self::IntegerSet => "set",
            Self::SortedSet => "zset",
        }
    }

    /// The name of the encoding that Valkey would report with OBJECT ENCODING.
    pub fn encoding_name(self) -> &'static str {
        match self {
            Self::IntegerSet => "intset",
            _ => "listpack",
        }
    }
}
