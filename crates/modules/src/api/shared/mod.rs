//! Functions that modules offer to each other.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::shared;
use crate::objects::context::Context;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![("ExportSharedAPI", export_shared_api), ("GetSharedAPI", shared_api),];

/// Offers a function under a name that is not in use.
///
/// # Safety
/// The context is one, and the name a C string (rule 1).
unsafe extern "C" fn export_shared_api(context: *mut Context, name: *const c_char, function: *const c_void) -> c_int {
    // SAFETY: the caller promises it.
    let (context, name) = unsafe { (Context::from_pointer(context), CStr::from_ptr(name)) };
    match context {
        Some(context) if shared::export(&context.module, name.to_bytes(), function) => OK,
        _ => ERR,
    }
}

/// Returns a function that another module offers; null if there is none.
///
/// # Safety
/// The context is one, and the name a C string (rule 1).
unsafe extern "C" fn shared_api(context: *mut Context, name: *const c_char) -> *const c_void {
    // SAFETY: the caller promises it.
    let (context, name) = unsafe { (Context::from_pointer(context), CStr::from_ptr(name)) };
    context
        .and_then(|context| shared::import(&context.module, name.to_bytes()))
        .unwrap_or(std::ptr::null())
}

#[cfg(test)]
mod tests;
