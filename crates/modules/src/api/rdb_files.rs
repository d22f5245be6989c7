//! Loading and saving all data in files that a module names.

use std::ffi::{CStr, CString, c_char, c_int};

use crate::api::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::objects::context::Context;
use crate::session;
use crate::session::types::RdbFileError;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("RdbStreamCreateFromFile", rdb_stream_create_from_file),
    ("RdbStreamFree", rdb_stream_free),
    ("RdbLoad", rdb_load),
    ("RdbSave", rdb_save),
];

/// A place for a data file (`ValkeyModuleRdbStream`).
pub struct RdbStream {
    path: CString,
}

/// Creates the place of a file (`RdbStreamCreateFromFile`).
///
/// # Safety
/// The path is a C string.
unsafe extern "C" fn rdb_stream_create_from_file(path: *const c_char) -> *mut RdbStream {
    // SAFETY: the caller promises it.
    let path = unsafe { CStr::from_ptr(path) }.to_owned();
    Box::into_raw(Box::new(RdbStream { path }))
}

/// Frees a place (`RdbStreamFree`).
///
/// # Safety
/// Rule 1; the place is not used any more.
unsafe extern "C" fn rdb_stream_free(stream: *mut RdbStream) {
    if !stream.is_null() {
        // SAFETY: the caller promises it.
        drop(unsafe { Box::from_raw(stream) });
    }
}

/// Replaces all data with the contents of a file (`RdbLoad`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn rdb_load(_context: *mut Context, stream: *mut RdbStream, flags: c_int) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { transfer(stream, flags, |session, path| session.load_rdb_file(path)) }
}

/// Saves all data to a file (`RdbSave`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn rdb_save(_context: *mut Context, stream: *mut RdbStream, flags: c_int) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { transfer(stream, flags, |session, path| session.save_rdb_file(path)) }
}

/// Loads or saves a file with `run`, and sets the error number.
///
/// # Safety
/// Rule 1.
unsafe fn transfer(
    stream: *mut RdbStream,
    flags: c_int,
    run: impl FnOnce(&mut dyn session::Session, &[u8]) -> Result<(), RdbFileError>,
) -> c_int {
    // SAFETY: the caller promises it.
    let stream = unsafe { stream.as_ref() };
    let Some(stream) = stream.filter(|_| flags == 0) else {
        errno::set(libc::EINVAL);
        return ERR;
    };
    let error = match session::current(|session| run(session, stream.path.to_bytes())) {
        Some(Ok(())) => 0,
        Some(Err(RdbFileError::NotPrimary)) => libc::ENOTSUP,
        Some(Err(RdbFileError::Missing)) => libc::ENOENT,
        Some(Err(RdbFileError::Failed)) | None => libc::EIO,
    };
    errno::set(error);
    match error {
        0 => OK,
        _ => ERR,
    }
}
