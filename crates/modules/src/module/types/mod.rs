//! Data types of modules: their names and identifiers, their callbacks, and the list of all types.
//!
//! A type lives as long as the process once its module is loaded, because a module with types cannot be unloaded. A
//! module gets the address of its type, and passes it back for each value.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Weak};

use weft_os::atomic::Ordering;
use weft_os::sync::RwLock;

use super::Module;
use crate::objects::defragmentation::DefragContext;
use crate::objects::digest::ModuleDigest;
use crate::objects::io::ModuleIo;
use crate::objects::key_options::KeyOptions;
use crate::objects::string::ModuleString;

/// The newest version of [`TypeMethods`] (`VALKEYMODULE_TYPE_METHOD_VERSION`).
pub const METHODS_VERSION: u64 = 5;
/// The length of a type's name.
pub const NAME_BYTES: usize = 9;
/// The number of the lowest bits of an identifier for the version of the encoding.
const ENCODING_VERSION_BITS: u32 = 10;
/// The number of bits for a letter of the name.
const LETTER_BITS: u32 = 6;
/// The letters of names, in the order of their numbers.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Data besides the keys that a type saves before them (`VALKEYMODULE_AUX_BEFORE_RDB`).
pub const AUX_BEFORE_KEYS: c_int = 1 << 0;
/// Data besides the keys that a type saves after them (`VALKEYMODULE_AUX_AFTER_RDB`).
pub const AUX_AFTER_KEYS: c_int = 1 << 1;

/// The signatures of a type's callbacks.
pub mod callback {
    use super::{DefragContext, KeyOptions, ModuleDigest, ModuleIo, ModuleString, c_int, c_void};

    /// Loads a value of an encoding version.
    pub type Load = unsafe extern "C" fn(*mut ModuleIo, c_int) -> *mut c_void;
    /// Saves a value.
    pub type Save = unsafe extern "C" fn(*mut ModuleIo, *mut c_void);
    /// Emits the commands that create a value.
    pub type Rewrite = unsafe extern "C" fn(*mut ModuleIo, *mut ModuleString, *mut c_void);
    /// Returns the memory of a value in bytes.
    pub type MemoryUsage = unsafe extern "C" fn(*const c_void) -> usize;
    /// Does the same, with the key and the number of elements to sample.
    pub type MemoryUsage2 = unsafe extern "C" fn(*mut KeyOptions, *const c_void, usize) -> usize;
    /// Adds a value to a digest.
    pub type Digest = unsafe extern "C" fn(*mut ModuleDigest, *mut c_void);
    /// Frees a value.
    pub type Free = unsafe extern "C" fn(*mut c_void);
    /// Loads data besides the keys: of an encoding version, from before or after the keys.
    pub type AuxLoad = unsafe extern "C" fn(*mut ModuleIo, c_int, c_int) -> c_int;
    /// Saves data besides the keys, before or after them.
    pub type AuxSave = unsafe extern "C" fn(*mut ModuleIo, c_int);
    /// Returns the effort of freeing a value.
    pub type FreeEffort = unsafe extern "C" fn(*mut ModuleString, *const c_void) -> usize;
    /// Does the same, with the key.
    pub type FreeEffort2 = unsafe extern "C" fn(*mut KeyOptions, *const c_void) -> usize;
    /// Notes that a value was removed from its key.
    pub type Unlink = unsafe extern "C" fn(*mut ModuleString, *const c_void);
    /// Does the same, with the key.
    pub type Unlink2 = unsafe extern "C" fn(*mut KeyOptions, *const c_void);
    /// Copies a value.
    pub type Copy = unsafe extern "C" fn(*mut ModuleString, *mut ModuleString, *const c_void) -> *mut c_void;
    /// Does the same, with both keys.
    pub type Copy2 = unsafe extern "C" fn(*mut KeyOptions, *const c_void) -> *mut c_void;
    /// Moves the allocations of a value.
    pub type Defrag = unsafe extern "C" fn(*mut DefragContext, *mut ModuleString, *mut *mut c_void) -> c_int;
}

/// The callbacks of a type, as a module passes them. A module of an older version passes only the first fields.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct TypeMethods {
    /// The version, which says how many of the fields are present.
    pub version: u64,
    pub rdb_load: Option<callback::Load>,
    pub rdb_save: Option<callback::Save>,
    pub aof_rewrite: Option<callback::Rewrite>,
    pub mem_usage: Option<callback::MemoryUsage>,
    pub digest: Option<callback::Digest>,
    pub free: Option<callback::Free>,
    // Since version 2.
    pub aux_load: Option<callback::AuxLoad>,
    pub aux_save: Option<callback::AuxSave>,
    pub aux_save_triggers: c_int,
    // Since version 3.
    pub free_effort: Option<callback::FreeEffort>,
    pub unlink: Option<callback::Unlink>,
    pub copy: Option<callback::Copy>,
    pub defrag: Option<callback::Defrag>,
    // Since version 4.
    pub mem_usage2: Option<callback::MemoryUsage2>,
    pub free_effort2: Option<callback::FreeEffort2>,
    pub unlink2: Option<callback::Unlink2>,
    pub copy2: Option<callback::Copy2>,
    // Since version 5.
    pub aux_save2: Option<callback::AuxSave>,
}

impl TypeMethods {
    /// Reads the callbacks of a module, and only the fields that its version has. Returns `None` for version 0.
    ///
    /// # Safety
    /// The pointer is that of a structure with the fields of the version that it begins with (rule 1).
    pub unsafe fn read(from: *const TypeMethods) -> Option<TypeMethods> {
        macro_rules! fields {
            ($methods:ident: $($field:ident),*) => {
                $($methods.$field = std::ptr::addr_of!((*from).$field).read();)*
            };
        }
        // SAFETY: the caller promises it. Fields are read one by one, since those of later versions may not be there.
        unsafe {
            let mut methods = TypeMethods {
                version: std::ptr::addr_of!((*from).version).read(),
                ..TypeMethods::default()
            };
            if methods.version == 0 {
                return None;
            }
            fields!(methods: rdb_load, rdb_save, aof_rewrite, mem_usage, digest, free);
            if methods.version >= 2 {
                fields!(methods: aux_load, aux_save, aux_save_triggers);
            }
            if methods.version >= 3 {
                fields!(methods: free_effort, unlink, copy, defrag);
            }
            if methods.version >= 4 {
                fields!(methods: mem_usage2, free_effort2, unlink2, copy2);
            }
            if methods.version >= 5 {
                fields!(methods: aux_save2);
            }
            Some(methods)
        }
    }
}

/// The identifier of a type in data files: its name and the version of its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeId(pub u64);

impl TypeId {
    /// Returns the identifier of a name and an encoding version; `None` if the name does not have nine letters of the
    /// alphabet of names, or the version does not fit in its bits.
    pub fn new(name: &[u8], encoding_version: c_int) -> Option<TypeId> {
        let version = u64::try_from(encoding_version).ok()?;
        if name.len() != NAME_BYTES || version >= 1 << ENCODING_VERSION_BITS {
            return None;
        }
        let mut id = 0;
        for letter in name {
            let number = LETTERS.iter().position(|known| known == letter)?;
            id = id << LETTER_BITS | number as u64;
        }
        let id = id << ENCODING_VERSION_BITS | version;
        (id != 0).then_some(TypeId(id))
    }

    /// Returns the version of the encoding.
    pub fn encoding_version(self) -> c_int {
        (self.0 & ((1 << ENCODING_VERSION_BITS) - 1)) as c_int
    }

    /// Returns the name.
    pub fn name(self) -> String {
        let letter = |place: usize| {
            let shift = ENCODING_VERSION_BITS + LETTER_BITS * (NAME_BYTES - 1 - place) as u32;
            LETTERS[(self.0 >> shift) as usize & (LETTERS.len() - 1)] as char
        };
        (0..NAME_BYTES).map(letter).collect()
    }

    /// Returns `true` if both have the same name.
    fn has_name_of(self, other: TypeId) -> bool {
        self.0 >> ENCODING_VERSION_BITS == other.0 >> ENCODING_VERSION_BITS
    }
}

/// A data type of a module.
pub struct DataType {
    /// The identifier.
    pub id: TypeId,
    /// The name, which TYPE replies.
    pub name: &'static str,
    /// The callbacks.
    pub methods: TypeMethods,
    module: Weak<Module>,
}

impl DataType {
    /// Returns its module; `None` after the load of the module has failed.
    pub fn module(&self) -> Option<Arc<Module>> {
        self.module.upgrade()
    }

    /// Returns the address that the module knows it by.
    pub fn as_pointer(&'static self) -> *mut DataType {
        std::ptr::from_ref(self).cast_mut()
    }

    /// Returns the type behind a module's pointer; `None` for null.
    ///
    /// # Safety
    /// The pointer is null or that of a type (rule 1), which lives as long as the process.
    pub unsafe fn from_pointer(pointer: *const DataType) -> Option<&'static DataType> {
        // SAFETY: the caller promises it.
        unsafe { pointer.as_ref() }
    }
}

impl std::fmt::Debug for DataType {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "DataType({})", self.name)
    }
}

/// All types, in the order in which they were created.
static TYPES: RwLock<Vec<&'static DataType>> = RwLock::new(Vec::new());

/// Creates a type of a module. Returns `None` if there is one with this name.
pub fn create(module: &Arc<Module>, id: TypeId, methods: TypeMethods) -> Option<&'static DataType> {
    let mut types = TYPES.write();
    if types.iter().any(|known| known.id.has_name_of(id)) {
        return None;
    }
    let created: &'static DataType = Box::leak(Box::new(DataType {
        id,
        name: Box::leak(id.name().into_boxed_str()),
        methods,
        module: Arc::downgrade(module),
    }));
    types.push(created);
    Some(created)
}

/// Forgets the types of a module, because its load has failed. No value of them exists.
pub fn remove_types_of(module: &Weak<Module>) {
    TYPES.write().retain(|known| !known.module.ptr_eq(module));
}

/// Returns all types.
pub fn all() -> Vec<&'static DataType> {
    TYPES.read().clone()
}

/// Returns `true` if there is any type.
pub fn any_exist() -> bool {
    !TYPES.read().is_empty()
}

/// Returns the number of types of a module.
pub fn count_of(module: &Module) -> usize {
    let is_its = |known: &&&'static DataType| std::ptr::eq(known.module.as_ptr(), module);
    TYPES.read().iter().filter(is_its).count()
}

/// Returns the type with the name of an identifier, whatever its encoding version.
pub fn find(id: TypeId) -> Option<&'static DataType> {
    TYPES.read().iter().copied().find(|known| known.id.has_name_of(id))
}

/// Returns the type with this name. SCAN ignores the case of its letters.
pub fn find_by_name(name: &[u8], ignores_case: bool) -> Option<&'static DataType> {
    let is_it = |known: &&&'static DataType| match ignores_case {
        true => known.name.as_bytes().eq_ignore_ascii_case(name),
        false => known.name.as_bytes() == name,
    };
    TYPES.read().iter().find(is_it).copied()
}

/// Creates a type (`CreateDataType`). Returns `None` if the name, the version or the callbacks are not valid.
///
/// # Safety
/// The name is a C string, and the callbacks are those of a structure (rule 1).
pub unsafe fn create_from_module(
    module: &Arc<Module>,
    name: *const c_char,
    encoding_version: c_int,
    methods: *const TypeMethods,
) -> Option<&'static DataType> {
    // SAFETY: the caller promises it.
    let (name, methods) = unsafe { (std::ffi::CStr::from_ptr(name), TypeMethods::read(methods)) };
    let id = TypeId::new(name.to_bytes(), encoding_version)?;
    let created = create(module, id, methods?)?;
    module.usage.types.fetch_add(1, Ordering::Relaxed);
    let of_module = Arc::downgrade(module);
    module.add_cleanup(move || remove_types_of(&of_module));
    Some(created)
}

#[cfg(test)]
mod tests;
