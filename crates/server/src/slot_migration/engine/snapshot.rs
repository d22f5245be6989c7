//! The snapshot of an export: the keys of its slots at one moment, as commands.

use std::sync::Arc;
use std::time::Duration;

use weft_resp::command::write_command;

use super::log_consumer::{CONSUMER_NAME, ExportLogConsumer};
use crate::keyspace::effects::Hooks;
use crate::persistence::rdb_file::{ModuleRecordForm, RdbFormat, RdbToCommands};
use crate::persistence::snapshot::{
    self, ConsumerError, SnapshotConsumer, SnapshotOutcome, SnapshotRefusal, SnapshotRequest,
};
use crate::persistence::snapshot_state::{SnapshotPurpose, SnapshotState};
use crate::propagation;
use crate::slot_migration::feed::{ExportFeed, SnapshotProgress};
use crate::slot_migration::job::JobProgress;
use crate::state::Server;
use weft_cluster::slot_set::SlotSet;
use weft_os::atomic::Ordering;

/// The interval at which the snapshot's thread checks for space in the feed.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Converts a snapshot to commands and passes it to the feed of an export.
struct FeedWriter {
    server: Arc<Server>,
    feed: Arc<ExportFeed>,
    converter: RdbToCommands,
}

impl FeedWriter {
    fn append(&self, mut part: Vec<u8>, is_end: bool, running: &SnapshotState) -> Result<(), ConsumerError> {
        while let Some(refused) = self.feed.append_snapshot(part, is_end) {
            if running.is_cancelled() || self.feed.is_closed() {
                return Err("the slot migration has ended".into());
            }
            part = refused;
            self.server.background.wake_migration_thread();
            weft_os::thread::sleep(POLL_INTERVAL);
        }
        self.server.background.wake_migration_thread();
        Ok(())
    }
}

impl SnapshotConsumer for FeedWriter {
    fn write(&mut self, bytes: &[u8], running: &SnapshotState) -> Result<(), ConsumerError> {
        let mut commands = Vec::new();
        self.converter.convert(bytes, &mut commands, &self.server.config)?;
        if self.feed.is_closed() {
            return Err("the slot migration has ended".into());
        }
        match commands.is_empty() {
            true => Ok(()),
            false => self.append(commands, false, running),
        }
    }

    fn finish(self: Box<Self>, running: &SnapshotState) -> Result<(), ConsumerError> {
        let mut end = Vec::new();
        let words: [&[u8]; 3] = [b"CLUSTER", b"SYNCSLOTS", b"SNAPSHOT-EOF"];
        write_command(words.into_iter(), &mut end);
        self.append(end, true, running)
    }
}

/// Starts the snapshot of an export. From its moment on, the propagation log feeds the export. `should_attach` is
/// `true` if the log feeds no other export. Returns `false` if another snapshot is being written. The caller has
/// excluded runs on script threads, for the time of this call.
///
/// # Errors
/// When a thread cannot be started.
pub fn start(
    server: &Arc<Server>,
    slots: &Arc<SlotSet>,
    feed: &Arc<ExportFeed>,
    progress: &Arc<JobProgress>,
    should_attach: bool,
) -> std::io::Result<bool> {
    propagation::start(&server.propagation)?;
    let (for_consumer, for_moment, for_end) = (feed.clone(), feed.clone(), feed.clone());
    let (server_of_consumer, progress) = (server.clone(), progress.clone());
    let server_of_moment = server.clone();
    let order = SnapshotRequest {
        purpose: SnapshotPurpose::SlotMigration,
        format: RdbFormat::Newest,
        slots: Some(slots.clone()),
        module_form: ModuleRecordForm::Commands,
        consumer: Box::new(move || {
            Ok(Box::new(FeedWriter {
                server: server_of_consumer,
                feed: for_consumer,
                converter: RdbToCommands::default(),
            }))
        }),
        at_moment: Box::new(move |_| {
            let server = server_of_moment;
            server.keyspace.hooks.set(Hooks::LOG_EXPORTS, true);
            let for_mark = server.clone();
            server.propagation.schedule_mark(move |consumers| {
                if should_attach {
                    let consumer = ExportLogConsumer::new(for_mark.clone());
                    consumers.add(CONSUMER_NAME, Box::new(consumer), 0);
                }
                for_mark.slot_migrations.feeds.lock().push(for_moment);
            });
            Box::new(Vec::new)
        }),
        at_end: Box::new(move |server, summary, outcome| {
            let bytes = summary.before_image_bytes;
            progress.before_image_bytes.store(bytes, Ordering::Relaxed);
            for_end.end_snapshot(match outcome {
                SnapshotOutcome::Done => SnapshotProgress::Complete,
                SnapshotOutcome::Cancelled | SnapshotOutcome::Failed(_) => SnapshotProgress::Failed,
            });
            server.background.wake_migration_thread();
        }),
    };
    match snapshot::start_without_scripts(server, order) {
        Ok(_) => Ok(true),
        Err(SnapshotRefusal::Busy(_)) => Ok(false),
        Err(SnapshotRefusal::System(error)) => Err(error),
    }
}
