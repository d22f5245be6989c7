//! The free room of packed collections, compared with the size of their entries.

use super::*;

#[test]
fn packed_room_is_free_and_maximal() {
    let taken = |len, key_len, expire| {
        let shape = Shape::of_bytes(len, key_len, expire);
        shape.class() + if shape.kind == Kind::Exact { size_class(len) } else { 0 }
    };
    for expire in [None, Some(1_700_000_000_000), Some(u64::MAX)] {
        for key_len in [0, 1, 7, 16, 200, 254, 255, 1000] {
            for len in (0..600).chain([1000, 3650, 4096, 8191, 16_000, EXACT_MAX_BYTES]) {
                let room = packed_room(len, key_len, expire);
                assert!((len..=EXACT_MAX_BYTES).contains(&room));
                assert!(
                    taken(room, key_len, expire) <= taken(len, key_len, expire),
                    "{len} under {key_len}"
                );
                let more = (room + 2).min(EXACT_MAX_BYTES);
                let larger = taken(more, key_len, expire) > taken(len, key_len, expire);
                assert!(larger || more < room + 2, "{len} under {key_len}: {room} is not all");
            }
        }
    }
}
