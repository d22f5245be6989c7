//! How a replica loads the dump of its primary: from the link or from a file, and with or without the old data.

use weft_base::DbIndex;
use weft_modules::module::{Module, loading, options};
use weft_os::atomic::Ordering;

use crate::observability::log;
use crate::state::Server;

/// The treatment of the old data, and of clients during the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadPlan {
    /// `true` if the dump is written to a file first.
    pub loads_from_file: bool,
    /// `true` if the old data stays until the dump is complete.
    pub keeps_old_until_loaded: bool,
    /// `true` if clients are served from the old data.
    pub serves_old_data: bool,
}

/// Returns how the dump of the primary with this replication id is loaded.
pub(super) fn load_plan(server: &Server, id: &str) -> LoadPlan {
    let is_empty = || DbIndex::all(server.keyspace.counts.databases()).all(|db| server.keyspace.counts.keys(db) == 0);
    let mode = server.config.choice(weft_config::id::REPL_DISKLESS_LOAD);
    let same_history = || {
        let state = server.replication.state();
        state.resumable && state.history.id == id
    };
    let from_link = match mode {
        "disabled" => false,
        "on-empty-db" => is_empty(),
        _ => true,
    };
    let from_link = from_link && do_modules_admit_link(mode == "swapdb");
    let swaps = mode == "swapdb" && from_link;
    LoadPlan {
        loads_from_file: !from_link,
        keeps_old_until_loaded: swaps,
        serves_old_data: swaps && same_history(),
    }
}

/// Returns `true` if all modules can load a dump that is read from the link: its end may be missing. If `swaps`,
/// clients may use the old data meanwhile.
fn do_modules_admit_link(swaps: bool) -> bool {
    let modules = loading::loaded();
    let has_types = |module: &Module| module.usage.types.load(Ordering::Relaxed) > 0;
    if modules
        .iter()
        .any(|module| has_types(module) && !module.handles_io_errors())
    {
        log::notice!("Skipping diskless-load because there are modules that don't handle read errors.");
        return false;
    }
    if swaps
        && modules
            .iter()
            .any(|module| !module.has_option(options::HANDLE_REPL_ASYNC_LOAD))
    {
        log::notice!("Skipping diskless-load because there are modules that are not aware of async replication.");
        return false;
    }
    true
}
