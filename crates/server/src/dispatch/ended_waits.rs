//! Removes the waiters whose wait has ended from the queues of their keys.

use std::sync::Arc;

use crate::clients_waiting::blocking::Waiter;
use crate::keyspace::Seat;
use crate::state::Server;

use super::leases::visit_free_slots;

/// A waiter whose wait has ended, in the queues of one of its keys.
pub struct EndedWait {
    waiter: Arc<Waiter>,
    /// The index of the key.
    key: usize,
}

impl EndedWait {
    /// Returns a value for each key of a waiter.
    pub fn of_all_keys(waiter: &Arc<Waiter>) -> impl Iterator<Item = EndedWait> {
        let waiter = waiter.clone();
        (0..waiter.keys.len()).map(move |key| EndedWait {
            waiter: waiter.clone(),
            key,
        })
    }
}

/// Removes waiters whose wait has ended from the queues of their keys. Those in slots that other threads have leased,
/// or beyond the number handled in one turn, stay in `ended_waits` for another attempt.
pub fn remove_ended_waits(seat: &mut Seat, server: &Server, ended_waits: &mut Vec<EndedWait>) {
    visit_free_slots(
        seat,
        ended_waits,
        |ended| ended.waiter.keys[ended.key].slot,
        |ended, lease| {
            // Checked first, so that a slot without waiters stays small.
            if lease.blocked().is_some() {
                let key = &ended.waiter.keys[ended.key];
                lease.change_blocked(key.hash, |waiting| {
                    waiting.remove_waiter(&key.name, &ended.waiter, &server.clients.blocked)
                });
            }
        },
    );
}
