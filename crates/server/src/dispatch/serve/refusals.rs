//! The keys whose waiting clients could not be served, and the reasons.

use std::collections::{HashSet, VecDeque};

use weft_base::SlotIndex;

use crate::clients_waiting::blocking::{HeldUpWaiters, WaitQueueKind};
use crate::dispatch::paused_operations::PausedOperations;
use crate::keyspace::ready_keys::ReadyKey;
use crate::state::UnservedKey;

/// The reason for which a key cannot be served now.
pub(super) enum ServiceRefusal {
    /// One of these slots, all of which it needs, could not be leased.
    Slots(Vec<SlotIndex>),
    /// Clients are paused.
    Pause,
    /// The waiter is a call of a module.
    Module,
}

/// The queues of a key that could not be served, and the reason.
pub(super) struct RefusedQueues {
    pub(super) reason: ServiceRefusal,
    /// The queues; none if the slot of the key could not be leased.
    pub(super) queues: Vec<WaitQueueKind>,
}

/// The keys that could not be served.
#[derive(Default)]
pub(crate) struct RefusedKeys {
    /// Those for which a slot was refused.
    pub contended: VecDeque<UnservedKey>,
    /// Those that a pause holds back.
    pub paused: VecDeque<UnservedKey>,
    /// Those of `contended` whose next waiter is a call of a module.
    pub for_home: VecDeque<ReadyKey>,
    /// Those that were not served to the end because an operation was interrupted.
    pub interrupted: VecDeque<ReadyKey>,
    /// All of them.
    pub(super) keys: HashSet<ReadyKey>,
}

impl RefusedKeys {
    /// Adds a key. `paused` are the operations that a pause holds back.
    pub(super) fn add(
        &mut self,
        key: ReadyKey,
        refusal: ServiceRefusal,
        held_up: HeldUpWaiters,
        paused: PausedOperations,
    ) {
        let (keys, slots, awaits_writes) = match refusal {
            ServiceRefusal::Slots(slots) => (&mut self.contended, slots, false),
            // Unless reads are held back, too, the clients that only read have been served.
            ServiceRefusal::Pause => (&mut self.paused, vec![key.slot], !paused.reads),
            // The client that has made the key ready gets its reply once the module has got its own.
            ServiceRefusal::Module => {
                self.for_home.push_back(key.clone());
                (&mut self.contended, vec![key.slot], false)
            }
        };
        self.keys.insert(key.clone());
        keys.push_back(UnservedKey {
            key,
            slots,
            held_up,
            awaits_writes,
        });
    }
}
