//! Comparison of two short strings that reads no byte beyond them.
//!
//! The C library compares short strings with vectors whose lanes beyond the end are masked out. Such a load does not
//! fault, but it brings in the next cache line when the vector extends into it. For a key at the end of a line, that is
//! a line that was not prefetched, and so a full cache miss for every second entry of 32 bytes.

/// Returns `true` if both strings are equal.
#[inline]
pub(crate) fn bytes_equal(left: &[u8], right: &[u8]) -> bool {
    match left.len() {
        len if len != right.len() => false,
        8..=16 => equal_ends::<8>(left, right),
        17..=32 => equal_ends::<16>(left, right),
        4..=7 => equal_ends::<4>(left, right),
        // Longer strings are compared with whole vectors, and shorter ones are rare.
        _ => left == right,
    }
}

/// Compares strings of `N` to twice `N` bytes by their first and last `N` bytes, which may overlap.
#[inline]
fn equal_ends<const N: usize>(left: &[u8], right: &[u8]) -> bool {
    left.first_chunk::<N>() == right.first_chunk() && left.last_chunk::<N>() == right.last_chunk()
}

#[cfg(test)]
mod tests {
    use super::bytes_equal;

    #[test]
    fn every_byte_counts_at_every_length() {
        for len in 0..80 {
            let left: Vec<u8> = (0..len).collect();
            assert!(bytes_equal(&left, &left.clone()), "{len} equal bytes");
            for at in 0..left.len() {
                let mut right = left.clone();
                right[at] ^= 0x80;
                assert!(!bytes_equal(&left, &right), "byte {at} of {len} differs");
            }
            let longer: Vec<u8> = (0..len + 1).collect();
            assert!(!bytes_equal(&left, &longer) && !bytes_equal(&longer, &left), "{len}");
        }
    }
}
