//! The state of the thread that migrates slots, and what all of its parts use: jobs, connections, messages.

use std::sync::Arc;

use weft_base::{ClientId, LogSequence, RoleEpoch};
use weft_reactor::{Output, Reactor, ReceiveOutcome};
use weft_resp::command::write_command;
use weft_tls::TlsLayer;

use super::brake::{Brake, TargetProgress};
use super::cleanup::ImportCleanup;
use crate::commands::error::c_string_prefix;
use crate::dispatch::import_stream::ImportExecutor;
use crate::keyspace::Seat;
use crate::net::client::Client;
use crate::net::connection::Connection;
use crate::slot_migration::feed::ExportFeed;
use crate::slot_migration::job::{JobName, JobProgress, MigrationJob, SlotRanges};
use crate::state::{Server, SlotMigrationCommand};
use weft_cluster::node::NodeId;
use weft_cluster::slot_set::SlotSet;
use weft_cluster::slot_takeover::TakeoverInquiry;
use weft_os::atomic::Ordering;
use weft_os::sync::mpsc;
use weft_os::time::Instant;

/// The buffer space reserved for each receive, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;

/// The state of the thread.
pub struct MigrationEngine {
    pub server: Arc<Server>,
    pub seat: Seat,
    pub reactor: Reactor,
    pub commands: mpsc::Receiver<SlotMigrationCommand>,
    pub executor: ImportExecutor,
    pub exports: Vec<Export>,
    pub imports: Vec<Import>,
    /// The sources whose imports wait until commands use a view in which the slots belong to the source.
    pub arriving: Vec<ArrivingSource>,
    /// The failed imports whose keys are being deleted.
    pub cleanups: Vec<ImportCleanup>,
    /// The slots of ended exports that the target may still take over.
    pub granted_holds: Vec<GrantedHold>,
    pub next_token: usize,
    pub last_tick: Instant,
    /// The version of the settled cluster view for which the owners of all jobs' slots were checked.
    pub checked_view: u64,
    /// `true` while the propagation log feeds the exports.
    pub is_attached_to_log: bool,
    /// Set if something has to be tried again soon.
    pub is_urgent: bool,
}

/// A connection of this thread.
pub struct Link {
    pub token: usize,
    pub tls: Option<TlsLayer>,
    /// The time of the last acknowledgement that was sent, in milliseconds since the Unix epoch.
    pub acknowledged_ms: u64,
}

/// An export that has not ended.
pub struct Export {
    /// The shared part of its job.
    pub progress: Arc<JobProgress>,
    /// The target as a client.
    pub client: Client,
    /// The connection.
    pub link: Option<Link>,
    /// `true` once the connection is established.
    pub is_connected: bool,
    /// The bytes to send.
    pub feed: Arc<ExportFeed>,
    /// Received bytes that are not processed.
    pub input: Vec<u8>,
    /// The end of the pause in milliseconds since the Unix epoch, while the slots' writes are paused.
    pub paused_until_ms: Option<u64>,
    /// What slows the writers of the slots, if the target cannot keep up.
    pub brake: Brake,
    /// The bytes that the target has accepted.
    pub target_progress: TargetProgress,
    /// The time since which the snapshot waits, or of the last line about that in the log.
    pub waiting_since: Option<Instant>,
    /// `true` while the snapshot is being written for this export.
    pub is_snapshotting: bool,
    /// The time until which the target may take the slots over, once that has been permitted. The wall clock may jump.
    pub granted_until: Option<Instant>,
    /// The question to the target if it has taken the slots over, after that time.
    pub inquiry: TakeoverInquiry,
    pub name: JobName,
    pub slots: Arc<SlotSet>,
    pub ranges: SlotRanges,
    pub source: NodeId,
    pub target: NodeId,
    pub over_soft_limit_since: Option<Instant>,
}

/// The slots of an export that has ended after its target was permitted to take them over. Their writes stay held back
/// until it is known if the target has done that.
pub struct GrantedHold {
    pub slots: Arc<SlotSet>,
    pub target: NodeId,
    /// The time until which the target may take the slots over.
    pub until: Instant,
    /// The question to the target if it has taken the slots over, after that time.
    pub inquiry: TakeoverInquiry,
}

/// The connection of a source whose slots are not marked yet.
pub struct ArrivingSource {
    pub connection: Box<Connection>,
    /// The shared part of the import's job.
    pub progress: Arc<JobProgress>,
    /// The slot number before which all its slots are empty and marked, and the role epoch in which that began.
    pub next_slot: usize,
    pub role_epoch: Option<RoleEpoch>,
}

/// An import that has not ended.
pub struct Import {
    /// The shared part of its job.
    pub progress: Arc<JobProgress>,
    /// The source.
    pub connection: Box<Connection>,
    /// The socket.
    pub link: Option<Link>,
    pub slots: Arc<SlotSet>,
    pub name: JobName,
    pub source: Option<NodeId>,
    pub role_epoch: RoleEpoch,
    /// Set if received commands could not be executed yet.
    pub is_delayed: bool,
    /// The position that the propagation log must have reached before this node requests the takeover, while it waits
    /// for that.
    pub awaited_log: Option<LogSequence>,
    /// The time of the request for the takeover. The source waits for [`super::import::TAKEOVER_LIMIT`] at least.
    pub requested_at: Option<Instant>,
}

impl Import {
    /// Returns the id of the source as a client.
    pub fn client_id(&self) -> ClientId {
        self.connection.client.id
    }

    /// Publishes how many received bytes are not executed yet.
    pub fn publish_unexecuted_bytes(&self) {
        let bytes = self.connection.input.len() as u64;
        self.progress.unexecuted_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl MigrationEngine {
    /// Runs `change` on a job if it is still in progress.
    pub fn with_job<R>(&self, progress: &Arc<JobProgress>, change: impl FnOnce(&mut MigrationJob) -> R) -> Option<R> {
        let mut jobs = self.server.slot_migrations.lock();
        let job = jobs
            .iter_mut()
            .find(|job| Arc::ptr_eq(&job.progress, progress) && job.state.is_in_progress());
        job.map(change)
    }

    /// Ends a job that is still in progress.
    pub fn fail(&mut self, progress: &Arc<JobProgress>, message: &str) {
        let is_replica = self.server.replication.is_replica();
        self.with_job(progress, |job| job.fail(message, is_replica));
        self.is_urgent = true;
    }

    /// Receives from a connection. Returns `false` if it is closed, with the reason of a failure.
    pub fn receive(
        &mut self,
        token: usize,
        tls: Option<&TlsLayer>,
        into: &mut Vec<u8>,
    ) -> Result<usize, std::io::Error> {
        let received = match tls {
            None => self.reactor.receive(token, into, RECEIVE_BUFFER_BYTES)?,
            Some(tls) => tls.receive(&mut self.reactor, token, into, RECEIVE_BUFFER_BYTES)?,
        };
        match received {
            ReceiveOutcome::Bytes { count, .. } => Ok(count),
            ReceiveOutcome::WouldBlock => Ok(0),
            ReceiveOutcome::Closed => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends bytes over a link. Returns `false` if the connection is broken.
    pub fn send(reactor: &mut Reactor, link: &Link, bytes: Vec<u8>) -> bool {
        let mut output = Output::new();
        output.bytes = bytes;
        match &link.tls {
            None => reactor.send(link.token, &mut output).is_ok(),
            Some(tls) => tls.send(reactor, link.token, &mut output).is_ok(),
        }
    }

    /// Returns the bytes that a link has not sent yet.
    pub fn in_flight(reactor: &Reactor, link: &Link) -> usize {
        reactor.in_flight(link.token) + link.tls.as_ref().map_or(0, TlsLayer::unencrypted_bytes)
    }

    /// Closes a link.
    pub fn close(&mut self, link: Option<Link>) {
        if let Some(link) = link {
            if let Some(tls) = &link.tls {
                tls.send_close_notify(&mut self.reactor, link.token);
            }
            drop(self.reactor.deregister(link.token));
        }
    }
}

/// Returns a message of the migration protocol.
pub fn message(subcommand: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_command([&b"CLUSTER"[..], b"SYNCSLOTS", subcommand].into_iter(), &mut bytes);
    bytes
}

/// Returns the subcommand of a message in lower case, up to its first zero byte, as in Valkey. Words behind it do not
/// matter.
pub fn message_name(words: &[Vec<u8>]) -> Vec<u8> {
    let subcommand = words.get(2).map(Vec::as_slice).unwrap_or_default();
    c_string_prefix(subcommand).to_ascii_lowercase()
}
