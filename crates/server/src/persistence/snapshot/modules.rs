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
use crate::state::{HOME_WORKER, HomeStandby, Server};
use weft_os::time::Instant;

/// Returns `true` if modules may have to encode values or compile libraries, or to be told of loaded keys or events,
/// and this is not the thread for that. The answer changes in exclusive mode only.
fn is_home_needed(server: &Server, thread_index: ThreadIndex) -> bool {
    let are_told = subscribed_classes() & classes::LOADED != 0 || server_events::are_any();
    let is_needed = types::any_exist() || engines::any_exist() || are_told;
    is_needed && !server.is_home(thread_index)
}

/// Lets the home worker wait for this thread if it is needed. The caller enters exclusive mode next, and calls
/// [`is_home_missing`] there.
pub fn summon_home(server: &Server, seat: &Seat) -> Option<HomeStandby> {
    let is_needed = is_home_needed(server, ThreadIndex::new(seat.index()));
    is_needed.then(|| server.summon_home()).flatten()
}

/// Returns `true` if the home worker is needed now, in exclusive mode, and was not when [`summon_home`] was called: a
/// module was loaded while this thread waited at the gate. The caller leaves exclusive mode and begins anew.
pub fn is_home_missing(server: &Server, thread_index: ThreadIndex, home: Option<&HomeStandby>) -> bool {
    home.is_none() && is_home_needed(server, thread_index) && !server.worker(HOME_WORKER).has_ended()
}

/// Calls `run` in exclusive mode, with the home worker if it is needed. `run` gets the time at which this thread began
/// to wait at the gate.
pub fn run_with_home<R>(
    server: &Server,
    seat: &mut Seat,
    run: impl FnOnce(&mut Exclusive<'_>, &mut Option<HomeStandby>, Instant) -> R,
) -> R {
    let thread_index = ThreadIndex::new(seat.index());
    loop {
        let mut home = summon_home(server, seat);
        let closing = Instant::now();
        let mut all = seat.exclusive();
        if !is_home_missing(server, thread_index, home.as_ref()) {
            return run(&mut all, &mut home, closing);
        }
    }
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
