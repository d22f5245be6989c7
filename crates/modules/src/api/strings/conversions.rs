//! Numbers from strings.

use std::ffi::{c_double, c_int, c_longlong, c_ulonglong};

use weft_resp::number;

use crate::api::{ERR, OK};
use crate::objects::string::ModuleString;

/// The ID of an entry of a stream, as modules see it (`ValkeyModuleStreamID`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct StreamIdStruct {
    /// Milliseconds since the Unix epoch.
    pub ms: u64,
    /// The number within the millisecond.
    pub seq: u64,
}

/// The maximum length of an ID in bytes.
const STREAM_ID_MAX_LEN: usize = 127;

/// Stores what `parse` returns for a string.
///
/// # Safety
/// The string is one, and the target a place for a value, or null (rule 1).
unsafe fn convert<T>(string: *const ModuleString, target: *mut T, parse: impl FnOnce(&[u8]) -> Option<T>) -> c_int {
    // SAFETY: the caller promises it.
    match parse(unsafe { ModuleString::bytes_of(string) }) {
        Some(value) => {
            if !target.is_null() {
                // SAFETY: the caller promises it.
                unsafe { target.write(value) };
            }
            OK
        }
        None => ERR,
    }
}

/// Parses an integer.
///
/// # Safety
/// As for [`convert`].
pub unsafe extern "C" fn string_to_long_long(string: *const ModuleString, number: *mut c_longlong) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { convert(string, number, number::parse_i64) }
}

/// Parses an integer that is not negative.
///
/// # Safety
/// As for [`convert`].
pub unsafe extern "C" fn string_to_unsigned_long_long(string: *const ModuleString, number: *mut c_ulonglong) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { convert(string, number, number::parse_u64) }
}

/// Parses a floating-point number.
///
/// # Safety
/// As for [`convert`].
pub unsafe extern "C" fn string_to_double(string: *const ModuleString, number: *mut c_double) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { convert(string, number, number::parse_f64) }
}

/// Parses the ID of an entry of a stream: `time`, `time-number`, `-` or `+`.
///
/// # Safety
/// As for [`convert`].
pub unsafe extern "C" fn string_to_stream_id(string: *const ModuleString, id: *mut StreamIdStruct) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { convert(string, id, parse_stream_id) }
}

fn parse_stream_id(text: &[u8]) -> Option<StreamIdStruct> {
    let id = |ms, seq| Some(StreamIdStruct { ms, seq });
    match text {
        b"-" => id(0, 0),
        b"+" => id(u64::MAX, u64::MAX),
        _ if text.len() > STREAM_ID_MAX_LEN => None,
        _ => match text.iter().position(|byte| *byte == b'-') {
            Some(dash) => id(number::parse_u64(&text[..dash])?, number::parse_u64(&text[dash + 1..])?),
            None => id(number::parse_u64(text)?, 0),
        },
    }
}
