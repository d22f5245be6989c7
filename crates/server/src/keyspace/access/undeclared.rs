//! Reads of keys that are in no plan, because their names come from the data, such as the keys of SORT's patterns.
//!
//! The command runs under the leases of its declared keys. While it runs it takes one more read lease for every further
//! slot that it accesses. It keeps them all until it ends. So it sees one state of the keyspace, as if all leases had
//! been taken at the start.
//!
//! ```text
//!   planned leases     slot 7 (list)   slot 90 (destination)
//!   while it runs      slot 12 -> 3 -> 7 (already held) -> 51 -> 12 (again) -> 300, leased by a writer
//!                                                                                   |
//!                      all leases are released, nothing has changed <---------------+
//!                      the command is deferred and starts over
//! ```
//!
//! 1. A further lease is only tried, never waited for while other leases are held. So there is no deadlock, in any
//!    order of slots. If the lease is refused, the command starts over, as it does for planned leases.
//! 2. So such a command reads everything that it has to read before it changes anything.
//! 3. A slot that the plan leased is read under that lease, which may be a reader's or a writer's.
//! 4. A command that holds the whole keyspace needs no further leases and never starts over.
//! 5. A command that changes something keeps the further leases until it has its position in the propagation log. A
//!    change of a key that it has read gets a later position, as with planned leases.

use std::cell::Cell;
use std::collections::HashMap;

use weft_base::SlotIndex;
use weft_table::EntryRef;
use weft_values::Value;

use super::{HeldLeases, Keys, LookupStatistics, is_expired};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{GatePassage, ReadLease};

/// The average number of refusals after which a writer's announcement is considered abandoned if the slot is free. The
/// command starts over after each refusal and does not know how often it has done so.
const REFUSALS_PER_ABANDONED_ANNOUNCEMENT: u32 = 16;

/// The leases that a command took while it ran.
pub struct FurtherLeases<'a, 'p> {
    pass: Option<&'a GatePassage<'p>>,
    leases: HashMap<SlotIndex, ReadLease<'a>, ahash::RandomState>,
    /// `true` once a key that was read has expired and still exists.
    has_met_expired: Cell<bool>,
}

/// This slot was leased by another thread. The command starts over later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contended(pub SlotIndex);

impl<'a, 'p> FurtherLeases<'a, 'p> {
    /// Creates an empty set of leases. `pass` is the passage through the gate, if the command needs one.
    pub fn new(pass: Option<&'a GatePassage<'p>>) -> Self {
        FurtherLeases {
            pass,
            leases: HashMap::default(),
            has_met_expired: Cell::new(false),
        }
    }

    /// Returns `true` if a key that was read had expired and still exists. A replica that repeated the command from the
    /// log would find that key.
    pub fn has_met_expired(&self) -> bool {
        self.has_met_expired.get()
    }

    /// Takes the lease of a slot if it is not held yet.
    fn take_lease(&mut self, slot: SlotIndex) -> Result<(), Contended> {
        use std::collections::hash_map::Entry;
        if let Entry::Vacant(free) = self.leases.entry(slot) {
            let pass = self.pass.ok_or(Contended(slot))?;
            let Some(lease) = pass.read_spinning(slot.index()) else {
                if fastrand::u32(..REFUSALS_PER_ABANDONED_ANNOUNCEMENT) == 0 {
                    pass.end_announcement(slot.index());
                }
                return Err(Contended(slot));
            };
            free.insert(lease);
        }
        Ok(())
    }
}

impl Keys<'_, '_> {
    /// The entry of a key that is not in the plan, for reading; `None` if it is missing or expired.
    ///
    /// # Errors
    /// [`Contended`] if its slot cannot be leased now.
    pub fn read_undeclared<'k>(
        &'k mut self,
        further: &'k mut FurtherLeases<'_, '_>,
        hash: u64,
        name: &[u8],
    ) -> Result<Option<EntryRef<'k, Value>>, Contended> {
        let unnamed = PlannedKey::unnamed(hash);
        let key = PlannedKey {
            lease: self.lease_index(unnamed.slot),
            ..unnamed
        };
        let is_held = key.lease != u32::MAX || matches!(self.held, HeldLeases::Exclusive(_));
        if !is_held {
            further.take_lease(key.slot)?;
        }
        let further = &*further;
        let slot = match is_held {
            true => self.held.slot(&key),
            false => further.leases.get(&key.slot).map(|lease| &**lease),
        };
        let found = slot
            .and_then(|slot| slot.table(self.db))
            .and_then(|table| table.find(hash, name));
        let expire_at_ms = found.and_then(|entry| entry.expire_at_ms());
        if is_expired(expire_at_ms, self.context.now_ms) {
            further.has_met_expired.set(true);
        }
        Ok(super::visible_entry(
            found,
            &self.context,
            self.effects,
            LookupStatistics::Yes,
            self.db,
            &key,
            name,
        ))
    }

    /// The index of the lease of a slot if it is held already; `u32::MAX` if it is not.
    fn lease_index(&self, slot: SlotIndex) -> u32 {
        match &self.held {
            // A transaction holds more than the command's own slots.
            HeldLeases::Many(leases) => leases
                .binary_search_by_key(&slot.index(), super::Lease::cell)
                .map_or(u32::MAX, |index| index as u32),
            HeldLeases::One(lease) if lease.cell() == slot.index() => 0,
            HeldLeases::Script(leases) => leases.index_of(slot).unwrap_or(u32::MAX),
            HeldLeases::One(_) | HeldLeases::Nothing | HeldLeases::Exclusive(_) | HeldLeases::Private(_) => u32::MAX,
        }
    }
}
