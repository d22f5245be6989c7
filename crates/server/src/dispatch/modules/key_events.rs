//! Keyspace events for modules, within the unit that has caused them.
//!
//! ```text
//!   handler ─▶ events ─▶ functions of modules, which may write ─▶ record of the command ─▶ jobs of modules ─▶ log
//! ```
//!
//! 1. The commands that may cause such events run on the home worker, in exclusive mode ([`HomeEvents`]). The module
//!    gets the events of a command once its handler has returned. What the module writes comes before the command in
//!    the log, as in Valkey, and belongs to its unit.
//! 2. Post-notification jobs run at the end of the unit: of the command, of the transaction, of the script.
//! 3. The call that has caused the events is suspended in the log meanwhile: the commands of the module are calls, too.
//! 4. Events that are recorded elsewhere are sent to the home worker as a job, and are a unit of their own there. That
//!    concerns commands that began before a module subscribed, slot-safe commands, and work of background threads.
//! 5. A thread of a module that holds the lock gets the events that its calls cause itself, as in Valkey, and runs the
//!    jobs before it returns the lock.
//!
//! [`HomeEvents`]: crate::dispatch::home_events::HomeEvents

use weft_base::DbIndex;
use weft_modules::module::keyspace_events::{self as subscriptions, KeyEvent};
use weft_modules::module::post_jobs;
use weft_modules::objects::context::Caller;
use weft_resp::Args;

use super::{ModuleCall, ModuleSession, SessionAccess, home};
use crate::commands::context::NextStep;
use crate::dispatch::propagate;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::Exclusive;
use crate::keyspace::access::{HeldLeases, Keys};
use crate::keyspace::effects::{ChangeKind, Effects, Hooks};
use crate::keyspace::expiry::delete_keys_found_expired_in_unit;
use crate::net::client::{Client, ClientFlags};
use crate::notify::keyspace_event::KeyspaceEvent;
use crate::notify::messages::module_event;
use crate::propagation::LogTarget;

/// Returns `true` if a command that has run in exclusive mode has events that modules may get.
#[inline]
pub fn are_due(keys: &Keys<'_, '_>) -> bool {
    keys.effects.hooks.intersects(Hooks::MODULE_EVENTS) && are_recorded(keys.effects, &keys.held)
}

#[cold]
fn are_recorded(effects: &Effects, held: &HeldLeases<'_, '_>) -> bool {
    let is_exclusive = matches!(held, HeldLeases::Exclusive(_));
    is_exclusive && !effects.hooks.intersects(Hooks::ON_SNAPSHOT) && effects.has_new_events()
}

/// Lets modules have the events of a command that has run, propagates the command, and runs the jobs that the modules
/// have added. `dirty` is the number of changes before the command. A module may block the client.
pub fn end_command(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    client: &mut Client,
    (db, args): (DbIndex, Args<'_>),
    next_step: &mut NextStep,
    dirty: u64,
) {
    let mut call = ModuleCall {
        may_block: thread.may_block && matches!(next_step, NextStep::Reply),
        next_step: NextStep::Reply,
    };
    if thread.effects.has_new_events() {
        deliver(thread, HeldLeases::Exclusive(all), client, Some(&mut call));
    }
    if thread.effects.is_logging() {
        propagate::propagate_effects(&mut thread.effects, (db, args), next_step, dirty, LogTarget::all());
    }
    run_jobs(thread, HeldLeases::Exclusive(all), client);
    if matches!(call.next_step, NextStep::BlockByModule(_)) {
        *next_step = call.next_step;
    }
}

/// Lets modules have the events that the running call has caused so far. Only in exclusive mode.
#[cold]
pub fn deliver(thread: &mut ThreadState, held: HeldLeases<'_, '_>, client: &mut Client, call: Option<&mut ModuleCall>) {
    if thread.can_call_modules() {
        with_session(thread, held, client, call, |session| session.deliver_events_of_call());
    }
}

/// Does the same for a command of a transaction.
#[cold]
pub fn deliver_in_transaction(thread: &mut ThreadState, held: HeldLeases<'_, '_>, client: &mut Client) {
    client.flags.set(ClientFlags::EXECUTING, true);
    deliver(thread, held, client, None);
    client.flags.set(ClientFlags::EXECUTING, false);
}

/// Ends the unit of the deletion of a key that has expired, or was evicted. As in Valkey, what modules write because of
/// the event comes before the deletion in the log.
pub fn end_deletion(thread: &mut ThreadState, all: &mut Exclusive<'_>) {
    home::run_unit(thread, all, |session| {
        let deletion = session.thread.effects.log_writer.take_rewritten();
        session.deliver_keys_removed_so_far();
        session.deliver_recorded_events();
        let target = session.thread.effects.hooks.log_target();
        session.thread.effects.log_writer.restore_rewritten(deletion, target);
    });
}

/// Ends the unit of the deletion of a key whose slot another node owns. As in Valkey, the deletion comes first in the
/// log, and then what modules write because of the event.
pub fn end_deletion_in_lost_slot(thread: &mut ThreadState, all: &mut Exclusive<'_>) {
    home::run_unit(thread, all, |session| {
        session.deliver_keys_removed_so_far();
        session.deliver_recorded_events();
    });
}

/// Runs the jobs that modules have added in the unit that is about to end.
#[inline]
pub fn run_jobs(thread: &mut ThreadState, held: HeldLeases<'_, '_>, client: &mut Client) {
    if post_jobs::are_waiting() && thread.can_call_modules() {
        with_session(thread, held, client, None, |session| {
            session.run_post_notification_jobs();
        });
    }
}

/// Calls `run` with a session of a thread in exclusive mode, for the code of modules within a unit.
#[cold]
pub(super) fn with_session<'p, R>(
    thread: &mut ThreadState,
    held: HeldLeases<'_, 'p>,
    client: &mut Client,
    call: Option<&mut ModuleCall>,
    run: impl FnOnce(&mut ModuleSession<'_, 'p>) -> R,
) -> Option<R> {
    let HeldLeases::Exclusive(all) = held else {
        return None;
    };
    let permissions = (thread.may_leave, thread.may_block);
    (thread.may_leave, thread.may_block) = (false, false);
    let result = run(&mut ModuleSession {
        thread,
        access: SessionAccess::Exclusive(all),
        pass: None,
        client,
        call,
        idle: None,
    });
    (thread.may_leave, thread.may_block) = permissions;
    Some(result)
}

impl ModuleSession<'_, '_> {
    /// Lets modules have the events that the running call has caused so far. The log continues with the call then.
    pub fn deliver_events_of_call(&mut self) {
        let suspended = self.thread.effects.log_writer.suspend_call();
        self.delete_found_expired();
        self.deliver_keys_removed_so_far();
        self.deliver_recorded_events();
        self.thread.effects.log_writer.resume_call(suspended);
    }

    /// Lets modules have the events of what code of a module has done by other means than a command.
    #[inline]
    pub(super) fn deliver_events_of_access(&mut self) {
        if self.thread.effects.hooks.intersects(Hooks::MODULE_EVENTS)
            && self.access.is_exclusive()
            && self.thread.can_call_modules()
            && self.thread.effects.has_new_events()
        {
            self.deliver_events_of_call();
        }
    }

    /// Deletes the expired keys that the call has found, as far as this server deletes expired keys now.
    fn delete_found_expired(&mut self) {
        if self.thread.effects.expired.is_empty() {
            return;
        }
        let server = self.thread.server.clone();
        if self.thread.replays || !server.may_delete_expired(self.thread.now_ms) {
            for key in std::mem::take(&mut self.thread.effects.expired) {
                if key.should_publish_miss {
                    self.thread
                        .effects
                        .record_event(key.db, &key.name, KeyspaceEvent::MISSED);
                }
            }
            return;
        }
        let mut held = self.access.as_held_leases();
        let ThreadState {
            effects,
            thread_index,
            now_ms,
            ..
        } = &mut *self.thread;
        delete_keys_found_expired_in_unit(&server.keyspace, &mut held, *thread_index, *now_ms, effects);
    }

    /// Lets modules have the events that are recorded, in their order. They stay recorded for other clients.
    pub fn deliver_recorded_events(&mut self) {
        let mut delivered = Vec::new();
        loop {
            let recorded = std::mem::take(&mut self.thread.effects.changes);
            if recorded.is_empty() {
                break;
            }
            for mut change in recorded {
                match change.kind {
                    ChangeKind::Event(event) => {
                        self.deliver_event(change.db, &change.name, event);
                        change.kind = ChangeKind::DeliveredEvent(event);
                    }
                    ChangeKind::ModuleEvent(event) => {
                        self.deliver_event(change.db, &change.name, event);
                        // Clients get no such event.
                        let event = module_event(change.db, &change.name, event);
                        if subscriptions::slot_safe_classes() & event.class != 0 {
                            subscriptions::deliver_slot_safe(&event, &Caller::none());
                        }
                        continue;
                    }
                    ChangeKind::DeliveredEvent(_) | ChangeKind::Value => {}
                }
                delivered.push(change);
            }
        }
        self.thread.effects.changes = delivered;
    }

    /// Calls the modules that have subscribed to an event.
    pub(super) fn deliver_event(&mut self, db: DbIndex, key: &[u8], event: KeyspaceEvent) {
        self.deliver_key_event(&module_event(db, key, event));
    }

    /// Calls the modules that have subscribed to a class of an event.
    pub(super) fn deliver_key_event(&mut self, event: &KeyEvent<'_>) {
        if subscriptions::subscribed_classes() & event.class == 0 {
            return;
        }
        let caller = Caller {
            client_id: self.client.id.get(),
            db: event.db,
            protocol: self.client.protocol,
        };
        match self.thread.is_for_locks {
            true => subscriptions::deliver(self, event, &caller),
            false => {
                home::run_there(self, |session| subscriptions::deliver(session, event, &caller));
            }
        }
    }
}
