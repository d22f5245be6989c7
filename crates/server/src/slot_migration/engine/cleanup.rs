//! The end of jobs: closes their connections, ends their pauses, deletes the keys of failed imports, and informs the
//! replicas.

use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, SlotIndex};

use super::log_consumer::CONSUMER_NAME;
use super::state::{GrantedHold, MigrationEngine};
use crate::cluster_node::key_deletion::{ImportMark, delete_keys_of_slots};
use crate::keyspace::effects::Hooks;
use crate::keyspace::{Seat, SlotHeader};
use crate::observability::log;
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::propagation::LogWriter;
use crate::slot_migration::job::{JobName, JobProgress, JobState, MigrationJob};
use crate::state::Server;
use weft_cluster::Cluster;
use weft_cluster::node::NodeId;
use weft_cluster::slot_set::SlotSet;
use weft_cluster::slot_takeover::TakeoverInquiry;
use weft_os::time::Instant;
use weft_scripting::Requester;

/// The time for which keys are deleted in one turn. The other migrations continue after that.
pub(super) const DELETION_TIME_PER_TURN: Duration = Duration::from_millis(5);

/// A failed import whose keys are being deleted.
pub struct ImportCleanup {
    progress: Arc<JobProgress>,
    slots: Arc<SlotSet>,
    name: JobName,
    /// The slot number before which all slots have been dealt with.
    next_slot: usize,
    /// `true` if another node has performed the import, and may have taken the slots over before it failed.
    is_tracked_only: bool,
}

impl MigrationEngine {
    /// Completes the end of jobs that have ended.
    pub(super) fn end_finished_jobs(&mut self, cluster: &Cluster) {
        self.end_exports();
        self.release_granted_holds(cluster);
        if self.server.slot_migrations.has_imports() {
            self.clean_up_imports(cluster);
        }
        // A source that sees its connection closed may begin again at once: its slots are not being imported any more.
        for index in (0..self.imports.len()).rev() {
            let progress = &self.imports[index].progress;
            let is_cleaned_up = |cleanup: &ImportCleanup| !Arc::ptr_eq(&cleanup.progress, progress);
            if progress.has_ended() && self.cleanups.iter().all(is_cleaned_up) {
                self.close_source(index);
                self.imports.remove(index);
            }
        }
    }

    fn end_exports(&mut self) {
        let mut has_ended = false;
        for index in (0..self.exports.len()).rev() {
            if !self.exports[index].progress.has_ended() {
                continue;
            }
            has_ended = true;
            let mut export = self.exports.remove(index);
            export.feed.close();
            let link = export.link.take();
            self.close(link);
            self.server.forget_link(export.client.id);
            if export.is_snapshotting {
                self.server
                    .persistence
                    .snapshot
                    .cancel(&[SnapshotPurpose::SlotMigration]);
            }
            match (export.granted_until, export.paused_until_ms) {
                (Some(until), _) => self.granted_holds.push(GrantedHold {
                    slots: export.slots.clone(),
                    target: export.target,
                    until,
                    inquiry: export.inquiry,
                }),
                // The target cannot take the slots over.
                (None, Some(_)) => self.server.release_held_slots(&export.slots),
                (None, None) if export.brake.is_on() => self.server.release_held_slots(&export.slots),
                (None, None) => {}
            }
        }
        if has_ended || self.is_attached_to_log {
            self.server
                .slot_migrations
                .feeds
                .lock()
                .retain(|feed| !feed.is_closed());
        }
        if self.exports.is_empty() && self.is_attached_to_log {
            self.detach_from_log();
        }
    }

    /// Detaches the exports from the propagation log.
    fn detach_from_log(&mut self) {
        let running = &self.server.scripting.running;
        if !running.try_exclude_runs_per_tick(Requester::SlotExport) {
            return;
        }
        let all = self.seat.exclusive();
        self.server.keyspace.hooks.set(Hooks::LOG_EXPORTS, false);
        let server = self.server.clone();
        self.server.propagation.schedule_mark(move |consumers| {
            drop(consumers.remove(CONSUMER_NAME));
            server.slot_migrations.feeds.lock().retain(|feed| !feed.is_closed());
        });
        drop(all);
        running.end_exclusion();
        self.is_attached_to_log = false;
    }

    /// Deletes the keys of imports that have failed, as many as one turn allows.
    fn clean_up_imports(&mut self, cluster: &Cluster) {
        self.update_cleanups();
        let server = self.server.clone();
        let until = Instant::now() + DELETION_TIME_PER_TURN;
        for mut cleanup in std::mem::take(&mut self.cleanups) {
            if delete_imported_keys(&server, cluster, &mut self.seat, &mut cleanup, until) {
                finish_import(&server, &mut self.seat, &cleanup.progress, &cleanup.name);
            } else {
                self.is_urgent = true;
                self.cleanups.push(cleanup);
            }
        }
    }

    /// Adds the cleanups of imports that have failed since the last turn, and removes those that ended otherwise.
    fn update_cleanups(&mut self) {
        let server = self.server.clone();
        let mut cleanups = std::mem::take(&mut self.cleanups);
        let mut is_wanted = vec![false; cleanups.len()];
        for job in server.slot_migrations.lock().iter_mut() {
            if job.state != JobState::CleaningUp {
                continue;
            }
            if server.replication.is_replica() {
                job.track();
                continue;
            }
            let is_of_job = |cleanup: &ImportCleanup| Arc::ptr_eq(&cleanup.progress, &job.progress);
            if let Some(known) = cleanups.iter().position(is_of_job) {
                is_wanted[known] = true;
                continue;
            }
            log::notice!(
                "Cleaning up slot migration {} after {}",
                job.description(),
                job.state_after_cleanup.as_str()
            );
            is_wanted.push(true);
            cleanups.push(ImportCleanup {
                progress: job.progress.clone(),
                slots: job.slots.clone(),
                name: job.name,
                next_slot: 0,
                is_tracked_only: job.is_tracked_only,
            });
        }
        let mut is_wanted = is_wanted.into_iter();
        cleanups.retain(|_| is_wanted.next() == Some(true));
        self.cleanups = cleanups;
    }

    /// Releases the slots of ended exports that were permitted to be taken over, once commands use a view with the new
    /// owner, or the target has not taken them over and may no longer do so.
    fn release_granted_holds(&mut self, cluster: &Cluster) {
        let server = self.server.clone();
        let view = cluster.settled_view();
        self.granted_holds.retain_mut(|hold| {
            let is_over = has_ruled_out_takeover(&server, cluster, hold.target, hold.until, &mut hold.inquiry);
            let mut state = cluster.lock(&server.config);
            let may_be_lost = |slot| view.is_mine(slot) && (!is_over || state.owner(slot) != Some(state.myself));
            if hold.slots.iter().any(may_be_lost) {
                return true;
            }
            state.withdraw_grant(&hold.slots);
            drop(state);
            server.release_held_slots(&hold.slots);
            false
        });
    }
}

/// Deletes keys of a failed import until `until`. Returns `true` if all its slots have been dealt with.
///
/// The keys of an import that another node has performed stay in the slots that the source does not claim any more:
/// that node may have taken them over, and these may be the only keys. They are deleted once another shard claims the
/// slot ([`weft_cluster::state::ClusterState::add_leftover`]).
fn delete_imported_keys(
    server: &Arc<Server>,
    cluster: &Cluster,
    seat: &mut Seat,
    cleanup: &mut ImportCleanup,
    until: Instant,
) -> bool {
    let is_tracked_only = cleanup.is_tracked_only;
    // Under the lease, so no view is published between this check and the deletion.
    let may_delete = move |server: &Server, slot: SlotIndex, _: &SlotHeader| {
        let Some(cluster) = &server.cluster else { return false };
        let is_kept = || is_tracked_only && cluster.lock(&server.config).has_no_claimant(slot);
        !cluster.settled_view().is_mine(slot) && !server.replication.is_replica() && !is_kept()
    };
    let (slots, next_slot, mark) = (&cleanup.slots, &mut cleanup.next_slot, ImportMark::Clear);
    if !delete_keys_of_slots(server, seat, slots, next_slot, mark, until, may_delete) {
        return false;
    }
    if is_tracked_only && !server.replication.is_replica() {
        let has_keys = |slot: &SlotIndex| server.keyspace.slots.header(slot.index()).may_hold_any();
        cluster.lock(&server.config).add_leftover(slots.iter().filter(has_keys));
    }
    true
}

/// Returns `true` if the target of an export may no longer take the slots over, and this node knows of it if the target
/// has done that. A time alone does not tell: when this process continues after a stop, the announcement of the new
/// owner may be among what the bus has not read yet.
pub(super) fn has_ruled_out_takeover(
    server: &Server,
    cluster: &Cluster,
    target: NodeId,
    until: Instant,
    inquiry: &mut TakeoverInquiry,
) -> bool {
    if Instant::now() < until {
        return false;
    }
    let mut state = cluster.lock(&server.config);
    let has_answered = state.has_answered(target, inquiry, unix_ms());
    drop(state);
    if !has_answered {
        // The bus sends the question.
        cluster.wake_bus();
    }
    has_answered
}

/// Ends an import that has taken its slots over, or whose keys have been deleted, and propagates that. The end is in
/// the log before another import of the slots can begin, and this node's role cannot change between the two.
pub(super) fn finish_import(server: &Arc<Server>, seat: &mut Seat, progress: &Arc<JobProgress>, name: &JobName) {
    let mut log_writer = server.propagation.log_writer();
    let pass = seat.enter();
    let is_this = |job: &&mut MigrationJob| Arc::ptr_eq(&job.progress, progress) && !job.state.is_finished();
    let ended = server
        .slot_migrations
        .lock()
        .iter_mut()
        .find(is_this)
        .and_then(|job| match job.state {
            JobState::CleaningUp => Some((job.state_after_cleanup, job.message.clone())),
            JobState::ImportGranted => Some((JobState::Success, None)),
            _ => None,
        });
    let Some((state, message)) = ended else {
        return;
    };
    if server.replication.is_replica() {
        // The new primary decides what becomes of the keys.
        server
            .slot_migrations
            .lock()
            .iter_mut()
            .filter(is_this)
            .for_each(MigrationJob::track);
        return;
    }
    propagate_finish(server, &mut log_writer, name, state, message.as_deref());
    for job in server.slot_migrations.lock().iter_mut().filter(is_this) {
        if state == JobState::Success {
            log::notice!(
                "Slot migration {} completed successfully. This node is now the owner of the slots",
                job.description()
            );
        }
        job.finish(state, message.as_deref(), false);
    }
    drop(pass);
    log_writer.wake();
}

/// Propagates the end of an import to the replicas and the append-only file. The caller is in a passage of the gate.
fn propagate_finish(
    server: &Server,
    log_writer: &mut LogWriter,
    name: &JobName,
    state: JobState,
    message: Option<&str>,
) {
    let result: &[u8] = match state {
        JobState::Success => b"SUCCESS",
        _ => b"FAILED",
    };
    let mut words: Vec<&[u8]> = vec![b"CLUSTER", b"SYNCSLOTS", b"FINISH", b"STATE", result, b"NAME", name];
    if let Some(message) = message {
        words.extend([&b"MESSAGE"[..], message.as_bytes()]);
    }
    let target = server.keyspace.hooks.current().log_target();
    if !target.is_empty() {
        log_writer.propagate_before(target, DbIndex::FIRST, &words);
        log_writer.commit();
    }
}

#[cfg(test)]
mod tests;
