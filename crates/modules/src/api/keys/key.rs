//! Functions that open, close and delete keys, and tell about them.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use crate::api::{ERR, Functions, OK};
use crate::functions;
use crate::objects::context::Context;
use crate::objects::key::{KeyMode, ModuleKey, store_direct_changes};
use crate::objects::string::ModuleString;
use crate::session;
use crate::session::keys::{KeyKind, KeySession, LookupOptions, SessionKey};

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("KeyExists", key_exists),
    ("OpenKey", open_key),
    ("GetOpenKeyModesAll", all_open_modes),
    ("CloseKey", close_key),
    ("KeyType", key_type),
    ("ValueLength", value_length),
    ("DeleteKey", delete_key),
    ("UnlinkKey", unlink_key),
    ("GetKeyNameFromModuleKey", name_of_key),
    ("GetDbIdFromModuleKey", database_of_key),
    ("SignalModifiedKey", signal_modified_key),
];

/// Calls `run` with the session and a key of the context's database. Returns `None` if the session may not access it.
///
/// # Safety
/// The name is that of a string (rule 1).
unsafe fn with_named_key<R>(
    context: &Context,
    name: *mut ModuleString,
    is_write: bool,
    run: impl FnOnce(&mut dyn KeySession, SessionKey<'_>) -> R,
) -> Option<R> {
    // SAFETY: the caller promises it, and the name is not changed during this call.
    let name = unsafe { ModuleString::bytes_of(name) };
    let db = context.caller.borrow().db;
    store_direct_changes();
    session::current(|session| {
        let identity = session.locate_key(db, name, is_write)?;
        let key = SessionKey {
            name,
            identity: &identity,
            has_value: false,
        };
        Some(run(session, key))
    })?
}

/// `KeyExists`: returns 1 if a key exists. The lookup is no use of the key.
///
/// # Safety
/// The arguments are a context and a string (rule 1).
unsafe extern "C" fn key_exists(context: *mut Context, name: *mut ModuleString) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        let Some(context) = Context::from_pointer(context) else {
            return 0;
        };
        let kind = with_named_key(context, name, false, |session, key| {
            session.open_for_reading(key, LookupOptions::NO_TOUCH)
        });
        c_int::from(kind.is_some_and(|kind| kind != KeyKind::Empty))
    }
}

/// `OpenKey`: opens a key. Returns null if it is opened for reading and missing, or if this command may not access it.
///
/// # Safety
/// The arguments are a context and a string (rule 1).
unsafe extern "C" fn open_key(context: *mut Context, name: *mut ModuleString, mode: c_int) -> *mut ModuleKey {
    let mode = KeyMode::from_bits_truncate(mode);
    let is_write = mode.contains(KeyMode::WRITE);
    // SAFETY: the caller promises it.
    unsafe {
        let Some(caller) = Context::from_pointer(context) else {
            return null_mut();
        };
        let opened = with_named_key(caller, name, is_write, |session, key| {
            let kind = match is_write {
                true => session.open_for_writing(key, mode.lookup_options()),
                false => session.open_for_reading(key, mode.lookup_options()),
            };
            (*key.identity, kind)
        });
        let Some((identity, kind)) = opened.filter(|(_, kind)| is_write || *kind != KeyKind::Empty) else {
            return null_mut();
        };
        let key = Box::into_raw(Box::new(ModuleKey::new(context, name, identity, mode, kind)));
        caller.own(key);
        key
    }
}

/// `GetOpenKeyModesAll`: returns all modes that `OpenKey` knows.
extern "C" fn all_open_modes() -> c_int {
    KeyMode::all().bits()
}

/// `CloseKey`: closes a key.
///
/// # Safety
/// The key is null or open, and not used any more (rule 1).
unsafe extern "C" fn close_key(pointer: *mut ModuleKey) {
    if pointer.is_null() {
        return;
    }
    // SAFETY: the caller promises it. Keys that modules close are boxes.
    let key = unsafe { Box::from_raw(pointer) };
    if let Some(context) = key.context() {
        context.disown(pointer);
    }
}

/// `KeyType`: returns the type of the value.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn key_type(key: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    let key = unsafe { ModuleKey::from_pointer(key) };
    match key.map_or(KeyKind::Empty, ModuleKey::kind) {
        KeyKind::Empty => 0,
        KeyKind::String => 1,
        KeyKind::List => 2,
        KeyKind::Hash => 3,
        KeyKind::Set => 4,
        KeyKind::SortedSet => 5,
        KeyKind::Module => 6,
        KeyKind::Stream => 7,
    }
}

/// `ValueLength`: returns the number of elements, or of bytes of a string.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn value_length(key: *mut ModuleKey) -> usize {
    // SAFETY: the caller promises it.
    match unsafe { ModuleKey::from_pointer(key) } {
        Some(key) if key.kind() != KeyKind::Empty => {
            key.with_keys(|session, key| session.value_length(key)).unwrap_or(0)
        }
        _ => 0,
    }
}

/// Deletes the value of a key.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe fn delete(key: *mut ModuleKey, is_lazy: bool) -> c_int {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { ModuleKey::from_pointer(key) }).filter(|key| key.is_writable()) else {
        return ERR;
    };
    key.end_direct_access();
    if key.kind() != KeyKind::Empty {
        key.with_keys(|session, key| session.delete_key(key, is_lazy));
        key.set_kind(KeyKind::Empty);
    }
    OK
}

/// `DeleteKey`: deletes the value. The key stays open, and is empty.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn delete_key(key: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { delete(key, false) }
}

/// `UnlinkKey`: like `DeleteKey`; another thread frees the memory.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn unlink_key(key: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { delete(key, true) }
}

/// `GetKeyNameFromModuleKey`: returns the name, which lives as long as the key.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn name_of_key(key: *mut ModuleKey) -> *const ModuleString {
    // SAFETY: the caller promises it.
    match unsafe { ModuleKey::from_pointer(key) } {
        Some(key) => key.name(),
        None => null(),
    }
}

/// `GetDbIdFromModuleKey`: returns the database, or -1 without a key.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn database_of_key(key: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    match unsafe { ModuleKey::from_pointer(key) } {
        Some(key) => key.identity().db.get() as c_int,
        None => -1,
    }
}

/// `SignalModifiedKey`: informs the clients that watch or cache a key that it has changed.
///
/// # Safety
/// The arguments are a context and a string (rule 1).
unsafe extern "C" fn signal_modified_key(context: *mut Context, name: *mut ModuleString) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        if let Some(context) = Context::from_pointer(context) {
            with_named_key(context, name, true, |session, key| session.signal_modified_key(key));
        }
    }
    OK
}
