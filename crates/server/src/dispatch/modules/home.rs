//! The home worker: runs the jobs that other threads have sent to it.

use std::collections::VecDeque;
use std::time::Duration;

use super::{ModuleSession, apply_unit_effects, client_without_connection, key_events};
use crate::dispatch::memory_limit;
use crate::dispatch::notifications::send_early_broadcasts;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::effects::ExpiredKey;
use crate::keyspace::expiry;
use crate::keyspace::ready_keys::ReadyKey;
use crate::keyspace::removed_keys::RemovedKey;
use crate::keyspace::slot_drop;
use crate::keyspace::{Exclusive, Seat};
use crate::net::client::Client;
use crate::notify::keyspace_event::KeyspaceEvent;
use crate::notify::messages::wake_workers;
use crate::observability::metrics::Counter;
use crate::replication::ReplicationState;
use crate::state::{BlockedClientEvent, HOME_WORKER, HomeJob, HomeThread, Message, UnservedKeys};
use weft_base::clock::unix_us;
use weft_base::{ClientId, ParkId, SlotIndex};
use weft_config::id;
use weft_modules::module::timers;
use weft_modules::session::{Session, lending};
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_scripting::Requester;
use weft_sync::note_unlogged_changes;

/// The most jobs that run in one period of exclusive mode.
pub const MAX_JOBS_AT_ONCE: usize = 64;

/// The time limit of one slice of expiry while clients wait.
pub const EXPIRY_SLICE: Duration = Duration::from_micros(500);

/// The clients of the home worker.
pub trait HomeClients {
    /// Returns a client, if its connection is on the home worker.
    fn client(&mut self, client: ClientId) -> Option<&mut Client>;
}

/// The home worker in exclusive mode.
pub(super) struct Home<'s, 'p> {
    pub(super) thread: &'s mut ThreadState,
    pub(super) all: &'s mut Exclusive<'p>,
    pub(super) clients: &'s mut dyn HomeClients,
}

impl HomeThread for Home<'_, '_> {
    fn with_session(&mut self, run: &mut dyn FnMut(&mut dyn Session)) {
        run_unit(self.thread, self.all, |session| run(session));
    }

    fn serve_module_calls(&mut self, keys: VecDeque<ReadyKey>) {
        run_unit(self.thread, self.all, |session| session.serve_module_calls(keys));
    }

    fn end_module_call(&mut self, park_id: ParkId, reply: Option<Vec<u8>>) {
        run_unit(self.thread, self.all, |session| {
            session.end_blocked_call(park_id, reply)
        });
    }

    fn deliver_removed_keys(&mut self, keys: Vec<RemovedKey>) {
        run_unit(self.thread, self.all, |session| session.deliver_removed_keys(keys));
    }

    fn handle_blocked_client(&mut self, event: BlockedClientEvent) {
        self.handle_blocked(event);
    }

    fn run_due_timers(&mut self) {
        let now_us = unix_us();
        while let Some(timer) = timers::pop_due(now_us) {
            run_unit(self.thread, self.all, |session| timer.run(session));
        }
    }

    fn delete_found_expired(&mut self, keys: Vec<ExpiredKey>) {
        let server = self.thread.server.clone();
        let (now_ms, index) = (self.thread.now_ms, self.thread.thread_index);
        let may_delete = server.may_delete_expired(now_ms);
        for key in keys {
            let effects = &mut self.thread.effects;
            effects.hooks = server.keyspace.hooks.current();
            if may_delete {
                effects.expired.push(key);
                let mut held = HeldLeases::Exclusive(self.all);
                expiry::delete_keys_found_expired_in_unit(&server.keyspace, &mut held, index, now_ms, effects);
            } else if key.should_publish_miss {
                effects.record_event(key.db, &key.name, KeyspaceEvent::MISSED);
            }
            key_events::end_deletion(self.thread, self.all);
        }
    }

    fn expire_due_keys(&mut self) {
        if !self.expire_slice() {
            // After the clients of this worker.
            let server = &self.thread.server;
            server.run_at_home(Box::new(|home| home.expire_due_keys()));
        }
    }

    fn evict_keys(&mut self) {
        let requested = &self.thread.server.modules.is_eviction_requested;
        requested.store(false, Ordering::Release);
        memory_limit::evict_for_modules(self.thread, self.all, key_events::end_deletion);
    }

    fn delete_keys_of_slot(&mut self, slot: SlotIndex, until: Instant) -> (u64, bool) {
        let server = self.thread.server.clone();
        let is_lazy = server.config.boolean(id::LAZYFREE_LAZY_SERVER_DEL);
        let mut keys = 0;
        for (db, name) in slot_drop::names_of_keys(self.all.cell(slot.index())) {
            if Instant::now() >= until {
                return (keys, false);
            }
            let (index, effects) = (self.thread.thread_index, &mut self.thread.effects);
            effects.hooks = server.keyspace.hooks.current();
            let key = (db, &*name, slot);
            keys += u64::from(slot_drop::delete_key_in_unit(
                &server.keyspace,
                index,
                self.all,
                key,
                is_lazy,
                effects,
            ));
            key_events::end_deletion_in_lost_slot(self.thread, self.all);
        }
        (keys, true)
    }

    fn serve_waiters(&mut self, unserved: UnservedKeys) {
        // They are served when the unit ends. A waiter that still cannot be served has been held up until then.
        let ready = unserved.keys.iter().map(|unserved| unserved.key.clone());
        self.thread.effects.ready.extend(ready);
        run_unit(self.thread, self.all, |_| ());
        drop(unserved);
    }
}

impl Home<'_, '_> {
    /// Deletes due keys, each in a unit of its own, for as long as a slice lasts. Returns `true` if none are left.
    fn expire_slice(&mut self) -> bool {
        let server = self.thread.server.clone();
        let (start, now_ms, index) = (Instant::now(), self.thread.now_ms, self.thread.thread_index);
        let mut is_done = false;
        while start.elapsed() < EXPIRY_SLICE {
            let due = server.background.due_slots.lock().pop();
            let Some(slot) = due.filter(|_| server.may_delete_expired(now_ms)) else {
                is_done = true;
                break;
            };
            let mut held = HeldLeases::Exclusive(self.all);
            let effects = &mut self.thread.effects;
            if expiry::expire_next_in_unit(&server.keyspace, &mut held, slot, index, now_ms, effects) {
                server.background.due_slots.lock().push(slot);
                key_events::end_deletion(self.thread, self.all);
            }
        }
        let metrics = &server.stats.metrics;
        self.thread.effects.add_to_metrics(&server.keyspace, metrics, index);
        metrics.add(index, Counter::ExpiryNs, start.elapsed().as_nanos() as u64);
        is_done
    }
}

/// Calls `run` with the session of a thread in exclusive mode, and ends the unit.
pub fn run_unit<R>(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    run: impl FnOnce(&mut ModuleSession<'_, '_>) -> R,
) -> R {
    let mut client = client_without_connection(thread.thread_index, thread.now_ms);
    run_unit_for(thread, all, &mut client, run)
}

/// Calls `run` with the session of a thread in exclusive mode, within a unit of another session. The jobs that modules
/// have added wait for the end of that unit.
pub(super) fn run_within_unit<R>(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    run: impl FnOnce(&mut ModuleSession<'_, '_>) -> R,
) -> R {
    let mut client = client_without_connection(thread.thread_index, thread.now_ms);
    run_and_end(thread, all, &mut client, run, |session| session.end_part_of_unit())
}

/// Calls `run` with a session that acts for a client, and ends the unit.
pub(super) fn run_unit_for<R>(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    client: &mut Client,
    run: impl FnOnce(&mut ModuleSession<'_, '_>) -> R,
) -> R {
    run_and_end(thread, all, client, run, |session| session.end_unit())
}

fn run_and_end<R>(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    client: &mut Client,
    run: impl FnOnce(&mut ModuleSession<'_, '_>) -> R,
    end: impl FnOnce(&mut ModuleSession<'_, '_>) -> Option<Box<UnservedKeys>>,
) -> R {
    let permissions = (thread.may_leave, thread.may_block);
    (thread.may_leave, thread.may_block) = (false, false);
    let mut session = ModuleSession::exclusive(thread, all, client);
    let result = run(&mut session);
    session.thread.effects.log_writer.discard_call();
    let unserved = end(&mut session);
    (thread.may_leave, thread.may_block) = permissions;
    // No connection waits for these.
    thread.unserved.extend(unserved.map(|unserved| *unserved));
    apply_unit_effects(thread);
    result
}

/// Calls `run` with this session on the home worker. Another thread has to be in exclusive mode. Returns `None` if the
/// server ends before.
pub fn run_there<R: Send>(
    session: &mut ModuleSession<'_, '_>,
    run: impl FnOnce(&mut dyn Session) -> R + Send,
) -> Option<R> {
    let thread = &session.thread;
    let is_there = thread.server.is_home(thread.thread_index) || thread.is_lent_to_home;
    // A slot-safe command is not counted as a holder of the server: workers would share the counter.
    if is_there || !session.access.is_exclusive() {
        return Some(run(session));
    }
    let server = session.thread.server.clone();
    let standby = session.thread.home_standby.take();
    let is_summoned = standby.is_some();
    let send = |job| match &standby {
        Some(standby) => standby.run(job),
        None => server.worker(HOME_WORKER).send(Message::RunLent(job)),
    };
    // A thread that is summoned waits for this job only, so the gate stays closed.
    let wait = |session: &mut dyn Session| match is_summoned {
        true => !server.worker(HOME_WORKER).has_ended(),
        false => session.open_gate_briefly(),
    };
    let run_and_hand_back = |session: &mut dyn Session| {
        let result = run(session);
        // The thread that has lent the session logs the changes, and ends the leases.
        note_unlogged_changes(false);
        result
    };
    session.thread.is_lent_to_home = true;
    let result = lending::run_on_other_thread(session, run_and_hand_back, send, wait);
    session.thread.is_lent_to_home = false;
    session.thread.home_standby = standby;
    note_unlogged_changes(session.thread.effects.log_writer.has_pending_ops());
    result
}

/// Runs jobs in exclusive mode. Returns `false` if they have to wait: a script runs on a script thread, data are being
/// loaded, or the data have a part of a script that the end of the process has stopped.
pub fn run_jobs(
    thread: &mut ThreadState,
    seat: &mut Seat,
    jobs: &mut VecDeque<HomeJob>,
    clients: &mut dyn HomeClients,
    requester: Requester,
) -> bool {
    if thread
        .server
        .replication
        .state_bits()
        .contains(ReplicationState::LOADING)
    {
        return false;
    }
    let server = thread.server.clone();
    thread.begin_passage();
    send_early_broadcasts(thread);
    wake_workers(&server, &mut thread.effects);
    if !server.scripting.running.try_exclude_runs(requester) {
        return false;
    }
    let mut all = seat.exclusive();
    thread.begin_passage();
    let may_run = !server.scripting.running.has_unfinished_unit();
    if may_run {
        for _ in 0..MAX_JOBS_AT_ONCE {
            let Some(job) = jobs.pop_front() else {
                break;
            };
            job(&mut Home {
                thread,
                all: &mut all,
                clients,
            });
        }
    }
    drop(all);
    server.scripting.running.end_exclusion();
    thread.effects.log_writer.wake();
    may_run
}
