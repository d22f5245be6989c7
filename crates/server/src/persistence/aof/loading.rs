//! Loading of the files of an append-only file.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use super::{AofFailed, AofLocation};
use crate::keyspace::access::WholeKeyspace;
use crate::keyspace::effects::Hooks;
use crate::keyspace::flush::take_databases;
use crate::keyspace::{Exclusive, Seat};
use crate::notify::messages::invalidate_replaced_data;
use crate::observability::log;
use crate::persistence::aof_files::manifest;
use crate::persistence::aof_files::manifest::{Manifest, ManifestEntry};
use crate::persistence::aof_files::reader::{AofReadError, AofReader};
use crate::persistence::rdb_file::LoadThreads;
use crate::persistence::save;
use crate::persistence::save::ReloadError;
use crate::replication::ReplicationState;
use crate::state::{NEW_DATA, ReplayOutcome, Server};
use weft_base::files::error_text;
use weft_base::{DbIndex, ThreadIndex};
use weft_config::id;
use weft_modules::module::server_events::LoadingStep;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

/// Returns the number of threads that run the commands of a file, in addition to the one that reads it, on a server
/// with this many workers.
pub fn load_threads(workers: usize) -> usize {
    LoadThreads::for_workers(workers).count
}

/// Loads the append-only file, if there is one.
///
/// # Errors
/// If it cannot be loaded. The reason has been logged.
pub fn load_at_start(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
) -> Result<(), AofFailed> {
    let place = AofLocation::from_config(&server.config);
    let mut manifest = read_manifest(&place)?;
    let start = Instant::now();
    let found = load_files(server, &place, &mut manifest, all, thread_index)?;
    if found {
        let seconds = start.elapsed().as_secs_f64();
        log::notice!("DB loaded from append only file: {seconds:.3} seconds");
    }
    server.persistence.aof_files.lock().manifest = manifest;
    Ok(())
}

/// Reads the manifest of an append-only file that is switched off. What is written once it is on replaces the files
/// that the manifest names.
///
/// # Errors
/// If it cannot be read. The reason has been logged.
pub fn read_manifest_at_start(server: &Server) -> Result<(), AofFailed> {
    let manifest = read_manifest(&AofLocation::from_config(&server.config))?;
    server.persistence.aof_files.lock().manifest = manifest;
    Ok(())
}

fn read_manifest(place: &AofLocation) -> Result<Manifest, AofFailed> {
    let name = manifest::file_name(&place.filename);
    let path = place.path(&name);
    if !place.directory.as_path().is_dir() || !path.as_path().exists() {
        return Ok(Manifest::default());
    }
    let text = std::fs::read(&path).map_err(|error| {
        let (path, reason) = (path.display(), error_text(&error));
        log::warning!("Fatal error: can't open the AOF manifest file {path} for reading: {reason}");
        AofFailed
    })?;
    Manifest::parse(&text).map_err(|error| {
        log::warning!("*** FATAL AOF MANIFEST FILE ERROR ***");
        if let Some((number, line)) = &error.line {
            log::warning!("Reading the manifest file, at line {number}");
            log::warning!(">>> '{line}'");
        }
        log::warning!("{}", error.reason);
        AofFailed
    })
}

/// Moves the single append-only file of an old server into the directory as the base.
fn migrate_single_file(place: &AofLocation, manifest: &mut Manifest) -> Result<(), AofFailed> {
    let old = place.directory.directory().file(&place.filename);
    if !old.as_path().exists() {
        return Ok(());
    }
    let is_only_base = manifest.increments.is_empty()
        && manifest.base.as_ref().is_some_and(|base| base.name == place.filename)
        && !place.path(&place.filename).as_path().exists();
    if place.directory.as_path().is_dir() && !manifest.is_empty() && !is_only_base {
        return Ok(());
    }
    place.make_directory()?;
    manifest.add_migrated_base(&place.filename);
    place.store(manifest)?;
    let (name, directory) = (&place.filename, place.directory.display());
    std::fs::rename(&old, place.path(name)).map_err(|error| {
        let reason = error_text(&error);
        log::warning!("Error trying to move the old AOF file {name} into dir {directory}: {reason}");
        AofFailed
    })?;
    log::notice!("Successfully migrated an old-style AOF file ({name}) into the AOF directory ({directory}).");
    Ok(())
}

fn file_size(place: &AofLocation, part: &ManifestEntry) -> Result<u64, AofFailed> {
    std::fs::metadata(place.path(&part.name))
        .map(|metadata| metadata.len())
        .map_err(|error| {
            let (name, reason) = (&part.name, error_text(&error));
            log::warning!("Unable to obtain the AOF file {name} length. stat: {reason}");
            AofFailed
        })
}

/// Loads all files that a manifest names. Returns `true` if there were any.
///
/// # Errors
/// If one of them cannot be loaded. The reason has been logged.
fn load_files(
    server: &Arc<Server>,
    place: &AofLocation,
    manifest: &mut Manifest,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
) -> Result<bool, AofFailed> {
    migrate_single_file(place, manifest)?;
    if manifest.is_empty() {
        return Ok(false);
    }
    let sizes: Vec<u64> = manifest
        .files()
        .map(|part| file_size(place, part))
        .collect::<Result<_, _>>()?;
    if sizes.iter().sum::<u64>() == 0 {
        return Ok(true);
    }
    save::reset_load_progress(server, sizes.iter().sum());
    let was_loading = server.persistence.dumps.is_loading.swap(true, Ordering::Relaxed);
    assert!(!was_loading, "one append-only file is loaded at a time");
    save::deliver_loading(server, all, thread_index, LoadingStep::AofStart);
    let loaded = load_parts(server, place, manifest, &sizes, all, thread_index);
    server.persistence.dumps.is_loading.store(false, Ordering::Relaxed);
    save::deliver_loading(server, all, thread_index, save::loading_ended(loaded.is_ok()));
    loaded?;
    let status = &server.persistence.aof;
    let base = manifest.base.as_ref().and(sizes.first()).copied().unwrap_or(0);
    status.current_bytes.store(sizes.iter().sum(), Ordering::Relaxed);
    status.base_bytes.store(base, Ordering::Relaxed);
    Ok(true)
}

fn load_parts(
    server: &Arc<Server>,
    place: &AofLocation,
    manifest: &Manifest,
    sizes: &[u64],
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
) -> Result<(), AofFailed> {
    assert_eq!(
        sizes.len(),
        manifest.files().count(),
        "each file of a manifest has a size"
    );
    for (index, part) in manifest.files().enumerate() {
        // After the last file with data there may be an empty increment.
        let is_last = sizes.iter().skip(index + 1).all(|size| *size == 0);
        let is_base = index == 0 && manifest.base.is_some();
        let start = Instant::now();
        load_part(server, place, &part.name, is_last, all, thread_index)?;
        let kind = if is_base { "base" } else { "incr" };
        let seconds = start.elapsed().as_secs_f64();
        log::notice!("DB loaded from {kind} file {}: {seconds:.3} seconds", part.name);
    }
    Ok(())
}

fn open_part(path: &Path, name: &str) -> Result<File, AofFailed> {
    File::open(path).map_err(|error| {
        let reason = error_text(&error);
        if path.exists() {
            log::warning!("Fatal error: can't open the append log file {name} for reading: {reason}");
        } else {
            log::warning!("The append log file {name} doesn't exist: {reason}");
        }
        AofFailed
    })
}

/// Loads one file. If its end is missing, the last file is truncated, and any other one is refused.
fn load_part(
    server: &Arc<Server>,
    place: &AofLocation,
    name: &str,
    is_last: bool,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
) -> Result<(), AofFailed> {
    let path = place.path(name);
    let mut file = open_part(path.as_path(), name)?;
    let mut magic = [0; 5];
    let is_dump = file.read_exact(&mut magic).is_ok() && (&magic == b"REDIS" || &magic == b"VALKE");
    let mut start = 0;
    if is_dump {
        let is_old = name == place.filename;
        if is_old {
            log::notice!("Reading RDB preamble from AOF file...");
        } else {
            log::notice!("Reading RDB base file on AOF loading...");
        }
        start = save::load_rdb_preamble(server, all, thread_index, &path).map_err(|save::SaveFailed| {
            if is_old {
                log::warning!("Error reading the RDB preamble of the AOF file {name}, AOF loading aborted");
            } else {
                log::warning!("Error reading the RDB base file {name}, AOF loading aborted");
            }
            AofFailed
        })?;
        if is_old {
            log::notice!("Reading the remaining AOF tail...");
        }
    }
    file.seek(SeekFrom::Start(start)).map_err(|error| {
        let reason = error_text(&error);
        log::warning!("Unrecoverable error reading the append only file {name}: {reason}");
        AofFailed
    })?;
    let Some(replay) = server.persistence.replay.get() else {
        unreachable!("the start sets the function that replays commands");
    };
    let mut commands = AofReader::new(file, start);
    let replayed = replay(server, all, thread_index, &mut commands);
    assert!(commands.offset() >= start, "commands lie behind the preamble");
    let cut_at = match replayed {
        ReplayOutcome::Complete => return Ok(()),
        ReplayOutcome::UnfinishedTransaction(before) => {
            log::warning!("Revert incomplete MULTI/EXEC transaction in AOF file {name}");
            before
        }
        ReplayOutcome::Failed(AofReadError::Truncated, valid) => valid,
        ReplayOutcome::Failed(AofReadError::Read(error), _) => {
            let reason = error_text(&error);
            log::warning!("Unrecoverable error reading the append only file {name}: {reason}");
            return Err(AofFailed);
        }
        ReplayOutcome::Failed(AofReadError::Format, _) => {
            log::warning!(
                "Bad file format reading the append only file {name}: make a backup of your AOF file, then use \
                 ./valkey-check-aof --fix <filename.manifest>"
            );
            return Err(AofFailed);
        }
        ReplayOutcome::InvalidCommand(error) => {
            log::warning!("Error reading the append only file {name}, error: {error}");
            return Err(AofFailed);
        }
    };
    assert!(
        (start..=commands.offset()).contains(&cut_at),
        "a file is truncated behind a command that was read"
    );
    truncate(server, path.as_path(), name, is_last, cut_at)
}

/// Truncates the last file after its last complete command, if that is allowed.
///
/// Any other file stays as it is. Its missing end would be a gap in the middle of the data, and once truncated the file
/// would look complete to the next start.
fn truncate(server: &Server, path: &Path, name: &str, is_last: bool, at: u64) -> Result<(), AofFailed> {
    if server.config.boolean(id::AOF_LOAD_TRUNCATED) {
        log::warning!("!!! Warning: short read while loading the AOF file {name}!!!");
        if !is_last {
            log::warning!("Fatal error: the truncated file is not the last file");
            return Err(AofFailed);
        }
        log::warning!("!!! Truncating the AOF {name} at offset {at} !!!");
        let result = OpenOptions::new()
            .write(true)
            .open(path)
            // Without the sync a power failure could bring back the old end behind commands that are added from now on.
            .and_then(|file| file.set_len(at).and_then(|()| weft_os::disk::sync_all(&file)));
        match result {
            Ok(()) => {
                log::warning!("AOF {name} loaded anyway because aof-load-truncated is enabled");
                return Ok(());
            }
            Err(error) => log::warning!("Error truncating the AOF file {name}: {}", error_text(&error)),
        }
    }
    log::warning!(
        "Unexpected end of file reading the append only file {name}. You can: 1) Make a backup of your AOF file, then \
         use ./valkey-check-aof --fix <filename.manifest>. 2) Alternatively you can set the 'aof-load-truncated' \
         configuration option to yes and restart the server."
    );
    Err(AofFailed)
}

/// Replaces the data in memory with that of the append-only file (DEBUG LOADAOF).
///
/// # Errors
/// If the file cannot be loaded. The reason has been logged.
pub fn reload(server: &Arc<Server>, seat: &mut Seat) -> Result<(), ReloadError> {
    let excluded = server.scripting.running.exclude_runs_for_client();
    excluded.map_err(ReloadError::ScriptBusy)?;
    let loaded = reload_in_exclusive_mode(server, seat);
    server.scripting.running.end_exclusion();
    loaded
}

fn reload_in_exclusive_mode(server: &Arc<Server>, seat: &mut Seat) -> Result<(), ReloadError> {
    let thread_index = ThreadIndex::new(seat.index());
    let mut all = seat.exclusive();
    if server.is_loading() {
        return Err(ReloadError::Loading);
    }
    if server.scripting.running.has_unfinished_unit() {
        return Err(ReloadError::ProcessEnds);
    }
    server.end_migrations_for_load();
    // The file has their beginning.
    server.forget_imports(&mut all, NEW_DATA);
    super::wait_until_written(server);
    let hooks = &server.keyspace.hooks;
    let logged = hooks.current().intersection(Hooks::LOG);
    // The loaded commands were logged before.
    hooks.set(Hooks::LOG, false);
    let databases = DbIndex::all(server.keyspace.counts.databases());
    // As at startup. Other nodes would regard a silent cluster node as failed.
    let tells = server.cluster.is_none();
    server.replication.set_state_bits(ReplicationState::LOADING, tells);
    save::deliver_flush(server, &mut all, thread_index, &mut None, false);
    drop(take_databases(
        &mut WholeKeyspace::Exclusive(&mut all),
        databases,
        &server.keyspace,
        thread_index,
    ));
    save::deliver_flush(server, &mut all, thread_index, &mut None, true);
    invalidate_replaced_data(server, thread_index);
    server.scripting.libraries.flush();
    let mut manifest = server.persistence.aof_files.lock().manifest.clone();
    let loaded = load_files(
        server,
        &AofLocation::from_config(&server.config),
        &mut manifest,
        &mut all,
        thread_index,
    );
    server.replication.set_state_bits(ReplicationState::LOADING, false);
    hooks.set(logged, true);
    server.end_loaded_imports(NEW_DATA);
    loaded.map(|_| ()).map_err(|AofFailed| ReloadError::Load)
}
