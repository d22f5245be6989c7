//! The limits up to which collections keep their compact encodings.

use weft_values::{hash, set, sorted_set};

use super::Config;
use super::parameters::{ParameterId, id};

impl Config {
    /// Returns the limits of hashes.
    #[inline]
    pub fn hash_limits(&self) -> hash::HashLimits {
        hash::HashLimits {
            fields: self.size(id::HASH_MAX_LISTPACK_ENTRIES),
            value_bytes: self.size(id::HASH_MAX_LISTPACK_VALUE),
        }
    }

    /// Returns the limits of sets.
    #[inline]
    pub fn set_limits(&self) -> set::SetLimits {
        set::SetLimits {
            integers: self.size(id::SET_MAX_INTSET_ENTRIES),
            run_members: self.size(id::SET_MAX_LISTPACK_ENTRIES),
            run_member_bytes: self.size(id::SET_MAX_LISTPACK_VALUE),
        }
    }

    /// Returns the limits of sorted sets.
    #[inline]
    pub fn sorted_set_limits(&self) -> sorted_set::SortedSetLimits {
        sorted_set::SortedSetLimits {
            members: self.size(id::ZSET_MAX_LISTPACK_ENTRIES),
            member_bytes: self.size(id::ZSET_MAX_LISTPACK_VALUE),
        }
    }

    #[inline]
    fn size(&self, id: ParameterId) -> usize {
        usize::try_from(self.unsigned(id)).unwrap_or(usize::MAX)
    }
}
