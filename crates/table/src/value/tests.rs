//! Decimal forms and blobs.

use super::{Blob, Decimal};

#[test]
fn decimal_agrees_with_the_standard_library() {
    for number in [0, 1, -1, 9, 10, -10, 1234567890123, i64::MAX, i64::MIN] {
        assert_eq!(Decimal::new(number).as_bytes(), number.to_string().as_bytes());
    }
}

#[test]
fn a_blob_reserves_capacity_and_copies_when_shared() {
    let mut blob = Blob::from_slice(b"abc");
    blob.extend(b"defghijk");
    assert_eq!(&blob[..], b"abcdefghijk");
    assert!(blob.capacity() >= 22);

    let shared = blob.clone();
    assert!(!blob.is_unique());
    blob.bytes_mut(13)[0] = b'X';
    assert_eq!(&blob[..], b"Xbcdefghijk\0\0");
    assert_eq!(&shared[..], b"abcdefghijk");
    assert!(blob.is_unique() && shared.is_unique());

    let mut large = Blob::from(vec![7; 3 << 20]);
    large.extend(b"!");
    assert!((4 << 20..=5 << 20).contains(&large.capacity()));
}

#[test]
fn appending_byte_by_byte_rarely_reallocates() {
    let mut blob = Blob::from_slice(b"");
    let mut moves = 0;
    for byte in 0..100_000_u32 {
        let before = blob.capacity();
        blob.extend(&[byte as u8]);
        moves += usize::from(blob.capacity() != before);
    }
    assert_eq!(blob.len(), 100_000);
    assert!(moves < 20, "{moves} reallocations");
}
