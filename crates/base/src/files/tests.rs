//! Tests of the texts of errors.

use super::*;

#[test]
fn texts_of_errors_are_those_of_the_c_library() {
    assert_eq!(errno_text(2), "No such file or directory");
    assert_eq!(errno_text(5), "Input/output error");
    assert_eq!(errno_text(28), "No space left on device");
    assert_eq!(error_text(&io::Error::other("of its own")), "of its own");
}
