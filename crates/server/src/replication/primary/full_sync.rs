//! Sends full synchronisations to replicas: a snapshot that is streamed to their sockets while it is made, or that is
//! written to a file first.
//!
//! ```text
//!   moment of the snapshot (exclusive mode) ─▶ the log thread gets there and pins the offsets of the replicas
//!   the snapshot's consumer: +FULLRESYNC id offset ─▶ $EOF:mark, bytes …, mark          (repl-diskless-sync)
//!                                                  ─▶ bytes into the dump file; the snapshot ends
//!   a thread for each replica: $size and the file                             (`FileTransfer`)
//! ```
//!
//! These threads may block: they have their own handles of the sockets. They drop a replica that accepts no data for
//! `repl-timeout`. While a snapshot is streamed, its replicas wait for the slowest one, and so do other snapshots. A
//! complete file is sent to each replica at the pace of that replica, and concerns no later snapshot.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use weft_base::clock::unix_ms;
use weft_base::{ClientId, DbIndex};
use weft_reactor::{Socket, thread_id};

use crate::net::client::Client;
use crate::observability::log;
use crate::persistence::rdb_file::{BufferedWriter, ModuleRecordForm, RdbFile, RdbFilePurpose, RdbFormat, RdbHeader};
use crate::persistence::save;
use crate::persistence::snapshot;
use crate::persistence::snapshot::{
    AuxFields, ConsumerError, SnapshotConsumer, SnapshotMoment, SnapshotOutcome, SnapshotRefusal, SnapshotRequest,
    SnapshotSummary,
};
use crate::persistence::snapshot_state::{SnapshotPurpose, SnapshotState};
use crate::replication::backlog_writer;
use crate::replication::backlog_writer::HistoryPosition;
use crate::replication::{REPLICATION_ID_DIGITS, ReplicaSyncState};
use crate::state::{PrimaryThreadCommand, Server};
use weft_acl::AclAccount;
use weft_base::files::{FixedPath, error_text};
use weft_config::{Config, id};
use weft_os::atomic::Ordering;
use weft_os::descriptor::{self, Interest};
use weft_os::sync::Mutex;
use weft_os::sync::mpsc;
use weft_os::time::Instant;
use weft_tls::TlsLayer;

/// The number of hexadecimal digits in the mark that ends a dump.
const EOF_MARK_DIGITS: usize = 40;
/// The interval at which a blocked write checks for cancellation, in milliseconds.
const CANCEL_CHECK_INTERVAL_MS: u16 = 100;
/// The interval between two keepalive newlines while a file is written.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of bytes encrypted at a time.
const TLS_CHUNK_BYTES: usize = 256 * 1024;
/// The number of bytes of a file sent at a time.
const FILE_CHUNK_BYTES: usize = 256 * 1024;

/// The reason why no dump was begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginDumpError {
    /// Another snapshot is being written.
    #[error("another snapshot is being written")]
    Busy,
    /// The operating system or the keyspace lacks a resource, such as a thread.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// A handle of a replica's socket.
enum ReplicaSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ReplicaSocket {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ReplicaSocket::Tcp(stream) => (&*stream).write(bytes),
            ReplicaSocket::Unix(stream) => (&*stream).write(bytes),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            ReplicaSocket::Tcp(stream) => stream.as_fd(),
            ReplicaSocket::Unix(stream) => stream.as_fd(),
        }
    }
}

/// The way in which a replica learns the offset at which the stream continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetAnnouncement {
    /// It is not announced: the replica used `SYNC`.
    None,
    /// The stream follows the dump on the same connection.
    AfterDump,
    /// The replica requests the stream over another connection.
    OtherConnection,
}

impl OffsetAnnouncement {
    /// Returns the announcement for a replica that used PSYNC (`is_psync`) or that receives the dump over a separate
    /// connection (`alone`).
    pub const fn for_replica(is_psync: bool, alone: bool) -> OffsetAnnouncement {
        match (alone, is_psync) {
            (true, _) => OffsetAnnouncement::OtherConnection,
            (false, true) => OffsetAnnouncement::AfterDump,
            (false, false) => OffsetAnnouncement::None,
        }
    }
}

/// A replica that receives a dump.
pub struct DumpReceiver {
    /// The id of its client.
    pub id: ClientId,
    name: String,
    /// Its user.
    account: Arc<AclAccount>,
    handle: ReplicaSocket,
    /// Its TLS layer. While the dump is sent, no other thread encrypts data for the replica.
    tls: Option<TlsLayer>,
    announcement: OffsetAnnouncement,
}

/// An additional handle of a socket.
pub struct SocketHandle(ReplicaSocket);

impl DumpReceiver {
    /// Returns an additional handle of a replica's socket.
    ///
    /// # Errors
    /// When the operating system cannot duplicate the file descriptor.
    pub fn clone_of(socket: &Socket) -> io::Result<SocketHandle> {
        let handle = match socket {
            Socket::Tcp(stream) => ReplicaSocket::Tcp(stream.try_clone()?),
            Socket::Unix(stream) => ReplicaSocket::Unix(stream.try_clone()?),
        };
        Ok(SocketHandle(handle))
    }

    /// Creates the target for a replica with this client.
    pub fn new(
        client: &Client,
        name: String,
        socket: SocketHandle,
        tls: Option<TlsLayer>,
        announcement: OffsetAnnouncement,
    ) -> Self {
        DumpReceiver {
            id: client.id,
            name,
            account: client.login.account().clone(),
            handle: socket.0,
            tls,
            announcement,
        }
    }

    /// Writes all bytes. Blocks until the socket accepts them, but not longer than `repl-timeout` without progress, nor
    /// beyond the cancellation of the snapshot `running` to which the bytes belong. Fails if the replica's user is
    /// deleted: the bytes may be data that was written after that.
    fn write_all(&self, bytes: &[u8], config: &Config, running: Option<&SnapshotState>) -> io::Result<()> {
        if self.account.is_deleted() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "its user is deleted"));
        }
        let Some(tls) = &self.tls else {
            return self.write_raw(bytes, config, running);
        };
        bytes
            .chunks(TLS_CHUNK_BYTES)
            .try_for_each(|piece| self.write_raw(&tls.encrypt(piece)?, config, running))
    }

    fn write_raw(&self, mut bytes: &[u8], config: &Config, running: Option<&SnapshotState>) -> io::Result<()> {
        let mut progress = Instant::now();
        while !bytes.is_empty() {
            let written = self.handle.write(bytes);
            descriptor::activity();
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    progress = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // The timeout may be changed meanwhile.
                    let timeout = Duration::from_secs(config.unsigned(id::REPL_TIMEOUT).max(1));
                    if progress.elapsed() > timeout || running.is_some_and(SnapshotState::is_cancelled) {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    let interval = Duration::from_millis(CANCEL_CHECK_INTERVAL_MS.into());
                    let left = descriptor::before_wait(self.handle.fd(), Interest::Output, Some(interval));
                    let mut polled = [PollFd::new(self.handle.fd(), PollFlags::POLLOUT)];
                    // The next write reports any error.
                    let _ = poll(&mut polled, left.and_then(|left| PollTimeout::try_from(left).ok()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Several replicas that receive the same bytes.
struct DumpReceivers {
    server: Arc<Server>,
    list: Vec<DumpReceiver>,
    /// `true` if the dump is useful without the replicas.
    is_useful_without_replicas: bool,
    served: Arc<Mutex<Vec<ClientId>>>,
}

impl DumpReceivers {
    /// Writes the bytes to all replicas, counts them, and drops the replicas that fail.
    fn write(&mut self, bytes: &[u8], running: &SnapshotState) -> Result<(), ConsumerError> {
        let config = &self.server.config;
        let output_bytes = &self.server.replication.replicas.output_bytes;
        self.list
            .retain(|target| match target.write_all(bytes, config, Some(running)) {
                Ok(()) => {
                    output_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    true
                }
                Err(error) if error.kind() == ErrorKind::TimedOut && !running.is_cancelled() => {
                    log::warning!("Disconnecting timedout replica (full sync): {}", target.name);
                    false
                }
                Err(error) => {
                    log::warning!(
                        "Diskless rdb transfer, write error sending DB to replica: {}",
                        error_text(&error)
                    );
                    false
                }
            });
        if self.list.is_empty() && !self.is_useful_without_replicas {
            return Err("no replica accepts the dump any more".into());
        }
        Ok(())
    }

    /// Announces the offset at which the stream continues to the replicas that expect it.
    fn announce(&mut self, place: &HistoryPosition, running: &SnapshotState) {
        assert_eq!(
            place.id.len(),
            REPLICATION_ID_DIGITS,
            "a dump has a position in a history"
        );
        let HistoryPosition { id, offset, db } = place;
        let config = &self.server.config;
        self.list.retain(|target| {
            let line = match target.announcement {
                OffsetAnnouncement::None => return true,
                OffsetAnnouncement::AfterDump => format!("+FULLRESYNC {id} {offset}\r\n"),
                OffsetAnnouncement::OtherConnection => {
                    log::notice!(
                        "Dual channel replication: Sending to replica {} RDB end offset {offset} and client-id {}",
                        target.name,
                        target.id
                    );
                    format!("$ENDOFF:{offset} {id} {db} {}\r\n", target.id)
                }
            };
            target.write_all(line.as_bytes(), config, Some(running)).is_ok()
        });
    }

    /// Publishes that the bytes of the dump are being sent.
    fn publish(&self) {
        for known in self.server.replication.replicas.infos().iter_mut() {
            if self.list.iter().any(|target| target.id == known.id) {
                known.progress = ReplicaSyncState::ReceivingDump;
            }
        }
    }

    fn record_served(&self) {
        *self.served.lock() = self.list.iter().map(|target| target.id).collect();
    }
}

/// Sends a dump while it is made.
struct SocketDump {
    targets: DumpReceivers,
    mark: String,
}

impl SnapshotConsumer for SocketDump {
    fn write(&mut self, bytes: &[u8], running: &SnapshotState) -> Result<(), ConsumerError> {
        self.targets.write(bytes, running)
    }

    fn finish(mut self: Box<Self>, running: &SnapshotState) -> Result<(), ConsumerError> {
        let mark = std::mem::take(&mut self.mark);
        self.targets.write(mark.as_bytes(), running)?;
        log::notice!(
            "Diskless rdb transfer, done reading from pipe, {} replicas still up.",
            self.targets.list.len()
        );
        self.targets.record_served();
        Ok(())
    }
}

/// Writes a dump to a file, and begins to send the file.
struct FileDump {
    targets: DumpReceivers,
    file: Option<RdbFile>,
    path: FixedPath,
    last_keepalive: Instant,
    removes_file: bool,
}

impl SnapshotConsumer for FileDump {
    fn write(&mut self, bytes: &[u8], running: &SnapshotState) -> Result<(), ConsumerError> {
        if self.last_keepalive.elapsed() >= KEEPALIVE_INTERVAL {
            self.last_keepalive = Instant::now();
            if let Err(error) = self.targets.write(b"\n", running) {
                // The file is not needed. No error has kept it from being written.
                running.cancel(&[SnapshotPurpose::Replicas]);
                return Err(error);
            }
        }
        match &mut self.file {
            Some(file) => Ok(file.write(bytes)?),
            None => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>, running: &SnapshotState) -> Result<(), ConsumerError> {
        let Some(mut file) = self.file.take() else {
            return Ok(());
        };
        file.sync()?;
        // Opened first: a newer dump may replace the file once it has its final name, and would not match the offsets.
        let sent = Arc::new(file.open_for_reading()?);
        let bytes = sent.metadata()?.len();
        {
            // DEBUG RELOAD may be loading the file that it has written under this name.
            let Some(_publication) = running.begin_publication() else {
                return Err("cancelled".into());
            };
            file.publish(&self.path)?;
            log::notice!("DB saved on disk");
            if self.removes_file {
                log::notice!("Removing the RDB file used to feed replicas in a persistence-less instance");
                // The replicas need only what is open. Later a save could have replaced the file by one that is needed.
                // Leaving the file does no harm.
                let _ = std::fs::remove_file(&self.path);
            }
        }
        self.targets.publish();
        self.targets.record_served();
        let DumpReceivers { server, list, .. } = self.targets;
        for target in list {
            let transfer = FileTransfer {
                server: server.clone(),
                target,
                file: sent.clone(),
                bytes,
            };
            transfer.start();
        }
        Ok(())
    }
}

/// Sends a complete dump file to one replica. No snapshot waits for it.
struct FileTransfer {
    server: Arc<Server>,
    target: DumpReceiver,
    file: Arc<File>,
    /// The size of the file.
    bytes: u64,
}

impl FileTransfer {
    /// Sends the file on a thread of its own, which reports the end to the thread that serves replicas. The latter may
    /// end the transfer: it closes the connection.
    fn start(self) {
        let (server, replica) = (self.server.clone(), self.target.id);
        let report = move |is_complete| {
            let ended = PrimaryThreadCommand::DumpFileSent(replica, is_complete);
            server.background.send_to_primary_thread(ended);
        };
        let report_end = report.clone();
        let send = move || report_end(self.run());
        let spawned = weft_os::thread::Builder::new()
            .name("weft-dump-file".into())
            .spawn(send);
        if let Err(error) = spawned {
            log::warning!("Cannot start to send the dump file: {}", error_text(&error));
            report(false);
        }
    }

    /// Sends the file. Returns `true` if the replica has all of it.
    fn run(&self) -> bool {
        match self.send() {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                log::warning!("Disconnecting timedout replica (full sync): {}", self.target.name);
                false
            }
            Err(error) => {
                log::verbose!("Write error sending DB to replica: {}", error_text(&error));
                false
            }
        }
    }

    fn send(&self) -> io::Result<()> {
        self.write(format!("${}\r\n", self.bytes).as_bytes())?;
        let mut buffer = vec![0; FILE_CHUNK_BYTES];
        let mut offset = 0;
        while offset < self.bytes {
            // Another program may change the file. The replica must get as many bytes as announced.
            let most = (self.bytes - offset).min(FILE_CHUNK_BYTES as u64) as usize;
            let count = self.file.read_at(&mut buffer[..most], offset)?;
            if count == 0 {
                return Err(io::Error::other("the dump file has become shorter"));
            }
            self.write(&buffer[..count])?;
            offset += count as u64;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.target.write_all(bytes, &self.server.config, None)?;
        let output_bytes = &self.server.replication.replicas.output_bytes;
        output_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns `true` if a dump is useful even if no replica receives it: a file that is loaded at the next start.
pub fn is_useful_without_replicas(server: &Server, with_mark: bool) -> bool {
    !with_mark && !server.config.save_points().is_empty()
}

/// The properties of a dump for replicas.
#[derive(Clone, Copy, Debug)]
pub struct DumpRequirements {
    /// The dump format that all of the replicas understand.
    pub format: RdbFormat,
    /// `true` if the dump contains no keys.
    pub excludes_keys: bool,
}

/// Begins a dump for these replicas. The caller has excluded runs on script threads, for the time of this call.
///
/// # Errors
/// When no dump can begin now.
pub fn begin(
    server: &Arc<Server>,
    targets: Vec<DumpReceiver>,
    with_mark: bool,
    DumpRequirements {
        format,
        excludes_keys: without_data,
    }: DumpRequirements,
) -> Result<(), BeginDumpError> {
    let ids: Vec<ClientId> = targets.iter().map(|target| target.id).collect();
    let served: Arc<Mutex<Vec<ClientId>>> = Arc::default();
    let targets = DumpReceivers {
        server: server.clone(),
        list: targets,
        is_useful_without_replicas: is_useful_without_replicas(server, with_mark),
        served: served.clone(),
    };
    if without_data {
        return send_functions(server, targets, format, ids, served);
    }
    let alone = targets
        .list
        .iter()
        .any(|target| target.announcement == OffsetAnnouncement::OtherConnection);
    // For tests: the part of the work that Valkey does in the parent process stops until the dump is complete. Then the
    // process stops itself.
    let stands_still = server.replication.pauses_after_fork.load(Ordering::Relaxed);
    if stands_still {
        server
            .replication
            .links_sleep_until_ms
            .store(u64::MAX, Ordering::Relaxed);
    }
    let (told, place) = mpsc::channel::<HistoryPosition>();
    let for_consumer = server.clone();
    let pinned = ids.clone();
    let order = SnapshotRequest {
        purpose: SnapshotPurpose::Replicas,
        slots: None,
        module_form: ModuleRecordForm::Values,
        format,
        consumer: Box::new(move || make_consumer(&for_consumer, targets, &place, with_mark)),
        at_moment: Box::new(move |moment| {
            if !with_mark {
                save::record_moment(moment.server);
            }
            pin_replica_offsets(moment, pinned, alone, told)
        }),
        at_end: Box::new(move |server, summary, outcome| {
            let has_failed = !matches!(outcome, SnapshotOutcome::Done);
            match with_mark {
                true => record_end_of_transfer(server, summary, outcome, alone),
                false => save::finish_background_save(server, summary, outcome),
            }
            if stands_still {
                server.replication.pause_if_requested();
                server.replication.links_sleep_until_ms.store(0, Ordering::Relaxed);
            }
            let served = std::mem::take(&mut *served.lock());
            server
                .background
                .send_to_primary_thread(PrimaryThreadCommand::DumpEnded {
                    replicas: ids,
                    served_replicas: served,
                    has_failed,
                    has_eof_mark: with_mark,
                });
        }),
    };
    match snapshot::start_without_scripts(server, order) {
        Ok(thread) => {
            log_start(thread, with_mark, alone);
            Ok(())
        }
        Err(refused) => {
            server.replication.links_sleep_until_ms.store(0, Ordering::Relaxed);
            Err(record_refusal(server, refused, with_mark))
        }
    }
}

/// Returns the error of a dump that could not begin. If it was to go through the dump file, a background save has
/// failed.
fn record_refusal(server: &Server, refused: SnapshotRefusal, with_mark: bool) -> BeginDumpError {
    match refused {
        SnapshotRefusal::Busy(_) => BeginDumpError::Busy,
        SnapshotRefusal::System(error) => {
            if !with_mark {
                save::record_failed_start(server, &error);
            }
            BeginDumpError::Failed(error)
        }
    }
}

/// Logs and records the end of a dump that was sent to the sockets of replicas. `alone` is `true` if it went to one
/// replica over its own connection.
fn record_end_of_transfer(server: &Server, summary: &SnapshotSummary, outcome: SnapshotOutcome, alone: bool) {
    match outcome {
        SnapshotOutcome::Done => log::notice!("Background RDB transfer terminated with success"),
        // All replicas that should receive it have disconnected.
        SnapshotOutcome::Cancelled if alone => log::warning!("Background RDB transfer error"),
        SnapshotOutcome::Cancelled => log::warning!("Background transfer terminated by request"),
        SnapshotOutcome::Failed(error) => log::warning!("Background RDB transfer error: {error}"),
    }
    save::record_figures(server, summary);
}

/// Logs that a dump for replicas has started. `alone` is `true` if it goes to one replica over its own connection.
fn log_start(thread: i32, with_mark: bool, alone: bool) {
    let way = if alone {
        "direct socket to replica"
    } else {
        "pipe through parent process"
    };
    match with_mark {
        true => log::notice!("Background RDB transfer started by pid {thread} to {way}"),
        false => log::notice!("Background saving started by pid {thread}"),
    }
}

/// Pins the offsets of the replicas at the moment of the snapshot, and sends that position to `told`.
fn pin_replica_offsets(
    moment: &SnapshotMoment<'_>,
    replicas: Vec<ClientId>,
    alone: bool,
    told: mpsc::Sender<HistoryPosition>,
) -> AuxFields {
    let Some(server) = moment.server.self_handle() else {
        return Box::new(Vec::new);
    };
    let place = backlog_writer::position_then(moment.server, move |consumers, place| {
        consumers.force_select(backlog_writer::CONSUMER_NAME);
        let mut backlog = server.replication.replicas.backlog();
        for replica in &replicas {
            backlog.pin(*replica, place.offset);
        }
        let is_empty = backlog.memory_bytes() == 0;
        drop(backlog);
        if alone {
            let what = if is_empty {
                "no repl-backlog to track"
            } else {
                "tracking repl-backlog tail"
            };
            for replica in &replicas {
                log::debug!(
                    "Dual channel replication: Add rdb replica {replica} to waiting psync, with cid {replica}, {what}"
                );
            }
            server.replication.replicas.awaited_dumps().extend(&replicas);
        }
        // The receiver may have given up.
        let _ = told.send(place.clone());
    });
    let open_slots = moment
        .server
        .cluster
        .as_ref()
        .and_then(|cluster| cluster.slots_in_migration_field());
    Box::new(|| {
        let mut notes = place.aux_fields();
        notes.extend(open_slots);
        notes
    })
}

fn make_consumer(
    server: &Arc<Server>,
    mut targets: DumpReceivers,
    place: &mpsc::Receiver<HistoryPosition>,
    with_mark: bool,
) -> Result<Box<dyn SnapshotConsumer>, ConsumerError> {
    let place = place
        .recv()
        .map_err(|_| "the replication offset of the dump is unknown")?;
    let running = &server.persistence.snapshot;
    targets.announce(&place, running);
    if with_mark {
        let mark = new_eof_mark();
        targets.write(format!("$EOF:{mark}\r\n").as_bytes(), running)?;
        return Ok(Box::new(SocketDump { targets, mark }));
    }
    let config = &server.config;
    let path = save::rdb_path(config);
    let temporary = path.directory().file(format!("temp-{}.rdb", thread_id()));
    let persists = !config.save_points().is_empty() || config.boolean(id::APPENDONLY);
    Ok(Box::new(FileDump {
        targets,
        file: Some(RdbFile::create(
            temporary,
            RdbFilePurpose::Dump,
            config.boolean(id::RDB_SAVE_INCREMENTAL_FSYNC),
        )?),
        path,
        last_keepalive: Instant::now(),
        removes_file: config.boolean(id::RDB_DEL_SYNC_FILES) && !persists,
    }))
}

fn new_eof_mark() -> String {
    std::iter::repeat_with(|| format!("{:x}", fastrand::u8(..16)))
        .take(EOF_MARK_DIGITS)
        .collect()
}

/// Sends a dump that has functions and no keys. This needs no snapshot.
fn send_functions(
    server: &Arc<Server>,
    mut targets: DumpReceivers,
    format: RdbFormat,
    replicas: Vec<ClientId>,
    served: Arc<Mutex<Vec<ClientId>>>,
) -> Result<(), BeginDumpError> {
    let server = server.clone();
    let send = move || {
        let (id, offset) = {
            // The backlog is that of the history. The bytes behind the offset are kept from the moment at which it is
            // read.
            let state = server.replication.state();
            let mut backlog = server.replication.replicas.backlog();
            let offset = backlog.range().map_or(server.replication.offset(), |range| range.end);
            for target in &targets.list {
                backlog.pin(target.id, offset);
            }
            (state.history.id.clone(), offset)
        };
        let place = HistoryPosition {
            id,
            offset,
            db: DbIndex::FIRST,
        };
        let functions = server.scripting.libraries.codes();
        let head = RdbHeader {
            format,
            functions: &functions,
            now_s: unix_ms() / 1000,
            used_memory_bytes: crate::observability::memory::used().unwrap_or(0),
            aux_fields: &place.aux_fields(),
            ..RdbHeader::default()
        };
        let config = &server.config;
        let mut gathering = BufferedWriter::new(config.boolean(id::RDBCHECKSUM));
        head.write(&mut gathering.bytes, config.boolean(id::RDBCOMPRESSION));
        let bytes = gathering.finish();
        targets.announce(&place, &server.persistence.snapshot);
        let mark = new_eof_mark();
        let whole = [format!("$EOF:{mark}\r\n").as_bytes(), &bytes, mark.as_bytes()].concat();
        if targets.write(&whole, &server.persistence.snapshot).is_ok() {
            targets.record_served();
        }
        let served = std::mem::take(&mut *served.lock());
        server
            .background
            .send_to_primary_thread(PrimaryThreadCommand::DumpEnded {
                replicas,
                served_replicas: served,
                has_failed: false,
                has_eof_mark: true,
            });
    };
    let spawned = weft_os::thread::Builder::new().name("weft-snap-out".into()).spawn(send);
    spawned?;
    Ok(())
}

#[cfg(test)]
mod tests;
