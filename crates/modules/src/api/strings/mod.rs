//! Strings: creation, lifetime, bytes.

mod conversions;

use std::ffi::{c_char, c_double, c_int, c_longlong, c_ulonglong};

use weft_resp::number;

use super::{ERR, Functions, OK};
use crate::functions;
use crate::objects::context::Context;
use crate::objects::string::{ModuleString, buffer_bytes};
pub use conversions::StreamIdStruct;
use conversions::{string_to_double, string_to_long_long, string_to_stream_id, string_to_unsigned_long_long};

unsafe extern "C" {
    /// Formats a string (`native/variadic.c`).
    fn weft_modules_native_create_string_printf();
    /// Prints a number.
    fn weft_modules_native_create_string_from_long_double();
    /// Parses a number.
    fn weft_modules_native_string_to_long_double();
}

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("CreateString", create_string),
    ("CreateStringFromDouble", create_string_from_double),
    (
        "CreateStringFromLongDouble",
        weft_modules_native_create_string_from_long_double
    ),
    ("CreateStringFromLongLong", create_string_from_long_long),
    ("CreateStringFromStreamID", create_string_from_stream_id),
    ("CreateStringFromString", create_string_from_string),
    ("CreateStringFromULongLong", create_string_from_unsigned_long_long),
    ("CreateStringPrintf", weft_modules_native_create_string_printf),
    ("FreeString", free_string),
    ("HoldString", hold_string),
    ("RetainString", retain_string),
    ("StringAppendBuffer", string_append_buffer),
    ("StringCompare", string_compare),
    ("StringPtrLen", string_ptr_len),
    ("StringToDouble", string_to_double),
    ("StringToLongDouble", weft_modules_native_string_to_long_double),
    ("StringToLongLong", string_to_long_long),
    ("StringToStreamID", string_to_stream_id),
    ("StringToULongLong", string_to_unsigned_long_long),
    ("TrimStringAllocation", trim_string_allocation),
];

/// The bytes of the string that does not exist.
const NULL_TEXT: &[u8] = b"(NULL string reply referenced in module)\0";

/// Creates a string that belongs to the module, or to the automatic memory of its context.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe fn create(context: *mut Context, bytes: &[u8]) -> *mut ModuleString {
    let string = ModuleString::create(bytes);
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.own(string);
    }
    string
}

/// Creates a string from a buffer.
///
/// # Safety
/// The context is null or one, and the buffer has its length (rule 1).
unsafe extern "C" fn create_string(context: *mut Context, buffer: *const c_char, len: usize) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    unsafe { create(context, buffer_bytes(buffer, len)) }
}

/// Creates a string from text that `native/variadic.c` has formatted.
///
/// # Safety
/// As for [`create_string`].
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_create_string(
    context: *mut Context,
    buffer: *const c_char,
    len: usize,
) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    unsafe { create_string(context, buffer, len) }
}

/// Creates a string with the digits of an integer.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn create_string_from_long_long(context: *mut Context, number: c_longlong) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    unsafe { create(context, number.to_string().as_bytes()) }
}

/// Creates a string with the digits of an integer.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn create_string_from_unsigned_long_long(
    context: *mut Context,
    number: c_ulonglong,
) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    unsafe { create(context, number.to_string().as_bytes()) }
}

/// Creates a string with the digits of a number.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn create_string_from_double(context: *mut Context, number: c_double) -> *mut ModuleString {
    let mut digits = Vec::new();
    number::format_f64(number, &mut digits);
    // SAFETY: the caller promises it.
    unsafe { create(context, &digits) }
}

/// Creates a copy of a string.
///
/// # Safety
/// The context is null or one, and the string is one (rule 1).
unsafe extern "C" fn create_string_from_string(
    context: *mut Context,
    string: *const ModuleString,
) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    unsafe { create(context, ModuleString::bytes_of(string)) }
}

/// Creates a string with the ID of an entry of a stream.
///
/// # Safety
/// The context is null or one, and the ID is one (rule 1).
unsafe extern "C" fn create_string_from_stream_id(
    context: *mut Context,
    id: *const StreamIdStruct,
) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    let id = unsafe { id.read() };
    // SAFETY: the caller promises it.
    unsafe { create(context, format!("{}-{}", id.ms, id.seq).as_bytes()) }
}

/// Frees a string, unless it has other holders.
///
/// # Safety
/// The context is null or one, and the string is null or one (rule 1).
unsafe extern "C" fn free_string(context: *mut Context, string: *mut ModuleString) {
    if string.is_null() {
        return;
    }
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.disown(string);
    }
    // SAFETY: the caller is a holder of the string, or automatic memory was until now.
    unsafe { ModuleString::release(string) };
}

/// Lets a string live until the module frees it once more.
///
/// # Safety
/// The context is null or one, and the string is null or one (rule 1).
unsafe extern "C" fn retain_string(context: *mut Context, string: *mut ModuleString) {
    if string.is_null() {
        return;
    }
    // SAFETY: the caller promises it.
    let was_owned = unsafe { Context::from_pointer(context) }.is_some_and(|context| context.disown(string));
    // Automatic memory gives its hold to the module, so that the module can append to the string.
    if !was_owned {
        // SAFETY: the caller promises it.
        unsafe { ModuleString::retain(string) };
    }
}

/// Returns a string of the same bytes that the module frees, or automatic memory.
///
/// # Safety
/// The context is null or one, and the string is null or one (rule 1).
unsafe extern "C" fn hold_string(context: *mut Context, string: *mut ModuleString) -> *mut ModuleString {
    if !string.is_null() {
        // SAFETY: the caller promises it.
        unsafe { ModuleString::retain(string) };
        // SAFETY: the caller promises it.
        if let Some(context) = unsafe { Context::from_pointer(context) } {
            context.own(string);
        }
    }
    string
}

/// Returns the bytes of a string and stores their number.
///
/// # Safety
/// The string is null or one, and the length is null or a place for one (rule 1).
unsafe extern "C" fn string_ptr_len(string: *const ModuleString, len: *mut usize) -> *const c_char {
    let bytes = match string.is_null() {
        true => &NULL_TEXT[..NULL_TEXT.len() - 1],
        // SAFETY: the caller promises it.
        false => unsafe { ModuleString::bytes_of(string) },
    };
    if !len.is_null() {
        // SAFETY: the caller promises it.
        unsafe { len.write(bytes.len()) };
    }
    bytes.as_ptr().cast()
}

/// Returns the bytes of a string to `native/variadic.c`.
///
/// # Safety
/// As for [`string_ptr_len`].
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_string_bytes(string: *const ModuleString, len: *mut usize) -> *const c_char {
    // SAFETY: the caller promises it.
    unsafe { string_ptr_len(string, len) }
}

/// Compares the bytes of two strings.
///
/// # Safety
/// The strings are such (rule 1).
unsafe extern "C" fn string_compare(left: *const ModuleString, right: *const ModuleString) -> c_int {
    // SAFETY: the caller promises it.
    let (left, right) = unsafe { (ModuleString::bytes_of(left), ModuleString::bytes_of(right)) };
    left.cmp(right) as c_int
}

/// Appends a buffer to a string with a single holder.
///
/// # Safety
/// The string is one, and the buffer has its length (rule 1).
unsafe extern "C" fn string_append_buffer(
    context: *mut Context,
    string: *mut ModuleString,
    buffer: *const c_char,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises it.
    if unsafe { ModuleString::append(string, buffer_bytes(buffer, len)) } {
        return OK;
    }
    // SAFETY: the caller promises it.
    let name = unsafe { Context::from_pointer(context) }.map(|context| context.module.name());
    log::warn!(
        "Module {} attempted to append to a string that has several holders",
        name.as_deref().unwrap_or("(unknown)")
    );
    ERR
}

/// Gives back memory that a string does not need.
///
/// # Safety
/// The string is null or one, and no other thread uses it (rule 1).
unsafe extern "C" fn trim_string_allocation(string: *mut ModuleString) {
    if !string.is_null() {
        // SAFETY: the caller promises it.
        unsafe { ModuleString::trim(string) };
    }
}

#[cfg(test)]
mod tests;
