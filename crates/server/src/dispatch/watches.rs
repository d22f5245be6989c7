//! The watches of transactions in the slots of their keys: checked by EXEC, removed after it.

use std::sync::Arc;

use crate::clients_waiting::watch::{Watch, Watches};
use crate::keyspace::Seat;
use crate::keyspace::access::{HeldLeases, is_expired};
use crate::keyspace::key_identity::PlannedKey;
use crate::state::Server;

use super::leases::visit_free_slots;

/// Removes watches from their slots. Those in slots that other threads have leased, or beyond the number handled in one
/// turn, stay for another attempt.
pub fn remove_watches(seat: &mut Seat, server: &Server, ended_watches: &mut Vec<Arc<Watch>>) {
    visit_free_slots(
        seat,
        ended_watches,
        |watch| watch.slot,
        |watch, lease| {
            lease.change_watching(watch.hash, |watching| watching.remove(watch, &server.clients.watched));
        },
    );
}

/// Returns the key of a watch as one to be leased.
pub(super) fn planned_key_of_watch(watch: &Watch) -> PlannedKey {
    PlannedKey {
        // For writing, to remove the watch.
        is_write: true,
        ..PlannedKey::unnamed(watch.hash)
    }
}

/// Returns `true` if a watched key has expired since its watch began. A deleted key has marked the watch.
pub(super) fn has_expired_watch(watches: &Watches, held: &mut HeldLeases<'_, '_>, now_ms: u64) -> bool {
    watches.keys.iter().any(|watch| {
        let slot = held.writable_slot(watch.slot).map(|(_, slot)| slot);
        let entry = slot
            .as_deref()
            .and_then(|slot| slot.table(watch.db)?.find(watch.hash, &watch.name));
        !watch.was_expired_at_watch() && entry.is_some_and(|entry| is_expired(entry.expire_at_ms(), now_ms))
    })
}

/// Removes the watches of a client whose slots are leased.
pub(super) fn remove_own_watches(watches: &Watches, held: &mut HeldLeases<'_, '_>, server: &Server) {
    for watch in &watches.keys {
        if let Some((_, slot)) = held.writable_slot(watch.slot) {
            slot.change_watching(watch.hash, |watching| watching.remove(watch, &server.clients.watched));
        }
    }
}
