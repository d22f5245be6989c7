//! Tests of the password comparison.

use super::is_same_password;

#[test]
fn only_the_very_same_password_is_the_same() {
    let same: &[&[u8]] = &[b"", b"a", b"secret", b"\0\xff\0", &[b'x'; 10_000]];
    for password in same {
        assert!(is_same_password(password, password), "{password:?}");
    }
    let different: &[(&[u8], &[u8])] = &[
        (b"", b"a"),
        (b"secret", b"Secret"),
        (b"secret", b"secret\0"),
        (b"secret", b"secre"),
        (b"secret", b"tecres"),
    ];
    for (wanted, given) in different {
        assert!(!is_same_password(wanted, given), "{wanted:?} {given:?}");
        assert!(!is_same_password(given, wanted), "{given:?} {wanted:?}");
    }
}
