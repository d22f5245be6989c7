//! Tests of compression with known bytes, as a round trip, and with damaged input.

use super::*;

/// Returns a random text with repetitions at many distances.
fn compressible(random: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let mut text: Vec<u8> = Vec::new();
    while text.len() < len {
        if text.len() > 4 && random.bool() {
            let start = random.usize(..text.len());
            let count = random.usize(1..400).min(text.len() - start);
            text.extend_from_within(start..start + count);
        } else {
            let letters = random.usize(1..40);
            text.extend(std::iter::repeat_with(|| random.u8(b'a'..b'e')).take(letters));
        }
    }
    text.truncate(len);
    text
}

#[test]
fn output_equals_that_of_liblzf() {
    let cases: &[(Vec<u8>, &[u8])] = &[
        (vec![b'a'; 21], b"\x01aa\xe0\x0a\x00"),
        (vec![b'a'; 100], b"\x01aa\xe0\x57\x00\x01aa"),
        (b"ab".repeat(50), b"\x02aba\xe0\x56\x01\x01ab"),
    ];
    for (text, packed) in cases {
        let limit = text.len() - 4;
        assert_eq!(compress(text, limit).as_deref(), Some(&packed[..]), "{text:?}");
    }
}

#[test]
fn compressed_input_survives_the_round_trip() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut packed_count = 0;
    for round in 0..2000 {
        let len = if round % 50 == 0 {
            random.usize(..100_000)
        } else {
            random.usize(..600)
        };
        let text = compressible(&mut random, len);
        let limit = len.saturating_sub(4);
        if let Some(packed) = compress(&text, limit) {
            assert!(
                packed.len() <= limit,
                "seed {seed}, round {round}: {} above {limit}",
                packed.len()
            );
            assert_eq!(decompress(&packed, len), Some(text), "seed {seed}, round {round}");
            packed_count += 1;
        }
    }
    assert!(packed_count > 1500, "seed {seed}: only {packed_count} were packed");
}

#[test]
fn the_result_does_not_depend_on_earlier_input() {
    let text = compressible(&mut fastrand::Rng::with_seed(7), 5000);
    let first = compress(&text, 4996);
    for len in [100, 5000, 20_000] {
        let other = compressible(&mut fastrand::Rng::with_seed(len as u64), len);
        compress(&other, len - 4);
        assert_eq!(compress(&text, 4996), first, "after {len} bytes of something else");
    }
}

#[test]
fn positions_start_over_before_they_overflow() {
    let text = b"abcabcabcabcabcabcabcabcabcabc";
    let mut compressor = Compressor {
        last_positions: vec![0; 1 << HASH_BITS],
        base: u32::MAX - 10,
    };
    let packed = compressor.compress(text, 26).expect("it repeats");
    assert_eq!(compressor.base, 1 + text.len() as u32);
    assert_eq!(decompress(&packed, text.len()).as_deref(), Some(&text[..]));
}

#[test]
fn incompressible_input_is_not_compressed() {
    let mut random = fastrand::Rng::with_seed(3);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1000).collect();
    assert_eq!(compress(&noise, 996), None);
    assert_eq!(compress(b"", 10), None);
    assert_eq!(compress(b"aaaaaaaaaaaaaaaaaaaaaaaa", 0), None);
}

#[test]
fn damaged_input_is_refused() {
    let cases: &[(&[u8], usize)] = &[
        (b"", 1),
        (b"\x01ab", 3),
        (b"\x01ab", 1),
        (b"\x02ab", 3),
        // References to before the start, and truncated references.
        (b"\x00a\x20\x05x", 4),
        (b"\x00a\x20", 4),
        (b"\x00a\xe0\x01", 12),
        (b"\x00a\x20\x00", 3),
        // A length that no input of this size can expand to.
        (b"\x00a", usize::MAX),
    ];
    for (packed, len) in cases {
        assert_eq!(decompress(packed, *len), None, "{packed:?} as {len}");
    }
    assert_eq!(decompress(b"\x00a\x20\x00", 4).as_deref(), Some(&b"aaaa"[..]));
    assert_eq!(decompress(b"\x05", 0), Some(Vec::new()));
}

#[test]
fn no_input_panics() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20_000 {
        let count = random.usize(..60);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(count).collect();
        let len = random.usize(..500);
        if let Some(text) = decompress(&bytes, len) {
            assert_eq!(text.len(), len, "seed {seed}");
        }
    }
}
