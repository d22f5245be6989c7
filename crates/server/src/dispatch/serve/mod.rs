//! Serves the clients that are blocked on keys: after a command's own effects and before its leases end.
//!
//! [`crate::clients_waiting::blocking`] has the rules. A command's record of effects names the keys that became ready,
//! and each is examined in turn. Serving may make further keys ready (the destination of a BLMOVE). They go to the end
//! of the same list, so that chains of any length need no stack.
//!
//! ```text
//!   run: leases ─▶ handler ─▶ ready keys ─▶ serve ──▶ leases end ─▶ mail
//!                                             │
//!                                             └─▶ another thread leases a slot: UnservedKeys, which
//!                                                 the worker tries again in its next turns (`unserved`)
//! ```
//!
//! Serving leases further slots: those of destinations, and of keys that become ready on the way. No lease ends before
//! the unit has its sequence number in the log. Otherwise another thread could change such a slot and be logged first,
//! and replicas would repeat the two changes in the wrong order.

mod refusals;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, DbIndex, LogSequence, ParkId, SlotIndex};
use weft_resp::{Args, Protocol, Reply};
use weft_table::EntryRef;
use weft_values::Value;

use crate::clients_waiting::blocking::{
    HeldUpWaiters, ServeResult, WaitKey, WaitQueueKind, WaitedKind, Waiter, WaiterRefusal,
};
use crate::commands::blocked::WaiterKeyAccess;
use crate::commands::error::CommandError;
use crate::commands::perform_blocked;
use crate::commands::permission::{self, WaiterDenial};
use crate::keyspace::access::{AccessContext, HeldLeases, KeyWrite, Keys, is_expired, read_entry};
use crate::keyspace::effects::{ClientNotification, Effects};
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::ready_keys::{ReadyKey, blocking_kind_of};
use crate::keyspace::{GatePassage, Slot, SlotHeader, WriteLease};
use crate::net::client::Client;
use crate::notify::messages::{NotificationSender, wake_workers};
use crate::observability::metrics::Counter;
use crate::state::permit::HeldPermit;
use crate::state::{BlockedClientEvent, Message, Server, UnservedKey, UnservedKeys};
use weft_config::Config;
use weft_os::time::Instant;

pub(super) use refusals::RefusedKeys;
use refusals::{RefusedQueues, ServiceRefusal};

use super::admit;
use super::execution_order;
use super::notifications::{FORGOTTEN_KEYS_PER_TRACKED_KEY, send_early_broadcasts};
use super::paused_operations::PausedOperations;
use super::propagate;
use super::thread::{LeasedCall, ThreadState};

/// The maximum number of slots leased in addition to those of the command. The rest of a chain over more slots is
/// served later: other commands may run in between.
const MAX_FURTHER_SLOTS: usize = 16;

/// The context of serving: the leases of a command, and further leases taken on the way.
pub(super) struct ServingContext<'s, 'h, 'p> {
    /// The command's leases.
    pub held: &'s mut HeldLeases<'h, 'p>,
    /// The passage of the gate; `None` in exclusive mode, which holds all slots.
    pub pass: Option<&'p GatePassage<'p>>,
    /// The time, clock and counters.
    pub access: AccessContext<'s>,
    /// The record of effects.
    pub effects: &'s mut Effects,
    /// The client whose command made the keys ready, if any.
    pub changed_by: Option<ClientId>,
    /// The server.
    pub server: &'s Arc<Server>,
    /// The waiters that were served.
    pub served_waiters: &'s mut Vec<(Arc<Waiter>, ServeResult)>,
    /// The leases of further slots. They end after the unit is logged.
    pub further_leases: &'s mut Vec<WriteLease<'p>>,
    /// The slots that were refused in this passage of the gate. They are not attempted again.
    pub refused_slots: HashSet<SlotIndex>,
    /// The permit to serve clients that wait for keys in several slots, once it was needed.
    pub multi_slot_permit: Option<HeldPermit<'s>>,
    /// The number of times that serving these keys was put off.
    pub failures: u32,
    /// The operations that a pause holds back.
    pub paused: PausedOperations,
    /// The service of calls of modules.
    pub module_service: ModuleService,
    /// How the events of operations reach modules.
    pub key_events: ServedEvents,
}

impl<'s, 'h, 'p> ServingContext<'s, 'h, 'p> {
    /// Creates the context of a first attempt that no command has caused, and that serves no calls of modules.
    pub fn new(
        held: &'s mut HeldLeases<'h, 'p>,
        pass: Option<&'p GatePassage<'p>>,
        access: AccessContext<'s>,
        effects: &'s mut Effects,
        server: &'s Arc<Server>,
        served_waiters: &'s mut Vec<(Arc<Waiter>, ServeResult)>,
        further_leases: &'s mut Vec<WriteLease<'p>>,
    ) -> ServingContext<'s, 'h, 'p> {
        ServingContext {
            held,
            pass,
            access,
            effects,
            changed_by: None,
            server,
            served_waiters,
            further_leases,
            refused_slots: HashSet::new(),
            multi_slot_permit: None,
            failures: 0,
            paused: PausedOperations::default(),
            module_service: ModuleService::Refused,
            key_events: ServedEvents::Sent,
        }
    }
}

/// How the keyspace events of the operations of waiting clients reach modules.
#[derive(Default)]
pub(super) enum ServedEvents {
    /// As notifications, like those of other clients.
    #[default]
    Sent,
    /// Serving stops after an operation that has caused events. The caller lets modules have them, and goes on with the
    /// interrupted operation.
    Interrupt(Option<InterruptedOperation>),
}

/// An operation that was performed, and has no record in the log yet: modules get its events before.
pub(super) struct InterruptedOperation {
    waiter: Arc<Waiter>,
    reply: Vec<u8>,
    error: Option<CommandError>,
    /// The number of changes before it.
    dirty: u64,
    start: Instant,
}

/// The service of waiters that are calls of modules. The home worker serves one of them at a time, in exclusive mode:
/// the module learns of the reply before the unit ends.
pub(super) enum ModuleService {
    /// This thread does not serve them.
    Refused,
    /// The first one is served.
    One,
    /// This one was served, with this reply. Nothing else is served any more.
    Ended(Arc<Waiter>, Vec<u8>),
}

/// The refusal of a waiter's command.
enum CommandRefusal {
    /// The client gets no reply, because it is about to be disconnected: its user was deleted.
    Silent,
    /// The client gets this error.
    Error(CommandError, WaiterRefusal),
}

struct WaiterService<'w, 's, 'h, 'p> {
    context: &'w mut ServingContext<'s, 'h, 'p>,
}

/// Serves the clients that wait for keys that a command of client `changed_by` made ready, under the command's leases.
/// Adds the leases of further slots to `further_leases`, which must outlive [`propagate::commit_unit`].
#[cold]
pub fn serve_blocked_clients<'p>(
    keys: &mut Keys<'_, 'p>,
    pass: Option<&'p GatePassage<'p>>,
    changed_by: ClientId,
    server: &Arc<Server>,
    served_waiters: &mut Vec<(Arc<Waiter>, ServeResult)>,
    further_leases: &mut Vec<WriteLease<'p>>,
) -> Option<Box<UnservedKeys>> {
    // The command was admitted before a pause that may have begun meanwhile.
    let paused = PausedOperations::default();
    let refused = serve_ready_keys(keys, pass, changed_by, server, served_waiters, further_leases, paused);
    contended_keys(refused.contended)
}

/// Like [`serve_blocked_clients`], except for the operations that a pause holds back.
fn serve_ready_keys<'p>(
    keys: &mut Keys<'_, 'p>,
    pass: Option<&'p GatePassage<'p>>,
    changed_by: ClientId,
    server: &Arc<Server>,
    served_waiters: &mut Vec<(Arc<Waiter>, ServeResult)>,
    further_leases: &mut Vec<WriteLease<'p>>,
    paused: PausedOperations,
) -> RefusedKeys {
    let ready = std::mem::take(&mut keys.effects.ready);
    let access = AccessContext {
        // The command may have taken long. The settings of its client do not apply to waiting clients.
        now_ms: unix_ms(),
        should_touch: true,
        ..keys.context
    };
    let (held, effects) = (&mut keys.held, &mut *keys.effects);
    let mut service = ServingContext {
        changed_by: Some(changed_by),
        paused,
        ..ServingContext::new(held, pass, access, effects, server, served_waiters, further_leases)
    };
    let mut refused = serve_keys(ready.into(), &mut service);
    if !refused.for_home.is_empty() {
        server.serve_module_calls_at_home(std::mem::take(&mut refused.for_home));
    }
    refused
}

pub(super) fn contended_keys(keys: VecDeque<UnservedKey>) -> Option<Box<UnservedKeys>> {
    (!keys.is_empty()).then(|| Box::new(UnservedKeys { keys, failures: 0 }))
}

/// Serves the clients that wait for these keys. Returns the keys that could not be served. A key that is refused delays
/// no other key.
pub(super) fn serve_keys(mut ready: VecDeque<ReadyKey>, context: &mut ServingContext<'_, '_, '_>) -> RefusedKeys {
    let mut refused = RefusedKeys::default();
    let paused = context.paused;
    let mut serving = WaiterService { context };
    if let ServedEvents::Interrupt(interrupted) = &mut serving.context.key_events
        && let Some(operation) = interrupted.take()
    {
        serving.end_operation(operation);
    }
    while let Some(key) = ready.pop_front() {
        // Several commands of a unit may have listed the key. The reason for its refusal lasts until the unit ends.
        if refused.keys.contains(&key) {
            continue;
        }
        let result = serving.serve_key(&key);
        let effects = &mut *serving.context.effects;
        // A key that became ready again on the way has been served to the end, or is refused.
        ready.extend(effects.ready.drain(..).filter(|other| *other != key));
        if serving.is_interrupted() {
            ready.push_front(key);
            refused.interrupted = ready;
            return refused;
        }
        if let Err(RefusedQueues { reason, queues }) = result {
            let held_up = HeldUpWaiters::new(serving.waiters_in(&key, &queues));
            refused.add(key, reason, held_up, paused);
        }
    }
    refused
}

impl<'p> WaiterService<'_, '_, '_, 'p> {
    fn slot_mut(&mut self, slot: SlotIndex) -> Option<(&SlotHeader, &mut Slot)> {
        let ServingContext {
            held, further_leases, ..
        } = &mut *self.context;
        find_held_slot(held, further_leases, slot)
    }

    fn holds_slot(&mut self, slot: SlotIndex) -> bool {
        self.slot_mut(slot).is_some()
    }

    /// Ensures that a slot is leased. The lease of `kept_slot` is kept.
    fn ensure_leased(&mut self, slot: SlotIndex, kept_slot: SlotIndex) -> Result<(), ServiceRefusal> {
        if self.holds_slot(slot) {
            return Ok(());
        }
        let refusal = || ServiceRefusal::Slots(vec![kept_slot, slot]);
        let is_full = self.context.further_leases.len() >= MAX_FURTHER_SLOTS;
        let may_attempt = !is_full && !self.context.refused_slots.contains(&slot);
        let Some(pass) = self.context.pass.filter(|_| may_attempt) else {
            return Err(refusal());
        };
        let Some(lease) = pass.write_spinning(slot.index()) else {
            self.context.refused_slots.insert(slot);
            return Err(refusal());
        };
        self.context.further_leases.push(lease);
        debug_assert!(self.holds_slot(slot), "a further slot is held");
        Ok(())
    }

    /// Serves all clients that can be served from one key. A queue that is refused delays no other queue.
    fn serve_key(&mut self, key: &ReadyKey) -> Result<(), RefusedQueues> {
        let refused_for = |reason| RefusedQueues {
            reason,
            queues: Vec::new(),
        };
        if matches!(self.context.module_service, ModuleService::Ended(..)) {
            return Err(refused_for(ServiceRefusal::Module));
        }
        self.ensure_leased(key.slot, key.slot).map_err(refused_for)?;
        let kind = self.value_kind(key.db, key.slot, key.hash, &key.name);
        let mut refused: Option<RefusedQueues> = None;
        for line in self.matching_lines(key, kind) {
            if line.is_of_modules() {
                if key.reaches_modules {
                    let event = BlockedClientEvent::KeyReady(key.clone());
                    self.context.server.handle_blocked_client_at_home(event);
                }
                continue;
            }
            let served = match self.context.paused.includes(&line) {
                true => Err(ServiceRefusal::Pause),
                false => self.serve_queue(key, &line),
            };
            if self.is_interrupted() {
                return Ok(());
            }
            if let Err(reason) = served {
                refused.get_or_insert_with(|| refused_for(reason)).queues.push(line);
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn value_kind(&mut self, db: DbIndex, slot: SlotIndex, hash: u64, name: &[u8]) -> WaitedKind {
        let now_ms = self.context.access.now_ms;
        let table = self.slot_mut(slot).and_then(|(_, slot)| slot.table(db));
        let entry = table.and_then(|table| table.find(hash, name));
        blocking_kind_of(entry.filter(|entry| !is_expired(entry.expire_at_ms(), now_ms)))
    }

    fn matching_lines(&mut self, key: &ReadyKey, kind: WaitedKind) -> Vec<WaitQueueKind> {
        self.slot_mut(key.slot)
            .and_then(|(_, slot)| slot.blocked())
            .map_or(Vec::new(), |waiting| waiting.affected_queues(key.db, &key.name, kind))
    }

    /// Returns the waiters in these queues of a key.
    fn waiters_in(&mut self, key: &ReadyKey, queues: &[WaitQueueKind]) -> Vec<Arc<Waiter>> {
        let mut found = Vec::new();
        let Some(waiting) = self.slot_mut(key.slot).and_then(|(_, slot)| slot.blocked()) else {
            return found;
        };
        for line in queues {
            let mut behind = ParkId::NONE;
            while let Some(waiter) = waiting.next_waiter(key.db, &key.name, line, behind) {
                behind = waiter.park_id;
                found.push(waiter.clone());
            }
        }
        found
    }

    /// Serves one queue of a key in the order of arrival, as long as the key has data for the first client.
    fn serve_queue(&mut self, key: &ReadyKey, line: &WaitQueueKind) -> Result<(), ServiceRefusal> {
        let mut behind = ParkId::NONE;
        loop {
            let kind = self.value_kind(key.db, key.slot, key.hash, &key.name);
            if !line.matches_kind(kind) {
                return Ok(());
            }
            debug_assert!(
                self.holds_slot(key.slot),
                "the queues of a key are read under the lease of its slot"
            );
            let waiter = self
                .slot_mut(key.slot)
                .and_then(|(_, slot)| slot.blocked())
                .and_then(|waiting| waiting.next_waiter(key.db, &key.name, line, behind))
                .cloned();
            let Some(waiter) = waiter else {
                return Ok(());
            };
            debug_assert!(waiter.park_id > behind, "a queue is served in the order of arrival");
            // This server has begun to follow a primary since the wait began, or a transaction has killed the client. A
            // message in transit ends the wait.
            let server = self.context.server;
            if waiter.is_claimed()
                || waiter.is_ended_by_demotion(server.replication.demotions())
                || server.clients.directory.is_killed(waiter.client)
            {
                self.remove_waiter(&waiter, key);
                continue;
            }
            if let Some(refusal) = self.refusal_of(&waiter) {
                self.check_module_service(&waiter)?;
                self.remove_waiter(&waiter, key);
                if waiter.try_claim() {
                    self.refuse_waiter(&waiter, refusal);
                }
                continue;
            }
            let target = self.first_ready(&waiter, key, line);
            if let Some(destination) = waiter.operation.destination() {
                self.ensure_leased(destination.slot, key.slot)?;
            }
            if !perform_blocked::can_perform(&waiter, target, self) {
                if matches!(line, WaitQueueKind::Stream) {
                    // A later client may wait for less.
                    behind = waiter.park_id;
                    continue;
                }
                return Ok(());
            }
            self.check_module_service(&waiter)?;
            self.take_multi_slot_permit(&waiter, key)?;
            self.remove_waiter(&waiter, key);
            if waiter.try_claim() {
                match waiter.is_module_call {
                    true => self.perform_module_call(&waiter, target),
                    false => self.perform_operation(&waiter, target),
                }
                if self.is_interrupted() {
                    return Ok(());
                }
            }
        }
    }

    /// Takes the permit to serve a client that waits for keys in several slots, unless this thread has it.
    ///
    /// Threads that serve the queues of different keys may meet the same clients. If one of them served a client that
    /// the other one has passed over, and the other one a client before it, no order of their commands would explain
    /// the replies. So one of them serves all its clients first.
    fn take_multi_slot_permit(&mut self, waiter: &Waiter, key: &ReadyKey) -> Result<(), ServiceRefusal> {
        let context = &mut *self.context;
        if context.pass.is_none() || context.multi_slot_permit.is_some() || !waiter.spans_slots() {
            return Ok(());
        }
        let AccessContext {
            thread_index, now_ms, ..
        } = context.access;
        let permit = &context.server.clients.multi_slot_service;
        context.multi_slot_permit = permit.try_take(thread_index, context.failures, now_ms);
        match context.multi_slot_permit {
            Some(_) => Ok(()),
            None => Err(ServiceRefusal::Slots(vec![key.slot])),
        }
    }

    /// Returns the first key of a waiter, in the waiter's order, that is ready. A command, a transaction or a script
    /// may have made several of them ready. A key that is not held became ready through another thread.
    fn first_ready<'w>(&mut self, waiter: &'w Waiter, key: &ReadyKey, line: &WaitQueueKind) -> &'w WaitKey {
        let at = waiter.keys.iter().position(|named| {
            let this = named.hash == key.hash && named.name == key.name;
            this || (self.holds_slot(named.slot)
                && line.matches_kind(self.value_kind(key.db, named.slot, named.hash, &named.name)))
        });
        &waiter.keys[at.unwrap_or(0)]
    }

    fn remove_waiter(&mut self, waiter: &Waiter, key: &ReadyKey) {
        let server = self.context.server;
        if let Some((_, slot)) = self.slot_mut(key.slot) {
            slot.change_blocked(key.hash, |waiting| {
                waiting.remove_waiter(&key.name, waiter, &server.clients.blocked)
            });
        }
    }

    /// Checks that this thread may serve a waiter.
    fn check_module_service(&self, waiter: &Waiter) -> Result<(), ServiceRefusal> {
        match self.context.module_service {
            ModuleService::Ended(..) => Err(ServiceRefusal::Module),
            ModuleService::Refused if waiter.is_module_call => Err(ServiceRefusal::Module),
            ModuleService::Refused | ModuleService::One => Ok(()),
        }
    }

    /// Performs the operation of a claimed waiter that is a call of a module. The unit does not end with it.
    fn perform_module_call(&mut self, waiter: &Arc<Waiter>, key: &WaitKey) {
        let mut bytes = Vec::new();
        let mut reply = Reply::new(&mut bytes, waiter.protocol);
        let dirty = self.context.effects.dirty;
        let is_muted = !self.context.server.modules.calls.is_propagated(waiter.park_id);
        self.context.effects.log_writer.is_muted = is_muted;
        let result = perform_blocked::perform(waiter, key, self, &mut reply);
        if let Err(error) = result {
            bytes.clear();
            error.append_to(&mut bytes);
        }
        let effects = &mut *self.context.effects;
        let (target, changed) = (effects.hooks.log_target(), effects.dirty > dirty);
        effects.log_writer.end_call(target, waiter.db, changed, [].into_iter());
        effects.log_writer.is_muted = false;
        self.context.module_service = ModuleService::Ended(waiter.clone(), bytes);
    }

    /// Performs the operation of a claimed waiter.
    fn perform_operation(&mut self, waiter: &Arc<Waiter>, key: &WaitKey) {
        debug_assert!(waiter.is_claimed(), "a waiter is claimed before it is served");
        debug_assert!(
            self.context
                .served_waiters
                .iter()
                .all(|(served, _)| served.park_id != waiter.park_id),
            "a waiter is served once"
        );
        let start = Instant::now();
        let mut bytes = Vec::new();
        let mut reply = Reply::new(&mut bytes, waiter.protocol);
        let dirty = self.context.effects.dirty;
        self.mark_served(waiter);
        let result = perform_blocked::perform(waiter, key, self, &mut reply);
        execution_order::note_served(waiter.client);
        let operation = InterruptedOperation {
            waiter: waiter.clone(),
            reply: bytes,
            error: result.err(),
            dirty,
            start,
        };
        match &mut self.context.key_events {
            ServedEvents::Interrupt(interrupted) if self.context.effects.has_new_events() => {
                *interrupted = Some(operation);
            }
            ServedEvents::Interrupt(_) | ServedEvents::Sent => self.end_operation(operation),
        }
    }

    /// Returns `true` if modules have to get the events of an operation before serving goes on.
    fn is_interrupted(&self) -> bool {
        matches!(self.context.key_events, ServedEvents::Interrupt(Some(_)))
    }

    /// Propagates an operation that was performed, and completes its reply.
    fn end_operation(&mut self, operation: InterruptedOperation) {
        let InterruptedOperation {
            waiter,
            mut reply,
            error,
            dirty,
            start,
        } = operation;
        propagate::propagate_served(self.context.effects, waiter.db, dirty);
        self.notification_sender().send_recorded_effects(Some(waiter.client));
        if waiter.tracks_reads {
            self.track_read_keys(&waiter);
        }
        let failed = error.is_some();
        if let Some(error) = error {
            reply.clear();
            self.write_error(&error, &mut reply);
        }
        let served = ServeResult {
            reply,
            nanoseconds: start.elapsed().as_nanos() as u64,
            is_error: failed,
            refusal: None,
            log_sequence: LogSequence::NONE,
        };
        self.context.served_waiters.push((waiter, served));
    }

    /// Tracks the keys that a served client has read. The change that made one of them ready has removed it from the
    /// table.
    #[cold]
    fn track_read_keys(&mut self, waiter: &Waiter) {
        let server = self.context.server;
        let mut tracked = 0;
        for key in &waiter.keys {
            if self.holds_slot(key.slot) {
                server.clients.tracking.add_reader_elsewhere(&key.name, waiter.client);
                tracked += 1;
            }
        }
        self.notification_sender()
            .evict_excess_tracked_keys(FORGOTTEN_KEYS_PER_TRACKED_KEY * tracked);
    }

    /// Lets the client of a claimed waiter get the messages so far before its reply, among them those about the command
    /// that serves it, and all others after it.
    fn mark_served(&mut self, waiter: &Arc<Waiter>) {
        let changed_by = self.context.changed_by;
        self.notification_sender().send_recorded_effects(changed_by);
        // In RESP2, a client that waits for keys receives no messages.
        if waiter.protocol == Protocol::Resp3 {
            let mark = ClientNotification::Served(waiter.clone());
            self.notification_sender().send_notification(waiter.worker(), mark);
        }
    }

    fn notification_sender(&mut self) -> NotificationSender<'_> {
        let row = self.context.access.thread_index;
        NotificationSender::new(self.context.server, self.context.effects, row)
    }

    /// Returns the reason why a waiter's command would be refused now. Valkey runs the command again to serve it, with
    /// the checks before a command.
    fn refusal_of(&self, waiter: &Waiter) -> Option<CommandRefusal> {
        let server = self.context.server;
        match permission::check_waiter(server, waiter) {
            Err(WaiterDenial::UserDeleted) => Some(CommandRefusal::Silent),
            Err(WaiterDenial::Refused(denied, error)) => {
                Some(CommandRefusal::Error(error, WaiterRefusal::Denied(Box::new(denied))))
            }
            Ok(()) => admit::refusal_of_waiter(server, waiter.operation.writes())
                .map(|error| CommandRefusal::Error(error, WaiterRefusal::ServerState)),
        }
    }

    /// Ends the wait of a claimed waiter whose command is refused.
    fn refuse_waiter(&mut self, waiter: &Arc<Waiter>, refusal: CommandRefusal) {
        debug_assert!(waiter.is_claimed(), "a waiter is claimed before its wait ends");
        let mut reply = Vec::new();
        if waiter.is_module_call {
            if let CommandRefusal::Error(error, _) = refusal {
                error.append_to(&mut reply);
            }
            self.context.module_service = ModuleService::Ended(waiter.clone(), reply);
            return;
        }
        self.mark_served(waiter);
        let refusal = match refusal {
            CommandRefusal::Silent => None,
            CommandRefusal::Error(error, reason) => {
                self.write_error(&error, &mut reply);
                Some(reason)
            }
        };
        let served = ServeResult {
            reply,
            nanoseconds: 0,
            is_error: true,
            refusal,
            log_sequence: LogSequence::NONE,
        };
        self.context.served_waiters.push((waiter.clone(), served));
    }

    fn write_error(&self, error: &CommandError, out: &mut Vec<u8>) {
        error.append_to(out);
        let ServingContext { server, access, .. } = &*self.context;
        server.stats.metrics.add(access.thread_index, Counter::ErrorReplies, 1);
        server.stats.errors.count(error.code());
    }
}

/// Returns a slot that is held for writing, by the command or as a further lease.
fn find_held_slot<'l>(
    held: &'l mut HeldLeases<'_, '_>,
    further: &'l mut [WriteLease<'_>],
    slot: SlotIndex,
) -> Option<(&'l SlotHeader, &'l mut Slot)> {
    // The lookup is repeated because the borrow checker extends a returned borrow to the end of the function.
    if held.writable_slot(slot).is_some() {
        return held.writable_slot(slot);
    }
    let lease = further.iter_mut().find(|lease| lease.cell() == slot.index())?;
    Some(lease.parts_mut())
}

impl WaiterKeyAccess for WaiterService<'_, '_, '_, '_> {
    fn open_for_write<'k>(&'k mut self, db: DbIndex, key: &'k WaitKey) -> KeyWrite<'k> {
        let ServingContext {
            held,
            access,
            effects,
            further_leases,
            ..
        } = &mut *self.context;
        let Some((header, slot)) = find_held_slot(held, further_leases, key.slot) else {
            unreachable!("an operation is performed only with the slots of its keys");
        };
        let named = NamedKey {
            name: &key.name,
            hash: key.hash,
            slot: key.slot,
        };
        KeyWrite::new(header, slot, named, db, access, effects)
    }

    fn read<'k>(&'k mut self, db: DbIndex, key: &WaitKey) -> Option<EntryRef<'k, Value>> {
        let ServingContext {
            held,
            access,
            effects,
            further_leases,
            ..
        } = &mut *self.context;
        let (_, slot) = find_held_slot(held, further_leases, key.slot)?;
        let named = NamedKey {
            name: &key.name,
            hash: key.hash,
            slot: key.slot,
        };
        read_entry(slot, &named, db, access, effects)
    }

    fn peek<'k>(&'k mut self, db: DbIndex, key: &WaitKey) -> Option<EntryRef<'k, Value>> {
        let now_ms = self.context.access.now_ms;
        let (_, slot) = self.slot_mut(key.slot)?;
        let entry = slot.table(db)?.find(key.hash, &key.name)?;
        (!is_expired(entry.expire_at_ms(), now_ms)).then_some(entry)
    }

    fn is_leased(&mut self, key: &WaitKey) -> bool {
        WaiterService::holds_slot(self, key.slot)
    }

    fn effects(&mut self) -> &mut Effects {
        self.context.effects
    }

    fn now_ms(&self) -> u64 {
        self.context.access.now_ms
    }

    fn config(&self) -> &Config {
        &self.context.server.config
    }
}

/// Notifies the workers of served clients. The leases have ended, because this may wake threads.
pub fn notify_served_clients(thread: &mut ThreadState) {
    if thread.served.is_empty() {
        return;
    }
    debug_assert!(
        !thread.effects.log_writer.has_pending_ops(),
        "a served client learns the sequence number of its operation"
    );
    // A client that learns of the change from a served one has the invalidation before its next reply.
    send_early_broadcasts(thread);
    for (waiter, served) in thread.served.drain(..) {
        // Not earlier: now the effects for this client have their sequence number.
        waiter.set_served(ServeResult {
            log_sequence: thread.effects.log_writer.last_sequence(),
            ..served
        });
        let worker = waiter.worker();
        // Workers have the first thread indexes. Mail for this worker's own clients must be delivered first.
        if worker == thread.thread_index && thread.server.worker(worker).mailbox.is_empty_hint() {
            thread.served_here.push(waiter);
        } else {
            thread.server.worker(worker).send(Message::WaiterServed(waiter));
        }
    }
    // Mail that was posted under the leases has left the waking of the workers to this thread.
    wake_workers(&thread.server, &mut thread.effects);
}

/// Serves the clients that wait for keys that the commands made ready, and ends the effects of all commands: to the log
/// they are one unit.
pub(super) fn serve_unit<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    held: HeldLeases<'_, 'p>,
    client: &mut Client,
) -> Option<Box<UnservedKeys>> {
    thread.effects.log_writer.end_measured_unit();
    let mut further_leases = Vec::new();
    let unserved = match thread.effects.ready.is_empty() {
        true => None,
        false => serve_unit_ready(thread, pass, &mut further_leases, held, client),
    };
    if thread.effects.log_writer.has_pending_ops() {
        client.record_write(propagate::commit_unit(&mut thread.effects));
    }
    unserved
}

fn serve_unit_ready<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    further_leases: &mut Vec<WriteLease<'p>>,
    held: HeldLeases<'_, 'p>,
    client: &Client,
) -> Option<Box<UnservedKeys>> {
    let (frame, served) = thread.split_frame();
    let server = frame.server;
    let Some(command) = crate::commands::registry().find_by_original_name(b"exec") else {
        unreachable!("EXEC is a command");
    };
    let call = LeasedCall {
        command,
        args: Args::new(&[], &[]),
        planned: &[],
        held,
        pass,
    };
    let mut keys = frame.keys(call, client);
    // The unit may have begun a pause.
    let paused = PausedOperations::current(server);
    let refused = serve_ready_keys(&mut keys, pass, client.id, server, served, further_leases, paused);
    let seat = keys.context.thread_index;
    NotificationSender::new(server, keys.effects, seat).send_recorded_effects(Some(client.id));
    if !refused.paused.is_empty() {
        // The client gets its reply before the pause ends.
        thread.unserved.push(UnservedKeys {
            keys: refused.paused,
            failures: 0,
        });
    }
    contended_keys(refused.contended)
}

/// Returns the reply to a blocking command that has timed out.
pub fn null_array(protocol: Protocol) -> Vec<u8> {
    let mut bytes = Vec::new();
    Reply::new(&mut bytes, protocol).null_array();
    bytes
}

#[cfg(test)]
mod tests;
