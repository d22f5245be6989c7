//! Size classes: the memory that an allocation really takes.
//!
//! jemalloc serves 8 bytes, then multiples of 16 up to 128, then four classes per doubling. Every allocation of this
//! crate requests a whole class. So the header of an entry also determines how much room the entry has, and two
//! allocations of one class are interchangeable.
//!
//! Entries have more classes: all multiples of 8 from 16 to 256. Those that jemalloc lacks are cells (`cells/`).

/// The largest class that may be a class of cells.
pub(crate) const MAX_CELL_BYTES: usize = 256;

/// Returns the number of bytes that an allocation of `bytes` bytes takes.
#[inline]
#[must_use]
pub const fn size_class(bytes: usize) -> usize {
    if bytes <= 8 {
        return 8;
    }
    let doubling = usize::BITS - (bytes - 1).leading_zeros();
    let step = if doubling <= 7 { 16 } else { 1 << (doubling - 3) };
    match bytes.checked_next_multiple_of(step) {
        Some(class) => class,
        None => bytes,
    }
}

/// Returns the number of bytes that an entry of `bytes` bytes takes.
#[inline]
pub(crate) const fn entry_class(bytes: usize) -> usize {
    match bytes {
        0..=16 => 16,
        17..=MAX_CELL_BYTES => bytes.next_multiple_of(8),
        _ => size_class(bytes),
    }
}

#[cfg(test)]
mod tests;
