//! Memory. Modules may free it with their own `free`, and pass it to libraries, so it comes from the allocator of the
//! process, by its names in C.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::{CStr, c_char, c_void};

use libc::{calloc, free, malloc, realloc};

use super::Functions;
use crate::functions;
use crate::objects::context::Context;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("Alloc", alloc),
    ("AutoMemory", auto_memory),
    ("Calloc", calloc_or_abort),
    ("Free", free_memory),
    ("PoolAlloc", pool_alloc),
    ("Realloc", realloc_or_abort),
    ("Strdup", strdup),
    ("TryAlloc", try_alloc),
    ("TryCalloc", try_calloc),
    ("TryRealloc", try_realloc),
];

/// The size of what is allocated for zero bytes, so that the address is a new one.
const LEAST_BYTES: usize = size_of::<usize>();

/// Allocates memory. Returns null if there is none.
extern "C" fn try_alloc(bytes: usize) -> *mut c_void {
    // SAFETY: `malloc` has no preconditions.
    unsafe { malloc(bytes.max(LEAST_BYTES)) }
}

/// Allocates memory of zeros. Returns null if there is none.
extern "C" fn try_calloc(count: usize, bytes: usize) -> *mut c_void {
    let least = match count == 0 || bytes == 0 {
        true => (1, LEAST_BYTES),
        false => (count, bytes),
    };
    // SAFETY: `calloc` has no preconditions; it checks the product.
    unsafe { calloc(least.0, least.1) }
}

/// Changes the size of an allocation. Returns null if there is no memory, or after it has freed the allocation because
/// the size is 0.
///
/// # Safety
/// The memory is null, or from the allocator of the process, and not freed.
unsafe extern "C" fn try_realloc(memory: *mut c_void, bytes: usize) -> *mut c_void {
    if memory.is_null() {
        return try_alloc(bytes);
    }
    if bytes == 0 {
        // SAFETY: the caller promises it.
        unsafe { free(memory) };
        return std::ptr::null_mut();
    }
    // SAFETY: the caller promises it.
    unsafe { realloc(memory, bytes) }
}

/// Returns `memory`, or ends the process if there is none.
fn or_abort(memory: *mut c_void, bytes: usize) -> *mut c_void {
    if memory.is_null() {
        handle_alloc_error(Layout::array::<u8>(bytes).unwrap_or(Layout::new::<u8>()));
    }
    memory
}

/// Allocates memory, or ends the process.
extern "C" fn alloc(bytes: usize) -> *mut c_void {
    allocate(bytes)
}

/// Allocates memory that a module frees, or ends the process.
pub fn allocate(bytes: usize) -> *mut c_void {
    or_abort(try_alloc(bytes), bytes)
}

/// Allocates memory of zeros, or ends the process.
extern "C" fn calloc_or_abort(count: usize, bytes: usize) -> *mut c_void {
    or_abort(try_calloc(count, bytes), count.saturating_mul(bytes))
}

/// Changes the size of an allocation, or ends the process. Frees it if the size is 0.
///
/// # Safety
/// As for [`try_realloc`].
unsafe extern "C" fn realloc_or_abort(memory: *mut c_void, bytes: usize) -> *mut c_void {
    let frees = bytes == 0 && !memory.is_null();
    // SAFETY: the caller promises it.
    let memory = unsafe { try_realloc(memory, bytes) };
    if frees { memory } else { or_abort(memory, bytes) }
}

/// Frees memory.
///
/// # Safety
/// As for [`try_realloc`].
unsafe extern "C" fn free_memory(memory: *mut c_void) {
    // SAFETY: the caller promises it.
    unsafe { free(memory) };
}

/// Copies a C string into memory that the module frees.
///
/// # Safety
/// The text is a C string.
unsafe extern "C" fn strdup(text: *const c_char) -> *mut c_char {
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes_with_nul();
    let copy = alloc(text.len()).cast::<c_char>();
    // SAFETY: the allocation has the length of the text.
    unsafe { copy.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
    copy
}

/// Allocates memory that is freed when the call into the module ends.
///
/// # Safety
/// The context is one (rule 1).
unsafe extern "C" fn pool_alloc(context: *mut Context, bytes: usize) -> *mut c_void {
    // SAFETY: the caller promises it.
    match unsafe { Context::from_pointer(context) } {
        Some(context) => context.pool.allocate(bytes),
        None => std::ptr::null_mut(),
    }
}

/// Lets what is created with the context be freed when the call into the module ends.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn auto_memory(context: *mut Context) {
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.automatic.enable();
    }
}

#[cfg(test)]
mod tests;
