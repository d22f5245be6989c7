//! What becomes of the data that those of the primary replace, and what modules hear of the load.

use std::sync::Arc;

use crate::keyspace::Exclusive;
use crate::keyspace::access::WholeKeyspace;
use crate::keyspace::effects::Hooks;
use crate::keyspace::flush::{DetachedTables, take_databases};
use crate::state::{HomeStandby, Server};
use weft_base::{DbIndex, ThreadIndex};
use weft_config::id;
use weft_modules::module::server_events::{self, AsyncLoadingStep, EventKind, LoadingStep, ServerEvent};
use weft_os::atomic::Ordering;

/// Lets modules look at the data before they are dropped, or after that.
fn deliver_flush(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
    has_ended: bool,
) {
    let is_sync = !server.config.boolean(id::REPLICA_LAZY_FLUSH);
    server.deliver_module_event_with(all, thread_index, home, EventKind::FlushDb, || ServerEvent::Flush {
        has_ended,
        is_sync,
        db: None,
    });
}

/// Waits until modules know of the end of an earlier load, which is a job for the home worker: they hear of the next
/// start at once. The caller is not inside the gate, and holds no lease.
pub(super) fn await_end_of_earlier_load(server: &Arc<Server>) {
    if server_events::is_subscribed(EventKind::AsyncLoading) || server_events::is_subscribed(EventKind::Loading) {
        // The server may end before.
        let _ = server.run_at_home_and_wait(|_| ());
    }
}

/// Lets modules know that the data of the primary are loaded.
pub(super) fn deliver_start_of_load(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
    serves_old_data: bool,
) {
    if serves_old_data {
        let step = AsyncLoadingStep::Started;
        server.deliver_module_event_with(all, thread_index, home, EventKind::AsyncLoading, || {
            ServerEvent::AsyncLoading(step)
        });
    }
    server.deliver_module_event_with(all, thread_index, home, EventKind::Loading, || {
        ServerEvent::Loading(LoadingStep::ReplicationStart)
    });
}

/// Lets modules know that the data of the primary are loaded now, or could not be loaded.
pub(super) fn send_end_of_load(server: &Server, serves_old_data: bool, is_loaded: bool) {
    let (step, async_step) = match is_loaded {
        true => (LoadingStep::Ended, AsyncLoadingStep::Completed),
        false => (LoadingStep::Failed, AsyncLoadingStep::Aborted),
    };
    if serves_old_data {
        server.send_module_event(EventKind::AsyncLoading, || ServerEvent::AsyncLoading(async_step));
    }
    server.send_module_event(EventKind::Loading, || ServerEvent::Loading(step));
}

/// Takes all data out of the keyspace. Modules may look at them before.
pub(super) fn take_all_data(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
) -> DetachedTables {
    let databases = DbIndex::all(server.keyspace.counts.databases());
    deliver_flush(server, all, thread_index, home, false);
    let whole = &mut WholeKeyspace::Exclusive(all);
    let taken = take_databases(whole, databases, &server.keyspace, thread_index);
    deliver_flush(server, all, thread_index, home, true);
    taken
}

/// Records that the keyspace no longer holds this server's data. The files of that data stay as they are until new data
/// is installed, also if the load fails, and nothing is appended to them. Called in exclusive mode, before the snapshot
/// in progress is cancelled: a snapshot that starts later is not cancelled, and its owner checks what is recorded here.
pub(super) fn give_up_data(server: &Server) {
    server.replication.is_data_given_up.store(true, Ordering::Release);
    if server.persistence.aof.mark_data_replaced() {
        server.keyspace.hooks.set(Hooks::LOG_FILE, false);
    }
}

/// Frees old data: in the background with `replica-lazy-flush`, on this thread otherwise. No worker waits for this
/// thread.
pub(super) fn free_old_data(server: &Server, taken: DetachedTables) {
    if server.config.boolean(id::REPLICA_LAZY_FLUSH) {
        server.background.lazyfree.free(taken.keys, 0, Box::new(taken.tables));
    }
}
