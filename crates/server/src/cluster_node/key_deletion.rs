//! Deletes the keys of slots that this node does not own, outside of commands.
//!
//! Usually all keys of a slot are taken out at once, under its lease. While modules get events of that, the home worker
//! deletes one key after the other, each in a unit with what the modules do, as in Valkey.

use std::sync::Arc;
use std::time::Duration;

use weft_base::{SlotIndex, ThreadIndex};

use crate::keyspace::effects::{Effects, Hooks};
use crate::keyspace::slot_drop::{self, DeletionCause};
use crate::keyspace::{Exclusive, Seat, Slot, SlotHeader, SlotTable};
use crate::notify::messages::{MAX_FULL_MAILBOX_WAIT, NotificationSender, wait_for_full_mailbox, wake_workers};
use crate::state::{Message, Server, UnservedKeys};
use weft_cluster::slot_set::SlotSet;
use weft_config::id;
use weft_modules::module::keyspace_events::{classes, subscribed_classes};
use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::mpsc::sync_channel;
use weft_os::time::Instant;

/// The interval between two attempts to lease a slot.
const LEASE_RETRY_INTERVAL: Duration = Duration::from_micros(50);

/// Decides, while the slot is held, if its keys are deleted.
pub trait SlotCondition: Fn(&Server, SlotIndex, &SlotHeader) -> bool + Send + 'static {}

impl<F: Fn(&Server, SlotIndex, &SlotHeader) -> bool + Send + 'static> SlotCondition for F {}

/// The change of a slot's mark for an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportMark {
    /// No change.
    Keep,
    /// Set together with the deletion of the keys.
    Set,
    /// Cleared, also if no keys are deleted. A replica keeps it until its primary ends the import.
    Clear,
}

/// Deletes the keys of slots, beginning with the slot number `next_slot`, until `until`. A slot is not divided. Returns
/// `true` if all slots have been dealt with; otherwise the caller continues later, with the value that `next_slot` has
/// then.
pub fn delete_keys_of_slots(
    server: &Arc<Server>,
    seat: &mut Seat,
    slots: &SlotSet,
    next_slot: &mut usize,
    mark: ImportMark,
    until: Instant,
    should_delete: impl SlotCondition + Clone,
) -> bool {
    for slot in slots.iter_from(*next_slot) {
        // The way to this slot is not gone again, however short the time is.
        *next_slot = slot.index();
        if Instant::now() >= until {
            return false;
        }
        if delete_keys_of_slot(server, seat, slot, mark, until, should_delete.clone()).is_none() {
            return false;
        }
        *next_slot = slot.index() + 1;
    }
    true
}

/// Deletes all keys of a slot if `should_delete` returns `true` under the slot's lease, and propagates that. Returns
/// the number of deleted keys; `None` if the slot is in use until this time, for instance by a script.
pub fn delete_keys_of_slot(
    server: &Arc<Server>,
    seat: &mut Seat,
    slot: SlotIndex,
    mark: ImportMark,
    until: Instant,
    should_delete: impl SlotCondition,
) -> Option<u64> {
    if are_modules_concerned(server) {
        return delete_at_home(server, slot, mark, until, should_delete);
    }
    let thread_index = ThreadIndex::new(seat.index());
    let keyspace = &server.keyspace;
    let mut effects = Effects {
        log_writer: server.propagation.log_writer(),
        ..Effects::for_keyspace(keyspace)
    };
    let (tables, keys) = loop {
        let pass = seat.enter();
        if let Some(mut lease) = pass.write_spinning(slot.index()) {
            effects.hooks = keyspace.hooks.current();
            let (header, data) = lease.parts_mut();
            let deletes = should_delete(server, slot, header);
            let deleted = match deletes && header.may_hold_any() {
                false => (Vec::new(), 0),
                true => take_keys(server, thread_index, slot, data, &mut effects),
            };
            change_mark(server, header, mark, deletes);
            break deleted;
        }
        pass.announce_writer(slot.index());
        drop(pass);
        if Instant::now() >= until {
            return None;
        }
        weft_os::thread::sleep(LEASE_RETRY_INTERVAL);
    };
    DeletedKeys { tables, keys, effects }.finish(server, thread_index);
    Some(keys)
}

fn change_mark(server: &Server, header: &SlotHeader, mark: ImportMark, deletes: bool) {
    match mark {
        ImportMark::Set if deletes => header.set_importing(true),
        ImportMark::Clear if !server.replication.is_replica() => header.set_importing(false),
        ImportMark::Clear | ImportMark::Set | ImportMark::Keep => {}
    }
}

/// Returns `true` if modules get events when keys are deleted.
fn are_modules_concerned(server: &Server) -> bool {
    subscribed_classes() & classes::GENERIC != 0 || server.keyspace.hooks.current().contains(Hooks::REMOVED_KEYS)
}

/// Lets the home worker delete the keys of a slot. It is not waited for beyond `until`: it may be busy, and this thread
/// has to answer other nodes. As [`delete_keys_of_slot`].
fn delete_at_home(
    server: &Arc<Server>,
    slot: SlotIndex,
    mark: ImportMark,
    until: Instant,
    should_delete: impl SlotCondition,
) -> Option<u64> {
    let is_claimed = Arc::new(AtomicBool::new(false));
    let claim = is_claimed.clone();
    let (sender, result) = sync_channel(1);
    let of_job = server.clone();
    server.run_at_home(Box::new(move |home| {
        if claim.swap(true, Ordering::AcqRel) {
            return;
        }
        let header = of_job.keyspace.slots.header(slot.index());
        let deletes = should_delete(&of_job, slot, header);
        let (keys, is_done) = match deletes && header.may_hold_any() {
            true => home.delete_keys_of_slot(slot, until),
            false => (0, true),
        };
        if is_done {
            change_mark(&of_job, header, mark, deletes);
        }
        // The thread that has sent this job waits.
        let _ = sender.send(is_done.then_some(keys));
    }));
    match result.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(keys) => keys,
        // It has not begun, and will not.
        Err(_) if !is_claimed.swap(true, Ordering::AcqRel) => None,
        // It ends in time. Otherwise the server ends.
        Err(_) => result.recv().ok().flatten(),
    }
}

/// Takes all keys out of a slot, and propagates that.
fn take_keys(
    server: &Arc<Server>,
    thread_index: ThreadIndex,
    slot: SlotIndex,
    data: &mut Slot,
    effects: &mut Effects,
) -> (Vec<SlotTable>, u64) {
    let (tables, databases, keys) = slot_drop::take_all_keys(
        &server.keyspace,
        thread_index,
        slot,
        server.keyspace.slots.header(slot.index()),
        data,
        DeletionCause::SlotOfOtherNode,
        effects,
    );
    let is_lazy = server.config.boolean(id::LAZYFREE_LAZY_SERVER_DEL);
    slot_drop::log_deletions(effects, &tables, &databases, is_lazy);
    effects.log_writer.commit();
    NotificationSender::new(server, effects, thread_index).send_recorded_effects(None);
    (tables, keys)
}

/// Keys that were deleted. The rest of the work follows after the leases or the exclusive mode have ended.
#[must_use]
pub struct DeletedKeys {
    tables: Vec<SlotTable>,
    keys: u64,
    effects: Effects,
}

impl DeletedKeys {
    /// Returns the number of keys.
    pub fn count(&self) -> u64 {
        self.keys
    }

    /// Frees the keys, and notifies clients.
    pub fn finish(mut self, server: &Arc<Server>, thread_index: ThreadIndex) {
        let effects = &mut self.effects;
        if !effects.ready.is_empty() {
            let ready = std::mem::take(&mut effects.ready).into();
            server
                .worker(ThreadIndex::FIRST)
                .send(Message::ServeWaiters(UnservedKeys::new(ready)));
        }
        let objects = self.tables.iter().map(|table| table.len() as u64).sum();
        if objects > 0 {
            server.background.lazyfree.free(objects, 0, Box::new(self.tables));
        }
        NotificationSender::new(server, effects, thread_index).send_broadcasts();
        wake_workers(server, effects);
        wait_for_full_mailbox(server, effects, MAX_FULL_MAILBOX_WAIT);
    }
}

/// Deletes all keys of slots in exclusive mode, and propagates that.
pub fn delete_keys_exclusively(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    slots: impl Iterator<Item = SlotIndex>,
) -> DeletedKeys {
    let keyspace = &server.keyspace;
    let mut deleted = DeletedKeys {
        tables: Vec::new(),
        keys: 0,
        effects: Effects {
            log_writer: server.propagation.log_writer(),
            ..Effects::for_keyspace(keyspace)
        },
    };
    deleted.effects.hooks = keyspace.hooks.current();
    for slot in slots.filter(|slot| keyspace.slots.header(slot.index()).may_hold_any()) {
        let data = all.cell_mut(slot.index());
        let (tables, keys) = take_keys(server, thread_index, slot, data, &mut deleted.effects);
        deleted.tables.extend(tables);
        deleted.keys += keys;
    }
    deleted
}

#[cfg(test)]
mod tests;
