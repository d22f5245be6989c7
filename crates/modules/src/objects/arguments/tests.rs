//! The words of calls, from the arguments of the functions in C.

use super::*;

fn pointer<T>(value: *const T) -> RawArgument {
    RawArgument {
        pointer: value.cast(),
        number: 0,
    }
}

fn read(format: &CStr, arguments: &[RawArgument]) -> Result<(CommandWords, CallFlags), CallFlags> {
    // SAFETY: the tests pass what the format says.
    unsafe { CommandWords::from_format(c"set".as_ptr(), format.as_ptr(), arguments.as_ptr()) }
}

fn words_of(words: &CommandWords) -> Vec<&[u8]> {
    words.args().iter().collect()
}

#[test]
fn each_letter_reads_its_argument() {
    let (first, second) = (ModuleString::create(b"one"), ModuleString::create(b"t\0wo"));
    let vector = [first.cast_const(), second.cast_const()];
    let arguments = [
        pointer(c"text".as_ptr()),
        pointer(first),
        RawArgument {
            pointer: b"buffer".as_ptr().cast(),
            number: 4,
        },
        RawArgument {
            pointer: std::ptr::null(),
            number: i64::MIN,
        },
        RawArgument {
            pointer: vector.as_ptr().cast(),
            number: 2,
        },
    ];
    let (words, flags) = read(c"c!sbEl3v", &arguments).expect("a known format");
    let expected: [&[u8]; 7] = [
        b"set",
        b"text",
        b"one",
        b"buff",
        b"-9223372036854775808",
        b"one",
        b"t\0wo",
    ];
    assert_eq!(words_of(&words), expected);
    let expected = CallFlags::REPLICATE | CallFlags::ERRORS_AS_REPLIES | CallFlags::RESP_3;
    assert_eq!(flags, expected);
    // SAFETY: the strings were created above.
    unsafe {
        ModuleString::release(first);
        ModuleString::release(second);
    }
}

#[test]
fn empty_buffers_and_vectors_need_no_pointer() {
    let empty = || RawArgument {
        pointer: std::ptr::null(),
        number: 0,
    };
    let (words, _) = read(c"bv", &[empty(), empty()]).expect("a known format");
    assert_eq!(words_of(&words), [&b"set"[..], b""]);
}

#[test]
fn a_dry_run_replies_with_errors() {
    let (words, flags) = read(c"D", &[]).expect("a known format");
    assert_eq!(words_of(&words), [&b"set"[..]]);
    assert_eq!(flags, CallFlags::DRY_RUN | CallFlags::ERRORS_AS_REPLIES);
}

#[test]
fn an_unknown_letter_is_refused() {
    assert_eq!(read(c"z", &[]), Err(CallFlags::empty()));
    assert_eq!(read(c"c?", &[pointer(c"text".as_ptr())]), Err(CallFlags::empty()));
}
