//! Atomic slot migration: the jobs of this node, and the bytes that its exports send.
//!
//! ```text
//!   source: MIGRATESLOTS ─▶ job ─▶ connection, AUTH ─▶ ESTABLISH ──▶ target: job, slots are marked as importing
//!      snapshot of the slots as commands ──────────────────────────▶ executed; hidden from clients
//!      SNAPSHOT-EOF ───────────────────────────────────────────────▶ REQUEST-PAUSE
//!      writes since the snapshot's moment ─────────────────────────▶ executed
//!      writes to the slots are paused ─▶ PAUSED ───────────────────▶ everything has arrived: REQUEST-FAILOVER
//!      FAILOVER-GRANTED ───────────────────────────────────────────▶ owner of the slots, under a new epoch
//!      sees the new owner: MOVED, keys deleted ◀──── cluster bus ──── FINISH to its replicas
//! ```
//!
//! 1. One thread ([`engine`]) performs all migrations of this node. It owns their connections. Commands create and end
//!    jobs under the lock of [`SlotMigrations`], and wake that thread.
//! 2. A job that has ended is never resumed. Whoever ends it sets [`JobProgress::has_ended`], after which nothing is
//!    executed or sent for it. The engine then closes its connection, ends its pause and deletes its keys.
//! 3. The lock of the jobs is a leaf: its holder waits for nothing.
//! 4. An imported slot is marked in its header from the creation of the job until this node owns the slot, or until the
//!    job is cleaned up. Both ends of that time are under the slot's write lease or in exclusive mode.
//! 5. No job of this node begins while a CLUSTER SETSLOT is under way ([`MigrationExclusion`]), which is refused if a
//!    job has begun before it.
//! 6. The source's pause begins in exclusive mode, at a mark of the propagation log. So all writes that were admitted
//!    before are in the stream in front of PAUSED, and none follows.

pub mod engine;
pub mod feed;
pub mod job;

use std::sync::Arc;

use weft_base::SlotIndex;
use weft_cluster::slot_set::SlotSet;
use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_os::sync::{Mutex, MutexGuard};

use crate::persistence::rdb_file::UnfinishedImport;
use feed::ExportFeed;
use job::{JobKind, JobName, JobProgress, JobState, MigrationJob};

/// The slot migrations of this node.
#[derive(Default)]
pub struct SlotMigrations {
    jobs: Mutex<MigrationJobs>,
    /// Set while an import has not ended, including its cleanup.
    has_imports: AtomicBool,
    /// Set while an export has not ended.
    has_exports: AtomicBool,
    /// The feeds that the log thread fills.
    pub feeds: Mutex<Vec<Arc<ExportFeed>>>,
    /// Set by DEBUG SLOTMIGRATION PREVENT-PAUSE: exports do not pause writes.
    pub prevents_pause: AtomicBool,
    /// Set by DEBUG SLOTMIGRATION PREVENT-FAILOVER: imports do not take slots over.
    pub prevents_failover: AtomicBool,
}

/// The jobs, the newest first.
#[derive(Default)]
pub struct MigrationJobs {
    list: Vec<MigrationJob>,
    /// Has a copy for each [`MigrationExclusion`].
    exclusions: Arc<()>,
}

/// Keeps this node from beginning migrations as long as it exists. A CLUSTER SETSLOT holds it from its check until it
/// has taken effect on this node: its replicas execute it first, so it must not be refused after that.
#[must_use]
pub struct MigrationExclusion {
    _copy: Arc<()>,
}

/// The locked jobs. The flags that other threads read are updated when the lock is released.
pub struct LockedJobs<'m> {
    owner: &'m SlotMigrations,
    jobs: MutexGuard<'m, MigrationJobs>,
}

impl SlotMigrations {
    /// Locks the jobs.
    pub fn lock(&self) -> LockedJobs<'_> {
        LockedJobs {
            owner: self,
            jobs: self.jobs.lock(),
        }
    }

    /// Returns `true` if a slot is being imported, or its import is being cleaned up.
    #[inline]
    pub fn has_imports(&self) -> bool {
        self.has_imports.load(Ordering::Acquire)
    }

    /// Returns `true` if a slot is being exported.
    #[inline]
    pub fn has_exports(&self) -> bool {
        self.has_exports.load(Ordering::Acquire)
    }

    /// Returns the bytes that exports have not sent yet.
    pub fn unsent_bytes(&self) -> u64 {
        match self.has_exports() {
            true => self.sum_of_jobs(|progress| &progress.unsent_bytes),
            false => 0,
        }
    }

    /// Returns the bytes that imports have received and not executed yet.
    pub fn unexecuted_bytes(&self) -> u64 {
        match self.has_imports() {
            true => self.sum_of_jobs(|progress| &progress.unexecuted_bytes),
            false => 0,
        }
    }

    fn sum_of_jobs(&self, bytes: impl Fn(&JobProgress) -> &AtomicU64) -> u64 {
        let jobs = self.lock();
        let of_job = |job: &MigrationJob| bytes(&job.progress).load(Ordering::Relaxed);
        jobs.iter().filter(|job| job.state.is_in_progress()).map(of_job).sum()
    }

    /// Ends all jobs of a kind that are in progress, except for imports that another node performs and that this node
    /// may not clean up.
    pub fn fail_all(&self, kind: Option<JobKind>, message: &str, should_clean_up: bool) {
        let is_of_kind = |job: &MigrationJob| kind.is_none_or(|kind| kind == job.kind);
        self.fail_some(is_of_kind, message, should_clean_up);
    }

    /// Does the same for the jobs of both kinds that contain a slot.
    pub fn fail_all_with_slot(&self, slot: SlotIndex, message: &str, should_clean_up: bool) {
        self.fail_some(|job| job.slots.contains(slot), message, should_clean_up);
    }

    fn fail_some(&self, is_meant: impl Fn(&MigrationJob) -> bool, message: &str, should_clean_up: bool) {
        if !self.has_imports() && !self.has_exports() {
            return;
        }
        for job in self.lock().iter_mut() {
            let is_foreign = job.kind == JobKind::Import && !should_clean_up;
            if is_meant(job) && job.state.is_in_progress() && !is_foreign {
                job.finish(JobState::Failed, Some(message), should_clean_up);
            }
        }
    }

    /// Returns the imports that have not ended, for a file.
    pub fn unfinished_imports(&self) -> Vec<UnfinishedImport> {
        if !self.has_imports() {
            return Vec::new();
        }
        let jobs = self.lock();
        let imports = jobs
            .iter()
            .filter(|job| job.kind == JobKind::Import && !job.state.is_finished());
        imports
            .map(|job| UnfinishedImport {
                name: job.name,
                ranges: job.ranges.clone(),
            })
            .collect()
    }

    /// Ends all imports without a cleanup, because all data of this node is being replaced. The caller is in exclusive
    /// mode. Returns the slots, whose marks are to be cleared.
    pub fn forget_imports(&self, message: &str) -> Vec<Arc<SlotSet>> {
        let mut slots = Vec::new();
        for job in self.lock().iter_mut() {
            if job.kind == JobKind::Import && !job.state.is_finished() {
                // Also a job that is being cleaned up.
                job.finish(JobState::Failed, Some(message), false);
                slots.push(job.slots.clone());
            }
        }
        slots
    }
}

impl Drop for LockedJobs<'_> {
    fn drop(&mut self) {
        let any = |kind| {
            let mut jobs = self.jobs.list.iter();
            jobs.any(|job| job.kind == kind && !job.state.is_finished())
        };
        self.owner.has_imports.store(any(JobKind::Import), Ordering::Release);
        self.owner.has_exports.store(any(JobKind::Export), Ordering::Release);
    }
}

impl LockedJobs<'_> {
    /// Adds a job in front of all others.
    pub fn add(&mut self, job: MigrationJob) {
        job.send_start_event();
        self.jobs.list.insert(0, job);
    }

    /// Returns the jobs, the newest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &MigrationJob> {
        self.jobs.list.iter()
    }

    /// Returns the jobs, the newest first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut MigrationJob> {
        self.jobs.list.iter_mut()
    }

    /// Returns the newest job of that name and kind, if it is in progress.
    pub fn find_in_progress(&mut self, kind: JobKind, name: &JobName) -> Option<&mut MigrationJob> {
        self.iter_mut()
            .find(|job| job.kind == kind && job.name == *name && job.state.is_in_progress())
    }

    /// Returns `true` if a job of that kind that has not finished contains the slot.
    pub fn is_moving(&self, kind: JobKind, slot: SlotIndex) -> bool {
        let mut jobs = self.iter();
        jobs.any(|job| job.kind == kind && !job.state.is_finished() && job.slots.contains(slot))
    }

    /// Excludes the beginning of migrations.
    pub fn exclude_start(&self) -> MigrationExclusion {
        MigrationExclusion {
            _copy: self.jobs.exclusions.clone(),
        }
    }

    /// Returns `true` if no migration may begin at the moment.
    pub fn is_start_excluded(&self) -> bool {
        Arc::strong_count(&self.jobs.exclusions) > 1
    }

    /// Removes the oldest finished jobs while there are more than `most_jobs` jobs.
    pub fn trim(&mut self, most_jobs: u64) {
        let mut excess = (self.jobs.list.len() as u64).saturating_sub(most_jobs);
        let mut at = self.jobs.list.len();
        while excess > 0 && at > 0 {
            at -= 1;
            if self.jobs.list[at].state.is_finished() {
                self.jobs.list.remove(at);
                excess -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the list of jobs.

    use super::job::JobNodes;
    use super::*;
    use weft_cluster::node::NodeId;

    fn add_job(migrations: &SlotMigrations, kind: JobKind, name: u8, slot: usize) {
        let nodes = JobNodes {
            source: NodeId::random(),
            target: NodeId::random(),
            other_name: String::new(),
        };
        let slot = SlotIndex::from_index(slot);
        let job = MigrationJob::new([name; 40], kind, vec![(slot, slot)], Some(nodes));
        migrations.lock().add(job);
    }

    #[test]
    fn the_oldest_finished_jobs_are_forgotten() {
        let migrations = SlotMigrations::default();
        for name in 0..4 {
            add_job(&migrations, JobKind::Export, name, usize::from(name));
        }
        assert!(migrations.has_exports() && !migrations.has_imports());
        for job in migrations.lock().iter_mut().filter(|job| job.name[0] != 1) {
            job.finish(JobState::Cancelled, None, false);
        }
        migrations.lock().trim(2);
        let left: Vec<u8> = migrations.lock().iter().map(|job| job.name[0]).collect();
        assert_eq!(left, [3, 1], "a job in progress stays");
        migrations.lock().trim(0);
        assert!(migrations.lock().is_moving(JobKind::Export, SlotIndex::from_index(1)));
    }

    #[test]
    fn migrations_are_excluded_until_the_last_exclusion_has_ended() {
        let migrations = SlotMigrations::default();
        let [first, second] = [(), ()].map(|()| migrations.lock().exclude_start());
        drop(first);
        assert!(migrations.lock().is_start_excluded());
        drop(second);
        assert!(!migrations.lock().is_start_excluded());
    }

    #[test]
    fn a_failed_import_is_cleaned_up_before_it_has_ended() {
        let migrations = SlotMigrations::default();
        add_job(&migrations, JobKind::Import, 1, 5);
        migrations.fail_all(None, "Data was flushed", true);
        let state = |migrations: &SlotMigrations| migrations.lock().iter().next().map(|job| job.state);
        assert_eq!(state(&migrations), Some(JobState::CleaningUp));
        assert!(migrations.has_imports(), "its keys are still there");
        assert!(migrations.lock().iter().all(|job| job.progress.has_ended()));
        assert_eq!(migrations.unfinished_imports().len(), 1);
        assert_eq!(migrations.forget_imports("Full resynchronization occurred").len(), 1);
        assert_eq!(state(&migrations), Some(JobState::Failed));
        assert!(!migrations.has_imports());
    }

    #[test]
    fn a_flushed_slot_ends_the_migrations_that_contain_it() {
        let migrations = SlotMigrations::default();
        for (name, kind, slot) in [
            (1, JobKind::Import, 5),
            (2, JobKind::Export, 5),
            (3, JobKind::Export, 6),
        ] {
            add_job(&migrations, kind, name, slot);
        }
        migrations.fail_all_with_slot(SlotIndex::from_index(5), "Data was flushed", false);
        let states: Vec<JobState> = migrations.lock().iter().map(|job| job.state).collect();
        let expected = [JobState::Connecting, JobState::Failed, JobState::WaitingForAck];
        assert_eq!(states, expected, "another node cleans the import up");
        migrations.fail_all_with_slot(SlotIndex::from_index(5), "Data was flushed", true);
        assert!(migrations.lock().iter().any(|job| job.state == JobState::CleaningUp));
    }

    #[test]
    fn a_replica_tracks_an_import_instead_of_failing_it() {
        let migrations = SlotMigrations::default();
        add_job(&migrations, JobKind::Import, 1, 5);
        migrations.lock().iter_mut().for_each(|job| job.fail("lost", true));
        let jobs = migrations.lock();
        assert!(
            jobs.iter()
                .all(|job| job.is_tracked_only && job.state == JobState::OccurringOnPrimary)
        );
        assert!(jobs.iter().all(|job| job.progress.has_ended()));
    }
}
