//! The memory that the commands of a script, or of code of a module, have left to be freed.

use crate::dispatch::effects::free_removed_values;
use crate::keyspace::effects::Effects;
use crate::state::Server;
use weft_table::ValueRef;

/// The number of values to be freed after which they are freed before the script or the code of the module ends.
const MAX_UNFREED_VALUES: usize = 1024;
/// The bytes of such values after which that happens: a few of them can be large.
const MAX_UNFREED_BYTES: usize = 1 << 20;

/// The values that are still to be freed, as of the last command.
#[derive(Default)]
pub(super) struct UnfreedValues {
    /// The length of `Effects::garbage`.
    garbage: usize,
    /// The length of `Effects::removed`.
    removed: usize,
    /// The bytes of those that were left since.
    bytes: usize,
}

impl UnfreedValues {
    /// Returns the values that earlier commands of the thread have left. They do not count as bytes.
    pub(super) fn left_before(effects: &Effects) -> Self {
        UnfreedValues {
            garbage: effects.garbage.len(),
            removed: effects.removed.len(),
            bytes: 0,
        }
    }

    /// Frees the values if they are many, or large.
    #[inline]
    pub(super) fn limit(&mut self, effects: &mut Effects, server: &Server) {
        if (effects.garbage.len(), effects.removed.len()) != (self.garbage, self.removed) {
            self.update(effects);
            if effects.garbage.len() + effects.removed.len() > MAX_UNFREED_VALUES || self.bytes > MAX_UNFREED_BYTES {
                free_removed_values(effects, server);
                *self = UnfreedValues::left_before(effects);
            }
        }
    }

    fn update(&mut self, effects: &Effects) {
        if effects.garbage.len() < self.garbage || effects.removed.len() < self.removed {
            // They were freed meanwhile.
            (self.garbage, self.removed, self.bytes) = (0, 0, 0);
        }
        for garbage in effects.garbage.iter().skip(self.garbage) {
            self.bytes += garbage.bytes() + garbage.object().map_or(0, |object| object.allocated_bytes());
        }
        for (removed, _) in effects.removed.iter().skip(self.removed) {
            let object_bytes = match removed.value() {
                ValueRef::Object(object) => object.allocated_bytes(),
                _ => 0,
            };
            self.bytes += removed.allocated_bytes() + object_bytes;
        }
        (self.garbage, self.removed) = (effects.garbage.len(), effects.removed.len());
    }
}
