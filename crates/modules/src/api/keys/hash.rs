//! Functions on hashes.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use super::writable_key;
use crate::api::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::objects::key::ModuleKey;
use crate::objects::string::ModuleString;
use crate::session::keys::KeyKind;

unsafe extern "C" {
    // These have a variable number of arguments, which only C can define. They call the functions below.
    fn weft_modules_native_hash_set();
    fn weft_modules_native_hash_get();
}

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("HashSet", weft_modules_native_hash_set),
    ("HashGet", weft_modules_native_hash_get),
    ("HashSetStringRef", hash_set_string_ref),
    ("HashHasStringRef", hash_has_string_ref),
];

bitflags::bitflags! {
    /// The flags of `HashSet` and `HashGet` (`VALKEYMODULE_HASH_...`).
    #[derive(Clone, Copy)]
    struct HashFlags: c_int {
        /// Only fields that are missing are set.
        const IF_MISSING = 1;
        /// Only fields that exist are set.
        const IF_PRESENT = 1 << 1;
        /// Names are C strings.
        const C_NAMES = 1 << 2;
        /// The existence of fields is stored, and not their values.
        const EXISTS = 1 << 3;
        /// New fields are counted, too.
        const COUNT_ALL = 1 << 4;
    }
}

/// The value by which `HashSet` removes a field (`VALKEYMODULE_HASH_DELETE`).
const REMOVES_FIELD: usize = 1;

/// The name of a field, and its value or a place for it, as C has read them.
#[repr(C)]
struct FieldArguments {
    name: *const c_void,
    value: *mut c_void,
}

impl FieldArguments {
    /// Returns the name.
    ///
    /// # Safety
    /// The name is what the flags say (rule 1).
    unsafe fn name(&self, flags: HashFlags) -> &[u8] {
        // SAFETY: the caller promises it; nobody changes the name meanwhile.
        unsafe {
            match flags.contains(HashFlags::C_NAMES) {
                true => CStr::from_ptr(self.name.cast::<c_char>()).to_bytes(),
                false => ModuleString::bytes_of(self.name.cast()),
            }
        }
    }
}

/// Returns the fields that C has read.
///
/// # Safety
/// `fields` leads to `count` of them.
unsafe fn fields_of<'a>(fields: *const FieldArguments, count: usize) -> &'a [FieldArguments] {
    match count {
        0 => &[],
        // SAFETY: the caller promises it.
        _ => unsafe { std::slice::from_raw_parts(fields, count) },
    }
}

/// Sets or removes a field. Returns `true` if it counts.
fn change_field(key: &ModuleKey, flags: HashFlags, name: &[u8], value: Option<&[u8]>) -> bool {
    let changed = key.with_keys(|session, key| {
        if flags.intersects(HashFlags::IF_MISSING | HashFlags::IF_PRESENT) {
            let exists = session.read_field(key, name, &mut |_| {});
            if flags.contains(HashFlags::IF_PRESENT) && !exists || flags.contains(HashFlags::IF_MISSING) && exists {
                return None;
            }
        }
        match value {
            None => Some(session.remove_field(key, name)),
            Some(value) => {
                let existed = session.set_field(key, name, value, false)?;
                Some(existed || flags.contains(HashFlags::COUNT_ALL))
            }
        }
    });
    if value.is_some() && changed.flatten().is_some() {
        key.set_kind(KeyKind::Hash);
    }
    changed.flatten().unwrap_or(false)
}

/// `HashSet`: sets and removes fields. Returns the number of fields that existed, or of all that have changed.
///
/// # Safety
/// The arguments are null or an open key, and pairs of names and strings, as C has read them (rule 1).
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_hash_set(
    key: *mut ModuleKey,
    flags: c_int,
    fields: *const FieldArguments,
    count: usize,
) -> c_int {
    let known = HashFlags::all().difference(HashFlags::EXISTS);
    let flags = HashFlags::from_bits(flags).filter(|flags| known.contains(*flags));
    // SAFETY: the caller promises it.
    let (key, fields) = unsafe { (writable_key(key, KeyKind::Hash), fields_of(fields, count)) };
    let (key, flags) = match (key, flags) {
        (Ok(key), Some(flags)) => (key, flags),
        (Ok(_), None) => {
            errno::set(libc::EINVAL);
            return 0;
        }
        (Err(error), flags) => {
            errno::set(if flags.is_some() { error } else { libc::EINVAL });
            return 0;
        }
    };
    let mut counted = 0;
    for field in fields {
        // SAFETY: the caller promises it; the strings are not changed during this call.
        let (name, value) = unsafe {
            let is_removal = field.value as usize == REMOVES_FIELD;
            let value = (!is_removal).then(|| ModuleString::bytes_of(field.value.cast()));
            (field.name(flags), value)
        };
        counted += c_int::from(change_field(key, flags, name, value));
    }
    if key.kind() == KeyKind::Hash {
        key.with_keys(|session, key| session.delete_empty_hash(key));
        key.refresh_kind();
    }
    if counted == 0 {
        errno::set(libc::ENOENT);
    }
    counted
}

/// `HashGet`: stores the values of fields, or whether they exist.
///
/// # Safety
/// The arguments are an open key, and pairs of names and places, as C has read them (rule 1).
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_hash_get(
    key: *mut ModuleKey,
    flags: c_int,
    fields: *const FieldArguments,
    count: usize,
) -> c_int {
    let flags = HashFlags::from_bits_truncate(flags);
    // SAFETY: the caller promises it.
    let (key, fields) = unsafe { (ModuleKey::from_pointer(key), fields_of(fields, count)) };
    let Some(key) = key.filter(|key| matches!(key.kind(), KeyKind::Hash | KeyKind::Empty)) else {
        return ERR;
    };
    for field in fields {
        // SAFETY: the caller promises it; the string is not changed during this call.
        let name = unsafe { field.name(flags) };
        let mut value = null_mut();
        let exists = key.kind() == KeyKind::Hash
            && key
                .with_keys(|session, session_key| {
                    session.read_field(session_key, name, &mut |bytes| {
                        if !flags.contains(HashFlags::EXISTS) {
                            value = key.create_string(bytes);
                        }
                    })
                })
                .unwrap_or(false);
        // SAFETY: the caller promises that the place is one for what the flags say.
        unsafe {
            match flags.contains(HashFlags::EXISTS) {
                true => field.value.cast::<c_int>().write(c_int::from(exists)),
                false => field.value.cast::<*mut ModuleString>().write(value),
            }
        }
    }
    OK
}

/// `HashSetStringRef`: sets a field that exists to bytes of the module. In Valkey the field refers to them; here they
/// are copied, so that the module may free them at any time, and the field is noted as such a one.
///
/// # Safety
/// The arguments are null, or an open key, a string, and `length` bytes (rule 1).
unsafe extern "C" fn hash_set_string_ref(
    key: *mut ModuleKey,
    field: *mut ModuleString,
    bytes: *const c_char,
    length: usize,
) -> c_int {
    // SAFETY: the caller promises it; the strings are not changed during this call.
    let (key, name) = unsafe { (ModuleKey::from_pointer(key), ModuleString::bytes_of(field)) };
    let Some(key) = key.filter(|key| key.kind() == KeyKind::Hash && !field.is_null() && !bytes.is_null()) else {
        return ERR;
    };
    // SAFETY: the caller promises it.
    let value = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    match key.with_keys(|session, key| session.set_provided_field(key, name, value)) {
        Some(true) => OK,
        _ => ERR,
    }
}

/// `HashHasStringRef`: returns 1 if the value of a field is what `HashSetStringRef` has set.
///
/// # Safety
/// The arguments are null, or an open key and a string (rule 1).
unsafe extern "C" fn hash_has_string_ref(key: *mut ModuleKey, field: *mut ModuleString) -> c_int {
    // SAFETY: the caller promises it; the string is not changed during this call.
    let (key, name) = unsafe { (ModuleKey::from_pointer(key), ModuleString::bytes_of(field)) };
    let Some(key) = key.filter(|key| key.kind() == KeyKind::Hash && !field.is_null()) else {
        return ERR;
    };
    let found = key.with_keys(|session, key| session.is_field_provided(key, name));
    c_int::from(found == Some(true))
}
