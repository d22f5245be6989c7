//! The durability rules that replies to writes wait for.

use super::{Message, Server};
use crate::persistence::aof_files::AofState;
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

    /// Returns `true` while the files hold data that the keyspace lacks, because data is being loaded in its place, or
    /// because the last full synchronization gave it up and failed. No save or rewrite replaces the files then unless a
    /// client requests it. In exclusive mode, and for the owner of the next snapshot, the answer holds: giving data up
    /// cancels that snapshot.
    pub fn must_keep_data_files(&self) -> bool {
        self.lacks_data() || self.replication.is_data_given_up.load(Ordering::Acquire)
    }

    /// Ends the wait for the data of a primary, since this server becomes a primary itself. If the last full
    /// synchronization has failed, what is there now is the data: the append-only file, which still holds the data that
    /// was given up, is rewritten. Called in exclusive mode.
    pub fn end_wait_for_data(&self) {
        let was_given_up = self.replication.is_data_given_up.swap(false, Ordering::AcqRel);
        if was_given_up && self.persistence.aof.state() != AofState::Off {
            let is_scheduled = &self.persistence.aof.is_rewrite_scheduled;
            is_scheduled.store(true, Ordering::Relaxed);
        }
    }

    /// Applies the current rules to the milestone that replies to writes wait for. Must be called when an input of
    /// [`crate::persistence::aof_files::AofStatus::replies_wait_for`] changes.
    pub fn update_reply_milestone(&self) {
        let until = {
            let _update = self.persistence.aof.reply_milestone_update.lock();
            let until = self.persistence.aof.replies_wait_for();
            self.propagation.set_reply_milestone(until);
            until
        };
        if until != Some(LogMilestone::Synced) {
            self.wake_log_waiters();
        }
        // The appender may have bytes to sync now, and the log thread may be about to sleep.
        self.propagation.request_flush();
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

#[cfg(test)]
mod tests;
