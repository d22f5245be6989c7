//! A string on the heap that readers share by reference count and that grows like a string builder.
//!
//! The count and the length are in their own small allocation, separate from the bytes: a value of a power of two bytes
//! then takes exactly its size class instead of the next one.

use std::ops::Deref;
use std::sync::Arc;

use crate::relocation::Mover;
use crate::size_class::size_class;

/// The length up to which a growing blob reserves twice its length; above it, it reserves this many bytes more.
const DOUBLING_MAX_BYTES: usize = 1 << 20;
/// The size of the allocation that holds the reference counts and the vector.
const HEAD_BYTES: usize = size_class(2 * size_of::<usize>() + size_of::<Vec<u8>>());

/// A reference-counted byte string. Cloning it shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob(Arc<Vec<u8>>);

impl Blob {
    /// Creates a blob with a copy of `bytes` and no spare capacity.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        Self(Arc::new(copy_with_capacity(bytes, bytes.len())))
    }

    /// Creates a blob with a copy of `bytes` and capacity for at least `needed` bytes.
    pub(crate) fn with_capacity(bytes: &[u8], needed: usize) -> Self {
        Self(Arc::new(copy_with_capacity(bytes, grown_capacity(needed))))
    }

    /// Returns `true` if both share their bytes.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns `true` if this is the only handle of the bytes.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns the number of bytes that fit without a reallocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the bytes that this blob takes from the allocator.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        HEAD_BYTES
            + if self.capacity() == 0 {
                0
            } else {
                size_class(self.capacity())
            }
    }

    /// Appends `tail`; copies first if the bytes are shared.
    pub fn extend(&mut self, tail: &[u8]) {
        self.unique(self.len().saturating_add(tail.len()))
            .extend_from_slice(tail);
    }

    /// Returns the bytes for changing, extended with zeros to at least `min_len`; copies first if they are shared.
    pub fn bytes_mut(&mut self, min_len: usize) -> &mut [u8] {
        let bytes = self.unique(min_len);
        if bytes.len() < min_len {
            bytes.resize(min_len, 0);
        }
        bytes
    }

    /// Returns the bytes, copied if they are shared.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        Arc::try_unwrap(self.0).unwrap_or_else(|shared| shared.to_vec())
    }

    /// Moves the bytes, and the allocation with the count, if no other handle of them exists. Returns the handle.
    pub(crate) fn relocated(mut self, mover: &mut Mover) -> Self {
        if let Some(bytes) = Arc::get_mut(&mut self.0) {
            mover.vec(bytes);
        }
        Self(mover.shared(self.0))
    }

    /// Returns the vector, unshared and with capacity for `needed` bytes.
    fn unique(&mut self, needed: usize) -> &mut Vec<u8> {
        if Arc::get_mut(&mut self.0).is_none() {
            let capacity = if needed > self.len() {
                grown_capacity(needed)
            } else {
                self.len()
            };
            self.0 = Arc::new(copy_with_capacity(&self.0, capacity));
        }
        let bytes = Arc::make_mut(&mut self.0);
        if needed > bytes.capacity() {
            bytes.reserve_exact(size_class(grown_capacity(needed)) - bytes.len());
        }
        bytes
    }
}

impl Deref for Blob {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Blob {
    /// Takes over the vector's allocation.
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(bytes))
    }
}

fn grown_capacity(needed: usize) -> usize {
    if needed < DOUBLING_MAX_BYTES {
        needed * 2
    } else {
        needed.saturating_add(DOUBLING_MAX_BYTES)
    }
}

fn copy_with_capacity(bytes: &[u8], capacity: usize) -> Vec<u8> {
    let mut copy = Vec::new();
    if capacity > 0 {
        copy.reserve_exact(size_class(capacity));
    }
    copy.extend_from_slice(bytes);
    copy
}
