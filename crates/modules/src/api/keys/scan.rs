//! Functions that walk over the keys of a database or the elements of a value, and functions on whole databases.

use std::cell::Cell;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::ptr::null_mut;

use crate::api::Functions;
use crate::errno;
use crate::functions;
use crate::objects::context::Context;
use crate::objects::key::{KeyMode, ModuleKey, store_direct_changes};
use crate::objects::string::ModuleString;
use crate::session;
use crate::session::keys::{KeyKind, SessionKey, ValueScan};

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("ScanCursorCreate", scan_cursor_create),
    ("ScanCursorRestart", scan_cursor_restart),
    ("ScanCursorDestroy", scan_cursor_destroy),
    ("Scan", scan),
    ("ScanKey", scan_key),
    ("DbSize", db_size),
    ("RandomKey", random_key),
    ("ResetDataset", reset_dataset),
];

/// The position of a walk (`ValkeyModuleScanCursor`).
#[derive(Default)]
struct ScanCursor {
    position: Cell<u64>,
    has_ended: Cell<bool>,
}

/// The function that gets each key.
type KeyFunction = unsafe extern "C" fn(*mut Context, *mut ModuleString, *mut ModuleKey, *mut c_void);
/// The function that gets each element.
type ElementFunction = unsafe extern "C" fn(*mut ModuleKey, *mut ModuleString, *mut ModuleString, *mut c_void);

/// `ScanCursorCreate`: creates a cursor at the start.
extern "C" fn scan_cursor_create() -> *mut ScanCursor {
    Box::into_raw(Box::default())
}

/// `ScanCursorRestart`: sets a cursor to the start.
///
/// # Safety
/// The cursor is one (rule 1).
unsafe extern "C" fn scan_cursor_restart(cursor: *mut ScanCursor) {
    // SAFETY: the caller promises it.
    if let Some(cursor) = unsafe { cursor.as_ref() } {
        cursor.position.set(0);
        cursor.has_ended.set(false);
    }
}

/// `ScanCursorDestroy`: frees a cursor.
///
/// # Safety
/// The cursor is null or one, and not used any more (rule 1).
unsafe extern "C" fn scan_cursor_destroy(cursor: *mut ScanCursor) {
    if !cursor.is_null() {
        // SAFETY: the caller promises it; cursors are boxes.
        drop(unsafe { Box::from_raw(cursor) });
    }
}

/// Opens a key that a walk has found, unless it was deleted meanwhile.
///
/// # Safety
/// The context lives as long as the key, and the name is that of a string (rule 1).
unsafe fn open_found_key(context: *mut Context, db: u32, name: *mut ModuleString) -> Option<ModuleKey> {
    store_direct_changes();
    // SAFETY: the caller promises it.
    unsafe {
        let bytes = ModuleString::bytes_of(name);
        let (identity, kind) = session::current(|session| {
            let identity = session.locate_key(db, bytes, false)?;
            let key = SessionKey {
                name: bytes,
                identity: &identity,
                has_value: true,
            };
            Some((identity, session.stored_kind(key)))
        })??;
        (kind != KeyKind::Empty).then(|| ModuleKey::new(context, name, identity, KeyMode::READ, kind))
    }
}

/// `Scan`: calls a function with some keys of the database from the cursor on. Returns 1 if there may be more.
///
/// # Safety
/// The arguments are a context, a cursor and a function of the module (rule 1).
unsafe extern "C" fn scan(
    context: *mut Context,
    cursor: *mut ScanCursor,
    function: KeyFunction,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises it.
    let (caller, cursor) = unsafe { (Context::from_pointer(context), cursor.as_ref()) };
    let (Some(caller), Some(cursor)) = (caller, cursor) else {
        errno::set(libc::EINVAL);
        return 0;
    };
    if cursor.has_ended.get() {
        errno::set(libc::ENOENT);
        return 0;
    }
    let db = caller.caller.borrow().db;
    store_direct_changes();
    let mut names: Vec<Vec<u8>> = Vec::new();
    let next = session::current(|session| {
        session.scan_database(db, cursor.position.get(), &mut |name| names.push(name.to_vec()))
    });
    let Some(next) = next.flatten() else {
        errno::set(libc::EPERM);
        return 0;
    };
    cursor.position.set(next);
    cursor.has_ended.set(next == 0);
    for name in names {
        let name = ModuleString::create(&name);
        // SAFETY: the caller promises it; the string is released after its last use here.
        unsafe {
            if let Some(mut key) = open_found_key(context, db, name) {
                function(context, name, &raw mut key, data);
            }
            ModuleString::release(name);
        }
    }
    errno::set(0);
    c_int::from(next != 0)
}

/// `ScanKey`: calls a function with some elements of a hash, set or sorted set from the cursor on. Returns 1 if there
/// may be more.
///
/// # Safety
/// The arguments are null or an open key, a cursor and a function of the module (rule 1).
unsafe extern "C" fn scan_key(
    pointer: *mut ModuleKey,
    cursor: *mut ScanCursor,
    function: ElementFunction,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises it.
    let (key, cursor) = unsafe { (ModuleKey::from_pointer(pointer), cursor.as_ref()) };
    let (Some(key), Some(cursor)) = (key, cursor) else {
        errno::set(libc::EINVAL);
        return 0;
    };
    if !matches!(key.kind(), KeyKind::Hash | KeyKind::Set | KeyKind::SortedSet) {
        errno::set(libc::EINVAL);
        return 0;
    }
    if cursor.has_ended.get() {
        errno::set(libc::ENOENT);
        return 0;
    }
    let mut elements: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    let scanned = key.with_keys(|session, key| {
        session.scan_value(key, cursor.position.get(), &mut |name, value| {
            elements.push((name.to_vec(), value.map(<[u8]>::to_vec)));
        })
    });
    let (position, has_ended) = match scanned {
        Some(ValueScan::Next(next)) => (next, next == 0),
        Some(ValueScan::Whole) => (1, true),
        Some(ValueScan::WrongType) | None => {
            errno::set(libc::EINVAL);
            return 0;
        }
    };
    cursor.position.set(position);
    cursor.has_ended.set(has_ended);
    for (name, value) in elements {
        let name = ModuleString::create(&name);
        let value = value.map_or(null_mut(), |value| ModuleString::create(&value));
        // SAFETY: the caller promises it; the strings are released after their last use here.
        unsafe {
            function(pointer, name, value, data);
            ModuleString::release(name);
            if !value.is_null() {
                ModuleString::release(value);
            }
        }
    }
    errno::set(0);
    c_int::from(!has_ended)
}

/// `DbSize`: returns the number of keys of the database.
///
/// # Safety
/// The context is one (rule 1).
unsafe extern "C" fn db_size(context: *mut Context) -> c_ulonglong {
    // SAFETY: the caller promises it.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return 0;
    };
    let db = context.caller.borrow().db;
    session::current(|session| session.database_size(db)).unwrap_or(0)
}

/// `RandomKey`: returns the name of a random key of the database.
///
/// # Safety
/// The context is one (rule 1).
unsafe extern "C" fn random_key(context: *mut Context) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return null_mut();
    };
    let db = context.caller.borrow().db;
    let mut name = null_mut();
    session::current(|session| session.random_key(db, &mut |found| name = ModuleString::create(found)));
    context.own(name);
    name
}

/// `ResetDataset`: deletes all keys.
extern "C" fn reset_dataset(restarts_log: c_int, is_asynchronous: c_int) {
    store_direct_changes();
    session::current(|session| session.reset_dataset(restarts_log != 0, is_asynchronous != 0));
}
