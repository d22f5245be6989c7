//! What functions about the context, the lock and the log of modules need from the server.

use std::ffi::CStr;

use super::{ModuleHost, ModuleSession, SessionAccess, lock};
use crate::net::client::{Client, ClientFlags};
use crate::replication::ReplicationState;
use crate::state::{HOME_WORKER, Server};
use weft_base::clock::unix_ms;
use weft_config::id;
use weft_modules::session::context::{ContextHost, ContextSession, flags};
use weft_modules::session::idle::serve_idle_turn;

/// The used part of `maxmemory` above which modules are warned, in hundredths.
const WARNING_LEVEL: u64 = 75;
/// The time for which code of a module may run before clients are refused, if data are being loaded, in milliseconds.
const LOADING_YIELD_MS: u64 = 100;

impl ContextSession for ModuleSession<'_, '_> {
    fn client_flags(&self, client_id: u64) -> i32 {
        let mut shown = flags_of_unit(self.client);
        if self.client.id.get() == client_id {
            shown |= flags_of_client(self.client);
            if self.call.as_ref().is_none_or(|call| !call.may_block) {
                shown |= flags::DENY_BLOCKING;
            }
        }
        shown
    }

    fn must_obey_client(&self, client_id: u64) -> bool {
        self.client.id.get() == client_id && self.client.flags.intersects(ClientFlags::REPLAYING)
    }

    fn is_exclusive(&self) -> bool {
        self.access.is_exclusive()
    }

    fn open_gate_briefly(&mut self) -> bool {
        if self.thread.home_standby.is_none()
            && let SessionAccess::Exclusive(all) = &mut self.access
        {
            all.pause();
        }
        !self.thread.server.worker(HOME_WORKER).has_ended()
    }

    fn give_way(&mut self, serves_clients: bool, busy_reply: Option<&CStr>) {
        let is_loading = self
            .thread
            .server
            .replication
            .state_bits()
            .contains(ReplicationState::LOADING);
        if is_loading {
            let server = self.thread.server.clone();
            if let SessionAccess::Exclusive(all) = &mut self.access {
                // Clients are refused for that reason, and no script runs.
                all.open_for(|| server.serve_while_loading());
            }
        } else if serves_clients {
            self.serve_while_busy(busy_reply.map(|text| text.to_string_lossy().into_owned()));
        }
    }
}

impl ModuleSession<'_, '_> {
    /// Lets other threads through the gate for a moment, and serves the other connections of the home worker. Their
    /// commands get this text, unless they are for such a time.
    pub(super) fn serve_while_busy(&mut self, busy_reply: Option<String>) {
        let server = self.thread.server.clone();
        if let SessionAccess::Exclusive(all) = &mut self.access {
            server.modules.set_busy_reply(busy_reply);
            server.replication.set_state_bits(ReplicationState::MODULE_BUSY, true);
            self.thread.begin_visible_part();
            // It serves its connections, if it stands by for this thread.
            let was_summoned = self.thread.home_standby.take().is_some();
            let (idle, standby) = (&mut self.idle, &mut self.thread.home_standby);
            // Other threads run commands of their clients meanwhile, if only to refuse them.
            let serve = || match &mut *idle {
                Some(idle) => idle.serve_meanwhile(),
                None => serve_idle_turn(),
            };
            all.open_for(|| {
                server.admit_runs_for(serve);
                if was_summoned {
                    *standby = server.summon_home();
                }
            });
            server.replication.set_state_bits(ReplicationState::MODULE_BUSY, false);
            server.modules.set_busy_reply(None);
        }
    }
}

/// Returns the flags about a script or a transaction that runs.
fn flags_of_unit(client: &Client) -> i32 {
    let mut shown = 0;
    if client.flags.contains(ClientFlags::SCRIPT) {
        shown |= flags::LUA;
    }
    if client.flags.contains(ClientFlags::EXECUTING) {
        shown |= flags::MULTI;
    }
    shown
}

/// Returns the flags about a client.
fn flags_of_client(client: &Client) -> i32 {
    let mut shown = 0;
    if client
        .flags
        .intersects(ClientFlags::PRIMARY.union(ClientFlags::SLOT_IMPORT))
    {
        shown |= flags::REPLICATED;
    }
    if client.flags.contains(ClientFlags::SLOT_IMPORT) {
        shown |= flags::SLOT_IMPORT_CLIENT;
    }
    if client.flags.contains(ClientFlags::SLOT_EXPORT) {
        shown |= flags::SLOT_EXPORT_CLIENT;
    }
    if client.is_dirty() {
        shown |= flags::MULTI_DIRTY;
    }
    shown
}

impl ContextHost for ModuleHost {
    fn server_flags(&self) -> i32 {
        let server = &self.server;
        let (state, config) = (server.replication.state_bits(), &server.config);
        let is_set = |set: bool, flag: i32| if set { flag } else { 0 };
        let is_replica = state.contains(ReplicationState::IS_REPLICA);
        let is_stale = is_replica && state.contains(ReplicationState::LINK_DOWN);
        let saves_dumps = !config.save_points().is_empty();
        is_set(server.cluster.is_some(), flags::CLUSTER)
            | is_set(state.contains(ReplicationState::LOADING), flags::LOADING)
            | is_set(
                state.contains(ReplicationState::LOADING_IN_STAGING),
                flags::ASYNC_LOADING,
            )
            | is_set(config.boolean(id::APPENDONLY), flags::AOF)
            | is_set(saves_dumps, flags::RDB)
            | is_set(is_replica, flags::REPLICA)
            | is_set(!is_replica, flags::PRIMARY)
            | is_set(is_replica && config.boolean(id::REPLICA_READ_ONLY), flags::READONLY)
            | is_set(is_stale, flags::REPLICA_IS_STALE)
            | is_set(is_replica && !is_stale, flags::REPLICA_IS_ONLINE)
            | is_set(is_stale, flags::REPLICA_IS_CONNECTING)
            | is_set(has_background_save(server), flags::ACTIVE_CHILD)
            | is_set(server.modules.is_starting(), flags::SERVER_STARTUP)
            | memory_flags(server)
    }

    fn databases(&self) -> u32 {
        self.server.config.databases() as u32
    }

    fn should_avoid_replica_traffic(&self) -> bool {
        // A pause holds replicas' traffic back only during a failover.
        self.server.clients.pause.are_writes_paused(unix_ms()) && self.server.replication.is_failing_over()
    }

    fn start_lending(&self) {
        lock::start(&self.server);
    }

    fn is_lock_withheld(&self) -> bool {
        lock::is_lock_withheld(&self.server)
    }

    fn module_concurrency(&self) -> String {
        String::from_utf8_lossy(&self.server.config.text(id::MODULE_CONCURRENCY)).into_owned()
    }

    fn report_failed_assertion(&self, expression: &CStr, file: &CStr, line: i32) -> ! {
        weft_reactor::report_module_assertion(expression.to_bytes(), file.to_bytes(), line)
    }

    fn busy_threshold_ms(&self) -> u64 {
        match self.server.replication.state_bits().contains(ReplicationState::LOADING) {
            true => LOADING_YIELD_MS,
            false => self.server.config.unsigned(id::BUSY_REPLY_THRESHOLD),
        }
    }
}

/// Returns the flags about memory.
fn memory_flags(server: &Server) -> i32 {
    let limit = server.config.unsigned(id::MAXMEMORY);
    if limit == 0 {
        return 0;
    }
    let used = server.memory.used_bytes();
    let mut shown = flags::MAXMEMORY;
    if server.config.choice(id::MAXMEMORY_POLICY) != "noeviction" {
        shown |= flags::EVICT;
    }
    if used > limit {
        shown |= flags::OOM;
    }
    if used > limit / 100 * WARNING_LEVEL {
        shown |= flags::OOM_WARNING;
    }
    shown
}

/// Returns `true` if a dump or the append-only file is being written in the background.
fn has_background_save(server: &Server) -> bool {
    server.persistence.snapshot.purpose().is_some()
}
