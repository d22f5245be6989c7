//! Events of the server for modules ([`weft_modules::module::server_events`]).
//!
//! Most events are jobs for the home worker: they are sent before the client that has caused the event gets its reply,
//! and a module that is called after that has had them. Those whose data a module may look at in the middle of a change
//! are delivered in place, by a thread in exclusive mode.

use std::sync::Arc;
use std::time::Duration;

use weft_base::ThreadIndex;
use weft_config::id;
use weft_modules::module::server_events::{self, EventKind, ReplicationInfo, ServerEvent};
use weft_os::atomic::Ordering;
use weft_os::sync::mpsc::sync_channel;

use super::{HomeStandby, Server};
use crate::keyspace::Exclusive;
use crate::replication::ReplicationState;

/// The longest wait for modules that hear of the end of the server.
const MAX_SHUTDOWN_WAIT: Duration = Duration::from_secs(1);
/// The progress of a load that is complete.
const PROGRESS_PARTS: u64 = 1024;

impl Server {
    /// Sends an event to the modules that have subscribed to its kind.
    pub fn send_module_event(&self, kind: EventKind, event: impl FnOnce() -> ServerEvent) {
        server_events::send(kind, event);
    }

    /// Delivers an event in place, if the home worker stands by, is the caller, or data are loaded. Otherwise it is
    /// sent. The caller's thread, which counts in the row `thread_index`, has exclusive mode.
    pub fn deliver_module_event(
        self: &Arc<Self>,
        all: &mut Exclusive<'_>,
        thread_index: ThreadIndex,
        kind: EventKind,
        event: impl FnOnce() -> ServerEvent,
    ) {
        if server_events::is_subscribed(kind) {
            let mut home = self.modules.exclusive_home.lock().take();
            self.deliver_module_event_with(all, thread_index, &mut home, kind, event);
            *self.modules.exclusive_home.lock() = home;
        }
    }

    /// Does the same for a thread that has the standby of the home worker itself.
    pub fn deliver_module_event_with(
        self: &Arc<Self>,
        all: &mut Exclusive<'_>,
        thread_index: ThreadIndex,
        home: &mut Option<HomeStandby>,
        kind: EventKind,
        event: impl FnOnce() -> ServerEvent,
    ) {
        if !server_events::is_subscribed(kind) {
            return;
        }
        // While data are loaded, the gate may be opened for the home worker.
        let is_loading = self.replication.state_bits().contains(ReplicationState::LOADING);
        if home.is_none() && !is_loading && !self.is_home(thread_index) {
            return server_events::send(kind, event);
        }
        let event = event();
        self.call_modules_once(all, thread_index, home, || server_events::deliver_here(&event));
    }

    /// Lets modules know of the progress of a load.
    pub fn send_loading_progress(&self, is_rdb: bool) {
        server_events::send(EventKind::LoadingProgress, || {
            let progress = &self.replication.loading;
            let total = progress.total_bytes.load(Ordering::Relaxed);
            let loaded = progress.loaded_bytes.load(Ordering::Relaxed);
            let hz = self.config.integer(id::HZ) as i32;
            let part = (loaded.saturating_mul(PROGRESS_PARTS)).checked_div(total);
            ServerEvent::LoadingProgress {
                is_rdb,
                hz,
                progress: part.map_or(-1, |part| part.min(PROGRESS_PARTS) as i32),
            }
        });
    }

    /// Returns the replication of this server, as modules see it.
    pub fn replication_info(&self) -> ReplicationInfo {
        let state = self.replication.state();
        ReplicationInfo {
            is_primary: state.primary.is_none(),
            primary: state
                .primary
                .as_ref()
                .map(|primary| (primary.host.to_string(), primary.port)),
            id: state.history.id.to_string(),
            second_id: state.history.second_id.to_string(),
            offset: self.replication.offset().get().max(0) as u64,
            second_offset: state.history.second_offset(),
        }
    }

    /// Lets modules know that the server ends, and waits until they have heard that. They do not hear it while data are
    /// loaded, or if a script goes on for too long.
    ///
    /// The caller is not the home worker, is not inside the gate, and holds no lease.
    pub fn announce_shutdown(&self) {
        let is_loading = self.replication.state_bits().contains(ReplicationState::LOADING);
        if is_loading || !server_events::is_subscribed(EventKind::Shutdown) {
            return;
        }
        let (sender, delivered) = sync_channel(1);
        self.run_session_at_home(move |session| {
            server_events::deliver(session, &ServerEvent::Shutdown);
            // The other thread may have given up.
            let _ = sender.send(());
        });
        let _ = delivered.recv_timeout(MAX_SHUTDOWN_WAIT);
    }
}
