//! The limits up to which collections keep their compact encodings, as the parameters give them.

use weft_config::{Config, ParameterId, id};
use weft_values::{hash, set, sorted_set};

use weft_rdb::EncodingLimits;

/// The encoding limits of a configuration.
pub trait EncodingParameters {
    /// Returns the limits of hashes.
    fn hash_limits(&self) -> hash::HashLimits;

    /// Returns the limits of sets.
    fn set_limits(&self) -> set::SetLimits;

    /// Returns the limits of sorted sets.
    fn sorted_set_limits(&self) -> sorted_set::SortedSetLimits;

    /// Returns the limits of all types.
    fn encoding_limits(&self) -> EncodingLimits;
}

impl EncodingParameters for Config {
    #[inline]
    fn hash_limits(&self) -> hash::HashLimits {
        hash::HashLimits {
            fields: size(self, id::HASH_MAX_LISTPACK_ENTRIES),
            value_bytes: size(self, id::HASH_MAX_LISTPACK_VALUE),
        }
    }

    #[inline]
    fn set_limits(&self) -> set::SetLimits {
        set::SetLimits {
            integers: size(self, id::SET_MAX_INTSET_ENTRIES),
            run_members: size(self, id::SET_MAX_LISTPACK_ENTRIES),
            run_member_bytes: size(self, id::SET_MAX_LISTPACK_VALUE),
        }
    }

    #[inline]
    fn sorted_set_limits(&self) -> sorted_set::SortedSetLimits {
        sorted_set::SortedSetLimits {
            members: size(self, id::ZSET_MAX_LISTPACK_ENTRIES),
            member_bytes: size(self, id::ZSET_MAX_LISTPACK_VALUE),
        }
    }

    fn encoding_limits(&self) -> EncodingLimits {
        EncodingLimits {
            hash: self.hash_limits(),
            set: self.set_limits(),
            sorted_set: self.sorted_set_limits(),
            listpack_size: self.integer(id::LIST_MAX_LISTPACK_SIZE),
            list_compress_depth: self.integer(id::LIST_COMPRESS_DEPTH),
        }
    }
}

#[inline]
fn size(config: &Config, id: ParameterId) -> usize {
    usize::try_from(config.unsigned(id)).unwrap_or(usize::MAX)
}
