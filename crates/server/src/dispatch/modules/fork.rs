//! Child processes of modules ([`weft_modules::module::fork`]).

use weft_modules::session::fork::ForkHost;

use super::ModuleHost;
use crate::observability::log;
use weft_os::atomic::Ordering;

/// The title of a child, as in Valkey.
const TITLE: &[u8] = b"valkey-module-fork";

impl ForkHost for ModuleHost {
    fn note_fork(&self, micros: u64) {
        let snapshot = &self.server.persistence.snapshot;
        snapshot.pause_us.store(micros, Ordering::Relaxed);
        snapshot.snapshots_started.fetch_add(1, Ordering::Relaxed);
    }

    fn become_child(&self) {
        log::become_child();
        // Only the title of the parent may be missing, which was set or has failed when it started.
        let _ = weft_reactor::set_process_title(TITLE);
    }
}
