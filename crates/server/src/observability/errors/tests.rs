//! Codes of commands are always counted separately, those of scripts only while there are few.

use super::{CODES_MAX, ErrorCounts};

#[test]
fn codes_from_scripts_share_a_name_once_there_are_many() {
    let errors = ErrorCounts::default();
    for number in 0..CODES_MAX + 10 {
        errors.count_from_script(format!("CODE{number}").as_bytes());
    }
    errors.count_from_script(b"CODE1");
    errors.count(b"ERR");
    let all = errors.all();
    let count = |code: &[u8]| all.iter().find(|(known, _)| known == code).map(|(_, count)| *count);
    assert_eq!(count(b"ERRORSTATS_OVERFLOW"), Some(10));
    assert_eq!((count(b"CODE1"), count(b"ERR")), (Some(2), Some(1)));
    errors.reset();
    assert!(errors.all().is_empty());
}
