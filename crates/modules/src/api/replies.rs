//! Replies. All functions do nothing if there is no client that receives them.

use std::ffi::{CStr, c_char, c_double, c_int, c_long, c_longlong};

use weft_resp::Protocol;

use super::{ERR, Functions, OK};
use crate::functions;
use crate::objects::context::Context;
use crate::objects::reply::Collection;
use crate::objects::string::{ModuleString, buffer_bytes};

/// The length that stands for one that is set later (`VALKEYMODULE_POSTPONED_LEN`).
const POSTPONED_LEN: c_long = -1;

unsafe extern "C" {
    /// Formats an error (`native/variadic.c`).
    fn weft_modules_native_reply_with_error_format();
    /// Formats an error, and says how it is counted.
    fn weft_modules_native_reply_with_custom_error_format();
    /// Prints a number.
    fn weft_modules_native_reply_with_long_double();
}

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("ReplyWithArray", reply_with_array),
    ("ReplyWithAttribute", reply_with_attribute),
    ("ReplyWithBigNumber", reply_with_big_number),
    ("ReplyWithBool", reply_with_bool),
    ("ReplyWithCString", reply_with_c_string),
    (
        "ReplyWithCustomErrorFormat",
        weft_modules_native_reply_with_custom_error_format
    ),
    ("ReplyWithDouble", reply_with_double),
    ("ReplyWithEmptyArray", reply_with_empty_array),
    ("ReplyWithEmptyString", reply_with_empty_string),
    ("ReplyWithError", reply_with_error),
    ("ReplyWithErrorFormat", weft_modules_native_reply_with_error_format),
    ("ReplyWithLongDouble", weft_modules_native_reply_with_long_double),
    ("ReplyWithLongLong", reply_with_long_long),
    ("ReplyWithMap", reply_with_map),
    ("ReplyWithNull", reply_with_null),
    ("ReplyWithNullArray", reply_with_null_array),
    ("ReplyWithSet", reply_with_set),
    ("ReplyWithSimpleString", reply_with_simple_string),
    ("ReplyWithString", reply_with_string),
    ("ReplyWithStringBuffer", reply_with_string_buffer),
    ("ReplyWithVerbatimString", reply_with_verbatim_string),
    ("ReplyWithVerbatimStringType", reply_with_verbatim_string_type),
    ("ReplySetArrayLength", reply_set_array_length),
    ("ReplySetAttributeLength", reply_set_attribute_length),
    ("ReplySetMapLength", reply_set_map_length),
    ("ReplySetSetLength", reply_set_set_length),
];

/// Defines functions that append one value: their pointers become a context and values first.
macro_rules! reply_functions {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident($context:ident $(, $argument:ident: $type:ty)*) $body:block
    )*) => {$(
        $(#[$documentation])*
        ///
        /// # Safety
        /// The context is null or one, and so are strings; a buffer has its length (rule 1).
        unsafe extern "C" fn $name(context: *mut Context $(, $argument: $type)*) -> c_int {
            // SAFETY: the caller promises it.
            if let Some($context) = unsafe { Context::from_pointer(context) } $body
            OK
        }
    )*};
}

reply_functions! {
    /// Replies with an integer.
    fn reply_with_long_long(context, number: c_longlong) {
        context.write_reply(|reply| reply.integer(number));
    }

    /// Replies with an error. The text begins with its code.
    fn reply_with_error(context, text: *const c_char) {
        // SAFETY: the caller promises that this is a C string.
        context.reply_with_error(unsafe { CStr::from_ptr(text) }.to_bytes(), false, true);
    }

    /// Replies with a simple string, without checking it.
    fn reply_with_simple_string(context, text: *const c_char) {
        // SAFETY: the caller promises that this is a C string.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        context.write_reply(|reply| {
            reply.raw(b"+");
            reply.raw(text);
            reply.crlf();
        });
    }

    /// Begins an array.
    fn reply_with_array(context, len: c_long) {
        begin_collection(context, Collection::Array, len);
    }

    /// Begins a map of pairs.
    fn reply_with_map(context, len: c_long) {
        begin_collection(context, Collection::Map, len);
    }

    /// Begins a set.
    fn reply_with_set(context, len: c_long) {
        begin_collection(context, Collection::Set, len);
    }

    /// Replies with an array of no elements.
    fn reply_with_empty_array(context) {
        context.write_reply(|reply| reply.array(0));
    }

    /// Replies with the null of arrays.
    fn reply_with_null_array(context) {
        context.write_reply(|reply| reply.null_array());
    }

    /// Replies with null.
    fn reply_with_null(context) {
        context.write_reply(|reply| reply.null());
    }

    /// Replies with a bulk string.
    fn reply_with_string_buffer(context, buffer: *const c_char, len: usize) {
        // SAFETY: the caller promises it.
        let text = unsafe { buffer_bytes(buffer, len) };
        context.write_reply(|reply| reply.bulk(text));
    }

    /// Replies with a C string as a bulk string.
    fn reply_with_c_string(context, text: *const c_char) {
        // SAFETY: the caller promises that this is a C string.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        context.write_reply(|reply| reply.bulk(text));
    }

    /// Replies with a string of a module as a bulk string.
    fn reply_with_string(context, string: *const ModuleString) {
        // SAFETY: the caller promises it.
        let text = unsafe { ModuleString::bytes_of(string) };
        context.write_reply(|reply| reply.bulk(text));
    }

    /// Replies with an empty bulk string.
    fn reply_with_empty_string(context) {
        context.write_reply(|reply| reply.bulk(b""));
    }

    /// Replies with text that clients show as it is.
    fn reply_with_verbatim_string(context, buffer: *const c_char, len: usize) {
        // SAFETY: the caller promises it.
        let text = unsafe { buffer_bytes(buffer, len) };
        context.write_reply(|reply| reply.verbatim("txt", text));
    }

    /// Replies with text in a format with a name of three characters.
    fn reply_with_verbatim_string_type(context, buffer: *const c_char, len: usize, format: *const c_char) {
        // SAFETY: the caller promises it, and that the name is a C string.
        let (text, format) = unsafe { (buffer_bytes(buffer, len), CStr::from_ptr(format)) };
        context.write_reply(|reply| reply.verbatim(&format.to_string_lossy(), text));
    }

    /// Replies with a boolean value.
    fn reply_with_bool(context, value: c_int) {
        context.write_reply(|reply| reply.boolean(value != 0));
    }

    /// Replies with a floating-point number.
    fn reply_with_double(context, number: c_double) {
        context.write_reply(|reply| reply.double(number));
    }

    /// Replies with an integer of any size, given in decimal, without checking it.
    fn reply_with_big_number(context, digits: *const c_char, len: usize) {
        // SAFETY: the caller promises it.
        let digits = unsafe { buffer_bytes(digits, len) };
        context.write_reply(|reply| match reply.protocol {
            Protocol::Resp2 => reply.bulk(digits),
            Protocol::Resp3 => {
                reply.raw(b"(");
                reply.raw(digits);
                reply.crlf();
            }
        });
    }
}

/// Returns the length of a collection; `None` if it is postponed.
///
/// # Panics
/// If the length is negative.
fn collection_len(context: &Context, len: c_long) -> usize {
    usize::try_from(len).unwrap_or_else(|_| {
        let name = context.module.name();
        panic!("the module {name} replies with a collection of the length {len}")
    })
}

fn begin_collection(context: &Context, collection: Collection, len: c_long) {
    let len = (len != POSTPONED_LEN).then(|| collection_len(context, len));
    context.begin_collection(collection, len);
}

/// Begins attributes of the value that follows them. Fails in RESP2, which has none.
///
/// # Safety
/// The context is one (rule 1).
unsafe extern "C" fn reply_with_attribute(context: *mut Context, len: c_long) -> c_int {
    // SAFETY: the caller promises it.
    match unsafe { Context::from_pointer(context) } {
        Some(context) if context.caller.borrow().protocol == Protocol::Resp3 => {
            begin_collection(context, Collection::Attribute, len);
            OK
        }
        _ => ERR,
    }
}

/// Sets the length of the collection without one that was begun last.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe fn set_length(context: *mut Context, collection: Collection, len: c_long) {
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.end_collection(collection, collection_len(context, len));
    }
}

/// Sets the length of an array.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn reply_set_array_length(context: *mut Context, len: c_long) {
    // SAFETY: the caller promises it.
    unsafe { set_length(context, Collection::Array, len) };
}

/// Sets the number of pairs of a map.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn reply_set_map_length(context: *mut Context, len: c_long) {
    // SAFETY: the caller promises it.
    unsafe { set_length(context, Collection::Map, len) };
}

/// Sets the length of a set.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn reply_set_set_length(context: *mut Context, len: c_long) {
    // SAFETY: the caller promises it.
    unsafe { set_length(context, Collection::Set, len) };
}

/// Sets the number of pairs of attributes.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn reply_set_attribute_length(context: *mut Context, len: c_long) {
    // SAFETY: the caller promises it.
    let is_resp3 = unsafe { Context::from_pointer(context) }
        .is_some_and(|context| context.caller.borrow().protocol == Protocol::Resp3);
    if is_resp3 {
        // SAFETY: the caller promises it.
        unsafe { set_length(context, Collection::Attribute, len) };
    }
}

/// Replies with an error that `native/variadic.c` has formatted.
///
/// # Safety
/// The context is null or one, and the text has its length (rule 1).
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_reply_with_error(
    context: *mut Context,
    text: *const c_char,
    len: usize,
    is_custom: bool,
    is_counted: bool,
) -> c_int {
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        // SAFETY: the caller promises it.
        context.reply_with_error(unsafe { buffer_bytes(text, len) }, is_custom, is_counted);
    }
    OK
}

/// Replies with a number that `native/variadic.c` has printed.
///
/// # Safety
/// The context is null or one, and the text has its length (rule 1).
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_reply_with_number(context: *mut Context, text: *const c_char, len: usize) -> c_int {
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        // SAFETY: the caller promises it.
        let text = unsafe { buffer_bytes(text, len) };
        context.write_reply(|reply| match reply.protocol {
            Protocol::Resp2 => reply.bulk(text),
            Protocol::Resp3 => {
                reply.raw(b",");
                reply.raw(text);
                reply.crlf();
            }
        });
    }
    OK
}
