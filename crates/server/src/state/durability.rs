//! The durability rules that replies to writes wait for.

use super::{Message, Server};
use crate::propagation::LogMilestone;
use crate::replication::ReplicationState;
use weft_base::LogSequence;
use weft_os::atomic::Ordering;

impl Server {
    /// Wakes the workers that wait for the log to advance.
    pub fn wake_log_waiters(&self) {
        self.propagation
            .take_notice_requests(|worker| self.worker(worker).send(Message::LogAdvanced));
    }

    /// Returns `true` if everything up to this sequence number of the log is on this server's disk.
    pub fn is_on_disk(&self, sequence: LogSequence) -> bool {
        self.persistence.aof.is_complete() && self.propagation.milestone_sequence(LogMilestone::Synced) >= sequence
    }

    /// Returns `true` while a file or a primary's dump is being loaded. Code that would replace the data checks this in
    /// exclusive mode, which a load releases at intervals.
    pub fn is_loading(&self) -> bool {
        self.persistence.dumps.is_loading.load(Ordering::Relaxed) || self.replication.is_loading()
    }

    /// Returns `true` while data is being loaded in place of what was there: the keyspace holds a part of it, or
    /// nothing. Whatever saves the keyspace checks this in exclusive mode, since it would replace the files of the old
    /// data.
    pub fn lacks_data(&self) -> bool {
        self.persistence.dumps.is_loading.load(Ordering::Relaxed)
            || self.replication.state_bits().contains(ReplicationState::LOADING)
    }

    /// Applies the current rules to the milestone that replies to writes wait for. Must be called when an input of
    /// [`crate::persistence::aof_files::AofStatus::replies_wait_for`] changes.
    pub fn update_reply_milestone(&self) {
        let until = self.persistence.aof.replies_wait_for();
        self.propagation.set_reply_milestone(until);
        if until != Some(LogMilestone::Synced) {
            self.wake_log_waiters();
        }
        // The appender may have bytes to sync now.
        self.propagation.wake();
    }

    /// Records the start or the end of a snapshot (`no-appendfsync-on-rewrite`).
    pub fn set_snapshot_running(&self, is_running: bool) {
        self.persistence
            .aof
            .is_snapshot_running
            .store(is_running, Ordering::Relaxed);
        if self.persistence.aof.no_fsync_on_rewrite.load(Ordering::Relaxed) {
            self.update_reply_milestone();
        }
    }
}
