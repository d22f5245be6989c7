//! Functions for INFO: sections of modules, and figures of the server.

use std::ffi::{CStr, c_char, c_double, c_int, c_longlong, c_ulonglong};

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::info::InfoFunction;
use crate::objects::context::Context;
use crate::objects::info::{InfoContext, ServerInfo};
use crate::objects::string::ModuleString;
use crate::session;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("RegisterInfoFunc", register_info_function),
    ("InfoAddSection", info_add_section),
    ("InfoBeginDictField", info_begin_dictionary),
    ("InfoEndDictField", info_end_dictionary),
    ("InfoAddFieldString", info_add_string),
    ("InfoAddFieldCString", info_add_c_string),
    ("InfoAddFieldDouble", info_add_double),
    ("InfoAddFieldLongLong", info_add_signed),
    ("InfoAddFieldULongLong", info_add_unsigned),
    ("GetServerInfo", server_info),
    ("FreeServerInfo", free_server_info),
    ("ServerInfoGetField", server_info_string),
    ("ServerInfoGetFieldC", server_info_c_string),
    ("ServerInfoGetFieldSigned", server_info_signed),
    ("ServerInfoGetFieldUnsigned", server_info_unsigned),
    ("ServerInfoGetFieldDouble", server_info_double),
];

/// Returns the bytes of a C string; none for null.
///
/// # Safety
/// The pointer is null, or that of a C string that lives as long as `'a` (rule 1).
unsafe fn bytes_of<'a>(text: *const c_char) -> &'a [u8] {
    match text.is_null() {
        true => b"",
        // SAFETY: the caller promises it.
        false => unsafe { CStr::from_ptr(text) }.to_bytes(),
    }
}

fn status(is_done: bool) -> c_int {
    if is_done { OK } else { ERR }
}

/// Calls `add` with the sections so far. Fails for null.
///
/// # Safety
/// The pointer is null, or that of a context whose function runs (rule 1).
unsafe fn with_info(info: *mut InfoContext, add: impl FnOnce(&InfoContext) -> bool) -> c_int {
    // SAFETY: the caller promises it.
    status(unsafe { info.as_ref() }.is_some_and(add))
}

unsafe extern "C" fn register_info_function(context: *mut Context, function: Option<InfoFunction>) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let registered = context
        .zip(function)
        .map(|(context, function)| context.module.info.set(function));
    status(registered.is_some())
}

// ---- sections of modules -------------------------------------------------------------------------------------------

unsafe extern "C" fn info_add_section(info: *mut InfoContext, name: *const c_char) -> c_int {
    // SAFETY: rule 1.
    unsafe { with_info(info, |info| info.add_section(bytes_of(name))) }
}

unsafe extern "C" fn info_begin_dictionary(info: *mut InfoContext, name: *const c_char) -> c_int {
    // SAFETY: rule 1.
    unsafe { with_info(info, |info| info.begin_dictionary(bytes_of(name))) }
}

unsafe extern "C" fn info_end_dictionary(info: *mut InfoContext) -> c_int {
    // SAFETY: rule 1.
    unsafe { with_info(info, InfoContext::end_dictionary) }
}

unsafe extern "C" fn info_add_string(info: *mut InfoContext, field: *const c_char, value: *mut ModuleString) -> c_int {
    // SAFETY: rule 1.
    unsafe {
        with_info(info, |info| {
            info.add_text_field(bytes_of(field), ModuleString::bytes_of(value))
        })
    }
}

unsafe extern "C" fn info_add_c_string(info: *mut InfoContext, field: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: rule 1.
    unsafe { with_info(info, |info| info.add_text_field(bytes_of(field), bytes_of(value))) }
}

unsafe extern "C" fn info_add_double(info: *mut InfoContext, field: *const c_char, value: c_double) -> c_int {
    let mut text = [0; 64];
    // SAFETY: the text has room for the longest number of 17 digits, and `snprintf` writes no more than that.
    let length = unsafe { libc::snprintf(text.as_mut_ptr().cast(), text.len(), c"%.17g".as_ptr(), value) };
    let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len() - 1)];
    // SAFETY: rule 1.
    unsafe { with_info(info, |info| info.add_field(bytes_of(field), text.iter().copied())) }
}

unsafe extern "C" fn info_add_signed(info: *mut InfoContext, field: *const c_char, value: c_longlong) -> c_int {
    // SAFETY: rule 1.
    unsafe {
        with_info(info, |info| {
            info.add_field(bytes_of(field), value.to_string().into_bytes().into_iter())
        })
    }
}

unsafe extern "C" fn info_add_unsigned(info: *mut InfoContext, field: *const c_char, value: c_ulonglong) -> c_int {
    // SAFETY: rule 1.
    unsafe {
        with_info(info, |info| {
            info.add_field(bytes_of(field), value.to_string().into_bytes().into_iter())
        })
    }
}

// ---- figures of the server -----------------------------------------------------------------------------------------

/// Returns the figures of a section of INFO, which the module frees.
unsafe extern "C" fn server_info(context: *mut Context, section: *const c_char) -> *mut ServerInfo {
    // SAFETY: rule 1.
    let (context, section) = unsafe { (Context::from_pointer(context), bytes_of(section)) };
    let text = session::host().map(|host| host.info_text(section)).unwrap_or_default();
    let info = Box::into_raw(Box::new(ServerInfo::from_text(&text)));
    if let Some(context) = context {
        context.own(info);
    }
    info
}

unsafe extern "C" fn free_server_info(context: *mut Context, info: *mut ServerInfo) {
    // SAFETY: rule 1.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.disown(info);
    }
    if !info.is_null() {
        // SAFETY: the module has got it from `server_info`, and frees it once (rule 1).
        drop(unsafe { Box::from_raw(info) });
    }
}

/// Returns a field as a string of the module; null if there is none.
unsafe extern "C" fn server_info_string(
    context: *mut Context,
    info: *mut ServerInfo,
    field: *const c_char,
) -> *mut ModuleString {
    // SAFETY: rule 1.
    let (context, info, field) = unsafe { (Context::from_pointer(context), info.as_ref(), bytes_of(field)) };
    let Some(value) = info.and_then(|info| info.field(field)) else {
        return std::ptr::null_mut();
    };
    let string = ModuleString::create(value);
    if let Some(context) = context {
        context.own(string);
    }
    string
}

unsafe extern "C" fn server_info_c_string(info: *mut ServerInfo, field: *const c_char) -> *const c_char {
    // SAFETY: rule 1.
    let (info, field) = unsafe { (info.as_ref(), bytes_of(field)) };
    let value = info.and_then(|info| info.terminated(field));
    value.map_or(std::ptr::null(), |value| value.as_ptr().cast())
}

/// Returns a field as a number, and stores at `error` if that has failed.
///
/// # Safety
/// The pointers are null, or those that the functions of the API name (rule 1).
unsafe fn number_of<T: Default>(
    info: *mut ServerInfo,
    field: *const c_char,
    error: *mut c_int,
    parse: impl FnOnce(&str) -> Option<T>,
) -> T {
    // SAFETY: the caller promises it.
    let (info, field) = unsafe { (info.as_ref(), bytes_of(field)) };
    let text = info
        .and_then(|info| info.field(field))
        .and_then(|text| std::str::from_utf8(text).ok());
    let value = text.and_then(parse);
    if !error.is_null() {
        // SAFETY: it is a place for a number.
        unsafe { error.write(status(value.is_some())) };
    }
    value.unwrap_or_default()
}

unsafe extern "C" fn server_info_signed(info: *mut ServerInfo, field: *const c_char, error: *mut c_int) -> c_longlong {
    // SAFETY: rule 1.
    unsafe { number_of(info, field, error, |text| text.parse().ok()) }
}

unsafe extern "C" fn server_info_unsigned(
    info: *mut ServerInfo,
    field: *const c_char,
    error: *mut c_int,
) -> c_ulonglong {
    // SAFETY: rule 1.
    unsafe { number_of(info, field, error, |text| text.parse().ok()) }
}

unsafe extern "C" fn server_info_double(info: *mut ServerInfo, field: *const c_char, error: *mut c_int) -> c_double {
    // SAFETY: rule 1.
    unsafe { number_of(info, field, error, |text| text.parse().ok()) }
}
