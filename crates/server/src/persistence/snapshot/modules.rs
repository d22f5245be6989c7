//! Calls of modules that encode their values, for a thread in exclusive mode.

use std::sync::Arc;

use weft_base::slots::SLOTS;
use weft_base::{DbIndex, ThreadIndex};
use weft_cluster::slot_set::SlotSet;
use weft_modules::module::keyspace_events::{KeyEvent, classes, deliver, subscribed_classes};
use weft_modules::module::{engines, server_events, types};
use weft_modules::objects::context::Caller;
use weft_modules::session;

use crate::keyspace::module_values::find_module_keys;
use crate::keyspace::{Exclusive, Seat};
use crate::persistence::rdb_file::{KeyEncodingOptions, ModuleEncodeFailed, ModuleRecordForm, ModuleRecords, encode};
use crate::state::{HomeStandby, Server};

/// Lets the home worker wait for this thread if modules may have to encode values or compile libraries, or to be told
/// of loaded keys or events. The caller enters exclusive mode next.
pub fn summon_home(server: &Server, seat: &Seat) -> Option<HomeStandby> {
    let are_told = subscribed_classes() & classes::LOADED != 0 || server_events::are_any();
    let is_needed = types::any_exist() || engines::any_exist() || are_told;
    let is_home = server.is_home(ThreadIndex::new(seat.index()));
    (is_needed && !is_home).then(|| server.summon_home()).flatten()
}

/// The number of keys about which modules are told at once.
const KEYS_AT_ONCE: usize = 1024;

/// Tells the modules that have subscribed to that of all keys, after a file was loaded by a thread that counts in this
/// row. Returns the home worker, if it stands by.
pub fn report_loaded_keys(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    mut home: Option<HomeStandby>,
) -> Option<HomeStandby> {
    if subscribed_classes() & classes::LOADED == 0 {
        return home;
    }
    let mut keys: Vec<(u32, Box<[u8]>)> = Vec::new();
    for slot in 0..SLOTS {
        let data = all.cell(slot);
        for db in DbIndex::all(data.databases()) {
            if let Some(table) = data.table(db) {
                keys.extend(table.iter().map(|entry| (db.get() as u32, entry.key().into())));
            }
        }
        let is_last = slot + 1 == SLOTS;
        if keys.len() >= KEYS_AT_ONCE || (is_last && !keys.is_empty()) {
            let keys = std::mem::take(&mut keys);
            server.call_modules(all, thread_index, &mut home, &mut || report_keys(&keys));
        }
    }
    home
}

/// Tells modules of loaded keys, each with its database, with the session of this thread.
fn report_keys(keys: &[(u32, Box<[u8]>)]) {
    for (db, key) in keys {
        let event = KeyEvent {
            class: classes::LOADED,
            name: "loaded",
            db: *db,
            key,
        };
        session::current(|session| deliver(session, &event, &Caller::none()));
    }
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
    if !types::any_exist() {
        return Ok(ModuleRecords::default());
    }
    let mut keys = find_module_keys(all, &server.keyspace, slots);
    let mut records = Err(ModuleEncodeFailed);
    let mut run = || records = encode(std::mem::take(&mut keys), &options, form);
    server.call_modules(all, thread_index, home, &mut run);
    records
}
