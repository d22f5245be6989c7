//! Whether two short strings are the same, without touching what lies behind them.
//!
//! The C library compares short strings with vectors whose lanes beyond the end are masked out. Such a load does not
//! fault, but it brings in the next cache line when the vector reaches into it. For a key at the end of a line that is
//! a line nobody asked for in advance, and so a whole cache miss for every second entry of 32 bytes.

/// Whether the two are the same.
#[inline]
pub(crate) fn same_bytes(left: &[u8], right: &[u8]) -> bool {
    match left.len() {
        len if len != right.len() => false,
        8..=16 => same_ends::<8>(left, right),
        17..=32 => same_ends::<16>(left, right),
        4..=7 => same_ends::<4>(left, right),
        // What is longer is compared with whole vectors, what is shorter is rare.
        _ => left == right,
    }
}

/// The same for strings of `N` to twice `N` bytes: their first and last `N`, which may overlap.
#[inline]
fn same_ends<const N: usize>(left: &[u8], right: &[u8]) -> bool {
    left.first_chunk::<N>() == right.first_chunk() && left.last_chunk::<N>() == right.last_chunk()
}

#[cfg(test)]
mod tests {
    use super::same_bytes;

    #[test]
    fn every_byte_counts_at_every_length() {
        for len in 0..80 {
            let left: Vec<u8> = (0..len).collect();
            assert!(same_bytes(&left, &left.clone()), "{len} equal bytes");
            for at in 0..left.len() {
                let mut right = left.clone();
                right[at] ^= 0x80;
                assert!(!same_bytes(&left, &right), "byte {at} of {len} differs");
            }
            let longer: Vec<u8> = (0..len + 1).collect();
            assert!(!same_bytes(&left, &longer) && !same_bytes(&longer, &left), "{len}");
        }
    }
}
