//! Values on their way into the table, in it, and out of it.

mod blob;
mod shared;

pub use blob::Blob;
pub use shared::Shared;

/// The maximum size of a packed collection in bytes.
pub const PACKED_MAX_BYTES: usize = crate::shape::EXACT_MAX_BYTES;

/// A value on its way into the table.
#[derive(Debug)]
pub enum NewValue<'a, V> {
    /// A string that is stored as bytes, copied.
    Bytes(&'a [u8]),
    /// A string that is the canonical decimal form of this number.
    Int(i64),
    /// A string that is already on the heap and may be shared.
    Blob(Blob),
    /// A small collection in a form of its own, copied: at most [`PACKED_MAX_BYTES`].
    Packed(&'a [u8]),
    /// Any other type of value.
    Object(V),
    /// The same as a handle, which may be shared.
    Shared(Shared<V>),
}

/// A value in the table.
#[derive(Debug)]
pub enum ValueRef<'a, V> {
    /// A string stored as a number.
    Int(i64),
    /// A string stored as bytes.
    Bytes(&'a [u8]),
    /// A string that can be shared by cloning it.
    Blob(&'a Blob),
    /// A small collection, stored as bytes.
    Packed(&'a [u8]),
    /// Any other type of value.
    Object(&'a V),
}

impl<V> Clone for ValueRef<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for ValueRef<'_, V> {}

/// A value that left the table.
#[derive(Debug)]
pub enum OwnedValue<V> {
    /// A string that was stored as a number.
    Int(i64),
    /// A string that was stored as bytes.
    Bytes(Vec<u8>),
    /// A string that may be shared.
    Blob(Blob),
    /// A small collection that was stored as bytes.
    Packed(Vec<u8>),
    /// Any other type of value, which may be shared.
    Object(Shared<V>),
}

/// A number's decimal form, stored without an allocation.
pub(crate) struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    pub(crate) fn new(number: i64) -> Self {
        let mut decimal = Self {
            digits: [0; 20],
            start: 20,
        };
        let mut rest = number.unsigned_abs();
        loop {
            decimal.push(b'0' + (rest % 10) as u8);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            decimal.push(b'-');
        }
        decimal
    }

    fn push(&mut self, digit: u8) {
        self.start -= 1;
        self.digits[self.start] = digit;
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

#[cfg(test)]
mod tests;
