//! The shape of an entry: its parts, their offsets, and its size class.
//!
//! The drawing is in `entry.rs`. A shape is computed for a new value, or read from an entry's header; both must give
//! the same offsets, so this module is the only place that computes them.

use crate::size_class::{entry_class, size_class};
use crate::value::NewValue;

/// The maximum length of an exact string; longer strings become blobs.
pub(crate) const EXACT_MAX_BYTES: usize = 16 << 10;
/// The alignment of every entry; its bucket does not store these address bits.
pub(crate) const ALIGNMENT: usize = 8;
pub(crate) const META_BYTES: usize = 4;
pub(crate) const LONG_KEY: u8 = u8::MAX;
pub(crate) const POINTER_BYTES: usize = 8;
pub(crate) const INLINE_SLACK_BYTES: usize = 16;
pub(crate) const CLOCK_MASK: u32 = (1 << 24) - 1;
pub(crate) const KIND_SHIFT: u32 = 24;
pub(crate) const EXPIRES: u32 = 1 << 29;
pub(crate) const EXPIRES_WIDE: u32 = 1 << 30;
pub(crate) const PACKED: u32 = 1 << 31;
pub(crate) const WIDE_EXPIRY_MS: u64 = 1 << 48;

/// Returns the maximum size of a packed collection that takes no more memory than one of `len` bytes, under a key of
/// `key_len` bytes. At most [`PACKED_MAX_BYTES`](crate::PACKED_MAX_BYTES).
#[must_use]
pub fn packed_room(len: usize, key_len: usize, expire_at_ms: Option<u64>) -> usize {
    let shape = |len| Shape::of_bytes(len, key_len, expire_at_ms);
    let taken = |len| {
        shape(len).class()
            + if shape(len).kind == Kind::Exact {
                size_class(len)
            } else {
                0
            }
    };
    let most = match shape(len).kind {
        Kind::Exact => size_class(len),
        _ => len + shape(len).class() - shape(len).bytes(),
    };
    // A length field may become wider in between, which costs one byte of the room.
    [most, most.saturating_sub(1)]
        .into_iter()
        .map(|room| room.min(EXACT_MAX_BYTES))
        .find(|&room| room >= len && taken(room) <= taken(len))
        .unwrap_or(len)
}

/// The way in which a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int1,
    Int2,
    Int4,
    Int8,
    Inline1,
    Inline2,
    Exact,
    Blob,
    Object,
}

pub(crate) const KINDS: [Kind; 9] = [
    Kind::Int1,
    Kind::Int2,
    Kind::Int4,
    Kind::Int8,
    Kind::Inline1,
    Kind::Inline2,
    Kind::Exact,
    Kind::Blob,
    Kind::Object,
];

/// The properties of an entry that determine the offsets of its parts and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) expiry_bytes: usize,
    pub(crate) key_len: usize,
    pub(crate) inline_len: usize,
    pub(crate) packed: bool,
}

impl Shape {
    /// Returns the shape in which a new value is stored.
    pub(crate) fn of_value<V>(value: &NewValue<'_, V>, key_len: usize, expire_at_ms: Option<u64>) -> Self {
        match value {
            NewValue::Bytes(bytes) => Self::of_bytes(bytes.len(), key_len, expire_at_ms),
            NewValue::Packed(bytes) => {
                assert!(bytes.len() <= EXACT_MAX_BYTES, "a packed collection stays small");
                Self {
                    packed: true,
                    ..Self::of_bytes(bytes.len(), key_len, expire_at_ms)
                }
            }
            NewValue::Int(number) => Self::of_int(*number, key_len, expire_at_ms),
            NewValue::Blob(_) => Self::new(Kind::Blob, key_len, expire_at_ms),
            NewValue::Object(_) | NewValue::Shared(_) => Self::new(Kind::Object, key_len, expire_at_ms),
        }
    }

    pub(crate) fn new(kind: Kind, key_len: usize, expire_at_ms: Option<u64>) -> Self {
        let expiry_bytes = match expire_at_ms {
            None => 0,
            Some(0..WIDE_EXPIRY_MS) => 6,
            Some(_) => 8,
        };
        Self {
            kind,
            expiry_bytes,
            key_len,
            inline_len: 0,
            packed: false,
        }
    }

    pub(crate) fn of_bytes(len: usize, key_len: usize, expire_at_ms: Option<u64>) -> Self {
        if len > EXACT_MAX_BYTES {
            return Self::new(Kind::Blob, key_len, expire_at_ms);
        }
        let kind = if len <= usize::from(u8::MAX) {
            Kind::Inline1
        } else {
            Kind::Inline2
        };
        let exact = Self::new(Kind::Exact, key_len, expire_at_ms);
        let inline = Self {
            kind,
            inline_len: len,
            ..exact
        };
        if inline.class() <= exact.class() + size_class(len) + INLINE_SLACK_BYTES {
            inline
        } else {
            exact
        }
    }

    pub(crate) fn of_int(number: i64, key_len: usize, expire_at_ms: Option<u64>) -> Self {
        let smallest = if i8::try_from(number).is_ok() {
            Kind::Int1
        } else if i16::try_from(number).is_ok() {
            Kind::Int2
        } else if i32::try_from(number).is_ok() {
            Kind::Int4
        } else {
            Kind::Int8
        };
        let mut shape = Self::new(smallest, key_len, expire_at_ms);
        let class = shape.class();
        for wider in [Kind::Int2, Kind::Int4, Kind::Int8] {
            let candidate = Self { kind: wider, ..shape };
            if candidate.class() == class && candidate.bytes() > shape.bytes() {
                shape = candidate;
            }
        }
        shape
    }

    /// Returns the shape of the same value with another expiry.
    pub(crate) fn with_expiry(self, expire_at_ms: Option<u64>) -> Self {
        Self {
            inline_len: self.inline_len,
            packed: self.packed,
            ..Self::new(self.kind, self.key_len, expire_at_ms)
        }
    }

    /// Returns the shape of the same value under a key of another length.
    pub(crate) fn with_key_len(self, key_len: usize) -> Self {
        Self { key_len, ..self }
    }

    /// Returns the shape of the same kind of inline string with another length, if its length field can hold that.
    pub(crate) fn with_inline_len(self, inline_len: usize) -> Option<Self> {
        let longest = match self.kind {
            Kind::Inline1 => usize::from(u8::MAX),
            _ => usize::from(u16::MAX),
        };
        (inline_len <= longest).then_some(Self { inline_len, ..self })
    }

    pub(crate) fn expiry_at(self) -> usize {
        META_BYTES + if self.key_len < usize::from(LONG_KEY) { 1 } else { 9 }
    }

    pub(crate) fn key_at(self) -> usize {
        self.expiry_at() + self.expiry_bytes
    }

    pub(crate) fn value_at(self) -> usize {
        let end = self.key_at() + self.key_len;
        if self.kind == Kind::Blob {
            end.next_multiple_of(POINTER_BYTES)
        } else {
            end
        }
    }

    pub(crate) fn value_bytes(self) -> usize {
        match self.kind {
            Kind::Int1 => 1,
            Kind::Int2 => 2,
            Kind::Int4 => 4,
            Kind::Int8 => 8,
            Kind::Inline1 => 1 + self.inline_len,
            Kind::Inline2 => 2 + self.inline_len,
            Kind::Exact | Kind::Blob | Kind::Object => POINTER_BYTES,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        self.value_at() + self.value_bytes()
    }

    /// Returns the size class of the entry's allocation.
    pub(crate) fn class(self) -> usize {
        entry_class(self.bytes())
    }

    pub(crate) fn meta(self, clock: u32) -> u32 {
        let expiry = match self.expiry_bytes {
            0 => 0,
            6 => EXPIRES,
            _ => EXPIRES | EXPIRES_WIDE,
        };
        let packed = if self.packed { PACKED } else { 0 };
        clock & CLOCK_MASK | (self.kind as u32) << KIND_SHIFT | expiry | packed
    }
}

#[cfg(test)]
mod tests;
