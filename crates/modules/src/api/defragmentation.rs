//! Defragmentation callbacks of modules. They are accepted and never called, and the functions that such a callback
//! would use find nothing to move.

use std::ffi::{c_int, c_ulong, c_void};
use std::ptr::{null, null_mut};

use crate::api::{ERR, Functions, OK};
use crate::functions;
use crate::objects::context::Context;
use crate::objects::defragmentation::DefragContext;
use crate::objects::string::ModuleString;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("RegisterDefragFunc", register_defrag_func),
    ("DefragAlloc", defrag_alloc),
    ("DefragValkeyModuleString", defrag_string),
    ("DefragRedisModuleString", defrag_string),
    ("DefragShouldStop", defrag_should_stop),
    ("DefragCursorSet", defrag_cursor_set),
    ("DefragCursorGet", defrag_cursor_get),
    ("GetKeyNameFromDefragCtx", key_name_from_defrag_ctx),
    ("GetDbIdFromDefragCtx", db_id_from_defrag_ctx),
];

/// Accepts a callback for a module's data besides the keys (`RegisterDefragFunc`).
unsafe extern "C" fn register_defrag_func(_context: *mut Context, _callback: *const c_void) -> c_int {
    OK
}

/// Returns null: the memory stays where it is (`DefragAlloc`).
unsafe extern "C" fn defrag_alloc(_context: *mut DefragContext, _memory: *mut c_void) -> *mut c_void {
    null_mut()
}

/// Returns null: the string stays where it is (`DefragValkeyModuleString`).
unsafe extern "C" fn defrag_string(_context: *mut DefragContext, _string: *mut ModuleString) -> *mut ModuleString {
    null_mut()
}

/// Returns 0: the callback need not stop (`DefragShouldStop`).
unsafe extern "C" fn defrag_should_stop(_context: *mut DefragContext) -> c_int {
    0
}

/// Refuses to store a position (`DefragCursorSet`).
unsafe extern "C" fn defrag_cursor_set(_context: *mut DefragContext, _position: c_ulong) -> c_int {
    ERR
}

/// Returns [`ERR`]: no position was stored (`DefragCursorGet`).
unsafe extern "C" fn defrag_cursor_get(_context: *mut DefragContext, _position: *mut c_ulong) -> c_int {
    ERR
}

/// Returns the name of the key (`GetKeyNameFromDefragCtx`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn key_name_from_defrag_ctx(context: *const DefragContext) -> *const ModuleString {
    // SAFETY: the caller promises it.
    unsafe { context.as_ref() }.map_or(null(), |context| context.key.cast_const())
}

/// Returns the database of the key (`GetDbIdFromDefragCtx`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn db_id_from_defrag_ctx(context: *const DefragContext) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { context.as_ref() }.map_or(-1, |context| context.db)
}
