//! Tests of the encodings of strings.

use super::*;

#[test]
fn strings_are_embedded_up_to_the_same_sizes_as_in_valkey() {
    // The length of the key, and of the longest string that is embstr with this key.
    let limits = [
        (1, 112),
        (2, 111),
        (10, 103),
        (30, 83),
        (40, 71),
        (60, 51),
        (64, 47),
        (90, 21),
        (100, 11),
    ];
    for (key, longest) in limits {
        assert!(is_embedded(key, longest), "{longest} bytes with a key of {key}");
        assert!(
            !is_embedded(key, longest + 1),
            "{} bytes with a key of {key}",
            longest + 1
        );
    }
    assert!(!is_embedded(120, 0));
}
