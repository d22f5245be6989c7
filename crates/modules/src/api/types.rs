//! Data types of modules, the values of keys that have such a type, and the memory of values.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use crate::api::{ERR, Functions, OK};
use crate::functions;
use crate::module::types::{DataType, METHODS_VERSION, TypeMethods, create_from_module};
use crate::objects::context::Context;
use crate::objects::dict::Dict;
use crate::objects::key::{KeyCursor, ModuleKey};
use crate::objects::key_options::KeyOptions;
use crate::objects::string::ModuleString;
use crate::objects::value::ModuleValue;
use crate::session;
use crate::session::keys::KeyKind;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("CreateDataType", create_data_type),
    ("ModuleTypeSetValue", module_type_set_value),
    ("ModuleTypeReplaceValue", module_type_replace_value),
    ("ModuleTypeGetType", module_type_get_type),
    ("ModuleTypeGetValue", module_type_get_value),
    ("GetTypeMethodVersion", type_method_version),
    ("GetKeyNameFromOptCtx", key_name_from_opt_ctx),
    ("GetToKeyNameFromOptCtx", to_key_name_from_opt_ctx),
    ("GetDbIdFromOptCtx", db_id_from_opt_ctx),
    ("GetToDbIdFromOptCtx", to_db_id_from_opt_ctx),
    ("GetUsedMemoryRatio", used_memory_ratio),
    ("MallocSize", malloc_size),
    ("MallocUsableSize", malloc_size),
    ("MallocSizeString", malloc_size_string),
    ("MallocSizeDict", malloc_size_dict),
];

/// Returns the type behind a module's pointer; `None` for null.
///
/// # Safety
/// As for [`DataType::from_pointer`].
pub(super) unsafe fn type_behind(pointer: *const DataType) -> Option<&'static DataType> {
    // SAFETY: the caller promises it.
    unsafe { DataType::from_pointer(pointer) }
}

/// Creates a data type (`CreateDataType`), while the module is being loaded. Returns null if the name, the version or
/// the callbacks are not valid, or if the name is taken.
///
/// # Safety
/// Rule 1, and the callbacks are a structure of the version that it states.
unsafe extern "C" fn create_data_type(
    context: *mut Context,
    name: *const c_char,
    encoding_version: c_int,
    methods: *const TypeMethods,
) -> *mut DataType {
    // SAFETY: the caller promises it.
    unsafe {
        let Some(context) = Context::from_pointer(context) else {
            return null_mut();
        };
        if !context.module.is_loading() {
            return null_mut();
        }
        create_from_module(&context.module, name, encoding_version, methods).map_or(null_mut(), DataType::as_pointer)
    }
}

/// Returns the value of a key, if it has a module's type. Its address stays valid as long as the key has it.
fn value_of(key: &ModuleKey) -> Option<Arc<ModuleValue>> {
    if key.kind() != KeyKind::Module {
        return None;
    }
    let value: Arc<ModuleValue> = key
        .with_session(|session, key| session.module_value(key))
        .flatten()?
        .downcast()?;
    if key.is_writable() {
        value.note_write();
    }
    Some(value)
}

/// Returns `true` if a key is open for writing, and no iteration over a list or stream has begun. As in Valkey, one
/// over a sorted set does not matter.
fn is_changeable(key: &ModuleKey) -> bool {
    key.is_writable() && !matches!(*key.cursor.borrow(), KeyCursor::List | KeyCursor::Stream(_))
}

/// Sets the value of a key (`ModuleTypeSetValue`). What it had before is freed.
///
/// # Safety
/// Rule 1, and the value is of the type.
unsafe extern "C" fn module_type_set_value(key: *mut ModuleKey, kind: *const DataType, value: *mut c_void) -> c_int {
    // SAFETY: the caller promises it.
    let (key, kind) = unsafe { (ModuleKey::from_pointer(key), type_behind(kind)) };
    let (Some(key), Some(kind)) = (key.filter(|key| is_changeable(key)), kind) else {
        return ERR;
    };
    key.end_direct_access();
    let value = ModuleValue::new(kind, value);
    let is_set = key
        .with_session(|session, key| session.set_module_value(key, value))
        .unwrap_or(false);
    if is_set {
        key.set_kind(KeyKind::Module);
    }
    if is_set { OK } else { ERR }
}

/// Replaces a value of a type with another one, and returns the old one to the module (`ModuleTypeReplaceValue`).
///
/// # Safety
/// Rule 1, the value is of the type, and `old_value` is null or a place for a pointer.
unsafe extern "C" fn module_type_replace_value(
    key: *mut ModuleKey,
    kind: *const DataType,
    new_value: *mut c_void,
    old_value: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller promises it.
    let key = unsafe { ModuleKey::from_pointer(key) };
    let Some(key) = key.filter(|key| is_changeable(key)) else {
        return ERR;
    };
    let Some(value) = value_of(key).filter(|value| std::ptr::eq(value.kind(), kind)) else {
        return ERR;
    };
    let old = value.replace(new_value);
    if !old_value.is_null() {
        // SAFETY: the caller promises it.
        unsafe { old_value.write(old) };
    }
    OK
}

/// Returns the type of a key's value (`ModuleTypeGetType`); null if it is none of a module.
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn module_type_get_type(key: *mut ModuleKey) -> *mut DataType {
    // SAFETY: the caller promises it.
    let value = unsafe { ModuleKey::from_pointer(key) }.and_then(value_of);
    value.map_or(null_mut(), |value| value.kind().as_pointer())
}

/// Returns the address of a key's value (`ModuleTypeGetValue`); null if it has no module's type.
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn module_type_get_value(key: *mut ModuleKey) -> *mut c_void {
    // SAFETY: the caller promises it.
    let value = unsafe { ModuleKey::from_pointer(key) }.and_then(value_of);
    value.map_or(null_mut(), |value| value.address())
}

/// Returns the newest version of the callbacks of a type that is known here (`GetTypeMethodVersion`).
unsafe extern "C" fn type_method_version() -> c_int {
    METHODS_VERSION as c_int
}

/// Returns the name of the key that a callback is called for (`GetKeyNameFromOptCtx`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn key_name_from_opt_ctx(options: *const KeyOptions) -> *const ModuleString {
    // SAFETY: the caller promises it.
    unsafe { options.as_ref() }.map_or(null(), |options| options.from_key.cast_const())
}

/// Returns the name of the target of a copy (`GetToKeyNameFromOptCtx`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn to_key_name_from_opt_ctx(options: *const KeyOptions) -> *const ModuleString {
    // SAFETY: the caller promises it.
    unsafe { options.as_ref() }.map_or(null(), |options| options.to_key.cast_const())
}

/// Returns the database of the key that a callback is called for (`GetDbIdFromOptCtx`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn db_id_from_opt_ctx(options: *const KeyOptions) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { options.as_ref() }.map_or(-1, |options| options.from_db)
}

/// Returns the database of the target of a copy (`GetToDbIdFromOptCtx`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn to_db_id_from_opt_ctx(options: *const KeyOptions) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { options.as_ref() }.map_or(-1, |options| options.to_db)
}

/// Returns the used memory as a part of the limit (`GetUsedMemoryRatio`); 0 without a limit.
unsafe extern "C" fn used_memory_ratio() -> f32 {
    session::host().map_or(0.0, |host| host.used_memory_ratio())
}

/// Returns the size of an allocation in bytes, which may be more than was asked for (`MallocSize`, `MallocUsableSize`).
///
/// # Safety
/// The memory is null or from the allocator of modules.
unsafe extern "C" fn malloc_size(memory: *mut c_void) -> usize {
    // SAFETY: the caller promises it.
    unsafe { libc::malloc_usable_size(memory) }
}

/// Returns the memory of a string in bytes (`MallocSizeString`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn malloc_size_string(string: *const ModuleString) -> usize {
    // SAFETY: the caller promises it.
    unsafe { ModuleString::memory(string) }
}

/// Returns the memory of a dictionary in bytes, without that of its values (`MallocSizeDict`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn malloc_size_dict(dict: *const Dict) -> usize {
    // SAFETY: the caller promises it.
    unsafe { dict.as_ref() }.map_or(0, Dict::memory)
}
