//! The replicas of this server as all threads see them, and the backlog that they read.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::backlog::{BacklogMemory, ReplicationBacklog};

use weft_base::{ClientId, LogSequence, ParkedClient, ReplicationOffset};
use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_os::sync::{Mutex, MutexGuard};

/// The default time for which the stream after a dump is kept once the connection of the dump is gone, in seconds.
const DEFAULT_GRACE_S: u64 = 60;

/// The synchronisation state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaSyncState {
    /// The replica waits for a dump to begin.
    WaitingForDump,
    /// A dump for the replica is being written.
    DumpStarted,
    /// The replica receives the dump.
    ReceivingDump,
    /// The replica receives the replication stream, and the dump over another connection.
    LoadingDump,
    /// The replica receives the replication stream.
    Online,
}

impl ReplicaSyncState {
    /// Returns the word that INFO reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            ReplicaSyncState::WaitingForDump | ReplicaSyncState::DumpStarted => "wait_bgsave",
            ReplicaSyncState::ReceivingDump => "send_bulk",
            ReplicaSyncState::LoadingDump => "bg_transfer",
            ReplicaSyncState::Online => "online",
        }
    }
}

/// The purpose of a replica's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaChannel {
    /// The dump and the replication stream.
    Single,
    /// The dump.
    Dump,
    /// The replication stream, while the dump is sent over another connection.
    Main,
}

/// A replica as all threads see it.
#[derive(Clone, Debug)]
pub struct ReplicaInfo {
    /// The id of its client.
    pub id: ClientId,
    /// Its host name or IP address.
    pub host: String,
    /// The port that it listens on.
    pub port: i64,
    /// Its cluster node ID; empty if the replica has not announced one.
    pub node: String,
    /// Its synchronisation state.
    pub progress: ReplicaSyncState,
    /// The purpose of this connection.
    pub channel: ReplicaChannel,
    /// The offset that the replica has acknowledged.
    pub acknowledged_offset: ReplicationOffset,
    /// The offset up to which the replica's append-only file is on disk; `None` if the replica has not reported it.
    pub fsynced_offset: Option<ReplicationOffset>,
    /// The time of its last message, in seconds since the Unix epoch.
    pub last_heard_s: u64,
    /// `true` if it is being disconnected, by CLIENT KILL or because the history has changed. It counts no more,
    /// although its thread has not removed it yet.
    pub is_leaving: bool,
}

impl ReplicaInfo {
    /// Returns `true` if the replica receives the stream.
    pub fn is_online(&self) -> bool {
        self.progress == ReplicaSyncState::Online && !self.is_leaving
    }

    /// Returns the word that INFO reports for the purpose of this connection.
    pub fn channel_name(&self) -> &'static str {
        match (self.channel, self.progress) {
            (ReplicaChannel::Dump, _) => "rdb-channel",
            (ReplicaChannel::Main, ReplicaSyncState::LoadingDump) => "main-channel",
            (ReplicaChannel::Single | ReplicaChannel::Main, _) => "replica",
        }
    }
}

/// The reply to clients that wait for this server's disk when the append-only file is switched off.
pub const WAITAOF_DISABLED_REPLY: &[u8] =
    b"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n";

/// The acknowledgements that a client requires of its writes (`WAIT`, `WAITAOF`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredAcks {
    /// The log sequence number of the client's last write.
    pub log_sequence: LogSequence,
    /// The number of replicas to wait for.
    pub replicas: i64,
    /// For WAITAOF: the number of local disks to wait for, 0 or 1. `None` for WAIT.
    pub local_disks: Option<i64>,
}

/// A client that waits for replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaWait {
    /// The client.
    pub client: ParkedClient,
    /// The acknowledgements that end the wait.
    pub required_acks: RequiredAcks,
}

/// The replicas of this server.
pub struct Replicas {
    backlog: Mutex<ReplicationBacklog>,
    backlog_memory: Arc<BacklogMemory>,
    /// The memory of what is between the backlog and the sockets of the replicas, in bytes.
    in_flight_bytes: AtomicU64,
    infos: Mutex<Vec<ReplicaInfo>>,
    /// The clients that were killed and whose connections are not closed yet. No other lock is taken meanwhile.
    killed: Mutex<BTreeSet<ClientId>>,
    /// The number of times that all replicas must still be disconnected. Changed only while `infos` is locked.
    disconnections: AtomicU64,
    /// The number of times that this has begun.
    begun_disconnections: AtomicU64,
    waits: Mutex<Vec<ReplicaWait>>,
    /// The ids of the clients that receive or received only a dump, and whose main connection has not requested the
    /// stream yet.
    awaited_dumps: Mutex<BTreeSet<ClientId>>,
    /// The time for which the stream after such a dump is kept once its connection is gone, in seconds.
    pub grace_s: AtomicU64,
    /// Set when all replicas have to be asked for their offsets.
    pub ack_requested: AtomicBool,
    /// Set while a replica reads the stream, so that the thread that sends it has to be woken.
    pub has_readers: AtomicBool,
    /// The number of full synchronisations.
    pub full_syncs: AtomicU64,
    /// The number of accepted partial synchronisations.
    pub partial_syncs: AtomicU64,
    /// The number of refused partial synchronisations.
    pub partial_syncs_refused: AtomicU64,
    /// The number of bytes sent to replicas.
    pub output_bytes: AtomicU64,
}

impl Default for Replicas {
    fn default() -> Replicas {
        let backlog = ReplicationBacklog::default();
        Replicas {
            backlog_memory: backlog.shared_memory(),
            backlog: Mutex::new(backlog),
            in_flight_bytes: AtomicU64::new(0),
            infos: Mutex::default(),
            killed: Mutex::default(),
            disconnections: AtomicU64::new(0),
            begun_disconnections: AtomicU64::new(0),
            waits: Mutex::default(),
            awaited_dumps: Mutex::default(),
            grace_s: AtomicU64::new(DEFAULT_GRACE_S),
            ack_requested: AtomicBool::new(false),
            has_readers: AtomicBool::new(false),
            full_syncs: AtomicU64::new(0),
            partial_syncs: AtomicU64::new(0),
            partial_syncs_refused: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
        }
    }
}

impl Replicas {
    /// Locks the backlog. The lock must be held only briefly.
    pub fn backlog(&self) -> MutexGuard<'_, ReplicationBacklog> {
        self.backlog.lock()
    }

    /// Returns the number of bytes that the backlog occupies. Does not lock it.
    pub fn backlog_bytes(&self) -> u64 {
        self.backlog_memory.bytes()
    }

    /// Returns the bytes that the stream takes on its way to the replicas, beyond the `backlog_size` bytes that are
    /// kept in any case. What was freed is included until the used memory is without it: otherwise keys would be
    /// evicted for it.
    pub fn excess_stream_bytes(&self, backlog_size: u64) -> u64 {
        let backlog = self.backlog_memory.unsettled_bytes();
        backlog.saturating_sub(backlog_size) + self.in_flight_bytes()
    }

    /// Returns the memory of what is between the backlog and the sockets of the replicas, in bytes.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes.load(Ordering::Relaxed)
    }

    /// Records that up to this many bytes are in flight to all replicas, before they count as used.
    pub fn raise_in_flight_bytes(&self, bytes: u64) {
        self.in_flight_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Records the memory of what is in flight to all replicas, in bytes. The calling thread, which serves them, has
    /// counted what it has freed.
    pub fn settle_stream_bytes(&self, in_flight: u64) {
        self.in_flight_bytes.store(in_flight, Ordering::Relaxed);
        self.backlog_memory.settle();
    }

    /// Locks the list of replicas. The lock must be held only briefly.
    pub fn infos(&self) -> MutexGuard<'_, Vec<ReplicaInfo>> {
        self.infos.lock()
    }

    /// Locks the set of dumps whose streams have not been requested yet, given by the ids of their clients. The lock
    /// must be held only briefly.
    pub fn awaited_dumps(&self) -> MutexGuard<'_, BTreeSet<ClientId>> {
        self.awaited_dumps.lock()
    }

    /// Locks the list of waiting clients.
    pub fn waits(&self) -> MutexGuard<'_, Vec<ReplicaWait>> {
        self.waits.lock()
    }

    /// Returns the number of replicas that receive the stream.
    pub fn online_count(&self) -> i64 {
        self.count(|_| true)
    }

    /// Returns the online replica with the greatest acknowledged offset of those that have announced their cluster node
    /// IDs.
    pub fn furthest_node(&self) -> Option<ReplicaInfo> {
        let known = self.infos();
        let online = known.iter().filter(|replica| replica.is_online());
        let nodes = online.filter(|replica| !replica.node.is_empty());
        nodes.max_by_key(|replica| replica.acknowledged_offset).cloned()
    }

    /// Returns the offset that a replica has acknowledged over the connection of this client, or `None` if the replica
    /// is not online there any more. An earlier connection of the same node may still be open.
    pub fn acknowledged_offset_of(&self, id: ClientId) -> Option<ReplicationOffset> {
        let known = self.infos();
        let mut online = known.iter().filter(|replica| replica.is_online());
        let replica = online.find(|replica| replica.id == id)?;
        Some(replica.acknowledged_offset)
    }

    /// Returns the number of replicas that have acknowledged `offset`.
    pub fn acknowledged_count(&self, offset: ReplicationOffset) -> i64 {
        self.count(|replica| replica.acknowledged_offset >= offset)
    }

    /// Returns the number of replicas that have `offset` on disk. Every replica has offset 0, even without an
    /// append-only file.
    pub fn synced_count(&self, offset: ReplicationOffset) -> i64 {
        self.count(|replica| replica.fsynced_offset.unwrap_or(ReplicationOffset::ZERO) >= offset)
    }

    /// Returns the number of replicas that have acknowledged the log sequence number `sequence`.
    pub fn acknowledged_sequence_count(&self, sequence: LogSequence) -> i64 {
        // No replica has what is not in the backlog yet.
        let offset = self.backlog().offset_of_sequence(sequence);
        offset.map_or(0, |offset| self.acknowledged_count(offset))
    }

    /// Returns the number of replicas that have the log sequence number `sequence` on disk.
    pub fn synced_sequence_count(&self, sequence: LogSequence) -> i64 {
        let offset = self.backlog().offset_of_sequence(sequence);
        offset.map_or(0, |offset| self.synced_count(offset))
    }

    fn count(&self, counts: impl Fn(&ReplicaInfo) -> bool) -> i64 {
        let known = self.infos();
        known
            .iter()
            .filter(|replica| replica.is_online() && counts(replica))
            .count() as i64
    }

    /// Returns the number of up-to-date replicas: online, and heard within `most_lag_s` seconds.
    pub fn up_to_date_count(&self, now_s: u64, most_lag_s: u64) -> i64 {
        self.count(|replica| now_s.saturating_sub(replica.last_heard_s) <= most_lag_s)
    }

    /// Returns `true` if the replica with this client id was killed. For a caller that has locked the backlog, the
    /// answer covers every write that was made before: a replica gets no write that was made after it was killed.
    pub fn is_killed(&self, id: ClientId) -> bool {
        self.killed.lock().contains(&id)
    }

    /// Records that the connection of a client is closed.
    pub fn forget_killed(&self, id: ClientId) {
        self.killed.lock().remove(&id);
    }

    /// Records that the replica with this client id was killed.
    pub fn mark_killed(&self, id: ClientId) {
        self.killed.lock().insert(id);
        if let Some(known) = self.infos().iter_mut().find(|known| known.id == id) {
            known.is_leaving = true;
        }
    }

    /// Records that all replicas will be disconnected. Those that are published until
    /// [`end_disconnection`](Self::end_disconnection) will be, too: they were adopted before.
    pub fn begin_disconnection(&self) {
        let mut known = self.infos();
        self.disconnections.fetch_add(1, Ordering::Relaxed);
        self.begun_disconnections.fetch_add(1, Ordering::AcqRel);
        known.iter_mut().for_each(|replica| replica.is_leaving = true);
    }

    /// Returns the number of times that a disconnection of all replicas has begun. A connection that was accepted as
    /// that of a replica before the last one is not adopted any more.
    pub fn disconnection_count(&self) -> u64 {
        self.begun_disconnections.load(Ordering::Acquire)
    }

    /// Returns `true` if all replicas will be disconnected. For a caller that has locked the backlog, the answer covers
    /// every history of which the backlog has bytes: a disconnection begins before the first one is appended.
    pub fn is_disconnecting_all(&self) -> bool {
        self.disconnections.load(Ordering::Relaxed) > 0
    }

    /// Records that all replicas have been disconnected.
    pub fn end_disconnection(&self) {
        let _known = self.infos();
        let before = self.disconnections.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a disconnection ends once");
    }

    /// Adds a replica to the list, which the caller has locked.
    pub fn publish(&self, known: &mut Vec<ReplicaInfo>, mut replica: ReplicaInfo) {
        replica.is_leaving |= self.disconnections.load(Ordering::Relaxed) > 0;
        known.push(replica);
    }

    /// Returns the replicas that are not being disconnected.
    pub fn connected(&self) -> Vec<ReplicaInfo> {
        let known = self.infos();
        known.iter().filter(|replica| !replica.is_leaving).cloned().collect()
    }

    /// Requests an acknowledgement of their offsets from all replicas.
    pub fn request_acks(&self) {
        self.ack_requested.store(true, Ordering::SeqCst);
    }
}
