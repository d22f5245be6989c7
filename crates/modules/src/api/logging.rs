//! Log lines of modules.

use std::ffi::{CStr, c_char};

use super::Functions;
use crate::functions;
use crate::objects::context::Context;
use crate::objects::io::ModuleIo;
use crate::objects::string::buffer_bytes;

/// The maximum length of a line in bytes.
const LINE_MAX_LEN: usize = 1023;

unsafe extern "C" {
    /// Formats a line (`native/variadic.c`).
    fn weft_modules_native_log();
    /// Formats a line about a value that is loaded or saved.
    fn weft_modules_native_log_io_error();
}

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("Log", weft_modules_native_log),
    ("LogIOError", weft_modules_native_log_io_error),
];

/// Returns the level by its name. Unknown ones are the same as `verbose`, as in Valkey.
fn level(name: &[u8]) -> log::Level {
    match name.to_ascii_lowercase().as_slice() {
        b"warning" => log::Level::Warn,
        b"notice" => log::Level::Info,
        b"debug" => log::Level::Trace,
        _ => log::Level::Debug,
    }
}

/// Writes a line to the log of the server.
fn write(module: Option<&str>, level: log::Level, text: &[u8]) {
    let line = format!("<{}> {}", module.unwrap_or("module"), String::from_utf8_lossy(text));
    let mut end = line.len().min(LINE_MAX_LEN);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    log::log!(level, "{}", &line[..end]);
}

/// Logs a line that `native/variadic.c` has formatted.
///
/// # Safety
/// The context is null or one, the name of the level is a C string, and the text has its length (rule 1).
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_log(context: *mut Context, name: *const c_char, text: *const c_char, len: usize) {
    // SAFETY: the caller promises it.
    let (name, text) = unsafe { (CStr::from_ptr(name), buffer_bytes(text, len)) };
    // SAFETY: the caller promises it.
    let module = unsafe { Context::from_pointer(context) }.map(|context| context.module.name());
    write(module.as_deref(), level(name.to_bytes()), text);
}

/// Logs a line that `native/variadic.c` has formatted, about a value that is loaded or saved.
///
/// # Safety
/// As for [`weft_modules_log`], with the object for loading or saving in the place of the context.
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_log_io_error(
    io: *const ModuleIo<'_>,
    name: *const c_char,
    text: *const c_char,
    len: usize,
) {
    // SAFETY: the caller promises it.
    let (name, text) = unsafe { (CStr::from_ptr(name), buffer_bytes(text, len)) };
    // SAFETY: the caller promises it.
    let module = unsafe { io.as_ref() }
        .and_then(|io| io.kind.module())
        .map(|module| module.name());
    write(module.as_deref(), level(name.to_bytes()), text);
}
