//! Tests of clocks and random bytes.

use super::{cached_microseconds, microseconds, milliseconds, random_bytes, random_hex_chars};

#[test]
fn clocks_agree() {
    let before = milliseconds();
    let now = microseconds();
    assert!((before * 1000..before * 1000 + 10_000_000).contains(&now));
    assert!(cached_microseconds() >= now);
}

#[test]
fn random_bytes_differ() {
    let mut buffers = [[0u8; 40]; 2];
    for buffer in &mut buffers {
        // SAFETY: the buffers have this length.
        unsafe { random_bytes(buffer.as_mut_ptr(), 40) };
    }
    assert_ne!(buffers[0], buffers[1]);
    for buffer in &mut buffers {
        // SAFETY: the buffers have this length.
        unsafe { random_hex_chars(buffer.as_mut_ptr().cast(), 40) };
        assert!(buffer.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
    }
    assert_ne!(buffers[0], buffers[1]);
}
