//! The moment of a snapshot: the state that is captured in exclusive mode.

use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, ThreadIndex};
use weft_cluster::slot_set::SlotSet;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

use super::modules::{encode_modules, run_with_home};
use super::parts::Database;
use super::{ALL_PURPOSES, AuxFields, OnMoment, SnapshotMoment, cancel_current};
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::{Exclusive, Seat};
use crate::observability::metrics::Counter;
use crate::persistence::rdb_file::{
    KeyEncodingOptions, ModuleEncodeFailed, ModuleRecordForm, ModuleRecords, UnfinishedImport,
};
use crate::state::Server;

/// The state captured at the moment, besides the keys.
pub struct CapturedState {
    pub databases: Vec<Database>,
    pub functions: Vec<Vec<u8>>,
    pub imports: Vec<UnfinishedImport>,
    pub notes: AuxFields,
    /// `true` if the data was being loaded at the moment: there is nothing to save.
    pub lacks_data: bool,
    pub changes: u64,
    pub began: Instant,
    pub began_s: u64,
    /// The records of modules before the keys.
    pub module_data_before: Vec<u8>,
    /// The records of modules after the keys.
    pub module_data_after: Vec<u8>,
    /// `true` if a module could not encode its data.
    pub has_module_failed: bool,
}

/// Captures the state of the moment. The thread that starts the snapshot has excluded runs on script threads, because a
/// running script could delay the closing of the gate for as long as it runs.
///
/// The values of modules are encoded at the moment, on the home worker, so they are records before any client goes on.
pub fn take(
    server: &Arc<Server>,
    seat: &mut Seat,
    slots: Option<Arc<SlotSet>>,
    at_moment: OnMoment,
    style: KeyEncodingOptions,
    form: ModuleRecordForm,
) -> CapturedState {
    let keyspace = &server.keyspace;
    keyspace.before_images.prepare(&keyspace.slots, slots.as_deref());
    let thread_index = ThreadIndex::new(seat.index());
    let (taken, closing) = run_with_home(server, seat, |alone, home, closing| {
        let slots = slots.as_deref();
        let modules = encode_modules(server, alone, thread_index, home, slots, (style, form));
        (capture(server, alone, slots, at_moment, modules), closing)
    });
    record_pause(server, closing, &taken);
    taken
}

/// Captures the state in exclusive mode, with what modules have encoded.
fn capture(
    server: &Server,
    alone: &Exclusive<'_>,
    slots: Option<&SlotSet>,
    at_moment: OnMoment,
    modules: Result<ModuleRecords, ModuleEncodeFailed>,
) -> CapturedState {
    let keyspace = &server.keyspace;
    let databases = match slots {
        None => count_all_keys(server),
        Some(slots) => count_keys_of_slots(server, alone, slots),
    };
    let numbers: Vec<DbIndex> = databases.iter().map(|database| database.number).collect();
    keyspace.before_images.begin(alone, &numbers);
    let has_module_failed = modules.is_err();
    let modules = modules.unwrap_or_default();
    for (key, record) in modules.keys {
        let named = NamedKey {
            name: &key.name,
            hash: key.hash,
            slot: key.slot,
        };
        keyspace
            .before_images
            .add_record_of_moment(alone, key.db, named, record);
    }
    let changes = server.stats.metrics.sum(Counter::Dirty);
    let functions = match slots {
        None => server.scripting.libraries.codes(),
        Some(_) => Vec::new(),
    };
    let imports = match slots {
        None => server.slot_migrations.unfinished_imports(),
        Some(_) => Vec::new(),
    };
    let notes = at_moment(&SnapshotMoment { server });
    let lacks_data = server.lacks_data();
    if lacks_data {
        // The load has begun since this snapshot was requested.
        cancel_current(server);
    }
    if server.scripting.running.has_unfinished_unit() {
        // The process is about to end, and the data have a part of a script.
        server.persistence.snapshot.cancel(&ALL_PURPOSES);
    }
    CapturedState {
        databases,
        functions,
        imports,
        notes,
        lacks_data,
        changes,
        began: Instant::now(),
        began_s: unix_ms() / 1000,
        module_data_before: modules.before_keys,
        module_data_after: modules.after_keys,
        has_module_failed,
    }
}

/// Returns the databases that have keys.
fn count_all_keys(server: &Server) -> Vec<Database> {
    let counts = &server.keyspace.counts;
    DbIndex::all(counts.databases())
        .map(|number| Database {
            number,
            keys: counts.keys(number),
            with_expiry: counts.with_expiry(number),
        })
        .filter(|database| database.keys > 0)
        .collect()
}

/// Returns the databases that have keys in these slots.
fn count_keys_of_slots(server: &Server, alone: &Exclusive<'_>, slots: &SlotSet) -> Vec<Database> {
    DbIndex::all(server.keyspace.counts.databases())
        .map(|number| {
            let tables = || slots.iter().filter_map(|slot| alone.cell(slot.index()).table(number));
            Database {
                number,
                keys: tables().map(|table| table.len() as u64).sum(),
                with_expiry: tables().map(|table| table.with_expiry() as u64).sum(),
            }
        })
        .filter(|database| database.keys > 0)
        .collect()
}

/// Records the duration of exclusive mode, which takes the place of Valkey's fork time.
fn record_pause(server: &Server, closing: Instant, taken: &CapturedState) {
    let took = closing.elapsed();
    server
        .persistence
        .snapshot
        .pause_us
        .store(took.as_micros() as u64, Ordering::Relaxed);
    server
        .persistence
        .snapshot
        .snapshots_started
        .fetch_add(1, Ordering::Relaxed);
    let threshold_ms = server.config.unsigned(id::LATENCY_MONITOR_THRESHOLD);
    let took_ms = took.as_millis() as u64;
    if threshold_ms > 0 && took_ms >= threshold_ms {
        server.stats.history.latency.add("fork", taken.began_s, took_ms);
    }
    let keys = taken.databases.iter().map(|database| database.keys).sum();
    server.persistence.snapshot.keys_total.store(keys, Ordering::Relaxed);
}
