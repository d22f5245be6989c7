//! The choice of slabs that should be emptied.

/// Returns `true` if a slab should be emptied that has `used` of `places` places in use, while all slabs of its kind
/// together have `all_used` of `all_places`.
///
/// The slab must be at most an eighth fuller than the average, because emptying a full one costs much for little. If
/// most slabs are nearly full, one with a few free places is left alone.
pub(crate) fn is_sparse(used: u64, places: u64, all_used: u64, all_places: u64) -> bool {
    let free = places.saturating_sub(used);
    free * 16 >= places && used * all_places * 8 <= all_used * places * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_slabs_are_emptied_and_full_ones_are_not() {
        // Of 100 slabs with 64 places each.
        let is_sparse_among = |used, all_used| is_sparse(used, 64, all_used, 6400);
        assert!(is_sparse_among(6, 640) && is_sparse_among(7, 640), "a tenth is used");
        assert!(
            !is_sparse_among(9, 640),
            "fuller than the average by more than an eighth"
        );
        assert!(is_sparse_among(32, 6200), "most slabs are nearly full");
        assert!(is_sparse_among(60, 6200));
        assert!(!is_sparse_among(61, 6200), "few places are free");
        assert!(!is_sparse_among(64, 6400));
    }
}
