//! Reading and writing values of modules in data files, payloads and strings, and the commands that create them.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use super::types::type_behind;
use crate::api::Functions;
use crate::errno;
use crate::functions;
use crate::module::types::DataType;
use crate::objects::arguments::{CommandWords, RawArgument};
use crate::objects::context::Context;
use crate::objects::io::ModuleIo;
use crate::objects::string::ModuleString;
use crate::session;

unsafe extern "C" {
    // These need a variable number of arguments or a `long double`, which only C can define. They call the functions
    // below.
    fn weft_modules_native_emit_aof();
    fn weft_modules_native_save_long_double();
    fn weft_modules_native_load_long_double();
}

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("SaveUnsigned", save_unsigned),
    ("LoadUnsigned", load_unsigned),
    ("SaveSigned", save_signed),
    ("LoadSigned", load_signed),
    ("SaveString", save_string),
    ("SaveStringBuffer", save_string_buffer),
    ("LoadString", load_string),
    ("LoadStringBuffer", load_string_buffer),
    ("SaveDouble", save_double),
    ("LoadDouble", load_double),
    ("SaveFloat", save_float),
    ("LoadFloat", load_float),
    ("SaveLongDouble", weft_modules_native_save_long_double),
    ("LoadLongDouble", weft_modules_native_load_long_double),
    ("LoadDataTypeFromString", load_data_type_from_string),
    ("LoadDataTypeFromStringEncver", load_data_type_from_string_encver),
    ("SaveDataTypeToString", save_data_type_to_string),
    ("EmitAOF", weft_modules_native_emit_aof),
    ("IsIOError", is_io_error),
    ("GetContextFromIO", context_from_io),
    ("GetKeyNameFromIO", key_name_from_io),
    ("GetDbIdFromIO", db_id_from_io),
];

/// Calls `run` with the transfer behind a module's pointer.
///
/// # Safety
/// The pointer is that of a transfer that is going on (rule 1).
unsafe fn with_io<'b, R>(io: *mut ModuleIo<'b>, run: impl FnOnce(&mut ModuleIo<'b>) -> R) -> R {
    // SAFETY: the caller promises it. `run` calls no code of the module, so nothing else uses the transfer meanwhile.
    run(unsafe { &mut *io })
}

/// Returns the bytes at a pointer; none for a length of 0.
///
/// # Safety
/// There are `length` bytes.
unsafe fn bytes_at<'a>(pointer: *const c_char, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: the caller promises it.
        _ => unsafe { std::slice::from_raw_parts(pointer.cast(), length) },
    }
}

/// Saves an unsigned number (`SaveUnsigned`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn save_unsigned(io: *mut ModuleIo<'_>, number: u64) {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, |io| io.save_unsigned(number)) }
}

/// Loads an unsigned number (`LoadUnsigned`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn load_unsigned(io: *mut ModuleIo<'_>) -> u64 {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, ModuleIo::load_unsigned) }
}

/// Saves a signed number (`SaveSigned`), which looks like an unsigned one with the same bits.
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn save_signed(io: *mut ModuleIo<'_>, number: i64) {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, |io| io.save_unsigned(number.cast_unsigned())) }
}

/// Loads a signed number (`LoadSigned`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn load_signed(io: *mut ModuleIo<'_>) -> i64 {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, ModuleIo::load_unsigned) }.cast_signed()
}

/// Saves a string (`SaveString`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn save_string(io: *mut ModuleIo<'_>, string: *const ModuleString) {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, |io| io.save_string(ModuleString::bytes_of(string))) }
}

/// Saves bytes (`SaveStringBuffer`).
///
/// # Safety
/// Rule 1, and there are `length` bytes.
unsafe extern "C" fn save_string_buffer(io: *mut ModuleIo<'_>, bytes: *const c_char, length: usize) {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, |io| io.save_string(bytes_at(bytes, length))) }
}

/// Loads a string (`LoadString`), which the module frees. Returns null after a failure.
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn load_string(io: *mut ModuleIo<'_>) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    let loaded = unsafe { with_io(io, ModuleIo::load_string) };
    loaded.map_or(null_mut(), |bytes| ModuleString::create(&bytes))
}

/// Loads bytes into memory that the module frees (`LoadStringBuffer`). Returns null after a failure.
///
/// # Safety
/// Rule 1, and `length` is null or a place for a number.
unsafe extern "C" fn load_string_buffer(io: *mut ModuleIo<'_>, length: *mut usize) -> *mut c_char {
    // SAFETY: the caller promises it.
    unsafe {
        let Some(bytes) = with_io(io, ModuleIo::load_string) else {
            return null_mut();
        };
        let memory = crate::api::memory::allocate(bytes.len()).cast::<c_char>();
        memory.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
        if !length.is_null() {
            length.write(bytes.len());
        }
        memory
    }
}

/// Saves a number of 8 bytes with a fraction (`SaveDouble`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn save_double(io: *mut ModuleIo<'_>, number: f64) {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, |io| io.save_double(number)) }
}

/// Loads a number of 8 bytes with a fraction (`LoadDouble`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn load_double(io: *mut ModuleIo<'_>) -> f64 {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, ModuleIo::load_double) }
}

/// Saves a number of 4 bytes with a fraction (`SaveFloat`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn save_float(io: *mut ModuleIo<'_>, number: f32) {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, |io| io.save_float(number)) }
}

/// Loads a number of 4 bytes with a fraction (`LoadFloat`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn load_float(io: *mut ModuleIo<'_>) -> f32 {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, ModuleIo::load_float) }
}

/// Saves the text of a number, for `SaveLongDouble`.
///
/// # Safety
/// As [`save_string_buffer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_save_text(io: *mut ModuleIo<'_>, text: *const c_char, length: usize) {
    // SAFETY: the caller promises it.
    unsafe { save_string_buffer(io, text, length) }
}

/// Loads the text of a number into a place of `capacity` bytes, for `LoadLongDouble`. Returns its length; 0 if it does
/// not fit or after a failure.
///
/// # Safety
/// Rule 1, and there are `capacity` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_load_text(io: *mut ModuleIo<'_>, text: *mut c_char, capacity: usize) -> usize {
    // SAFETY: the caller promises it.
    unsafe {
        match with_io(io, ModuleIo::load_string) {
            Some(bytes) if bytes.len() <= capacity => {
                text.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
                bytes.len()
            }
            _ => 0,
        }
    }
}

/// Decodes a value of encoding version 0 (`LoadDataTypeFromString`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn load_data_type_from_string(string: *const ModuleString, kind: *const DataType) -> *mut c_void {
    // SAFETY: the caller promises it.
    unsafe { load_data_type_from_string_encver(string, kind, 0) }
}

/// Decodes a value with the callback of its type (`LoadDataTypeFromStringEncver`). Returns null if that fails.
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn load_data_type_from_string_encver(
    string: *const ModuleString,
    kind: *const DataType,
    encoding_version: c_int,
) -> *mut c_void {
    // SAFETY: the caller promises it. The string is not changed while the callback of the type reads it.
    unsafe {
        let Some(kind) = type_behind(kind) else {
            return null_mut();
        };
        let Some(load) = kind.methods.rdb_load else {
            return null_mut();
        };
        let mut io = ModuleIo::for_loading(kind, null_mut(), -1, ModuleString::bytes_of(string));
        load(&raw mut io, encoding_version)
    }
}

/// Encodes a value with the callback of its type (`SaveDataTypeToString`). Returns null if that fails.
///
/// # Safety
/// Rule 1, and the value is of the type.
unsafe extern "C" fn save_data_type_to_string(
    context: *mut Context,
    value: *mut c_void,
    kind: *const DataType,
) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    unsafe {
        let Some(kind) = type_behind(kind) else {
            return null_mut();
        };
        let Some(save) = kind.methods.rdb_save else {
            return null_mut();
        };
        let compresses = session::host().is_some_and(|host| host.compresses_strings());
        let mut io = ModuleIo::for_saving(kind, null_mut(), -1, compresses);
        save(&raw mut io, value);
        let Some(bytes) = io.into_output() else {
            return null_mut();
        };
        let string = ModuleString::create(&bytes);
        if let Some(context) = Context::from_pointer(context) {
            context.own(string);
        }
        string
    }
}

/// Emits a command that creates a value, or a part of it (`EmitAOF`). The part in C has read its arguments.
///
/// # Safety
/// Rule 1, and the arguments are those of [`CommandWords::from_format`].
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_emit_aof(
    io: *mut ModuleIo<'_>,
    name: *const c_char,
    format: *const c_char,
    arguments: *const RawArgument,
) -> *mut c_void {
    // SAFETY: the caller promises it.
    let command = unsafe { CommandWords::from_format(name, format, arguments) };
    let emit = |io: &mut ModuleIo<'_>| {
        if io.has_failed() {
            return;
        }
        let kind = io.kind.name;
        let Ok((words, _)) = command else {
            // SAFETY: the caller promises a C string.
            let format = unsafe { std::ffi::CStr::from_ptr(format) }.to_string_lossy();
            log::warn!(
                "Fatal: AOF method for module data type '{kind}' tried to call ValkeyModule_EmitAOF() with wrong format \
                 specifiers '{format}'"
            );
            errno::set(libc::EINVAL);
            return io.fail();
        };
        let words = words.args();
        let name = words.argument(0);
        let is_unchecked = io.kind.module().is_some_and(|module| module.skips_command_validation());
        if !is_unchecked && session::host().is_some_and(|host| !host.has_command(name)) {
            let name = String::from_utf8_lossy(name);
            log::warn!("Fatal: AOF method for module data type '{kind}' tried to emit unknown command '{name}'");
            errno::set(libc::EINVAL);
            return io.fail();
        }
        io.emit((0..words.len()).map(|index| words.argument(index)));
    };
    // SAFETY: the caller promises it.
    unsafe { with_io(io, emit) };
    null_mut()
}

/// Returns 1 if an earlier call has failed (`IsIOError`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn is_io_error(io: *mut ModuleIo<'_>) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, |io| c_int::from(io.has_failed())) }
}

/// Returns a context for the transfer (`GetContextFromIO`), which ends with it.
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn context_from_io(io: *mut ModuleIo<'_>) -> *mut Context {
    // SAFETY: the caller promises it.
    unsafe { with_io(io, |io| io.context().map_or(null_mut(), Context::as_pointer)) }
}

/// Returns the name of the key (`GetKeyNameFromIO`); null if it is not known.
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn key_name_from_io(io: *mut ModuleIo<'_>) -> *const ModuleString {
    // SAFETY: the caller promises it.
    unsafe { io.as_ref() }.map_or(null(), |io| io.key.cast_const())
}

/// Returns the database of the key (`GetDbIdFromIO`); -1 if it is not known.
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn db_id_from_io(io: *mut ModuleIo<'_>) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { io.as_ref() }.map_or(-1, |io| io.db)
}
