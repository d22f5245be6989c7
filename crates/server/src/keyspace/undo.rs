//! The undo log of a script that writes while another script may write, too: the former states of the keys that it
//! changes.
//!
//! ```text
//!   script ─▶ write lease ─▶ first change of a key ─▶ its former state is copied here ─▶ the key changes
//!                                                            │
//!   ended:   the log is dropped                              │
//!   stopped: every key gets its former state back ◀──────────┘   the leases end, and the script restarts
//! ```
//!
//! 1. A change is undone under the lease under which it was made, so no other thread sees it, and the order in which
//!    keys are restored does not matter ([`super::undo_changes`]).
//! 2. A former state is a copy of a small value or a handle of an object. A change of the object copies it, because of
//!    the handle; [`is_large`](super::before_image::is_large) objects must not be changed under an undo log.
//! 3. Numbers of keys change at once: DBSIZE and INFO of other clients may count keys whose creation is then undone.

use weft_base::{DbIndex, SlotIndex};
use weft_table::{EntryRef, NewValue, Removed, ValueRef};
use weft_values::Value;

use super::SlotTable;
use super::before_image::insert_copy;
use super::key_identity::NamedKey;

/// The size of all former states above which a log is full, in bytes.
const MAX_BYTES: usize = if cfg!(feature = "simulated") { 400 } else { 1 << 20 };
/// The number of keys at which a log is full.
const MAX_KEYS: usize = 4096;

/// A key that was changed.
pub struct ChangedKey {
    /// The key's database.
    pub db: DbIndex,
    /// The key's slot.
    pub slot: SlotIndex,
    /// The hash of its name.
    pub hash: u64,
    /// Its name.
    pub name: Box<[u8]>,
}

/// The former states of the changed keys of one database.
struct FormerStates {
    db: DbIndex,
    /// The keys that existed.
    present: SlotTable,
    /// The keys that did not exist. Their values are placeholders.
    absent: SlotTable,
}

impl FormerStates {
    fn contains(&self, hash: u64, name: &[u8]) -> bool {
        self.present.find(hash, name).is_some() || self.absent.find(hash, name).is_some()
    }
}

/// The size of a key's former state in bytes.
pub fn kept_bytes(entry: EntryRef<'_, Value>) -> usize {
    let behind = match entry.value() {
        ValueRef::Object(object) => object.allocated_bytes(),
        _ => 0,
    };
    entry.allocated_bytes() + behind
}

/// The former states of the keys that one run of a script has changed.
#[derive(Default)]
pub struct UndoLog {
    keys: Vec<ChangedKey>,
    former: Vec<FormerStates>,
    bytes: usize,
}

impl UndoLog {
    /// Returns `true` if this many keys, whose former states have this size, can be added.
    pub fn has_room_for(&self, keys: usize, bytes: usize) -> bool {
        self.bytes + bytes <= MAX_BYTES && self.keys.len() + keys <= MAX_KEYS
    }

    /// Stores the state of a key that is about to change, unless it has changed before. `table` is that of its slot.
    #[cold]
    pub fn keep_former_state(&mut self, db: DbIndex, key: NamedKey<'_>, table: &SlotTable) {
        let index = self.former.iter().position(|states| states.db == db);
        let index = index.unwrap_or_else(|| {
            self.former.push(FormerStates {
                db,
                present: SlotTable::new(),
                absent: SlotTable::new(),
            });
            self.former.len() - 1
        });
        let states = &mut self.former[index];
        if states.contains(key.hash, key.name) {
            return;
        }
        match table.find(key.hash, key.name) {
            Some(entry) => {
                self.bytes += kept_bytes(entry);
                insert_copy(&mut states.present, key.hash, key.name, entry);
            }
            None => {
                self.bytes += key.name.len();
                drop(states.absent.insert(key.hash, key.name, NewValue::Int(0), None, 0));
            }
        }
        self.keys.push(ChangedKey {
            db,
            slot: key.slot,
            hash: key.hash,
            name: key.name.into(),
        });
    }

    /// Takes the changed keys, each with its former entry, or `None` if it did not exist.
    pub fn into_former_entries(self) -> impl Iterator<Item = (ChangedKey, Option<Removed<Value>>)> {
        let UndoLog { keys, mut former, .. } = self;
        keys.into_iter().map(move |key| {
            let states = former.iter_mut().find(|states| states.db == key.db);
            let entry = states.and_then(|states| states.present.remove(key.hash, &key.name));
            (key, entry)
        })
    }
}
