//! Calls of modules that encode their values, for a thread in exclusive mode.

use std::sync::Arc;

use weft_base::ThreadIndex;
use weft_cluster::slot_set::SlotSet;

use crate::keyspace::module_values::find_module_keys;
use crate::keyspace::{Exclusive, Seat};
use crate::persistence::rdb_file::{KeyEncodingOptions, ModuleEncodeFailed, ModuleRecordForm, ModuleRecords, encode};
use crate::state::{HomeStandby, Server};

/// Lets the home worker wait for this thread if modules may have to encode values. The caller enters exclusive mode
/// next.
pub fn summon_home(server: &Server, seat: &Seat) -> Option<HomeStandby> {
    let is_needed = weft_modules::module::types::any_exist() && !server.is_home(ThreadIndex::new(seat.index()));
    is_needed.then(|| server.summon_home()).flatten()
}

/// Has modules encode the values that are in these slots, or in all of them, and their data besides the keys.
///
/// # Errors
/// If a module fails. The reason has been logged.
pub fn encode_modules(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
    slots: Option<&SlotSet>,
    (options, form): (KeyEncodingOptions, ModuleRecordForm),
) -> Result<ModuleRecords, ModuleEncodeFailed> {
    if !weft_modules::module::types::any_exist() {
        return Ok(ModuleRecords::default());
    }
    let mut keys = find_module_keys(all, &server.keyspace, slots);
    let mut records = Err(ModuleEncodeFailed);
    let mut run = || records = encode(std::mem::take(&mut keys), &options, form);
    server.call_modules(all, thread_index, home, &mut run);
    records
}
