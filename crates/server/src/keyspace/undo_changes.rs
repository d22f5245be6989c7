//! Undoes the changes of a script that was stopped, under the leases under which they were made.
//!
//! Invalidations of cached keys are sent even if the changes are undone ([`Effects::discard_held_notifications`]).
//! Watches that were marked stay marked. Both make clients read or try again needlessly, which does no harm.

use super::access::{AccessContext, HeldLeases, KeyWrite};
use super::effects::{Effects, Hooks};
use super::key_identity::NamedKey;
use super::undo::UndoLog;

/// The counts of [`Effects`] that are reset if the changes are undone.
#[derive(Clone, Copy)]
pub struct ChangeCounts {
    dirty: u64,
    expired_keys: u64,
    expired_fields: u64,
    /// The number of keys to be registered for local expiry. They are registered between two commands of a client.
    local_expiries: usize,
}

impl ChangeCounts {
    /// Returns the present counts.
    pub fn of_effects(effects: &Effects) -> Self {
        ChangeCounts {
            dirty: effects.dirty,
            expired_keys: effects.expired_keys,
            expired_fields: effects.expired_fields,
            local_expiries: effects.local_expiries.len(),
        }
    }
}

/// Restores all keys, and discards what would be propagated. `counts` are those before the first change.
#[cold]
pub fn undo_changes(
    undo: UndoLog,
    counts: ChangeCounts,
    held: &mut HeldLeases<'_, '_>,
    access: &AccessContext<'_>,
    effects: &mut Effects,
) {
    let access = AccessContext {
        should_touch: false,
        now_ms: 0,
        ..*access
    };
    effects.hooks = Hooks::empty();
    for (key, former) in undo.into_former_entries() {
        let Some((header, slot)) = held.writable_slot(key.slot) else {
            unreachable!("a changed key's slot is held until the change is undone");
        };
        let named = NamedKey {
            name: &key.name,
            hash: key.hash,
            slot: key.slot,
        };
        let mut write = KeyWrite::new(header, slot, named, key.db, &access, effects);
        match former {
            Some(entry) => write.replace_with_removed(entry),
            None => _ = write.delete(),
        }
        write.changed_with_another_key();
    }
    (effects.dirty, effects.expired_keys, effects.expired_fields) =
        (counts.dirty, counts.expired_keys, counts.expired_fields);
    effects.removed_keys.clear();
    assert!(
        counts.local_expiries <= effects.local_expiries.len(),
        "no key is registered for local expiry while a script runs"
    );
    effects.local_expiries.truncate(counts.local_expiries);
    effects.log_writer.clear();
    effects.ready.clear();
    effects.changes.clear();
}

#[cfg(test)]
mod tests;
