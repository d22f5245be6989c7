//! Modules: what their code may do with the data, and on which thread it runs.
//!
//! ```text
//!   a client's command ──▶ the connection moves to the home worker ──▶ exclusive mode ─┐
//!   timer, event, file, stream ─▶ Message::RunAtHome ─▶ home worker ─▶ exclusive mode ─┤
//!   a thread of the module: Lock ─▶ thread "weft-modules" ─▶ exclusive mode ─▶ lends ──┤
//!                                                                                      ▼
//!                     ModuleSession ── weft_modules::session::with_session ──▶ code of the module
//!                           │
//!                           └─▶ the unit ends: waiting clients are served, one record of the log, effects
//! ```
//!
//! 1. The code of a module runs on the home worker (the one with index 0, which is always active), because modules may
//!    assume one main thread. Exceptions: a thread of the module that holds the lock of a thread-safe context, and
//!    commands that are declared as slot-safe.
//! 2. It runs in exclusive mode, so that it may use any key at any time. All commands of modules in a batch share one
//!    closing of the gate. A slot-safe command runs under the leases of its keys instead, on the worker of its client.
//! 3. [`ModuleSession`] is what the thread may do with the data meanwhile. It belongs to the thread: functions of the
//!    API find it without a context. There is one at a time in exclusive mode. A call from a module into the server
//!    that calls a module again (a command of a module through `Call`, a key event) uses a session that is borrowed
//!    from the first one ([`ModuleSession::reborrow`]).
//! 4. Everything that is written with a session, and with those borrowed from it, is one unit:
//!    [`ModuleSession::end_unit`] serves waiting clients, and gives the unit its sequence number in the log before
//!    exclusive mode ends. A session that runs within another unit (a transaction, a script) leaves that to it.
//! 5. No thread waits for the home worker while it is inside the gate or holds a lease. A thread in exclusive mode that
//!    needs the home worker lends its session ([`weft_modules::session`]).

mod blocked_calls;
mod blocking;
mod calls;
mod clients;
pub mod command;
pub mod command_results;
mod context;
pub mod engines;
mod events;
pub mod filters;
mod fork;
pub mod home;
mod info;
pub mod key_events;
mod keys;
mod latency;
pub mod lifecycle;
mod lock;
mod login;
mod registry;
mod removed_keys;
pub mod scripts;
pub mod serving;
mod types;
mod users;

pub use login::binding_in_transaction;
pub use removed_keys::deliver as deliver_removed_keys;
pub use types::call_modules;

use std::sync::Arc;

use weft_base::{ClientId, DbIndex, ThreadIndex};
use weft_resp::{ArgRange, Args};

use crate::keyspace::access::{HeldLeases, Keys, ScriptLeases};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::client::Client;
use crate::state::{NextStep, Server, UnservedKeys};
use weft_modules::module::post_jobs;
use weft_modules::session::{Host, Session};

use super::thread::{IdleTurns, LeasedCall, ThreadState};
use super::{effects::free_removed_values, serve};

/// The slots that a session may use.
pub enum SessionAccess<'s, 'p> {
    /// Every slot, in exclusive mode.
    Exclusive(&'s mut Exclusive<'p>),
    /// The leases of a slot-safe command, or of a script.
    Leased(&'s mut ScriptLeases<'p>),
}

impl<'p> SessionAccess<'_, 'p> {
    /// Returns the leases, for a command or for access to keys.
    pub fn as_held_leases(&mut self) -> HeldLeases<'_, 'p> {
        match self {
            SessionAccess::Exclusive(all) => HeldLeases::Exclusive(all),
            SessionAccess::Leased(leases) => HeldLeases::Script(leases),
        }
    }

    /// Borrows the access for a session within this one.
    pub fn reborrow(&mut self) -> SessionAccess<'_, 'p> {
        match self {
            SessionAccess::Exclusive(all) => SessionAccess::Exclusive(all),
            SessionAccess::Leased(leases) => SessionAccess::Leased(leases),
        }
    }

    /// Returns the keyspace in exclusive mode.
    pub fn exclusive(&mut self) -> Option<&mut Exclusive<'p>> {
        match self {
            SessionAccess::Exclusive(all) => Some(all),
            SessionAccess::Leased(_) => None,
        }
    }

    /// Returns `true` if every slot may be used.
    pub fn is_exclusive(&self) -> bool {
        matches!(self, SessionAccess::Exclusive(_))
    }
}

/// The access of a thread to the data while code of a module runs.
pub struct ModuleSession<'s, 'p> {
    /// The state of the thread, with the effects of the unit.
    pub thread: &'s mut ThreadState,
    /// The slots that may be used.
    pub access: SessionAccess<'s, 'p>,
    /// The passage of the gate; `None` in exclusive mode.
    pub pass: Option<&'p GatePassage<'p>>,
    /// The client of the command that runs; a client without a connection in callbacks that no client has caused.
    pub client: &'s mut Client,
    /// The command of the client that runs; `None` in callbacks and in calls from modules.
    pub call: Option<&'s mut ModuleCall>,
    /// The home worker, which can serve its other connections while the code runs.
    pub idle: Option<&'s mut (dyn IdleTurns + 's)>,
}

/// Borrows the home worker for a session within another one.
fn reborrow_idle<'r>(idle: &'r mut Option<&mut (dyn IdleTurns + '_)>) -> Option<&'r mut (dyn IdleTurns + 'r)> {
    match idle {
        Some(idle) => Some(&mut **idle),
        None => None,
    }
}

/// The command of a module that a client has sent, while it runs.
#[derive(Default)]
pub struct ModuleCall {
    /// `true` if the client may be blocked: the command is no part of a transaction or a script.
    pub may_block: bool,
    /// The step after the command. With [`NextStep::Reply`] the client gets what the module has replied.
    pub next_step: NextStep,
}

impl<'s, 'p> ModuleSession<'s, 'p> {
    /// Creates the session of a thread in exclusive mode.
    pub fn exclusive(thread: &'s mut ThreadState, all: &'s mut Exclusive<'p>, client: &'s mut Client) -> Self {
        thread.effects.hooks = thread.server.keyspace.hooks.current();
        ModuleSession {
            thread,
            access: SessionAccess::Exclusive(all),
            pass: None,
            client,
            call: None,
            idle: None,
        }
    }

    /// Borrows a session for code of a module that is called from within this one, not by a client.
    pub fn reborrow(&mut self) -> ModuleSession<'_, 'p> {
        ModuleSession {
            thread: self.thread,
            access: self.access.reborrow(),
            pass: self.pass,
            client: self.client,
            call: None,
            idle: reborrow_idle(&mut self.idle),
        }
    }

    /// Borrows a session for code of a module that acts for another client.
    pub fn reborrow_for<'r>(&'r mut self, client: &'r mut Client) -> ModuleSession<'r, 'p> {
        ModuleSession {
            thread: self.thread,
            access: self.access.reborrow(),
            pass: self.pass,
            client,
            call: None,
            idle: reborrow_idle(&mut self.idle),
        }
    }

    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        &self.thread.server
    }

    /// Calls `run` with access to these keys of a database, as if they were the keys of a command that may write them.
    /// Returns `None` if the session does not have the slot of one of them: it is slot-safe and the key not declared.
    pub fn with_keys<R>(
        &mut self,
        db: DbIndex,
        names: &[&[u8]],
        run: impl FnOnce(&mut Keys<'_, 'p>) -> R,
    ) -> Option<R> {
        let mut ranges = Vec::with_capacity(names.len());
        let joined;
        let words: &[u8] = match names {
            [name] => name,
            _ => {
                joined = names.concat();
                &joined
            }
        };
        let mut start = 0;
        for name in names {
            ranges.push(ArgRange {
                start,
                len: name.len() as u32,
            });
            start += name.len() as u32;
        }
        let mut planned = Vec::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            planned.push(self.plan_key(index, name)?);
        }
        Some(self.with_planned_keys(db, Args::new(words, &ranges), &planned, run))
    }

    /// Plans a key that may be written. `argument` is its index among the arguments. Returns `None` if the session does
    /// not have its slot.
    pub fn plan_key(&self, argument: usize, name: &[u8]) -> Option<PlannedKey> {
        let hash = self.thread.server.keyspace.hasher.hash(name);
        let mut key = PlannedKey::from_argument(argument, hash, true);
        if let SessionAccess::Leased(leases) = &self.access {
            key.lease = leases.index_of(key.slot)?;
        }
        Some(key)
    }

    /// Calls `run` with access to keys that are planned already, see [`Self::plan_key`].
    pub fn with_planned_keys<R>(
        &mut self,
        db: DbIndex,
        args: Args<'_>,
        planned: &[PlannedKey],
        run: impl FnOnce(&mut Keys<'_, 'p>) -> R,
    ) -> R {
        let Some(command) = crate::commands::registry().find_by_original_name(b"exec") else {
            unreachable!("EXEC is a command");
        };
        let call = LeasedCall {
            command,
            args,
            planned,
            held: self.access.as_held_leases(),
            pass: self.pass,
        };
        let mut keys = self.thread.split_frame().0.keys(call, self.client);
        keys.db = db;
        let result = run(&mut keys);
        self.deliver_events_of_access();
        result
    }

    /// Runs the jobs that modules have added when they were notified of events of the unit, as a part of it. Jobs that
    /// wait while this session has leases belong to the unit of another thread.
    pub fn run_post_notification_jobs(&mut self) {
        if self.access.is_exclusive() && post_jobs::are_waiting() {
            home::run_there(self, |session| post_jobs::run_all(session));
            self.thread.effects.log_writer.discard_call();
        }
    }

    /// Ends the unit: serves waiting clients, sends the notifications and logs what was written. Returns the keys whose
    /// waiting clients could not be served.
    pub fn end_unit(&mut self) -> Option<Box<UnservedKeys>> {
        self.run_post_notification_jobs();
        self.end_part_of_unit()
    }

    /// Does the same for a part of a unit of another session, which runs the jobs when it ends.
    fn end_part_of_unit(&mut self) -> Option<Box<UnservedKeys>> {
        let served = self.serve_ready_keys();
        let held = self.access.as_held_leases();
        let unserved = served.or(serve::serve_unit(self.thread, self.pass, held, self.client));
        let ThreadState {
            server,
            effects,
            thread_index,
            ..
        } = &mut *self.thread;
        let by = Some(self.client.id).filter(|id| id.get() != 0);
        crate::notify::messages::NotificationSender::new(server, effects, *thread_index).send_recorded_effects(by);
        unserved
    }
}

impl Session for ModuleSession<'_, '_> {}

/// The server without its data, as modules reach it from any thread.
pub struct ModuleHost {
    /// The server.
    pub server: Arc<Server>,
}

impl Host for ModuleHost {}

/// Returns a client without a connection, for code of modules that no client has caused.
pub fn client_without_connection(thread_index: ThreadIndex, now_ms: u64) -> Client {
    Client::new(ClientId::new(0), now_ms, thread_index)
}

/// Frees the memory of a unit and replies to the clients that it has served. The unit has ended, and exclusive mode is
/// about to end.
pub(super) fn apply_unit_effects(thread: &mut ThreadState) {
    free_removed_values(&mut thread.effects, &thread.server);
    serve::notify_served_clients(thread);
}
