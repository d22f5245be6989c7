//! The libraries of functions in the data of a primary.

use std::rc::Rc;
use std::sync::Arc;

use crate::keyspace::Seat;
use crate::observability::slow_library::SlowLibraryReport;
use crate::persistence::snapshot;
use crate::state::Server;
use weft_base::{RoleEpoch, ThreadIndex};
use weft_scripting::{Library, is_for_engine_of_module, repeat_library_load};

/// The reason if the load was stopped, because its result is of no use any more.
const OBSOLETE: &[u8] = b"It is of no use any more";

/// Runs the code of libraries. If it may be for engines of modules, it runs on the home worker, in exclusive mode: no
/// client is served meanwhile.
///
/// # Errors
/// The reason for the log.
pub(super) fn load_libraries(
    server: &Arc<Server>,
    seat: &mut Seat,
    role_epoch: RoleEpoch,
    codes: &[Vec<u8>],
) -> Result<Vec<Arc<Library>>, String> {
    let load = || {
        let report = Rc::new(SlowLibraryReport::new("The data of the primary"));
        let libraries = codes.iter().map(|code| {
            let (of_epoch, report) = (server.clone(), report.clone());
            let is_obsolete = move || {
                report.write_if_due();
                of_epoch.replication.role_epoch() != role_epoch
            };
            let library = repeat_library_load(&server.scripting, code, is_obsolete);
            library.unwrap_or_else(|| Err(OBSOLETE.to_vec()))
        });
        libraries.collect::<Result<Vec<Arc<Library>>, Vec<u8>>>()
    };
    // An engine may be added meanwhile, so the code decides, not the engines that exist.
    let loaded = match codes.iter().any(|code| is_for_engine_of_module(code)) {
        true => {
            let thread_index = ThreadIndex::new(seat.index());
            snapshot::run_with_home(server, seat, |all, home, _| {
                server.call_modules_once(all, thread_index, home, load)
            })
        }
        false => load(),
    };
    loaded.map_err(|reason| String::from_utf8_lossy(&reason).into_owned())
}
