//! The allocator's size classes: what a request for so many bytes really takes.

/// The number of bytes an allocation of `bytes` bytes takes: jemalloc serves 8 bytes, then multiples of 16 up to 128,
/// then four classes per doubling.
#[inline]
pub(crate) const fn size_class(bytes: usize) -> usize {
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
