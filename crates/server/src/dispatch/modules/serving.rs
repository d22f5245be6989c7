//! Serves the clients that wait for keys, and lets modules have the keyspace events of each operation within its unit.
//!
//! An operation that was performed is interrupted before it has its record in the log ([`InterruptedOperation`]).
//! Modules get its events, and serving goes on with the operation. This happens in exclusive mode, as all that causes
//! events.

use std::collections::VecDeque;

use weft_base::ClientId;
use weft_base::clock::unix_ms;

use super::key_events::with_session;
use super::{ModuleSession, client_without_connection};
use crate::dispatch::paused_operations::PausedOperations;
use crate::dispatch::serve::{
    self, InterruptedOperation, ModuleService, RefusedKeys, ServedEvents, ServingContext, contended_keys,
};
use crate::dispatch::thread::ThreadState;
use crate::keyspace::access::{AccessContext, HeldLeases};
use crate::keyspace::effects::Hooks;
use crate::keyspace::ready_keys::ReadyKey;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::client::Client;
use crate::state::UnservedKeys;

/// Ends a unit as [`serve::serve_unit`] does. Modules get the events of the clients that are served.
pub fn serve_unit<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    mut held: HeldLeases<'_, 'p>,
    client: &mut Client,
) -> Option<Box<UnservedKeys>> {
    let unserved = match thread.effects.hooks.intersects(Hooks::MODULE_EVENTS) {
        true => with_session(thread, held.reborrow(), client, None, |session| {
            session.serve_ready_keys()
        })
        .flatten(),
        false => None,
    };
    let others = serve::serve_unit(thread, pass, held, client);
    unserved.or(others)
}

/// Serves the clients that wait for keys that a command has made ready. It was admitted before a pause that may have
/// begun meanwhile.
pub fn serve_after_command(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    client: &mut Client,
) -> Option<Box<UnservedKeys>> {
    if thread.effects.ready.is_empty() {
        return None;
    }
    let paused = PausedOperations::default();
    let held = HeldLeases::Exclusive(all);
    with_session(thread, held, client, None, |session| {
        session.serve_keys_that_are_ready(paused)
    })
    .flatten()
}

impl ModuleSession<'_, '_> {
    /// Serves the clients that wait for ready keys, if modules get events. The unit may have begun a pause.
    pub(super) fn serve_ready_keys(&mut self) -> Option<Box<UnservedKeys>> {
        let has_events = self.thread.effects.hooks.intersects(Hooks::MODULE_EVENTS);
        if !has_events || self.thread.effects.ready.is_empty() || !self.access.is_exclusive() {
            return None;
        }
        self.thread.effects.log_writer.end_measured_unit();
        let paused = PausedOperations::current(&self.thread.server);
        self.serve_keys_that_are_ready(paused)
    }

    fn serve_keys_that_are_ready(&mut self, paused: PausedOperations) -> Option<Box<UnservedKeys>> {
        let mut keys = VecDeque::from(std::mem::take(&mut self.thread.effects.ready));
        let (mut interrupted, mut contended) = (None, VecDeque::new());
        loop {
            let service = ModuleService::Refused;
            let (mut refused, _, operation) = self.serve_until_event(keys, interrupted, service, paused);
            if !refused.for_home.is_empty() {
                let calls = std::mem::take(&mut refused.for_home);
                self.thread.server.serve_module_calls_at_home(calls);
            }
            contended.append(&mut refused.contended);
            self.keep_paused_keys(&mut refused);
            if operation.is_some() {
                self.deliver_events_of_operation();
                (keys, interrupted) = (refused.interrupted, operation);
                continue;
            }
            // Modules may have made further keys ready.
            (keys, interrupted) = (std::mem::take(&mut self.thread.effects.ready).into(), None);
            if keys.is_empty() {
                return contended_keys(contended);
            }
        }
    }

    /// Keeps keys that a pause holds back. The client gets its reply before the pause ends.
    pub(super) fn keep_paused_keys(&mut self, refused: &mut RefusedKeys) {
        if !refused.paused.is_empty() {
            self.thread.unserved.push(UnservedKeys {
                keys: std::mem::take(&mut refused.paused),
                failures: 0,
            });
        }
    }

    /// Lets modules have the events of the operation of a waiting client. They cannot block that client.
    pub(super) fn deliver_events_of_operation(&mut self) {
        let mut client = client_without_connection(self.thread.thread_index, self.thread.now_ms);
        self.reborrow_for(&mut client).deliver_events_of_call();
    }

    /// Serves waiters of keys until an operation has caused events that modules get. Returns the keys that could not be
    /// served, what has become of the service of module calls, and the interrupted operation.
    pub(super) fn serve_until_event(
        &mut self,
        keys: VecDeque<ReadyKey>,
        interrupted: Option<InterruptedOperation>,
        module_service: ModuleService,
        paused: PausedOperations,
    ) -> (RefusedKeys, ModuleService, Option<InterruptedOperation>) {
        let thread = &mut *self.thread;
        let delivers = thread.effects.hooks.intersects(Hooks::MODULE_EVENTS) && thread.can_call_modules();
        let mut further_leases = Vec::new();
        let access = AccessContext {
            // The command may have taken long. The settings of its client do not apply to waiting clients.
            now_ms: unix_ms(),
            clock: &thread.clock,
            counts: &thread.server.keyspace.counts,
            thread_index: thread.thread_index,
            should_touch: true,
        };
        let (effects, served) = (&mut thread.effects, &mut thread.served);
        let (held, further) = (&mut self.access.as_held_leases(), &mut further_leases);
        let mut service = ServingContext {
            changed_by: Some(self.client.id).filter(|id| *id != ClientId::new(0)),
            paused,
            module_service,
            key_events: match delivers {
                true => ServedEvents::Interrupt(interrupted),
                false => ServedEvents::Sent,
            },
            ..ServingContext::new(held, self.pass, access, effects, &thread.server, served, further)
        };
        let refused = serve::serve_keys(keys, &mut service);
        let operation = match service.key_events {
            ServedEvents::Interrupt(operation) => operation,
            ServedEvents::Sent => None,
        };
        (refused, service.module_service, operation)
    }
}
