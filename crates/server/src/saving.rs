//! Dumps of the running server: written, loaded, and written once more before the process ends.
//!
//! SAVE, the last dump, and every load run in exclusive mode: everybody else waits. A dump in the background (BGSAVE, save
//! points) is a [`crate::snapshot`] that goes into a file.

mod in_background;
mod into_file;

pub use in_background::{CannotStart, begin_due, begin_now, cancel, end_for_flush, end_for_shutdown};
pub use into_file::IntoFile;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use weft_reactor::unix_ms;

use crate::config::{Config, id};
use crate::keyspace::access::Whole;
use crate::keyspace::empty::take;
use crate::keyspace::walk::Reach;
use crate::keyspace::{Exclusive, Seat};
use crate::observe::log;
use crate::observe::metrics::Counter;
use crate::persist::rdb::{self, Contents, Destination, Fault, Head, LoadError, Loaded, Loader, Pace};
use crate::repl::Standing;
use crate::script::load_library;
use crate::shutdown::{Save, Shutdown};
use crate::snapshot::clock;
use crate::state::{PauseReason, Server};

/// Something failed; the log has told what.
#[derive(Debug)]
pub struct Failed;

/// Writes a dump.
///
/// # Errors
/// When that fails.
pub fn save(server: &Server, seat: &mut Seat) -> Result<(), Failed> {
    // Nobody may stand at the gate for as long as a script pleases.
    server.scripts.running.keep_out();
    let written = write(server, &mut seat.exclusive());
    server.scripts.running.let_in();
    written
}

fn write(server: &Server, all: &mut Exclusive<'_>) -> Result<(), Failed> {
    write_file(server, all, &path(&server.config))?;
    log::notice!("DB saved on disk");
    server.dumps.saved(unix_ms() / 1000, server.metrics.sum(Counter::Dirty));
    server.config.touch();
    Ok(())
}

fn write_file(server: &Server, all: &mut Exclusive<'_>, path: &Path) -> Result<(), Failed> {
    let now_s = unix_ms() / 1000;
    let functions = server.scripts.libraries.codes();
    let contents = Contents {
        reach: Reach::Everything(all),
        counts: &server.keyspace.counts,
        head: Head {
            functions: &functions,
            now_s,
            used_memory_bytes: crate::observe::memory::used().unwrap_or(0),
            ..Head::default()
        },
        config: &server.config,
        clock: clock(&server.config, now_s),
    };
    rdb::save(path, &contents).map_err(|error| {
        log::warning!("{error}");
        Failed
    })
}

/// Writes a dump of what is left when all data went away, if there are save points: what was in the last one shall not come
/// back.
///
/// # Errors
/// When that fails.
pub fn save_after_flush(server: &Server, seat: &mut Seat) -> Result<(), Failed> {
    // One that was being written may be about to take its name.
    server.snapshot.wait_for_cancelled();
    save(server, seat)
}

/// Loads the dump that is there when the server starts, if there is one.
///
/// # Errors
/// When it cannot be loaded as a whole.
pub fn load_at_start(server: &Server, all: &mut Exclusive<'_>, row: usize) -> Result<(), Failed> {
    let started = Instant::now();
    if let Ok(metadata) = std::fs::metadata(path(&server.config)) {
        begin_progress(server, metadata.len());
    }
    match load(server, all, row, false) {
        Ok(()) => {
            log::notice!("DB loaded from disk: {:.3} seconds", started.elapsed().as_secs_f64());
            Ok(())
        }
        Err(error) if error.is_missing() => Ok(()),
        Err(error) => {
            tell(&error);
            log::warning!("Fatal error loading the DB, check server logs. Exiting.");
            Err(Failed)
        }
    }
}

/// A load of so many bytes begins: INFO tells how far it is.
pub fn begin_progress(server: &Server, total_bytes: u64) {
    let loading = &server.repl.loading;
    loading.started_s.store(unix_ms() / 1000, Ordering::Relaxed);
    loading.total_bytes.store(total_bytes, Ordering::Relaxed);
    loading.loaded_bytes.store(0, Ordering::Relaxed);
    loading.used_memory_bytes.store(0, Ordering::Relaxed);
}

fn tell(error: &LoadError) {
    if matches!(error.fault, Fault::Short) {
        log::warning!("Short read or OOM loading DB. Unrecoverable error, aborting now.");
    }
    log::warning!("{error}");
    if matches!(error.fault, Fault::Checksum(..)) {
        let (offset, path) = (error.offset, error.path.display());
        log::warning!("Internal error in RDB reading offset {offset} of {path} -> RDB CRC error");
    }
}

/// Loads the dump that an append-only file begins with; returns where it ends. Keys that have expired are loaded: what
/// follows in the file may still mean them.
///
/// # Errors
/// When it cannot be loaded; the log has told why.
pub fn load_preamble(server: &Server, all: &mut Exclusive<'_>, row: usize, path: &Path) -> Result<u64, Failed> {
    load_file(server, path, all, row, (false, 0)).map_err(|error| {
        tell(&error);
        Failed
    })
}

/// Writes a dump into a file that an append-only file begins with.
///
/// # Errors
/// When that fails; the log has told why.
pub fn write_to(server: &Server, all: &mut Exclusive<'_>, path: &Path) -> Result<(), Failed> {
    write_file(server, all, path)
}

fn load(server: &Server, all: &mut Exclusive<'_>, row: usize, replace: bool) -> Result<(), LoadError> {
    server.dumps.loading.store(true, Ordering::Relaxed);
    // What has expired on a replica goes when the primary says so.
    let follows =
        server.config.primary().is_some() || server.cluster.as_ref().is_some_and(|cluster| cluster.view().is_replica);
    let expiry_ms = if follows { 0 } else { unix_ms() };
    let loaded = load_file(server, &path(&server.config), all, row, (replace, expiry_ms));
    server.dumps.loading.store(false, Ordering::Relaxed);
    loaded.map(|_| ())
}

/// Loads a file; `expiry_ms` is the time whose expired keys are dropped.
fn load_file(
    server: &Server,
    path: &Path,
    all: &mut Exclusive<'_>,
    row: usize,
    (replace, expiry_ms): (bool, u64),
) -> Result<u64, LoadError> {
    let now_ms = unix_ms();
    let progress = &server.repl.loading;
    let before = progress.loaded_bytes.load(Ordering::Relaxed);
    let report = |bytes| progress.loaded_bytes.store(before + bytes, Ordering::Relaxed);
    let used_memory = |bytes| progress.used_memory_bytes.store(bytes, Ordering::Relaxed);
    let mut loader = Loader {
        destination: Destination::Keyspace(all),
        hasher: &server.keyspace.hasher,
        counts: &server.keyspace.counts,
        preimages: &server.keyspace.preimages,
        seat: row,
        config: &server.config,
        clock: clock(&server.config, now_ms / 1000),
        now_ms: expiry_ms,
        replace,
        // Only while the server starts are others told that they have to wait, and why.
        pace: server.repl.standing().has(Standing::LOADING).then_some(Pace {
            every_bytes: server.config.unsigned(id::LOADING_PROCESS_EVENTS_INTERVAL_BYTES),
            report: &report,
            used_memory: &used_memory,
        }),
    };
    let loaded = rdb::load(path, &mut loader)?;
    report(loaded.end);
    load_functions(server, &loaded, replace)?;
    let empty = match loaded.empty {
        0 => String::new(),
        empty => format!(", empty keys skipped: {empty}"),
    };
    log::notice!(
        "Done loading RDB, keys loaded: {}, keys expired: {}{empty}, all fields expired hashes: {}.",
        loaded.keys,
        loaded.expired,
        loaded.expired_hashes
    );
    server.dumps.loaded(&loaded);
    Ok(loaded.end)
}

/// Loads the libraries of a dump. One that is loaded already gives way if `replace` is set, as keys do.
fn load_functions(server: &Server, loaded: &Loaded, replace: bool) -> Result<(), LoadError> {
    for code in &loaded.functions {
        let added = load_library(&server.scripts, code, false)
            .and_then(|library| server.scripts.libraries.add(&library, replace));
        if let Err(reason) = added {
            let reason = String::from_utf8_lossy(&reason);
            return Err(LoadError {
                path: path(&server.config),
                offset: 0,
                fault: Fault::damaged(format!("Failed creating the library: {reason}")),
            });
        }
    }
    Ok(())
}

/// How data is written and loaded again.
#[derive(Clone, Copy, Debug)]
pub struct Reload {
    /// Write a dump first.
    pub save: bool,
    /// Drop what is in memory before loading.
    pub flush: bool,
    /// A key of the dump replaces one in memory.
    pub replace: bool,
}

/// Why data was not reloaded.
#[derive(Debug)]
pub enum CannotReload {
    /// The dump could not be written; nothing changed.
    Save,
    /// The dump could not be loaded.
    Load,
}

/// Writes all data and loads it again, as one step.
///
/// # Errors
/// When either fails; the log has told why.
pub fn reload(server: &Server, seat: &mut Seat, how: Reload) -> Result<(), CannotReload> {
    server.scripts.running.keep_out();
    let reloaded = reload_alone(server, seat, how);
    server.scripts.running.let_in();
    reloaded
}

fn reload_alone(server: &Server, seat: &mut Seat, how: Reload) -> Result<(), CannotReload> {
    let row = seat.index();
    let mut all = seat.exclusive();
    if how.save {
        write(server, &mut all).map_err(|Failed| CannotReload::Save)?;
    }
    let keyspace = &server.keyspace;
    let databases = 0..keyspace.counts.databases();
    let taken = how
        .flush
        .then(|| take(&mut Whole::Alone(&mut all), databases, keyspace, row));
    if how.flush {
        server.scripts.libraries.flush();
    }
    // Before loading: there may be no room for both.
    drop(taken);
    load(server, &mut all, row, how.replace).map_err(|error| {
        tell(&error);
        CannotReload::Load
    })?;
    log::notice!("DB reloaded by DEBUG RELOAD");
    Ok(())
}

/// Whether a shutdown writes a dump first.
pub fn saves_before_end(server: &Server, how: &Shutdown) -> bool {
    if server.dumps.loading.load(Ordering::Relaxed) {
        // What is in memory is a part of what is on the disk.
        return false;
    }
    match how.save {
        Save::Always => true,
        Save::Never => false,
        Save::IfConfigured => !server.config.save_points().is_empty(),
    }
}

/// Tells the log that somebody wants the process to end.
pub fn announce_end(how: &Shutdown) {
    match &how.requested_by {
        Some(client) => log::notice!("User requested shutdown... (user request from '{client}')"),
        None => log::notice!("User requested shutdown..."),
    }
}

/// Writes the last dump, if one is to be written. From then on no command writes any more, so that nothing is lost that
/// was confirmed.
///
/// # Errors
/// When the dump cannot be written, and the shutdown is not forced: everything goes on.
pub fn save_before_end(server: &Server, seat: &mut Seat, how: &Shutdown) -> Result<(), Failed> {
    if !saves_before_end(server, how) {
        return Ok(());
    }
    end_for_shutdown(server);
    log::notice!("Saving the final RDB snapshot before exiting.");
    server.pause_clients(PauseReason::Shutdown, unix_ms(), u64::MAX, false);
    match save(server, seat) {
        Ok(()) => Ok(()),
        Err(Failed) if how.force => {
            log::warning!("Error trying to save the DB. Exit anyway.");
            Ok(())
        }
        Err(Failed) => {
            server.unpause_clients(PauseReason::Shutdown);
            log::warning!("Error trying to save the DB, can't exit.");
            log::warning!("Errors trying to shut down the server. Check the logs for more information.");
            Err(Failed)
        }
    }
}

/// The file that dumps go into.
pub fn path(config: &Config) -> PathBuf {
    OsString::from_vec(config.text(id::DBFILENAME).to_vec()).into()
}
