//! Small collections as plain bytes inside their table entry: one allocation for key and members.
//!
//! ```text
//!   +------+-------------------------+
//!   | kind | what the type puts here |
//!   +------+-------------------------+
//! ```
//!
//! The first byte tells the type. A collection that outgrows its limits becomes a [`Value`](crate::Value) and never
//! comes back, as in Valkey.

/// A packed collection of more bytes than this becomes a value of its own: a change rewrites it whole.
pub const LARGEST_BYTES: usize = 2048;

/// The type of a packed collection; its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PackedKind {
    /// A list.
    List = 1,
    /// A hash without field expiry.
    Hash = 2,
    /// A set of any members.
    Set = 3,
    /// A set of integers.
    IntegerSet = 4,
    /// A sorted set.
    SortedSet = 5,
}

impl PackedKind {
    /// The kind of a packed collection.
    ///
    /// # Panics
    /// If the bytes are none: they never come from outside, decoders make them anew.
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

    /// The name of the type, as TYPE and SCAN know it.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Hash => "hash",
            Self::Set | Self::IntegerSet => "set",
            Self::SortedSet => "zset",
        }
    }

    /// The name of the encoding that Valkey would report (OBJECT ENCODING).
    pub fn encoding_name(self) -> &'static str {
        match self {
            Self::IntegerSet => "intset",
            _ => "listpack",
        }
    }
}
