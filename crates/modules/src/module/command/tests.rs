//! Tests of the flags and names of commands.

use weft_command_table::spec::{CommandFlags, KeyFlags};

use super::{is_valid_name, parse_flags};

#[test]
fn flags_are_words_between_single_spaces() {
    assert_eq!(parse_flags(b""), Some(CommandFlags::empty()));
    let flags = CommandFlags::of(&[CommandFlags::WRITE, CommandFlags::DENYOOM, CommandFlags::FAST]);
    assert_eq!(parse_flags(b"write Deny-OOM random fast"), Some(flags));
    assert_eq!(parse_flags(b"no-slowlog"), parse_flags(b"no-commandlog"));
    for wrong in [&b"write  fast"[..], b" write", b"write ", b"denyoom", b"write,fast"] {
        assert_eq!(parse_flags(wrong), None, "{}", String::from_utf8_lossy(wrong));
    }
}

#[test]
fn names_have_no_characters_of_acl_rules() {
    assert!(is_valid_name("JSON.SET") && is_valid_name("a-b_c~"));
    for wrong in ["", "a b", "a|b", "a@b", "a=b", "a,b", "a\r", "a\n"] {
        assert!(!is_valid_name(wrong), "{wrong:?}");
    }
}

#[test]
fn uses_of_keys_are_those_of_the_header() {
    let flags = [
        KeyFlags::RO,
        KeyFlags::RW,
        KeyFlags::OW,
        KeyFlags::RM,
        KeyFlags::ACCESS,
        KeyFlags::UPDATE,
        KeyFlags::INSERT,
        KeyFlags::DELETE,
        KeyFlags::NOT_KEY,
        KeyFlags::INCOMPLETE,
        KeyFlags::VARIABLE_FLAGS,
    ];
    for (position, flag) in flags.into_iter().enumerate() {
        assert_eq!(flag.bits(), 1 << position);
    }
}
