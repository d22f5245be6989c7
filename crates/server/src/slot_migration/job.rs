//! One slot migration as one of its nodes knows it: what moves, between which nodes, and how far it is.

use std::sync::Arc;

use weft_base::SlotIndex;
use weft_base::clock::unix_ms;
use weft_cluster::node::NodeId;
use weft_cluster::slot_set::SlotSet;

use crate::observability::log;
use weft_modules::module::server_events::{self, EventKind, ServerEvent, SlotMigrationStep};
use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};

/// The reason of an import whose connection broke.
pub const CONNECTION_LOST: &str =
    "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information.";

/// The length of a job's name in bytes.
pub const JOB_NAME_BYTES: usize = 40;

/// The name of a job, which is the same on all nodes.
pub type JobName = [u8; JOB_NAME_BYTES];

/// Ranges of slots, with the first and the last slot of each.
pub type SlotRanges = Vec<(SlotIndex, SlotIndex)>;

/// The direction of a migration as this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// This node, or its primary, gets the slots.
    Import,
    /// This node gives the slots away.
    Export,
}

/// The state of a job. The words are those of CLUSTER GETSLOTMIGRATIONS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Import: the source has not acknowledged the import yet.
    WaitingForAck,
    /// Import: the snapshot arrives.
    ReceivingSnapshot,
    /// Import: later writes arrive, and the source will pause its clients.
    WaitingForPaused,
    /// Import: everything has arrived, and the source has to permit the takeover.
    FailoverRequested,
    /// Import: this node may take the slots over.
    ImportGranted,
    /// Import: the job has failed, and its keys are being deleted.
    CleaningUp,
    /// Import: another node imports the slots, and this one follows it.
    OccurringOnPrimary,
    /// Export: the connection is being established.
    Connecting,
    /// Export: AUTH is to be sent.
    SendingAuth,
    /// Export: the reply to AUTH is awaited.
    ReadingAuthReply,
    /// Export: SYNCSLOTS ESTABLISH is to be sent.
    SendingEstablish,
    /// Export: the reply to SYNCSLOTS ESTABLISH is awaited.
    ReadingEstablishReply,
    /// Export: another snapshot is being written.
    WaitingToSnapshot,
    /// Export: the snapshot is being sent.
    Snapshotting,
    /// Export: later writes are being sent.
    Streaming,
    /// Export: too many bytes are unsent for a pause.
    WaitingToPause,
    /// Export: writes to the slots are paused.
    FailoverPaused,
    /// Export: the target may take the slots over.
    ExportGranted,
    /// The slots have moved.
    Success,
    /// An administrator has cancelled the job.
    Cancelled,
    /// The job has failed.
    Failed,
}

impl JobState {
    /// Returns the word for the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            JobState::WaitingForAck => "waiting-for-ack",
            JobState::ReceivingSnapshot => "receiving-snapshot",
            JobState::WaitingForPaused => "waiting-for-paused",
            JobState::FailoverRequested => "failover-requested",
            JobState::ImportGranted | JobState::ExportGranted => "failover-granted",
            JobState::CleaningUp => "cleaning-up",
            JobState::OccurringOnPrimary => "occurring-on-primary",
            JobState::Connecting => "connecting",
            JobState::SendingAuth => "sending-auth-command",
            JobState::ReadingAuthReply => "reading-auth-response",
            JobState::SendingEstablish => "sending-establish-command",
            JobState::ReadingEstablishReply => "reading-establish-response",
            JobState::WaitingToSnapshot => "waiting-to-snapshot",
            JobState::Snapshotting => "snapshotting",
            JobState::Streaming => "replicating",
            JobState::WaitingToPause => "waiting-to-pause",
            JobState::FailoverPaused => "failover-paused",
            JobState::Success => "success",
            JobState::Cancelled => "cancelled",
            JobState::Failed => "failed",
        }
    }

    /// Returns `true` if the job is only an entry of the log.
    pub const fn is_finished(self) -> bool {
        matches!(self, JobState::Success | JobState::Cancelled | JobState::Failed)
    }

    /// Returns `true` if the migration is still being attempted.
    pub const fn is_in_progress(self) -> bool {
        !self.is_finished() && !matches!(self, JobState::CleaningUp)
    }
}

/// The part of a job that threads read without the lock of all jobs.
#[derive(Debug, Default)]
pub struct JobProgress {
    /// Set once the job is no longer in progress. Nothing may be executed or sent for it then.
    has_ended: AtomicBool,
    /// The bytes that the target has not accepted yet.
    pub unsent_bytes: AtomicU64,
    /// The bytes that this node has received from the source and not executed yet.
    pub unexecuted_bytes: AtomicU64,
    /// The bytes of before-images that the snapshot took.
    pub before_image_bytes: AtomicU64,
}

impl JobProgress {
    /// Returns `true` once the job is no longer in progress, or another node performs it.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Ends the part of this node in the job.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }
}

/// A job.
#[derive(Debug)]
pub struct MigrationJob {
    /// Its name.
    pub name: JobName,
    /// Its direction.
    pub kind: JobKind,
    /// Its state.
    pub state: JobState,
    /// `true` if another node performs the migration.
    pub is_tracked_only: bool,
    /// The slots as they were requested.
    pub ranges: SlotRanges,
    /// The slots.
    pub slots: Arc<SlotSet>,
    /// The node that gives the slots away; `None` if another node performs the migration.
    pub source: Option<NodeId>,
    /// The node that gets the slots; `None` if another node performs the migration.
    pub target: Option<NodeId>,
    /// The time of its creation in seconds since the Unix epoch.
    pub created_s: u64,
    /// The time of its last change of state.
    pub updated_s: u64,
    /// The time of the other node's last SYNCSLOTS ACK.
    pub acknowledged_s: u64,
    /// For an import, the time at which the source was heard last.
    pub heard_s: u64,
    /// The reason of its end.
    pub message: Option<String>,
    /// The state that follows the deletion of its keys.
    pub state_after_cleanup: JobState,
    /// The part that other threads read without a lock.
    pub progress: Arc<JobProgress>,
    /// The form in which logs name the job.
    description: String,
}

/// The nodes of a job, as far as this node takes part in it.
pub struct JobNodes {
    /// The node that gives the slots away.
    pub source: NodeId,
    /// The node that gets the slots.
    pub target: NodeId,
    /// The human-readable name of the other node; empty if it has none.
    pub other_name: String,
}

impl MigrationJob {
    /// Creates a job. Without nodes, another node performs the migration.
    pub fn new(name: JobName, kind: JobKind, ranges: SlotRanges, nodes: Option<JobNodes>) -> MigrationJob {
        let mut slots = SlotSet::default();
        for slot in ranges.iter().flat_map(|(first, last)| first.to(*last)) {
            slots.set(slot, true);
        }
        let now_s = unix_ms() / 1000;
        let state = match (kind, &nodes) {
            (JobKind::Export, _) => JobState::Connecting,
            (JobKind::Import, None) => JobState::OccurringOnPrimary,
            (JobKind::Import, Some(_)) => JobState::WaitingForAck,
        };
        MigrationJob {
            description: describe(&name, kind, &ranges, nodes.as_ref()),
            name,
            kind,
            state,
            is_tracked_only: nodes.is_none(),
            ranges,
            slots: Arc::new(slots),
            source: nodes.as_ref().map(|nodes| nodes.source),
            target: nodes.as_ref().map(|nodes| nodes.target),
            created_s: now_s,
            updated_s: now_s,
            acknowledged_s: now_s,
            heard_s: now_s,
            message: None,
            state_after_cleanup: JobState::Failed,
            progress: Arc::default(),
        }
    }

    /// Returns the time at which the other node counts as heard last, in seconds since the Unix epoch. As in Valkey, an
    /// export relies on the acknowledgements of its target.
    pub fn last_heard_s(&self) -> u64 {
        match self.kind {
            JobKind::Import => self.heard_s,
            JobKind::Export => self.acknowledged_s,
        }
    }

    /// Returns the form in which logs name the job.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the ranges as text: `0-10 20-20`.
    pub fn ranges_text(&self) -> String {
        ranges_text(&self.ranges)
    }

    /// Changes the state, and logs that.
    pub fn set_state(&mut self, state: JobState) {
        log::notice!(
            "Slot migration {} state transition: {} -> {}",
            self.description,
            self.state.as_str(),
            state.as_str()
        );
        self.state = state;
        self.updated_s = unix_ms() / 1000;
        if !state.is_in_progress() {
            self.progress.end();
        }
    }

    /// Makes an import one that another node performs, because this node has become a replica. Its new primary decides
    /// what becomes of the keys.
    pub fn track(&mut self) {
        self.progress.end();
        if self.state != JobState::OccurringOnPrimary {
            self.set_state(JobState::OccurringOnPrimary);
            self.is_tracked_only = true;
        }
    }

    /// Lets modules know that the job begins.
    pub fn send_start_event(&self) {
        self.send_event(match self.kind {
            JobKind::Import => SlotMigrationStep::ImportStarted,
            JobKind::Export => SlotMigrationStep::ExportStarted,
        });
    }

    fn send_event(&self, step: SlotMigrationStep) {
        server_events::send(EventKind::AtomicSlotMigration, || ServerEvent::SlotMigration {
            step,
            name: self.name,
            ranges: self
                .ranges
                .iter()
                .map(|(first, last)| (first.index() as u16, last.index() as u16))
                .collect(),
        });
    }

    /// Ends the job because of a failure. A replica does not end imports, since it may not delete their keys.
    pub fn fail(&mut self, message: &str, is_replica: bool) {
        match self.kind {
            JobKind::Import if is_replica => self.track(),
            _ => self.finish(JobState::Failed, Some(message), !is_replica),
        }
    }

    /// Ends the job. An import that did not succeed is first cleaned up, if `should_clean_up` is set.
    pub fn finish(&mut self, state: JobState, message: Option<&str>, should_clean_up: bool) {
        self.message = message.map(str::to_owned);
        let cleans_up = self.kind == JobKind::Import
            && should_clean_up
            && self.state != JobState::CleaningUp
            && state != JobState::Success;
        if cleans_up {
            self.state_after_cleanup = state;
            self.set_state(JobState::CleaningUp);
            return;
        }
        self.set_state(state);
        self.send_event(match (self.kind, state) {
            (JobKind::Import, JobState::Success) => SlotMigrationStep::ImportCompleted,
            (JobKind::Import, _) => SlotMigrationStep::ImportAborted,
            (JobKind::Export, JobState::Success) => SlotMigrationStep::ExportCompleted,
            (JobKind::Export, _) => SlotMigrationStep::ExportAborted,
        });
        self.progress.unsent_bytes.store(0, Ordering::Relaxed);
        let text = self.message.as_deref().unwrap_or("none");
        let (description, state_text) = (&self.description, state.as_str());
        match state {
            JobState::Failed => {
                log::warning!("Slot migration {description} finished. State: {state_text}, Message: {text}");
            }
            _ => log::notice!("Slot migration {description} finished. State: {state_text}, Message: {text}"),
        }
    }
}

fn ranges_text(ranges: &[(SlotIndex, SlotIndex)]) -> String {
    let texts: Vec<String> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
    texts.join(" ")
}

fn describe(name: &JobName, kind: JobKind, ranges: &[(SlotIndex, SlotIndex)], nodes: Option<&JobNodes>) -> String {
    let name = String::from_utf8_lossy(name);
    let (operation, role, other) = match kind {
        JobKind::Export => ("export", "target_node", nodes.map(|nodes| nodes.target.as_str())),
        JobKind::Import => ("import", "source_node", nodes.map(|nodes| nodes.source.as_str())),
    };
    let other = other.unwrap_or("unknown");
    let human = match nodes.map(|nodes| nodes.other_name.as_str()).unwrap_or_default() {
        "" => String::new(),
        human => format!(", {role}_human_name: {human}"),
    };
    format!(
        "{{name: {name}, operation: {operation}, {role}_id: {other}{human}, slots: {}}}",
        ranges_text(ranges)
    )
}
