//! The size classes of the allocator: the number of bytes that an allocation really takes.
/// Returns the number of bytes that an allocation of `bytes` bytes takes. The size classes of jemalloc are 8 bytes,
/// then multiples of 16 up to 128, then four classes per doubling.
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

/// Reserves capacity for `more` bytes after `bytes`, up to the exact end of a size class.
#[inline]
pub fn reserve_size_class(bytes: &mut Vec<u8>, more: usize) {
    let wanted = bytes.len() + more;
    if wanted > bytes.capacity() {
        bytes.reserve_exact(size_class(wanted) - bytes.len());
    }
}

/// Frees the capacity beyond the size class of the bytes in use, if the capacity belongs to a larger class.
pub fn shrink_to_size_class(bytes: &mut Vec<u8>) {
    let wanted = if bytes.is_empty() { 0 } else { size_class(bytes.len()) };
    if wanted < bytes.capacity() {
        bytes.shrink_to(wanted);
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the size classes.

    use super::*;

    #[test]
    fn classes_are_those_of_the_allocator() {
        let classes = [
            (0, 8),
            (8, 8),
            (9, 16),
            (100, 112),
            (128, 128),
            (129, 160),
            (3550, 3584),
            (3585, 4096),
            (4097, 5120),
        ];
        for (bytes, class) in classes {
            assert_eq!(size_class(bytes), class, "{bytes}");
        }
    }

    #[test]
    fn vectors_grow_and_shrink_by_classes() {
        let mut bytes = vec![1; 100];
        reserve_size_class(&mut bytes, 50);
        assert_eq!(bytes.capacity(), 160);
        bytes.truncate(10);
        shrink_to_size_class(&mut bytes);
        assert_eq!(bytes.capacity(), 16);
        bytes.clear();
        shrink_to_size_class(&mut bytes);
        assert_eq!(bytes.capacity(), 0);
    }
}
