//! Receives a full synchronisation: a dump that comes over the link and replaces all data.
//!
//! | `repl-diskless-load` | the dump | old data | clients meanwhile |
//! |---|---|---|---|
//! | `disabled` | goes into a file first | dropped when the file is complete | LOADING from then on |
//! | `on-flush-db` | is loaded as it arrives if there is no data, else `disabled` | | LOADING |
//! | `flush-before-load` | is loaded as it arrives | dropped when the dump has begun | LOADING |
//! | `swapdb` | is loaded as it arrives | dropped when it is complete | LOADING, or old data of the same history |
//!
//! The header of the dump is checked before any data is dropped. While a dump is loaded, the primary is sent an empty
//! line every [`BEAT`], so that it does not consider this server dead.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_reactor::unix_ms;

use super::link::{Failure, Link};
use crate::config::{error_text, id};
use crate::dispatch::execute::Thread;
use crate::keyspace::access::WholeKeyspace;
use crate::keyspace::effects::Hooks;
use crate::keyspace::flush::{DetachedTables, take};
use crate::keyspace::staging::StagedDatabases;
use crate::keyspace::{Exclusive, SLOTS, Seat, ready_keys};
use crate::notify::messages::{NotificationSender, wake};
use crate::observability::log;
use crate::persistence::rdb_file::{Destination, Fault, LoadError, Loaded, Loader, Opened, ProgressCallback};
use crate::persistence::snapshot::clock;
use crate::persistence::snapshot_state::Purpose;
use crate::replication::{Phase, ReplicationHistory, ReplicationState, Transfer, no_id};
use crate::scripting::{Library, RestorePolicy, load_library};
use crate::state::{Message, PrimaryThreadCommand, Server};

/// The number of bytes in the mark that ends a dump of unknown size.
const MARK_BYTES: usize = 40;
/// The maximum number of bytes per receive.
const RECEIVE_BYTES: usize = 64 * 1024;
/// The interval between two keepalive newlines.
const BEAT: Duration = Duration::from_secs(1);

/// The way in which the end of a dump is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Bytes(u64),
    Mark([u8; MARK_BYTES]),
}

impl Extent {
    /// Returns the size of the dump in bytes, if it is known.
    fn bytes(self) -> Option<u64> {
        match self {
            Extent::Bytes(bytes) => Some(bytes),
            Extent::Mark(_) => None,
        }
    }
}

/// The treatment of the old data, and of clients during the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// `true` if the dump goes into a file first.
    to_disk: bool,
    /// `true` if the old data stays until the dump is complete.
    swaps: bool,
    /// `true` if clients are served from the old data.
    serves_old: bool,
}

/// Receives all data of the primary with the replication ID `id` at `offset`, and replaces this server's data. Returns
/// the database that the stream has selected there.
///
/// # Errors
/// When the transfer fails. The old data may be gone then.
pub fn receive(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut Link,
    id: &str,
    offset: i64,
) -> Result<usize, Failure> {
    let begin = |state: &mut crate::replication::State| {
        state.phase = Phase::Transfer;
        state.transfer = Transfer {
            last_io_s: unix_ms() / 1000,
            ..Transfer::default()
        };
    };
    server.repl.in_term(link.term(), begin).ok_or(Failure::TermOver)?;
    take_over(server, seat, link, id, offset)
}

/// Does the same as [`receive`] without entering [`Phase::Transfer`], for a caller that enters it itself.
///
/// # Errors
/// The same as [`receive`].
pub fn take_over(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut Link,
    id: &str,
    offset: i64,
) -> Result<usize, Failure> {
    let extent = read_extent(link)?;
    let plan = plan(server, id);
    let total_bytes = i64::try_from(extent.bytes().unwrap_or(0)).unwrap_or(i64::MAX);
    // If the role epoch is over, its next check ends the transfer.
    let _ = server
        .repl
        .in_term(link.term(), |state| state.transfer.total_bytes = total_bytes);
    let medium = if plan.to_disk { "disk" } else { "parser" };
    match extent {
        Extent::Bytes(bytes) => {
            log::notice!("PRIMARY <-> REPLICA sync: receiving {bytes} bytes from primary to {medium}");
        }
        Extent::Mark(_) => {
            log::notice!("PRIMARY <-> REPLICA sync: receiving streamed RDB from primary with EOF to {medium}");
        }
    }
    let mut loaded = match plan.to_disk {
        true => load_from_file(server, seat, link, extent, plan)?,
        false => load_from_link(server, seat, link, extent, plan)?,
    };
    let db = loaded.loaded.position.db.unwrap_or(0);
    server.repl.stream_db.store(db, Ordering::Relaxed);
    let open_slots = std::mem::take(&mut loaded.loaded.position.open_slots);
    put_into_place(server, seat, link.term(), loaded, id, offset)?;
    if let Some(cluster) = &server.cluster {
        cluster.take_open_slots(&open_slots);
    }
    Ok(db)
}

fn plan(server: &Server, id: &str) -> Plan {
    let is_empty = || (0..server.keyspace.counts.databases()).all(|db| server.keyspace.counts.keys(db) == 0);
    let mode = server.config.choice(crate::config::id::REPL_DISKLESS_LOAD);
    let same_history = || {
        let state = server.repl.state();
        state.resumable && state.history.id == id
    };
    Plan {
        to_disk: match mode {
            "disabled" => true,
            "on-empty-db" => !is_empty(),
            _ => false,
        },
        swaps: mode == "swapdb",
        serves_old: mode == "swapdb" && same_history(),
    }
}

fn read_extent(link: &mut Link) -> Result<Extent, Failure> {
    let line = link.full_line()?;
    let shown = || String::from_utf8_lossy(&line).into_owned();
    if let Some(error) = line.strip_prefix(b"-") {
        let error = String::from_utf8_lossy(error).into_owned();
        return Err(Failure::Told(format!(
            "PRIMARY aborted replication with an error: {error}"
        )));
    }
    let bad = || {
        Failure::Told(format!(
            "Bad protocol from PRIMARY, the first byte is not '$' (we received '{}'), are you sure the host and port are \
             right?",
            shown()
        ))
    };
    let size = line.strip_prefix(b"$").ok_or_else(bad)?;
    if let Some(mark) = size.strip_prefix(b"EOF:") {
        return mark.try_into().map(Extent::Mark).map_err(|_| bad());
    }
    let bytes = weft_resp::number::parse_i64(size).and_then(|bytes| u64::try_from(bytes).ok());
    bytes.map(Extent::Bytes).ok_or_else(bad)
}

// ---- reading the dump -----------------------------------------------------------------------------------------------
/// A dump read from the link or from a file.
struct DumpSource<'l> {
    link: &'l mut Link,
    /// The file, if the dump has been written to one.
    file: Option<File>,
    /// The number of bytes still to come over the link, if it is known.
    left: Option<u64>,
    /// The number of bytes read.
    read: u64,
    last_beat: Instant,
    /// The reason for which a read failed.
    failure: Option<Failure>,
    /// `true` if the bytes read are being loaded.
    loads: bool,
}

impl<'l> DumpSource<'l> {
    fn new(link: &'l mut Link, extent: Extent, loads: bool) -> Self {
        DumpSource {
            link,
            file: None,
            left: extent.bytes(),
            read: 0,
            last_beat: Instant::now(),
            failure: None,
            loads,
        }
    }

    fn fail(&mut self, failure: Failure) -> io::Error {
        self.failure = Some(failure);
        io::ErrorKind::BrokenPipe.into()
    }

    fn note(&mut self, count: usize) {
        self.read += count as u64;
        let repl = &self.link.server().repl;
        if self.loads {
            repl.loading.loaded_bytes.store(self.read, Ordering::Relaxed);
        }
        if self.file.is_none() {
            let read_bytes = self.read;
            // If the role epoch is over, its next check ends the transfer.
            let _ = repl.in_term(self.link.term(), |state| {
                state.transfer.read_bytes = read_bytes;
                state.transfer.last_io_s = unix_ms() / 1000;
            });
        }
    }

    fn beat(&mut self) -> Result<(), Failure> {
        if self.link.server().repl.term() != self.link.term() {
            return Err(Failure::TermOver);
        }
        if self.link.beats && self.last_beat.elapsed() >= BEAT {
            self.last_beat = Instant::now();
            self.link.send_raw(b"\n")?;
        }
        Ok(())
    }

    /// Reads from the link.
    fn read_link(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let most = self.left.map_or(buffer.len(), |left| {
            buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX))
        });
        if most == 0 {
            return Ok(0);
        }
        if self.link.ahead.is_empty() {
            let mut ahead = std::mem::take(&mut self.link.ahead);
            let received = self.link.receive_in_time(&mut ahead, RECEIVE_BYTES);
            self.link.ahead = ahead;
            if received? == 0 {
                return Err(Failure::Timeout(
                    "Timeout receiving bulk data from PRIMARY... If the problem persists try to set the 'repl-timeout' \
                     parameter in valkey.conf to a larger value.",
                ));
            }
        }
        let count = most.min(self.link.ahead.len());
        buffer[..count].copy_from_slice(&self.link.ahead[..count]);
        self.link.ahead.drain(..count);
        if let Some(left) = &mut self.left {
            *left -= count as u64;
        }
        Ok(count)
    }
}

impl Read for DumpSource<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Err(failure) = self.beat() {
            return Err(self.fail(failure));
        }
        let count = match &mut self.file {
            Some(file) => file.read(buffer)?,
            None => match self.read_link(buffer) {
                Ok(count) => count,
                Err(failure) => return Err(self.fail(failure)),
            },
        };
        self.note(count);
        Ok(count)
    }
}

// ---- loading --------------------------------------------------------------------------------------------------------
/// The contents of a dump, in staging.
struct LoadedDump {
    data: StagedDatabases,
    loaded: Loaded,
    libraries: Vec<Arc<Library>>,
}

fn load_from_link(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut Link,
    extent: Extent,
    plan: Plan,
) -> Result<LoadedDump, Failure> {
    let total_bytes = &server.repl.loading.total_bytes;
    total_bytes.store(extent.bytes().unwrap_or(0), Ordering::Relaxed);
    let feed = DumpSource::new(link, extent, true);
    let (brought, mut rest, feed) = load(server, seat, feed, plan, Path::new("(the link)"))?;
    let link = feed.link;
    match extent {
        // Bytes after the dump that belong to its announced size are discarded.
        Extent::Bytes(_) => {
            let mut left = feed.left.unwrap_or(0);
            while left > 0 {
                let mut sink = DumpSource::new(link, Extent::Bytes(left), false);
                let mut scrap = [0; 1024];
                left -= sink.read_link(&mut scrap)? as u64;
            }
        }
        Extent::Mark(mark) => {
            rest.append(&mut link.ahead);
            while rest.len() < MARK_BYTES {
                if link.receive_in_time(&mut rest, MARK_BYTES)? == 0 {
                    return Err(Failure::Timeout("Replication stream EOF marker is missing"));
                }
            }
            if rest[..MARK_BYTES] != mark {
                end_loading(server);
                return Err(Failure::Told("Replication stream EOF marker is broken".into()));
            }
            rest.drain(..MARK_BYTES);
            link.ahead = rest;
        }
    }
    Ok(brought)
}

fn load_from_file(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut Link,
    extent: Extent,
    plan: Plan,
) -> Result<LoadedDump, Failure> {
    let temporary = PathBuf::from(format!("temp-{}.{}.rdb", unix_ms() / 1000, std::process::id()));
    let path: PathBuf = OsString::from_vec(server.config.text(id::DBFILENAME).to_vec()).into();
    let fetched = fetch(link, extent, &temporary).and_then(|()| {
        std::fs::rename(&temporary, &path).map_err(|error| {
            Failure::Told(format!(
                "Failed trying to rename the temp DB into {} in PRIMARY <-> REPLICA synchronization: {}",
                path.display(),
                error_text(&error)
            ))
        })
    });
    if let Err(failure) = fetched {
        // The file is no longer needed. It may not exist.
        let _ = std::fs::remove_file(&temporary);
        return Err(failure);
    }
    log::notice!("Loading the RDB and finalizing primary-replica sync...");
    let file = File::open(&path).map_err(|error| Failure::of("Opening the DB of the PRIMARY", &error))?;
    let size = file.metadata().map_or(0, |data| data.len());
    server.repl.loading.total_bytes.store(size, Ordering::Relaxed);
    let mut feed = DumpSource::new(link, Extent::Bytes(0), true);
    feed.file = Some(file);
    let brought = load(server, seat, feed, plan, &path).map(|(brought, ..)| brought);
    let persists = !server.config.save_points().is_empty() || server.config.boolean(id::APPENDONLY);
    if server.config.boolean(id::RDB_DEL_SYNC_FILES) && !persists {
        log::notice!("Removing the RDB file obtained from the primary. This replica has persistence disabled");
        // The file is no longer needed, and leaving it does no harm.
        let _ = std::fs::remove_file(&path);
    }
    brought
}

/// Receives a dump into a file.
fn fetch(link: &mut Link, extent: Extent, path: &Path) -> Result<(), Failure> {
    let mut file = File::create(path).map_err(|error| {
        Failure::of(
            "Opening the temp file needed for PRIMARY <-> REPLICA synchronization",
            &error,
        )
    })?;
    let unwritten = |error: io::Error| {
        Failure::of(
            "Write error or short write writing to the DB dump file needed for PRIMARY <-> REPLICA synchronization",
            &error,
        )
    };
    let mut feed = DumpSource::new(link, extent, false);
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut tail: Vec<u8> = Vec::with_capacity(2 * MARK_BYTES);
    loop {
        let count = feed.read_link(&mut buffer)?;
        if count == 0 {
            break;
        }
        feed.note(count);
        feed.beat()?;
        file.write_all(&buffer[..count]).map_err(unwritten)?;
        if let Extent::Mark(mark) = extent {
            // The primary sends nothing after the mark until this server has acknowledged the dump.
            tail.extend_from_slice(&buffer[count.saturating_sub(MARK_BYTES)..count]);
            tail.drain(..tail.len().saturating_sub(MARK_BYTES));
            if tail == mark {
                file.set_len(feed.read - MARK_BYTES as u64).map_err(unwritten)?;
                break;
            }
        }
    }
    file.sync_all().map_err(unwritten)
}

/// Loads a dump. Also returns the bytes that were read beyond it.
fn load<'l>(
    server: &Arc<Server>,
    seat: &mut Seat,
    feed: DumpSource<'l>,
    plan: Plan,
    path: &Path,
) -> Result<(LoadedDump, Vec<u8>, DumpSource<'l>), Failure> {
    log::notice!("PRIMARY <-> REPLICA sync: Loading DB in memory");
    let term = feed.link.term();
    let mut opened = Opened::open(feed, &server.config).map_err(|fault| {
        log::warning!("PRIMARY <-> REPLICA sync: RDB version or signature incompatible, old data preserved");
        broken(path, 0, fault)
    })?;
    begin_loading(server, seat, term, plan)?;
    let loaded = read(server, seat, &mut opened);
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err((offset, fault)) => {
            let (_, feed) = opened.into_rest();
            log::notice!("PRIMARY <-> REPLICA sync: Discarding the half-loaded data");
            end_loading(server);
            return Err(feed.failure.unwrap_or_else(|| broken(path, offset, fault)));
        }
    };
    let (rest, feed) = opened.into_rest();
    Ok((loaded, rest, feed))
}

fn read<R: Read>(server: &Arc<Server>, seat: &Seat, opened: &mut Opened<R>) -> Result<LoadedDump, (u64, Fault)> {
    let counts = &server.keyspace.counts;
    let mut data = StagedDatabases::new(counts.databases());
    let used_memory = |bytes| {
        let told = &server.repl.loading.used_memory_bytes;
        told.store(bytes, Ordering::Relaxed);
    };
    let mut loader = Loader {
        destination: Destination::Apart(&mut data),
        hasher: &server.keyspace.hasher,
        counts,
        before_images: &server.keyspace.before_images,
        seat: seat.index(),
        config: &server.config,
        clock: clock(&server.config, unix_ms() / 1000),
        // The primary deletes expired keys.
        now_ms: 0,
        replace: false,
        drops: None,
        // No worker waits for a load into staging, and [`DumpSource`] counts the bytes.
        pace: Some(ProgressCallback {
            every_bytes: u64::MAX,
            report: &|_| {},
            used_memory: &used_memory,
        }),
    };
    let loaded = opened.load(&mut loader)?;
    let library = |code: &Vec<u8>| {
        load_library(&server.scripts, code, false).map_err(|reason| {
            let reason = String::from_utf8_lossy(&reason).into_owned();
            (0, Fault::damaged(format!("Failed creating the library: {reason}")))
        })
    };
    let libraries = loaded.functions.iter().map(library).collect::<Result<Vec<_>, _>>()?;
    log::notice!(
        "Done loading RDB, keys loaded: {}, keys expired: {}, all fields expired hashes: {}.",
        loaded.keys,
        loaded.expired,
        loaded.expired_hashes
    );
    Ok(LoadedDump {
        data,
        loaded,
        libraries,
    })
}

fn broken(path: &Path, offset: u64, fault: Fault) -> Failure {
    let error = LoadError {
        path: path.to_owned(),
        offset,
        fault,
    };
    log::warning!("{error}");
    Failure::Told("Failed trying to load the PRIMARY synchronization DB, check server logs.".into())
}

/// Runs `change` in exclusive mode if the role epoch is not over.
fn alone<R>(
    server: &Arc<Server>,
    seat: &mut Seat,
    term: u64,
    change: impl FnOnce(&mut Exclusive<'_>, usize) -> R,
) -> Result<R, Failure> {
    let row = seat.index();
    let in_term = |all: &mut Exclusive<'_>| (server.repl.term() == term).then(|| change(all, row));
    server.run_exclusive(seat, in_term).ok_or(Failure::TermOver)
}

/// Begins the load: sets the loading state, and drops the old data unless the plan keeps it.
fn begin_loading(server: &Arc<Server>, seat: &mut Seat, term: u64, plan: Plan) -> Result<(), Failure> {
    let repl = &server.repl;
    let loading = &repl.loading;
    loading.started_s.store(unix_ms() / 1000, Ordering::Relaxed);
    loading.loaded_bytes.store(0, Ordering::Relaxed);
    loading.used_memory_bytes.store(0, Ordering::Relaxed);
    let standing = match plan.serves_old {
        true => ReplicationState::LOADING_ASIDE,
        false => ReplicationState::LOADING,
    };
    if !plan.swaps {
        log::notice!("RDB signature and version check passed. Flushing old data");
    }
    let taken = alone(server, seat, term, |all, row| {
        end_snapshots(server);
        repl.put(standing, true);
        repl.state().resumable = false;
        (!plan.swaps).then(|| {
            repl.hollow.store(true, Ordering::Release);
            server.scripts.libraries.flush();
            let databases = 0..server.keyspace.counts.databases();
            take(&mut WholeKeyspace::Alone(all), databases, &server.keyspace, row)
        })
    })?;
    if let Some(taken) = taken {
        let mut thread = Thread::new(server.clone(), seat.index());
        NotificationSender::new(server, &mut thread.effects, seat.index()).invalidate_everything();
        wake(server, &mut thread.effects);
        free(server, taken);
    }
    Ok(())
}

/// Cancels the snapshots being written, because their data is replaced. The caller must hold exclusive mode.
fn end_snapshots(server: &Server) {
    if server
        .snapshot
        .cancel(&[Purpose::Dump, Purpose::LogBase, Purpose::Replicas])
    {
        log::notice!("Ending the snapshot that is being written, as its data is replaced");
        server.keyspace.before_images.abandon();
    }
}

/// Clears the loading state after the load has succeeded or failed.
fn end_loading(server: &Server) {
    server.repl.put(ReplicationState::LOADING, false);
    server.repl.put(ReplicationState::LOADING_ASIDE, false);
}

/// Frees old data: in the background with `replica-lazy-flush`, on this thread otherwise. No worker waits for this
/// thread.
fn free(server: &Server, taken: DetachedTables) {
    if server.config.boolean(id::REPLICA_LAZY_FLUSH) {
        server.lazyfree.free(taken.keys, 0, Box::new(taken.tables));
    }
}

/// Replaces this server's data with the contents of a dump.
fn put_into_place(
    server: &Arc<Server>,
    seat: &mut Seat,
    term: u64,
    brought: LoadedDump,
    id: &str,
    offset: i64,
) -> Result<(), Failure> {
    let LoadedDump {
        data,
        loaded,
        libraries,
    } = brought;
    let mut thread = Thread::new(server.clone(), seat.index());
    let counts = &server.keyspace.counts;
    let repl = &server.repl;
    let placed = alone(server, seat, term, |all, row| {
        end_snapshots(server);
        let taken = data.install(all, counts, row, unix_ms());
        // The libraries were loaded without name conflicts among each other, and all others are removed.
        let restored = server.scripts.libraries.restore(&libraries, RestorePolicy::Flush);
        if server.blocked.keys() > 0 {
            for slot in 0..SLOTS {
                for db in 0..counts.databases() {
                    let hash = |name: &[u8]| server.keyspace.hasher.hash(name);
                    ready_keys::note_all(all.cell(slot), db, slot as u16, hash, &mut thread.effects.ready);
                }
            }
        }
        if server.aof.replace() {
            // The existing append-only file stays as it is until a base with the new data exists.
            server.keyspace.hooks.put(Hooks::LOG_FILE, false);
        }
        server.keyspace.local.clear();
        repl.replicas.backlog().open(offset);
        repl.set_offset(offset);
        repl.set_received(offset);
        let mut state = repl.state();
        state.history = ReplicationHistory {
            id: id.to_owned(),
            second_id: no_id(),
            second_offset: -1,
        };
        state.resumable = true;
        repl.hollow.store(false, Ordering::Release);
        end_loading(server);
        (taken, restored)
    });
    if placed.is_err() {
        end_loading(server);
    }
    let (taken, restored) = placed?;
    // The data has another history now, so the replicas must synchronise again.
    server.send_to_primary_thread(PrimaryThreadCommand::DisconnectAll);
    NotificationSender::new(server, &mut thread.effects, seat.index()).invalidate_everything();
    wake(server, &mut thread.effects);
    thread.keep_ready();
    for unserved in thread.unserved.drain(..) {
        server.workers[0].send(Message::Serve(unserved));
    }
    server.dumps.loaded(&loaded);
    free(server, taken);
    if server.config.boolean(id::APPENDONLY) {
        // The append-only file does not belong to the new data. It is rewritten from the new data.
        server.aof.scheduled.store(true, Ordering::Relaxed);
    }
    restored.map_err(|reason| {
        Failure::Told(format!(
            "Failed creating the libraries of the PRIMARY: {}",
            String::from_utf8_lossy(&reason)
        ))
    })
}
