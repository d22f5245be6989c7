//! Functions on lists.
//!
//! An index counts from the start, or from the end if it is negative.

use std::ffi::{c_int, c_long};
use std::ptr::null_mut;

use weft_values::list::ListEnd;

use super::{fail, key_of_kind, writable_key};
use crate::api::{Functions, OK};
use crate::errno;
use crate::functions;
use crate::objects::key::{KeyCursor, KeyMode, ModuleKey};
use crate::objects::string::ModuleString;
use crate::session::keys::KeyKind;

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("ListPush", list_push),
    ("ListPop", list_pop),
    ("ListGet", list_get),
    ("ListSet", list_set),
    ("ListInsert", list_insert),
    ("ListDelete", list_delete),
];

/// Returns the end that a number stands for: 0 is the head.
fn end_of(number: c_int) -> ListEnd {
    match number {
        0 => ListEnd::Head,
        _ => ListEnd::Tail,
    }
}

fn length_of(key: &ModuleKey) -> usize {
    key.with_keys(|session, key| session.value_length(key)).unwrap_or(0)
}

/// Resolves an index in a list.
///
/// # Errors
/// The error number if there is no such element.
fn resolve(index: c_long, length: usize) -> Result<usize, c_int> {
    let from_start = match index {
        0.. => Some(index as usize),
        _ => length.checked_sub(index.unsigned_abs() as usize),
    };
    from_start.filter(|index| *index < length).ok_or(libc::EDOM)
}

/// Adds an element at an end.
fn push(key: &ModuleKey, end: ListEnd, element: &[u8]) -> c_int {
    key.cursor.replace(KeyCursor::None);
    match key.with_keys(|session, key| session.push_element(key, end, element)) {
        Some(true) => {
            key.set_kind(KeyKind::List);
            OK
        }
        _ => fail(libc::ENOTSUP),
    }
}

/// `ListPush`: adds an element at an end. A missing list is created.
///
/// # Safety
/// The arguments are null, or an open key and a string (rule 1).
unsafe extern "C" fn list_push(key: *mut ModuleKey, end: c_int, element: *mut ModuleString) -> c_int {
    if element.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller promises it; the string is not changed during this call.
    let (key, element) = unsafe { (writable_key(key, KeyKind::List), ModuleString::bytes_of(element)) };
    match key {
        Ok(key) => push(key, end_of(end), element),
        Err(error) => fail(error),
    }
}

/// `ListPop`: removes the element at an end, and returns it.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn list_pop(key: *mut ModuleKey, end: c_int) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    let key = match unsafe { key_of_kind(key, KeyKind::List, KeyMode::WRITE) } {
        Ok(key) => key,
        Err(error) => {
            errno::set(error);
            return null_mut();
        }
    };
    key.cursor.replace(KeyCursor::None);
    let mut popped = null_mut();
    key.with_keys(|session, session_key| {
        session.pop_element(session_key, end_of(end), &mut |element| {
            popped = key.create_string(element)
        })
    });
    key.refresh_kind();
    popped
}

/// `ListGet`: returns the element at an index.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn list_get(key: *mut ModuleKey, index: c_long) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    let found = unsafe { key_of_kind(key, KeyKind::List, KeyMode::READ) }.and_then(|key| {
        let index = resolve(index, length_of(key))?;
        let mut element = null_mut();
        key.with_keys(|session, session_key| {
            session.read_element(session_key, index, &mut |bytes| element = key.create_string(bytes))
        });
        key.cursor.replace(KeyCursor::List);
        Ok(element)
    });
    found.unwrap_or_else(|error| {
        errno::set(error);
        null_mut()
    })
}

/// `ListSet`: replaces the element at an index.
///
/// # Safety
/// The arguments are null, or an open key and a string (rule 1).
unsafe extern "C" fn list_set(key: *mut ModuleKey, index: c_long, element: *mut ModuleString) -> c_int {
    if element.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller promises it; the string is not changed during this call.
    let (key, element) = unsafe {
        let key = key_of_kind(key, KeyKind::List, KeyMode::WRITE);
        (key, ModuleString::bytes_of(element))
    };
    let replaced = key.and_then(|key| {
        let index = resolve(index, length_of(key))?;
        key.with_keys(|session, key| session.replace_element(key, index, element));
        key.cursor.replace(KeyCursor::None);
        Ok(OK)
    });
    replaced.unwrap_or_else(fail)
}

/// `ListInsert`: inserts an element before a non-negative index, or after a negative one.
///
/// # Safety
/// The arguments are null, or an open key and a string (rule 1).
unsafe extern "C" fn list_insert(key: *mut ModuleKey, index: c_long, element: *mut ModuleString) -> c_int {
    if element.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller promises it; the string is not changed during this call.
    let (key, element) = unsafe { (writable_key(key, KeyKind::List), ModuleString::bytes_of(element)) };
    let inserted = key.and_then(|key| {
        if key.kind() == KeyKind::Empty {
            return match index {
                0 | -1 => Ok(push(key, ListEnd::Tail, element)),
                _ => Err(libc::ENOTSUP),
            };
        }
        let length = length_of(key);
        let count = c_long::try_from(length).unwrap_or(c_long::MAX);
        if index == count || index == -1 {
            return Ok(push(key, ListEnd::Tail, element));
        }
        if index == 0 || index == -count - 1 {
            return Ok(push(key, ListEnd::Head, element));
        }
        let position = resolve(index, length)?;
        key.with_keys(|session, key| session.insert_element(key, position, index < 0, element));
        key.cursor.replace(KeyCursor::None);
        Ok(OK)
    });
    inserted.unwrap_or_else(fail)
}

/// `ListDelete`: removes the element at an index. An empty list is deleted.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn list_delete(key: *mut ModuleKey, index: c_long) -> c_int {
    // SAFETY: the caller promises it.
    let removed = unsafe { key_of_kind(key, KeyKind::List, KeyMode::WRITE) }.and_then(|key| {
        let index = resolve(index, length_of(key))?;
        key.with_keys(|session, key| session.remove_element(key, index));
        key.cursor.replace(KeyCursor::List);
        key.refresh_kind();
        Ok(OK)
    });
    removed.unwrap_or_else(fail)
}
