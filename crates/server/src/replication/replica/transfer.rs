//! Receives a full synchronisation: a dump that comes over the link and replaces all data.
//!
//! | `repl-diskless-load` | the dump | old data | clients meanwhile |
//! |---|---|---|---|
//! | `disabled` | goes into a file first | dropped when the file is complete | LOADING from then on |
//! | `on-flush-db` | is loaded as it arrives if there is no data, else `disabled` | | LOADING |
//! | `flush-before-load` | is loaded as it arrives | dropped when the dump has begun | LOADING |
//! | `swapdb` | is loaded as it arrives | dropped when it is complete | LOADING, or old data of the same history |
//!
//! A dump that was written to a file becomes this server's own dump file when its data is installed. Until then the
//! previous dump file stays: it is the only copy of the old data if the received dump cannot be loaded.
//!
//! The header of the dump is checked before any data is dropped. While a dump is loaded, the primary is sent an empty
//! line every [`KEEPALIVE_INTERVAL`], so that it does not consider this server dead.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, ReplicationOffset, RoleEpoch, SlotIndex, ThreadIndex};

use super::RECONNECT_DELAY;
use super::libraries::load_libraries;
use super::link::{LinkFailure, PrimaryLink};
use super::load_plan::{LoadPlan, load_plan};
use super::replaced_data::{
    await_end_of_earlier_load, deliver_start_of_load, free_old_data, give_up_data, send_end_of_load, take_all_data,
};
use super::temporary_dump::TemporaryDump;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::effects::Hooks;
use crate::keyspace::staging::StagedDatabases;
use crate::keyspace::{Exclusive, Seat, ready_keys};
use crate::notify::messages::invalidate_replaced_data;
use crate::observability::log;
use crate::persistence::aof::{BaseFromDump, LoadedDumpFile};
use crate::persistence::rdb_file::{
    DecodedRecords, LoadDestination, LoadThreads, LoadedFile, ProgressCallback, RdbFault, RdbInput, RdbLoadError,
    RdbLoader, UnfinishedImport, decode,
};
use crate::persistence::snapshot::{self, access_clock};
use crate::replication::role;
use crate::replication::{LinkState, ReplicationHistory, ReplicationState, TransferProgress, zero_replication_id};
use crate::state::{HomeStandby, Message, Server};
use weft_base::slots::SLOTS;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_scripting::{Library, RestorePolicy};

/// The number of bytes in the mark that ends a dump of unknown size.
const MARK_BYTES: usize = 40;
/// The maximum number of bytes per receive.
const RECEIVE_BYTES: usize = 64 * 1024;
/// The interval between two keepalive newlines.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The way in which the end of a dump is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DumpEnd {
    Bytes(u64),
    Mark([u8; MARK_BYTES]),
}

impl DumpEnd {
    /// Returns the size of the dump in bytes, if it is known.
    fn bytes(self) -> Option<u64> {
        match self {
            DumpEnd::Bytes(bytes) => Some(bytes),
            DumpEnd::Mark(_) => None,
        }
    }
}

/// Receives all data of the primary with the replication ID `id` at `offset`, and replaces this server's data. Returns
/// the database that the stream has selected there.
///
/// # Errors
/// When the transfer fails. The old data may have been deleted then.
pub fn receive(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut PrimaryLink,
    id: &str,
    offset: ReplicationOffset,
) -> Result<DbIndex, LinkFailure> {
    let begin = |state: &mut crate::replication::RoleState| {
        state.phase = LinkState::Transfer;
        state.transfer = TransferProgress {
            last_io_s: unix_ms() / 1000,
            ..TransferProgress::default()
        };
    };
    server
        .replication
        .in_role_epoch(link.role_epoch(), begin)
        .ok_or(LinkFailure::EpochOver)?;
    receive_in_transfer_phase(server, seat, link, id, offset)
}

/// Does the same as [`receive`] without entering [`LinkState::Transfer`], for a caller that enters it itself.
///
/// # Errors
/// The same as [`receive`].
pub fn receive_in_transfer_phase(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut PrimaryLink,
    id: &str,
    offset: ReplicationOffset,
) -> Result<DbIndex, LinkFailure> {
    let extent = read_dump_end(link)?;
    let plan = load_plan(server, id);
    let total_bytes = i64::try_from(extent.bytes().unwrap_or(0)).unwrap_or(i64::MAX);
    // If the role epoch is over, its next check ends the transfer.
    let _ = server
        .replication
        .in_role_epoch(link.role_epoch(), |state| state.transfer.total_bytes = total_bytes);
    let medium = if plan.loads_from_file { "disk" } else { "parser" };
    match extent {
        DumpEnd::Bytes(bytes) => {
            log::notice!("PRIMARY <-> REPLICA sync: receiving {bytes} bytes from primary to {medium}");
        }
        DumpEnd::Mark(_) => {
            log::notice!("PRIMARY <-> REPLICA sync: receiving streamed RDB from primary with EOF to {medium}");
        }
    }
    let (mut dump, loading) = match plan.loads_from_file {
        true => load_from_file(server, seat, link, extent, plan)?,
        false => load_from_link(server, seat, link, extent, plan)?,
    };
    let db = dump.loaded.position.db.unwrap_or(DbIndex::FIRST);
    server.replication.stream_db.store(db.get(), Ordering::Relaxed);
    let open_slots = std::mem::take(&mut dump.loaded.position.open_slots);
    let installed = install(server, seat, link.role_epoch(), dump, loading, id, offset);
    send_end_of_load(server, plan.serves_old_data, installed.is_ok());
    installed?;
    if let Some(cluster) = &server.cluster {
        cluster.apply_slots_in_migration(&open_slots);
    }
    Ok(db)
}

fn read_dump_end(link: &mut PrimaryLink) -> Result<DumpEnd, LinkFailure> {
    let line = link.read_nonempty_line()?;
    let shown = || String::from_utf8_lossy(&line).into_owned();
    if let Some(error) = line.strip_prefix(b"-") {
        let error = String::from_utf8_lossy(error).into_owned();
        return Err(LinkFailure::Other(format!(
            "PRIMARY aborted replication with an error: {error}"
        )));
    }
    let bad = || {
        LinkFailure::Other(format!(
            "Bad protocol from PRIMARY, the first byte is not '$' (we received '{}'), are you sure the host and port are \
             right?",
            shown()
        ))
    };
    let size = line.strip_prefix(b"$").ok_or_else(bad)?;
    if let Some(mark) = size.strip_prefix(b"EOF:") {
        return mark.try_into().map(DumpEnd::Mark).map_err(|_| bad());
    }
    let bytes = weft_resp::number::parse_i64(size).and_then(|bytes| u64::try_from(bytes).ok());
    bytes.map(DumpEnd::Bytes).ok_or_else(bad)
}

// ---- reading the dump -----------------------------------------------------------------------------------------------
/// A dump read from the link or from a file.
struct DumpSource<'l> {
    link: &'l mut PrimaryLink,
    /// The file, if the dump has been written to one.
    file: Option<File>,
    /// The number of bytes that the primary has announced, if it has.
    total_bytes: Option<u64>,
    /// The number of bytes still to come over the link, if it is known.
    bytes_left: Option<u64>,
    /// The number of bytes read.
    bytes_read: u64,
    last_beat: Instant,
    /// The reason for which a read failed.
    failure: Option<LinkFailure>,
    /// `true` if the bytes read are being loaded.
    is_loading: bool,
}

impl<'l> DumpSource<'l> {
    fn new(link: &'l mut PrimaryLink, extent: DumpEnd, loads: bool) -> Self {
        DumpSource {
            link,
            file: None,
            total_bytes: extent.bytes(),
            bytes_left: extent.bytes(),
            bytes_read: 0,
            last_beat: Instant::now(),
            failure: None,
            is_loading: loads,
        }
    }

    fn fail(&mut self, failure: LinkFailure) -> io::Error {
        self.failure = Some(failure);
        io::ErrorKind::BrokenPipe.into()
    }

    fn count_bytes(&mut self, count: usize) {
        self.bytes_read += count as u64;
        assert!(
            self.file.is_some()
                || self
                    .total_bytes
                    .is_none_or(|total| self.bytes_read + self.bytes_left.unwrap_or(0) == total),
            "the bytes of a dump that were read and those still to come are as many as announced"
        );
        let repl = &self.link.server().replication;
        if self.is_loading {
            repl.loading.loaded_bytes.store(self.bytes_read, Ordering::Relaxed);
        }
        if self.file.is_none() {
            let read_bytes = self.bytes_read;
            // If the role epoch is over, its next check ends the transfer.
            let _ = repl.in_role_epoch(self.link.role_epoch(), |state| {
                state.transfer.read_bytes = read_bytes;
                state.transfer.last_io_s = unix_ms() / 1000;
            });
        }
    }

    fn send_keepalive(&mut self) -> Result<(), LinkFailure> {
        if self.link.server().replication.role_epoch() != self.link.role_epoch() {
            return Err(LinkFailure::EpochOver);
        }
        if self.link.sends_keepalives && self.last_beat.elapsed() >= KEEPALIVE_INTERVAL {
            self.last_beat = Instant::now();
            self.link.send_raw(b"\n")?;
        }
        Ok(())
    }

    /// Reads from the link.
    fn read_link(&mut self, buffer: &mut [u8]) -> Result<usize, LinkFailure> {
        let most = self.bytes_left.map_or(buffer.len(), |left| {
            buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX))
        });
        if most == 0 {
            return Ok(0);
        }
        if self.link.unread.is_empty() {
            let mut ahead = std::mem::take(&mut self.link.unread);
            let received = self.link.receive_within_repl_timeout(&mut ahead, RECEIVE_BYTES);
            self.link.unread = ahead;
            if received? == 0 {
                return Err(LinkFailure::Timeout(
                    "Timeout receiving bulk data from PRIMARY... If the problem persists try to set the 'repl-timeout' \
                     parameter in valkey.conf to a larger value.",
                ));
            }
        }
        let count = most.min(self.link.unread.len());
        assert!(count > 0, "bytes that were received are read");
        buffer[..count].copy_from_slice(&self.link.unread[..count]);
        self.link.unread.drain(..count);
        if let Some(left) = &mut self.bytes_left {
            *left -= count as u64;
        }
        Ok(count)
    }
}

impl Read for DumpSource<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.send_keepalive() {
            Ok(()) => {}
            // The file is complete. It is all that is left of the data if the primary has ended.
            Err(LinkFailure::Closed | LinkFailure::Other(_)) if self.file.is_some() => {
                self.link.sends_keepalives = false
            }
            Err(failure) => return Err(self.fail(failure)),
        }
        let count = match &mut self.file {
            Some(file) => file.read(buffer)?,
            None => match self.read_link(buffer) {
                Ok(count) => count,
                Err(failure) => return Err(self.fail(failure)),
            },
        };
        self.count_bytes(count);
        Ok(count)
    }
}

// ---- loading --------------------------------------------------------------------------------------------------------
/// The contents of a dump, in staging.
struct LoadedDump {
    data: StagedDatabases,
    loaded: LoadedFile,
    libraries: Vec<Arc<Library>>,
    /// The file from which it was loaded.
    file: Option<LoadedDumpFile>,
    /// The name of that file. The file is removed with this, unless it has got another name.
    temporary: Option<TemporaryDump>,
}

/// The loading state. Ends when this is dropped, after the load has succeeded or failed.
struct LoadingState(Arc<Server>);

impl Drop for LoadingState {
    fn drop(&mut self) {
        let loading = ReplicationState::LOADING.union(ReplicationState::LOADING_IN_STAGING);
        self.0.replication.set_state_bits(loading, false);
    }
}

fn load_from_link(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut PrimaryLink,
    extent: DumpEnd,
    plan: LoadPlan,
) -> Result<(LoadedDump, LoadingState), LinkFailure> {
    let total_bytes = &server.replication.loading.total_bytes;
    total_bytes.store(extent.bytes().unwrap_or(0), Ordering::Relaxed);
    let feed = DumpSource::new(link, extent, true);
    let (brought, mut rest, feed) = load(server, seat, feed, plan, Path::new("(replication link)"))?;
    let link = feed.link;
    match extent {
        // Bytes after the dump that belong to its announced size are discarded.
        DumpEnd::Bytes(_) => {
            let mut left = feed.bytes_left.unwrap_or(0);
            while left > 0 {
                let mut sink = DumpSource::new(link, DumpEnd::Bytes(left), false);
                let mut scrap = [0; 1024];
                left -= sink.read_link(&mut scrap)? as u64;
            }
        }
        DumpEnd::Mark(mark) => {
            rest.append(&mut link.unread);
            while rest.len() < MARK_BYTES {
                if link.receive_within_repl_timeout(&mut rest, MARK_BYTES)? == 0 {
                    return Err(LinkFailure::Timeout("Replication stream EOF marker is missing"));
                }
            }
            if rest[..MARK_BYTES] != mark {
                return Err(LinkFailure::Other("Replication stream EOF marker is broken".into()));
            }
            rest.drain(..MARK_BYTES);
            link.unread = rest;
        }
    }
    Ok(brought)
}

fn load_from_file(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut PrimaryLink,
    extent: DumpEnd,
    plan: LoadPlan,
) -> Result<(LoadedDump, LoadingState), LinkFailure> {
    let temporary = TemporaryDump::choose();
    receive_into_file(link, extent, temporary.path().as_path())?;
    if !server.config.boolean(id::APPENDONLY)
        && let Err(failure) = temporary.check_publishable(server)
    {
        // The next dump would fail as well, and each of them costs the primary much.
        let role_epoch = link.role_epoch();
        server.replication.sleep_in_role_epoch(role_epoch, RECONNECT_DELAY);
        return Err(failure);
    }
    let file = File::open(temporary.path())
        .map_err(|error| LinkFailure::from_io_error("Opening the DB of the PRIMARY", &error))?;
    log::notice!("Loading the RDB and finalizing primary-replica sync...");
    let size = file.metadata().map_or(0, |data| data.len());
    server.replication.loading.total_bytes.store(size, Ordering::Relaxed);
    let mut feed = DumpSource::new(link, DumpEnd::Bytes(0), true);
    feed.file = Some(file);
    let ((mut dump, loading), _, feed) = load(server, seat, feed, plan, temporary.path().name())?;
    let path = temporary.path().clone();
    dump.file = feed.file.map(|file| LoadedDumpFile { path, file });
    dump.temporary = Some(temporary);
    Ok((dump, loading))
}

/// Receives a dump into a file.
fn receive_into_file(link: &mut PrimaryLink, extent: DumpEnd, path: &Path) -> Result<(), LinkFailure> {
    let mut file = File::create(path).map_err(|error| {
        LinkFailure::from_io_error(
            "Opening the temp file needed for PRIMARY <-> REPLICA synchronization",
            &error,
        )
    })?;
    let unwritten = |error: io::Error| {
        LinkFailure::from_io_error(
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
        feed.count_bytes(count);
        feed.send_keepalive()?;
        file.write_all(&buffer[..count]).map_err(unwritten)?;
        if let DumpEnd::Mark(mark) = extent {
            // The primary sends nothing after the mark until this server has acknowledged the dump.
            tail.extend_from_slice(&buffer[count.saturating_sub(MARK_BYTES)..count]);
            tail.drain(..tail.len().saturating_sub(MARK_BYTES));
            assert!(
                tail.len() <= MARK_BYTES,
                "only the last bytes are compared with the mark"
            );
            if tail == mark {
                file.set_len(feed.bytes_read - MARK_BYTES as u64).map_err(unwritten)?;
                break;
            }
        }
    }
    weft_os::disk::sync_all(&file).map_err(unwritten)
}

/// A dump that was loaded into staging, the bytes that were read beyond it, and the rest of its source.
type LoadResult<'l> = Result<((LoadedDump, LoadingState), Vec<u8>, DumpSource<'l>), LinkFailure>;

/// Loads a dump. Also returns the bytes that were read beyond it.
fn load<'l>(
    server: &Arc<Server>,
    seat: &mut Seat,
    feed: DumpSource<'l>,
    plan: LoadPlan,
    path: &Path,
) -> LoadResult<'l> {
    log::notice!("PRIMARY <-> REPLICA sync: Loading DB in memory");
    let role_epoch = feed.link.role_epoch();
    let is_streamed = feed.file.is_none();
    let mut opened = RdbInput::open(feed, &server.config).map_err(|fault| {
        if matches!(fault, RdbFault::Signature(_) | RdbFault::Version(_)) {
            log::warning!("PRIMARY <-> REPLICA sync: RDB version or signature incompatible, old data preserved");
        }
        load_failure(path, 0, fault, is_streamed)
    })?;
    await_end_of_earlier_load(server);
    let loading = begin_loading(server, seat, role_epoch, plan)?;
    let loaded = load_into_staging(server, seat, role_epoch, &mut opened);
    if loaded.is_err() {
        send_end_of_load(server, plan.serves_old_data, false);
    }
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err((offset, fault)) => {
            if server.replication.role_epoch() != role_epoch {
                return Err(LinkFailure::EpochOver);
            }
            let failure = load_failure(path, offset, fault, is_streamed);
            match plan.keeps_old_until_loaded {
                true => log::notice!("PRIMARY <-> REPLICA sync: Discarding temporary DB in background"),
                false => log::notice!("PRIMARY <-> REPLICA sync: Discarding the half-loaded data"),
            }
            if let Some(reason) = opened.into_rest().1.failure {
                reason.log();
            }
            return Err(failure);
        }
    };
    let (rest, feed) = opened.into_rest();
    Ok(((loaded, loading), rest, feed))
}

fn load_into_staging<R: Read>(
    server: &Arc<Server>,
    seat: &mut Seat,
    role_epoch: RoleEpoch,
    opened: &mut RdbInput<R>,
) -> Result<LoadedDump, (u64, RdbFault)> {
    let counts = &server.keyspace.counts;
    let mut data = StagedDatabases::new(counts.databases());
    let used_memory = |bytes| {
        let told = &server.replication.loading.used_memory_bytes;
        told.store(bytes, Ordering::Relaxed);
    };
    let thread_index = ThreadIndex::new(seat.index());
    // The code of modules needs exclusive mode, which the load into staging tables does not have.
    let seat = RefCell::new(seat);
    let decode_modules = |records, _: Option<&mut Exclusive<'_>>| {
        let (mut records, mut decoded) = (Some(records), DecodedRecords::default());
        let mut seat = seat.borrow_mut();
        snapshot::run_with_home(server, &mut seat, |all, home, _| {
            server.call_modules(all, thread_index, home, &mut || {
                if let Some(records) = records.take() {
                    decoded = decode(records);
                }
            });
        });
        decoded
    };
    let mut loader = RdbLoader {
        decode_modules: &decode_modules,
        destination: LoadDestination::Staging(&mut data),
        hasher: &server.keyspace.hasher,
        counts,
        before_images: &server.keyspace.before_images,
        thread_index,
        config: &server.config,
        clock: access_clock(&server.config, unix_ms() / 1000),
        // The primary deletes expired keys.
        now_ms: 0,
        should_replace: false,
        threads: LoadThreads::for_workers(server.workers.len()),
        on_dropped_key: None,
        // No worker waits for a load into staging, and [`DumpSource`] counts the bytes.
        progress: Some(ProgressCallback {
            every_bytes: u64::MAX,
            report: &|_| {},
            meanwhile: &|| {},
            used_memory: &used_memory,
        }),
    };
    let loaded = opened.load(&mut loader)?;
    let libraries = load_libraries(server, &mut seat.borrow_mut(), role_epoch, &loaded.functions);
    let libraries =
        libraries.map_err(|reason| (0, RdbFault::damaged(format!("Failed creating the library: {reason}"))))?;
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
        file: None,
        temporary: None,
    })
}

/// Logs why a dump was not loaded. Returns the failure of the link.
fn load_failure(path: &Path, offset: u64, fault: RdbFault, is_streamed: bool) -> LinkFailure {
    let is_cut_short = is_streamed && matches!(fault, RdbFault::Truncated | RdbFault::Read(_));
    if is_cut_short {
        log::warning!(
            "Internal error in RDB reading offset {offset} -> Unexpected EOF reading RDB file. Failure loading rdb \
             format from socket, assuming connection error, resuming operation."
        );
    } else {
        let path = path.to_owned();
        log::warning!("{}", RdbLoadError { path, offset, fault });
    }
    let source = if is_streamed { "socket" } else { "disk" };
    LinkFailure::Other(format!(
        "Failed trying to load the PRIMARY synchronization DB from {source}, check server logs."
    ))
}

/// Runs `change` in exclusive mode if the role epoch is not over, and the data have no part of a script that the end of
/// the process has stopped.
fn run_exclusive<R>(
    server: &Arc<Server>,
    seat: &mut Seat,
    role_epoch: RoleEpoch,
    change: impl FnOnce(&mut Exclusive<'_>, ThreadIndex, &mut Option<HomeStandby>) -> R,
) -> Result<R, LinkFailure> {
    let thread_index = ThreadIndex::new(seat.index());
    let may_change =
        || server.replication.role_epoch() == role_epoch && !server.scripting.running.has_unfinished_unit();
    let mut change = Some(change);
    loop {
        // Before the home worker stands by: a client of that worker may have to stop the script that runs.
        server.scripting.running.exclude_runs();
        let mut home = snapshot::summon_home(server, seat);
        let mut all = seat.exclusive();
        let changed = match snapshot::is_home_missing(server, thread_index, home.as_ref()) {
            true => None,
            false => {
                let change = change.take().filter(|_| may_change());
                Some(change.map(|change| change(&mut all, thread_index, &mut home)))
            }
        };
        drop(all);
        drop(home);
        server.scripting.running.end_exclusion();
        if let Some(result) = changed {
            return result.ok_or(LinkFailure::EpochOver);
        }
    }
}

/// Begins the load: sets the loading state, and drops the old data unless the plan keeps it. Fails if a file is being
/// loaded.
fn begin_loading(
    server: &Arc<Server>,
    seat: &mut Seat,
    role_epoch: RoleEpoch,
    plan: LoadPlan,
) -> Result<LoadingState, LinkFailure> {
    let repl = &server.replication;
    let loading = &repl.loading;
    loading.started_s.store(unix_ms() / 1000, Ordering::Relaxed);
    loading.loaded_bytes.store(0, Ordering::Relaxed);
    loading.used_memory_bytes.store(0, Ordering::Relaxed);
    let replication_state = match plan.serves_old_data {
        true => ReplicationState::LOADING_IN_STAGING,
        false => ReplicationState::LOADING,
    };
    if !plan.keeps_old_until_loaded {
        log::notice!("RDB signature and version check passed. Flushing old data");
    }
    let begun = run_exclusive(server, seat, role_epoch, |all, row, home| {
        if server.is_loading() {
            return None;
        }
        if !plan.keeps_old_until_loaded {
            give_up_data(server);
        }
        snapshot::cancel_current(server);
        repl.set_state_bits(replication_state, true);
        let state = LoadingState(server.clone());
        repl.state().resumable = false;
        let taken = (!plan.keeps_old_until_loaded).then(|| {
            repl.awaits_full_sync.store(true, Ordering::Release);
            // If the load fails, nobody may go on from the data that is given up here.
            repl.replicas.backlog().close();
            role::disconnect_replicas(server);
            server.scripting.libraries.flush();
            let taken = take_all_data(server, all, row, home);
            invalidate_replaced_data(server, row);
            taken
        });
        deliver_start_of_load(server, all, row, home, plan.serves_old_data);
        Some((state, taken))
    })?;
    let Some((state, taken)) = begun else {
        return Err(LinkFailure::Other(
            "The dump of the PRIMARY is not loaded while a file is being loaded".into(),
        ));
    };
    if let Some(taken) = taken {
        free_old_data(server, taken);
    }
    Ok(state)
}

/// Tells modules of the new data, and adds the keys that blocked clients wait for to the thread's ready keys.
fn add_ready_keys(server: &Arc<Server>, all: &mut Exclusive<'_>, thread: &mut ThreadState, home: Option<HomeStandby>) {
    drop(snapshot::report_loaded_keys(server, all, thread.thread_index, home));
    if server.clients.blocked.keys() == 0 {
        return;
    }
    let hash = |name: &[u8]| server.keyspace.hasher.hash(name);
    for slot in 0..SLOTS {
        for db in DbIndex::all(server.keyspace.counts.databases()) {
            let cell = all.cell(slot);
            ready_keys::add_ready_keys_of_slot(cell, db, SlotIndex::from_index(slot), hash, &mut thread.effects.ready);
        }
    }
}

/// Lets a worker serve the clients that wait for the thread's ready keys.
fn serve_ready_keys(server: &Server, thread: &mut ThreadState) {
    thread.collect_ready_keys();
    for unserved in thread.unserved.drain(..) {
        server.worker(ThreadIndex::FIRST).send(Message::ServeWaiters(unserved));
    }
}

/// Replaces the slot imports that this node tracks by those of a dump.
fn replace_imports(server: &Server, all: &mut Exclusive<'_>, imports: &[UnfinishedImport]) {
    server.forget_imports(all, "Full resynchronization occurred");
    server.track_imports(imports);
}

/// Begins the history that the data of a dump belongs to, at an offset.
fn begin_history(server: &Server, id: &str, offset: ReplicationOffset) {
    let repl = &server.replication;
    let mut state = repl.state();
    repl.replicas.backlog().open(offset);
    repl.set_offset(offset);
    repl.set_received_offset(offset);
    state.history = ReplicationHistory {
        id: id.to_owned(),
        second_id: zero_replication_id(),
        second_end: None,
    };
    state.resumable = true;
    repl.awaits_full_sync.store(false, Ordering::Release);
    repl.is_data_given_up.store(false, Ordering::Release);
}

/// Replaces this server's data with the contents of a dump.
fn install(
    server: &Arc<Server>,
    seat: &mut Seat,
    role_epoch: RoleEpoch,
    dump: LoadedDump,
    loading: LoadingState,
    id: &str,
    offset: ReplicationOffset,
) -> Result<(), LinkFailure> {
    let LoadedDump {
        data,
        loaded,
        libraries,
        file,
        temporary,
    } = dump;
    let mut new_base = file.and_then(|file| BaseFromDump::prepare(server, file));
    let imports = loaded.imports.clone();
    let mut thread = ThreadState::new(server.clone(), ThreadIndex::new(seat.index()));
    let counts = &server.keyspace.counts;
    let placed = run_exclusive(server, seat, role_epoch, |all, row, home| {
        if new_base.is_none() {
            snapshot::cancel_current(server);
        }
        let state_bits = server.replication.state_bits();
        assert!(
            state_bits.contains(ReplicationState::IS_REPLICA)
                && state_bits.intersects(ReplicationState::LOADING.union(ReplicationState::LOADING_IN_STAGING)),
            "only a replica that is loading a dump replaces its data"
        );
        replace_imports(server, all, &imports);
        let taken = data.install(all, counts, row, unix_ms());
        invalidate_replaced_data(server, row);
        // The libraries were loaded without name conflicts among each other, and all others are removed.
        let restored = server.scripting.libraries.restore(&libraries, RestorePolicy::Flush);
        add_ready_keys(server, all, &mut thread, home.take());
        if server.persistence.aof.mark_data_replaced() {
            // The existing append-only file stays as it is until a base with the new data exists.
            server.keyspace.hooks.set(Hooks::LOG_FILE, false);
            if let Some(new_base) = &mut new_base {
                new_base.at_moment(all);
            }
        }
        server.keyspace.local_expiry.clear();
        begin_history(server, id, offset);
        drop(loading);
        // No save of later data comes before the renaming.
        let snapshot = &server.persistence.snapshot;
        let publication = new_base.is_none().then(|| snapshot.hold_publication());
        (taken, restored, publication)
    });
    let (taken, restored, publication) = match placed {
        Ok(placed) => placed,
        Err(failure) => {
            new_base.into_iter().for_each(BaseFromDump::abandon);
            return Err(failure);
        }
    };
    if let (Some(temporary), Some(_publication)) = (&temporary, publication) {
        temporary.publish(server);
    }
    // The data has another history now, so the replicas must synchronise again.
    role::disconnect_replicas(server);
    serve_ready_keys(server, &mut thread);
    server.persistence.dumps.record_load(&loaded);
    free_old_data(server, taken);
    let has_base = new_base.is_some_and(BaseFromDump::finish);
    if server.config.boolean(id::APPENDONLY) && !has_base {
        // The append-only file does not belong to the new data. It is rewritten from the new data.
        let is_scheduled = &server.persistence.aof.is_rewrite_scheduled;
        is_scheduled.store(true, Ordering::Relaxed);
    }
    restored.map_err(|reason| {
        LinkFailure::Other(format!(
            "Failed creating the libraries of the PRIMARY: {}",
            String::from_utf8_lossy(&reason)
        ))
    })
}
