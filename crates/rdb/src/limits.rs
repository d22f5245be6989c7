//! The encodings that values get when they are read.

use weft_values::{hash::HashLimits, set::SetLimits, sorted_set::SortedSetLimits};

/// The limits up to which collections are read into their compact encodings.
#[derive(Clone, Copy, Debug)]
pub struct EncodingLimits {
    /// The limits of hashes.
    pub hash: HashLimits,
    /// The limits of sets.
    pub set: SetLimits,
    /// The limits of sorted sets.
    pub sorted_set: SortedSetLimits,
    /// The size of a list's nodes, as `list-max-listpack-size` gives it.
    pub listpack_size: i64,
    /// The number of nodes at each end of a list that are not compressed, as `list-compress-depth` gives it.
    pub list_compress_depth: i64,
}

impl Default for EncodingLimits {
    /// Returns the limits that the parameters have by default.
    fn default() -> Self {
        EncodingLimits {
            hash: HashLimits {
                fields: 512,
                value_bytes: 64,
            },
            set: SetLimits {
                integers: 512,
                run_members: 128,
                run_member_bytes: 64,
            },
            sorted_set: SortedSetLimits {
                members: 128,
                member_bytes: 64,
            },
            listpack_size: -2,
            list_compress_depth: 0,
        }
    }
}
