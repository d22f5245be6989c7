//! The key specs of a command, condensed for the hot path, and the procedures for keys that no spec describes.

use super::bits::KeyFlags;
use super::key_spec::{BeginSearch, FindKeys, KeySpec};

/// The key specs of a command, condensed for use on the hot path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyShape {
    /// The command has no keys.
    None,
    /// Exactly one key, always at the same position.
    One {
        /// The index of the argument that is the key.
        index: u8,
        /// The use of the key. With `VARIABLE_FLAGS`, it depends on the options.
        flags: KeyFlags,
    },
    /// Keys at regular distances.
    Range {
        /// The index of the argument that is the first key.
        first: u8,
        /// The last key: relative to the first if not negative, else to the end of the arguments.
        last: i8,
        /// The distance between neighbouring keys.
        step: u8,
        /// The use of each key.
        flags: KeyFlags,
    },
    /// The key specs have to be interpreted.
    Complex,
}

impl KeyShape {
    /// Returns the shape that `specs` describe. Specs whose numbers do not fit into the other shapes, which only
    /// modules declare, are complex.
    pub const fn of(specs: &[KeySpec]) -> KeyShape {
        let spec = match specs {
            [] => return KeyShape::None,
            [spec] => spec,
            _ => return KeyShape::Complex,
        };
        if spec.flags.contains(KeyFlags::NOT_KEY) || spec.flags.contains(KeyFlags::INCOMPLETE) {
            return KeyShape::Complex;
        }
        let flags = spec.flags;
        match (spec.begin, spec.find) {
            (BeginSearch::Index(index @ 1..=0xff), FindKeys::Range { last: 0, .. }) => KeyShape::One {
                index: index as u8,
                flags,
            },
            (
                BeginSearch::Index(first @ 1..=0xff),
                FindKeys::Range {
                    last: last @ -0x80..=0x7f,
                    step: step @ 1..=0xff,
                    limit: 0 | 1,
                },
            ) => KeyShape::Range {
                first: first as u8,
                last: last as i8,
                step: step as u8,
                flags,
            },
            _ => KeyShape::Complex,
        }
    }
}

/// The procedures that find the keys of commands whose key specs are incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpecialKeys {
    /// No procedure: the specs suffice.
    None,
    /// SET: one key, which the option GET reads as well.
    Set,
    /// BITFIELD: one key, which is only read if every operation is a GET.
    BitField,
    /// SORT: the key that is sorted, and the destination of the option STORE.
    Sort,
    /// SORT_RO: the key that is sorted. The keys that BY and GET lead to are unknown.
    SortReadOnly,
    /// MIGRATE: one key, or everything after KEYS.
    Migrate,
    /// GEORADIUS and GEORADIUSBYMEMBER: the index, and the destination of STORE or STOREDIST.
    GeoRadius,
    /// Keys after their count, if the specs reject the count as malformed but it begins with digits. Holds the index of
    /// the argument that is the count.
    Counted(usize),
    /// Like [`SpecialKeys::Counted`] with the count in argument 2, and a destination key in argument 1 that is visited
    /// last.
    CountedAndStored,
    /// The command of a module whose function finds its keys.
    Module(ModuleKeys),
}

/// A procedure that finds the keys of a module's command.
pub trait KeyFinder: Sync {
    /// Returns the positions of the keys among `words`, and the use of each. Returns `None` if the calling thread may
    /// not run code of the module; then the key specs have to do.
    fn find_keys(&self, words: &[&[u8]]) -> Option<Vec<(usize, KeyFlags)>>;
}

/// The procedure that finds the keys of one module command.
#[derive(Clone, Copy)]
pub struct ModuleKeys(pub &'static dyn KeyFinder);

impl PartialEq for ModuleKeys {
    fn eq(&self, other: &ModuleKeys) -> bool {
        std::ptr::addr_eq(self.0, other.0)
    }
}

impl Eq for ModuleKeys {}

impl std::fmt::Debug for ModuleKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ModuleKeys")
    }
}
