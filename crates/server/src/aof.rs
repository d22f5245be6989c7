//! The append-only file of the running server: opened at the start, switched on and off, rewritten.
//!
//! What belongs to files lies in [`crate::persist::aof`]; here is when it happens.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use weft_reactor::unix_ms;

use crate::config::{Config, error_text, id};
use crate::journal;
use crate::keyspace::effects::Hooks;
use crate::keyspace::{Exclusive, Seat};
use crate::observe::{lock, log};
use crate::persist::aof::manifest::{self, Manifest, Part};
use crate::persist::aof::reading::{Commands, Fault};
use crate::persist::aof::{Appender, Feed, Fsync, Links, Phase, open};
use crate::saving;
use crate::state::{Message, Replayed, Server};

/// Something failed; the log has told what.
#[derive(Debug)]
pub struct Failed;

/// The name under which the log knows the append-only file.
const FEED: &str = "file";

/// Where the files are, and what they are called.
pub struct Place {
    /// The directory.
    pub directory: PathBuf,
    /// The name that all of them begin with.
    pub filename: String,
}

impl Place {
    /// The place that is configured.
    pub fn of(config: &Config) -> Self {
        let text = |id| String::from_utf8_lossy(&config.text(id)).into_owned();
        Place {
            directory: PathBuf::from(text(id::APPENDDIRNAME)),
            filename: text(id::APPENDFILENAME),
        }
    }

    /// Makes the directory if it is not there.
    ///
    /// # Errors
    /// When that fails.
    pub fn make_directory(&self) -> Result<(), Failed> {
        match std::fs::create_dir(&self.directory) {
            Ok(()) => Ok(()),
            Err(_) if self.directory.is_dir() => Ok(()),
            Err(error) => {
                let directory = self.directory.display();
                log::warning!("Can't open or create append-only dir {directory}: {}", error_text(&error));
                Err(Failed)
            }
        }
    }

    /// A file of it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn store(&self, manifest: &mut Manifest) -> Result<(), Failed> {
        manifest.store(&self.directory, &self.filename).map_err(|reason| {
            log::warning!("{reason}");
            Failed
        })
    }
}

/// Copies the parameters that the log thread reads.
pub fn refresh(server: &Server) {
    let (config, status) = (&server.config, &server.aof);
    status.set_fsync(config.choice(id::APPENDFSYNC));
    let timestamps = config.boolean(id::AOF_TIMESTAMP_ENABLED);
    status.timestamps.store(timestamps, Ordering::Relaxed);
    let spares = config.boolean(id::NO_APPENDFSYNC_ON_REWRITE);
    status.spares_rewrites.store(spares, Ordering::Relaxed);
    withhold(server);
}

/// Replies wait for the disk if there is an append-only file and `appendfsync` says so.
fn withhold(server: &Server) {
    let withholds = server.aof.phase() != Phase::Off && server.aof.fsync() == Fsync::Always;
    server.journal.withhold_replies(withholds);
    if !withholds {
        server.journal.take_askers(|worker| server.workers[worker].send(Message::Logged));
    }
    // It may have something to sync now.
    server.journal.wake();
}

// ---- at the start --------------------------------------------------------------------------------------------------

/// Loads the append-only file, if there is one.
///
/// # Errors
/// When it cannot be loaded; the log has told why.
pub fn load_at_start(server: &Arc<Server>) -> Result<(), Failed> {
    let Some(mut seat) = server.keyspace.slots.join() else {
        log::warning!("Fatal error loading the DB: no seat is left at the keyspace");
        return Err(Failed);
    };
    let place = Place::of(&server.config);
    let mut manifest = read_manifest(&place)?;
    let start = Instant::now();
    let row = seat.index();
    let found = load(server, &place, &mut manifest, (&mut seat.exclusive(), row))?;
    if found {
        let seconds = start.elapsed().as_secs_f64();
        log::notice!("DB loaded from append only file: {seconds:.3} seconds");
    }
    lock(&server.aof_files).manifest = manifest;
    Ok(())
}

fn read_manifest(place: &Place) -> Result<Manifest, Failed> {
    let name = manifest::file_name(&place.filename);
    let path = place.path(&name);
    if !place.directory.is_dir() || !path.exists() {
        return Ok(Manifest::default());
    }
    let text = std::fs::read(&path).map_err(|error| {
        let (path, reason) = (path.display(), error_text(&error));
        log::warning!("Fatal error: can't open the AOF manifest file {path} for reading: {reason}");
        Failed
    })?;
    Manifest::parse(&text).map_err(|error| {
        log::warning!("*** FATAL AOF MANIFEST FILE ERROR ***");
        if let Some((number, line)) = &error.line {
            log::warning!("Reading the manifest file, at line {number}");
            log::warning!(">>> '{line}'");
        }
        log::warning!("{}", error.reason);
        Failed
    })
}

/// A single file of an old server becomes the base, in the directory.
fn adopt_old_file(place: &Place, manifest: &mut Manifest) -> Result<(), Failed> {
    let old = Path::new(&place.filename);
    if !old.exists() {
        return Ok(());
    }
    let is_only_base = manifest.increments.is_empty()
        && manifest.base.as_ref().is_some_and(|base| base.name == place.filename)
        && !place.path(&place.filename).exists();
    if place.directory.is_dir() && !manifest.is_empty() && !is_only_base {
        return Ok(());
    }
    place.make_directory()?;
    manifest.adopt(&place.filename);
    place.store(manifest)?;
    let (name, directory) = (&place.filename, place.directory.display());
    std::fs::rename(old, place.path(name)).map_err(|error| {
        let reason = error_text(&error);
        log::warning!("Error trying to move the old AOF file {name} into dir {directory}: {reason}");
        Failed
    })?;
    log::notice!("Successfully migrated an old-style AOF file ({name}) into the AOF directory ({directory}).");
    Ok(())
}

fn size_of(place: &Place, part: &Part) -> Result<u64, Failed> {
    std::fs::metadata(place.path(&part.name))
        .map(|metadata| metadata.len())
        .map_err(|error| {
            let (name, reason) = (&part.name, error_text(&error));
            log::warning!("Unable to obtain the AOF file {name} length. stat: {reason}");
            Failed
        })
}

/// Loads all files that a manifest names; whether there was anything.
///
/// # Errors
/// When one of them cannot be loaded; the log has told why.
fn load(
    server: &Arc<Server>,
    place: &Place,
    manifest: &mut Manifest,
    (all, row): (&mut Exclusive<'_>, usize),
) -> Result<bool, Failed> {
    adopt_old_file(place, manifest)?;
    if manifest.is_empty() {
        return Ok(false);
    }
    let sizes: Vec<u64> = manifest
        .parts()
        .map(|part| size_of(place, part))
        .collect::<Result<_, _>>()?;
    if sizes.iter().sum::<u64>() == 0 {
        return Ok(true);
    }
    server.dumps.loading.store(true, Ordering::Relaxed);
    let loaded = load_parts(server, place, manifest, (all, row));
    server.dumps.loading.store(false, Ordering::Relaxed);
    loaded?;
    let status = &server.aof;
    let base = manifest.base.as_ref().and(sizes.first()).copied().unwrap_or(0);
    status.current_bytes.store(sizes.iter().sum(), Ordering::Relaxed);
    status.base_bytes.store(base, Ordering::Relaxed);
    Ok(true)
}

fn load_parts(
    server: &Arc<Server>,
    place: &Place,
    manifest: &Manifest,
    (all, row): (&mut Exclusive<'_>, usize),
) -> Result<(), Failed> {
    let count = manifest.parts().count();
    for (index, part) in manifest.parts().enumerate() {
        let is_last = index + 1 == count;
        let is_base = index == 0 && manifest.base.is_some();
        let start = Instant::now();
        let truncated = load_part(server, place, &part.name, (all, row))?;
        if truncated && !is_last {
            log::warning!("Fatal error: the truncated file is not the last file");
            return Err(Failed);
        }
        let kind = if is_base { "base" } else { "incr" };
        let seconds = start.elapsed().as_secs_f64();
        log::notice!("DB loaded from {kind} file {}: {seconds:.3} seconds", part.name);
    }
    Ok(())
}

/// Loads one file; whether its end was missing and has been cut off.
fn load_part(
    server: &Arc<Server>,
    place: &Place,
    name: &str,
    (all, row): (&mut Exclusive<'_>, usize),
) -> Result<bool, Failed> {
    let path = place.path(name);
    let mut file = File::open(&path).map_err(|error| {
        let reason = error_text(&error);
        if path.exists() {
            log::warning!("Fatal error: can't open the append log file {name} for reading: {reason}");
        } else {
            log::warning!("The append log file {name} doesn't exist: {reason}");
        }
        Failed
    })?;
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
        start = saving::load_preamble(server, all, row, &path).map_err(|saving::Failed| {
            if is_old {
                log::warning!("Error reading the RDB preamble of the AOF file {name}, AOF loading aborted");
            } else {
                log::warning!("Error reading the RDB base file {name}, AOF loading aborted");
            }
            Failed
        })?;
        if is_old {
            log::notice!("Reading the remaining AOF tail...");
        }
    }
    file.seek(SeekFrom::Start(start)).map_err(|error| {
        let reason = error_text(&error);
        log::warning!("Unrecoverable error reading the append only file {name}: {reason}");
        Failed
    })?;
    let Some(replay) = server.replay.get() else {
        unreachable!("the start says who replays commands");
    };
    let mut commands = Commands::new(file, start);
    let replayed = replay(server, all, row, &mut commands);
    let cut_at = match replayed {
        Replayed::Whole => return Ok(false),
        Replayed::Unfinished(before) => {
            log::warning!("Revert incomplete MULTI/EXEC transaction in AOF file {name}");
            before
        }
        Replayed::Failed(Fault::Short, valid) => valid,
        Replayed::Failed(Fault::Read(error), _) => {
            let reason = error_text(&error);
            log::warning!("Unrecoverable error reading the append only file {name}: {reason}");
            return Err(Failed);
        }
        Replayed::Failed(Fault::Format, _) => {
            log::warning!(
                "Bad file format reading the append only file {name}: make a backup of your AOF file, then use \
                 ./valkey-check-aof --fix <filename.manifest>"
            );
            return Err(Failed);
        }
        Replayed::Unknown(command) => {
            log::warning!("Unknown command '{command}' reading the append only file {name}");
            return Err(Failed);
        }
    };
    cut(server, &path, name, cut_at)?;
    Ok(true)
}

/// Cuts a file off where its last whole command ends, if that is allowed.
fn cut(server: &Server, path: &Path, name: &str, at: u64) -> Result<(), Failed> {
    if server.config.boolean(id::AOF_LOAD_TRUNCATED) {
        log::warning!("!!! Warning: short read while loading the AOF file {name}!!!");
        log::warning!("!!! Truncating the AOF {name} at offset {at} !!!");
        let result = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(at));
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
    Err(Failed)
}

/// Opens the last increment, and a base in front of it if there is nothing yet. From then on every write is logged.
///
/// # Errors
/// When that fails; the log has told why.
pub fn open_at_start(server: &Arc<Server>) -> Result<(), Failed> {
    let Some(mut seat) = server.keyspace.slots.join() else {
        log::warning!("Fatal error: no seat is left at the keyspace");
        return Err(Failed);
    };
    let place = Place::of(&server.config);
    place.make_directory()?;
    let files = &mut *lock(&server.aof_files);
    let manifest = &mut files.manifest;
    let had_increments = !manifest.increments.is_empty();
    if manifest.is_empty() {
        let as_dump = server.config.boolean(id::AOF_USE_RDB_PREAMBLE);
        let name = manifest.begin_base(&place.filename, as_dump);
        write_base(server, &mut seat.exclusive(), &place.path(&name), as_dump)?;
        log::notice!("Creating AOF base file {name} on server start");
    }
    let name = manifest.last_increment(&place.filename);
    let file = open(&place.path(&name), false).map_err(|error| {
        log::warning!("Can't open the append-only file {name}: {}", error_text(&error));
        Failed
    })?;
    place.store(manifest)?;
    let done = if had_increments { "Opening" } else { "Creating" };
    log::notice!("{done} AOF incr file {name} on server start");
    files.appender = Some(append_to(server, &mut seat, file)?);
    server.aof.set_phase(Phase::On);
    refresh(server);
    delete_history(server, &place, &mut files.manifest);
    Ok(())
}

/// Starts to log into a file.
fn append_to(server: &Arc<Server>, seat: &mut Seat, file: File) -> Result<Arc<Mutex<Appender>>, Failed> {
    let failed = |error: std::io::Error| {
        log::warning!("Fatal error: cannot start a thread for the append-only file: {error}");
        Failed
    };
    journal::start(&server.journal).map_err(failed)?;
    let appender = Arc::new(Mutex::new(Appender::new(file, links(server)).map_err(failed)?));
    let feed = Box::new(Feed(appender.clone()));
    let all = seat.exclusive();
    server.journal.mark(move |feeds| feeds.add(FEED, feed, 0));
    server.keyspace.hooks.put(Hooks::LOG_FILE, true);
    drop(all);
    Ok(appender)
}

fn links(server: &Arc<Server>) -> Links {
    let (tells, notes) = (server.clone(), server.clone());
    Links {
        journal: server.journal.clone(),
        status: server.aof.clone(),
        tell: Arc::new(move |worker| tells.workers[worker].send(Message::Logged)),
        took: Arc::new(move |event, time| note_latency(&notes, event, time)),
    }
}

fn note_latency(server: &Server, event: &'static str, time: Duration) {
    let threshold_ms = server.config.unsigned(id::LATENCY_MONITOR_THRESHOLD);
    let ms = time.as_millis() as u64;
    if threshold_ms > 0 && ms >= threshold_ms {
        server.observed.latency.add(event, unix_ms() / 1000, ms);
    }
}

/// Writes everything into a new base, under another name first.
fn write_base(server: &Arc<Server>, all: &mut Exclusive<'_>, path: &Path, _as_dump: bool) -> Result<(), Failed> {
    saving::write_to(server, all, path).map_err(|saving::Failed| Failed)
}

/// Deletes what was replaced.
fn delete_history(server: &Server, place: &Place, manifest: &mut Manifest) {
    if server.config.boolean(id::AOF_DISABLE_AUTO_GC) {
        return;
    }
    let history = manifest.take_history();
    if history.is_empty() {
        return;
    }
    for part in &history {
        log::notice!("Removing the history file {} in the background", part.name);
        // What cannot be deleted is in nobody's way.
        let _ = std::fs::remove_file(place.path(&part.name));
    }
    // The log has told; the manifest names files that are gone, which does no harm.
    let _ = place.store(manifest);
}

// ---- at the end ----------------------------------------------------------------------------------------------------

/// Has everything that was logged on the disk, when nobody writes any more.
pub fn finish(server: &Arc<Server>) {
    if server.aof.phase() == Phase::Off {
        return;
    }
    log::notice!("Calling fsync() on the AOF file.");
    drain(server);
    if let Some(appender) = &lock(&server.aof_files).appender {
        lock(appender).finish();
    }
}

/// Waits until the log thread has given its consumers everything that was logged before.
fn drain(server: &Server) {
    let (done, is_done) = mpsc::sync_channel(1);
    server.journal.mark(move |_| {
        // Who waits may have given up.
        let _ = done.send(());
    });
    // A log thread that panicked has ended the process.
    let _ = is_done.recv();
}
