//! Tests of the format of certificates, and of the uses of keys.

use weft_acl::KeyAccess;

use super::{access_of, as_pem};

#[test]
fn certificates_are_lines_of_64_letters() {
    let pem = String::from_utf8(as_pem(&[0xff; 50])).expect("is text");
    let lines: Vec<&str> = pem.lines().collect();
    assert_eq!(lines[0], "-----BEGIN CERTIFICATE-----");
    assert_eq!(lines[1], "/".repeat(64));
    assert_eq!(lines[2], "//8=");
    assert_eq!(lines[3], "-----END CERTIFICATE-----");
    for (bytes, text) in [
        (&b"f"[..], "Zg=="),
        (b"fo", "Zm8="),
        (b"foo", "Zm9v"),
        (b"foob", "Zm9vYg=="),
    ] {
        assert!(
            String::from_utf8(as_pem(bytes))
                .expect("is text")
                .contains(&format!("\n{text}\n"))
        );
    }
}

#[test]
fn only_uses_that_need_permissions_are_checked() {
    assert_eq!(access_of(0), Some(KeyAccess::empty()));
    assert_eq!(access_of(1 << 4), Some(KeyAccess::READ));
    assert_eq!(access_of(1 << 6), Some(KeyAccess::WRITE));
    assert_eq!(access_of(0xf0), Some(KeyAccess::BOTH));
    assert_eq!(access_of(1), None);
    assert_eq!(access_of(1 << 8), None);
}
