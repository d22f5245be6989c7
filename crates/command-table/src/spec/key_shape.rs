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
    /// Returns the shape that `specs` describe.
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
            (BeginSearch::Index(index), FindKeys::Range { last: 0, .. }) => {
                assert!(index > 0 && index <= u8::MAX as i32);
                KeyShape::One {
                    index: index as u8,
                    flags,
                }
            }
            (
                BeginSearch::Index(first),
                FindKeys::Range {
                    last,
                    step,
                    limit: 0 | 1,
                },
            ) => {
                assert!(first > 0 && first <= u8::MAX as i32);
                assert!(last >= i8::MIN as i32 && last <= i8::MAX as i32);
                assert!(step > 0 && step <= u8::MAX as i32);
                KeyShape::Range {
                    first: first as u8,
                    last: last as i8,
                    step: step as u8,
                    flags,
                }
            }
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
}
