//! Dictionaries and their iterators.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{ERR, Functions, OK};
use crate::functions;
use crate::objects::automatic::AutomaticObject;
use crate::objects::context::Context;
use crate::objects::dict::{Dict, DictIterator, Direction, SeekOperator};
use crate::objects::string::{ModuleString, buffer_bytes};

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("CreateDict", create_dict),
    ("DictCompare", dict_compare),
    ("DictCompareC", dict_compare_c),
    ("DictDel", dict_del),
    ("DictDelC", dict_del_c),
    ("DictGet", dict_get),
    ("DictGetC", dict_get_c),
    ("DictIteratorReseek", dict_iterator_reseek),
    ("DictIteratorReseekC", dict_iterator_reseek_c),
    ("DictIteratorStart", dict_iterator_start),
    ("DictIteratorStartC", dict_iterator_start_c),
    ("DictIteratorStop", dict_iterator_stop),
    ("DictNext", dict_next),
    ("DictNextC", dict_next_c),
    ("DictPrev", dict_prev),
    ("DictPrevC", dict_prev_c),
    ("DictReplace", dict_replace),
    ("DictReplaceC", dict_replace_c),
    ("DictSet", dict_set),
    ("DictSetC", dict_set_c),
    ("DictSize", dict_size),
    ("FreeDict", free_dict),
];

/// The result of moving an iterator: as in Valkey, it is 1 also if no key is found, although that is the value of
/// `VALKEYMODULE_ERR`.
const RESEEK_DONE: c_int = 1;
/// The result of moving an iterator by an operator that does not exist.
const RESEEK_UNKNOWN: c_int = 0;

/// Creates a dictionary.
///
/// # Safety
/// The context is null or one (rule 1).
unsafe extern "C" fn create_dict(context: *mut Context) -> *mut Dict {
    let dict = Dict::create();
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.own(dict);
    }
    dict
}

/// Frees a dictionary.
///
/// # Safety
/// The context is null or one, and the dictionary is null or one (rule 1).
unsafe extern "C" fn free_dict(context: *mut Context, dict: *mut Dict) {
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.disown(dict);
    }
    if !dict.is_null() {
        // SAFETY: the caller promises it.
        unsafe { Dict::free(dict) };
    }
}

/// Returns the number of keys.
///
/// # Safety
/// The dictionary is one (rule 1).
unsafe extern "C" fn dict_size(dict: *const Dict) -> u64 {
    // SAFETY: the caller promises it.
    unsafe { &*dict }.len() as u64
}

fn result(is_ok: bool) -> c_int {
    if is_ok { OK } else { ERR }
}

/// Adds a key that must not exist.
///
/// # Safety
/// The dictionary is one, and the key has its length (rule 1).
unsafe extern "C" fn dict_set_c(dict: *mut Dict, key: *const c_char, len: usize, value: *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    result(unsafe { (*dict).add(buffer_bytes(key, len), value) })
}

/// Adds a key that must not exist.
///
/// # Safety
/// The dictionary and the key are such (rule 1).
unsafe extern "C" fn dict_set(dict: *mut Dict, key: *const ModuleString, value: *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    result(unsafe { (*dict).add(ModuleString::bytes_of(key), value) })
}

/// Sets the value of a key. Succeeds if the key is new.
///
/// # Safety
/// The dictionary is one, and the key has its length (rule 1).
unsafe extern "C" fn dict_replace_c(dict: *mut Dict, key: *const c_char, len: usize, value: *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    result(unsafe { (*dict).replace(buffer_bytes(key, len), value) })
}

/// Sets the value of a key. Succeeds if the key is new.
///
/// # Safety
/// The dictionary and the key are such (rule 1).
unsafe extern "C" fn dict_replace(dict: *mut Dict, key: *const ModuleString, value: *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    result(unsafe { (*dict).replace(ModuleString::bytes_of(key), value) })
}

/// Returns a value, and stores whether there is none.
///
/// # Safety
/// The dictionary is one, and `is_missing` null or a place for an int (rule 1).
unsafe fn value(dict: *const Dict, key: &[u8], is_missing: *mut c_int) -> *mut c_void {
    // SAFETY: the caller promises it.
    let value = unsafe { &*dict }.value(key);
    if !is_missing.is_null() {
        // SAFETY: the caller promises it.
        unsafe { is_missing.write(c_int::from(value.is_none())) };
    }
    value.unwrap_or(std::ptr::null_mut())
}

/// Returns the value of a key.
///
/// # Safety
/// As for [`value`]; the key has its length.
unsafe extern "C" fn dict_get_c(
    dict: *const Dict,
    key: *const c_char,
    len: usize,
    is_missing: *mut c_int,
) -> *mut c_void {
    // SAFETY: the caller promises it.
    unsafe { value(dict, buffer_bytes(key, len), is_missing) }
}

/// Returns the value of a key.
///
/// # Safety
/// As for [`value`]; the key is a string.
unsafe extern "C" fn dict_get(dict: *const Dict, key: *const ModuleString, is_missing: *mut c_int) -> *mut c_void {
    // SAFETY: the caller promises it.
    unsafe { value(dict, ModuleString::bytes_of(key), is_missing) }
}

/// Removes a key and stores its value.
///
/// # Safety
/// The dictionary is one, and `old` null or a place for a pointer (rule 1).
unsafe fn remove(dict: *mut Dict, key: &[u8], old: *mut *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    let Some(value) = (unsafe { &mut *dict }).remove(key) else {
        return ERR;
    };
    if !old.is_null() {
        // SAFETY: the caller promises it.
        unsafe { old.write(value) };
    }
    OK
}

/// Removes a key.
///
/// # Safety
/// As for [`remove`]; the key has its length.
unsafe extern "C" fn dict_del_c(dict: *mut Dict, key: *const c_char, len: usize, old: *mut *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { remove(dict, buffer_bytes(key, len), old) }
}

/// Removes a key.
///
/// # Safety
/// As for [`remove`]; the key is a string.
unsafe extern "C" fn dict_del(dict: *mut Dict, key: *const ModuleString, old: *mut *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { remove(dict, ModuleString::bytes_of(key), old) }
}

/// Moves an iterator to the key that an operator finds.
///
/// # Safety
/// The iterator is one, and the operator a C string (rule 1).
unsafe fn seek(iterator: *mut DictIterator, operator: *const c_char, key: &[u8]) -> c_int {
    // SAFETY: the caller promises it.
    let (iterator, operator) = unsafe { (&mut *iterator, CStr::from_ptr(operator)) };
    match SeekOperator::parse(operator.to_bytes()) {
        Some(operator) => {
            // SAFETY: a module frees a dictionary after its iterators (rule 1).
            unsafe { iterator.seek(operator, key) };
            RESEEK_DONE
        }
        None => {
            iterator.end();
            RESEEK_UNKNOWN
        }
    }
}

/// Creates an iterator at the key that an operator finds.
///
/// # Safety
/// The dictionary is one, the operator a C string, and the key has its length (rule 1).
unsafe extern "C" fn dict_iterator_start_c(
    dict: *mut Dict,
    operator: *const c_char,
    key: *const c_char,
    len: usize,
) -> *mut DictIterator {
    let iterator = DictIterator::create(dict);
    // SAFETY: the caller promises it.
    unsafe { seek(iterator, operator, buffer_bytes(key, len)) };
    iterator
}

/// Creates an iterator at the key that an operator finds.
///
/// # Safety
/// The dictionary is one, the operator a C string, and the key null or a string (rule 1).
unsafe extern "C" fn dict_iterator_start(
    dict: *mut Dict,
    operator: *const c_char,
    key: *const ModuleString,
) -> *mut DictIterator {
    let iterator = DictIterator::create(dict);
    // SAFETY: the caller promises it.
    unsafe { seek(iterator, operator, ModuleString::bytes_of(key)) };
    iterator
}

/// Frees an iterator.
///
/// # Safety
/// The iterator is null or one (rule 1).
unsafe extern "C" fn dict_iterator_stop(iterator: *mut DictIterator) {
    if !iterator.is_null() {
        // SAFETY: the caller promises it.
        drop(unsafe { Box::from_raw(iterator) });
    }
}

/// Moves an iterator to the key that an operator finds.
///
/// # Safety
/// As for [`seek`]; the key has its length.
unsafe extern "C" fn dict_iterator_reseek_c(
    iterator: *mut DictIterator,
    operator: *const c_char,
    key: *const c_char,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { seek(iterator, operator, buffer_bytes(key, len)) }
}

/// Moves an iterator to the key that an operator finds.
///
/// # Safety
/// As for [`seek`]; the key is null or a string.
unsafe extern "C" fn dict_iterator_reseek(
    iterator: *mut DictIterator,
    operator: *const c_char,
    key: *const ModuleString,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { seek(iterator, operator, ModuleString::bytes_of(key)) }
}

/// Moves an iterator a step; stores the value there.
///
/// # Safety
/// The iterator is one, and `value` null or a place for a pointer (rule 1).
unsafe fn step<'a>(iterator: *mut DictIterator, direction: Direction, value: *mut *mut c_void) -> Option<&'a [u8]> {
    // SAFETY: the caller promises it. A module frees a dictionary after its iterators (rule 1).
    let (key, found) = unsafe { (*iterator).step(direction) }?;
    if !value.is_null() {
        // SAFETY: the caller promises it.
        unsafe { value.write(found) };
    }
    Some(key)
}

/// Returns the key of a step, and stores its length.
///
/// # Safety
/// As for [`step`]; `len` is null or a place for a length.
unsafe fn step_c(
    iterator: *mut DictIterator,
    direction: Direction,
    len: *mut usize,
    value: *mut *mut c_void,
) -> *const c_void {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { step(iterator, direction, value) }) else {
        return std::ptr::null();
    };
    if !len.is_null() {
        // SAFETY: the caller promises it.
        unsafe { len.write(key.len()) };
    }
    key.as_ptr().cast()
}

/// Returns the key of a step as a string.
///
/// # Safety
/// As for [`step`]; the context is null or one.
unsafe fn step_string(
    context: *mut Context,
    iterator: *mut DictIterator,
    direction: Direction,
    value: *mut *mut c_void,
) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { step(iterator, direction, value) }) else {
        return std::ptr::null_mut();
    };
    let string = ModuleString::create(key);
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.own(string);
    }
    string
}

/// Returns the next key. It is valid until the next step.
///
/// # Safety
/// As for [`step_c`].
unsafe extern "C" fn dict_next_c(
    iterator: *mut DictIterator,
    len: *mut usize,
    value: *mut *mut c_void,
) -> *const c_void {
    // SAFETY: the caller promises it.
    unsafe { step_c(iterator, Direction::Next, len, value) }
}

/// Returns the previous key. It is valid until the next step.
///
/// # Safety
/// As for [`step_c`].
unsafe extern "C" fn dict_prev_c(
    iterator: *mut DictIterator,
    len: *mut usize,
    value: *mut *mut c_void,
) -> *const c_void {
    // SAFETY: the caller promises it.
    unsafe { step_c(iterator, Direction::Previous, len, value) }
}

/// Returns the next key as a string.
///
/// # Safety
/// As for [`step_string`].
unsafe extern "C" fn dict_next(
    context: *mut Context,
    iterator: *mut DictIterator,
    value: *mut *mut c_void,
) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    unsafe { step_string(context, iterator, Direction::Next, value) }
}

/// Returns the previous key as a string.
///
/// # Safety
/// As for [`step_string`].
unsafe extern "C" fn dict_prev(
    context: *mut Context,
    iterator: *mut DictIterator,
    value: *mut *mut c_void,
) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    unsafe { step_string(context, iterator, Direction::Previous, value) }
}

/// Compares the key of an iterator. As in Valkey, `=` is no comparison; `==` is.
///
/// # Safety
/// The iterator is one, and the operator a C string (rule 1).
unsafe fn compare(iterator: *const DictIterator, operator: *const c_char, key: &[u8]) -> c_int {
    // SAFETY: the caller promises it.
    let operator = unsafe { CStr::from_ptr(operator) }.to_bytes();
    let parsed = SeekOperator::parse(operator).filter(|_| operator != b"=");
    // SAFETY: the caller promises it.
    result(parsed.is_some_and(|operator| unsafe { &*iterator }.compares(operator, key)))
}

/// Compares the key of an iterator with another one.
///
/// # Safety
/// As for [`compare`]; the key has its length.
unsafe extern "C" fn dict_compare_c(
    iterator: *const DictIterator,
    operator: *const c_char,
    key: *const c_char,
    len: usize,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { compare(iterator, operator, buffer_bytes(key, len)) }
}

/// Compares the key of an iterator with another one.
///
/// # Safety
/// As for [`compare`]; the key is null or a string.
unsafe extern "C" fn dict_compare(
    iterator: *const DictIterator,
    operator: *const c_char,
    key: *const ModuleString,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { compare(iterator, operator, ModuleString::bytes_of(key)) }
}
