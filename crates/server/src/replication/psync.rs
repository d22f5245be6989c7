//! Decides if a replica can resume with a partial synchronisation, and logs the reason if it cannot.

use super::backlog::ReplicationBacklog;
use super::{Replicas, Replication, ReplicationHistory, ReplicationId};
use crate::observability::log;
use weft_base::{ClientId, ReplicationOffset};
use weft_os::atomic::Ordering;

/// The reason for which a replica needs a full synchronisation.
#[derive(Debug)]
pub enum PartialSyncRefusal {
    /// The replica requested a full synchronisation.
    FullSyncRequested,
    /// The replica's replication ID is this server's second ID, but its offset is beyond the one up to which that ID is
    /// valid.
    OffsetBeyondSecondId {
        /// The number of the first requested byte.
        wanted: i64,
        /// The greatest number that may be requested with the second ID.
        last: i64,
    },
    /// The replica has another history.
    UnknownReplicationId {
        /// The replica's replication ID.
        theirs: String,
        /// The current replication ID of this server.
        current: String,
        /// The second replication ID of this server.
        second: String,
    },
    /// The backlog does not contain the bytes that the replica misses.
    NotInBacklog {
        /// The replica's replication ID.
        id: String,
        /// The number of the first requested byte.
        wanted: i64,
    },
}

impl PartialSyncRefusal {
    /// Logs the reason, with the name of the replica, and counts the refusal.
    pub fn log(&self, name: &str, replicas: &Replicas) {
        match self {
            PartialSyncRefusal::FullSyncRequested => {
                log::notice!("Full resync requested by replica {name}");
                return;
            }
            PartialSyncRefusal::OffsetBeyondSecondId { wanted, last } => log::notice!(
                "Partial resynchronization not accepted: Requested offset for second ID was {wanted}, but I can reply up \
                 to {last}"
            ),
            PartialSyncRefusal::UnknownReplicationId {
                theirs,
                current,
                second,
            } => log::notice!(
                "Partial resynchronization not accepted: Replication ID mismatch (Replica asked for '{theirs}', my \
                 replication IDs are '{current}' and '{second}')"
            ),
            PartialSyncRefusal::NotInBacklog { id, wanted } => log::notice!(
                "Unable to partial resync with replica {name} for lack of backlog (Replica request was: {id}:{wanted})."
            ),
        }
        replicas.partial_syncs_refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// The position in a history from which a replica wants to resume, as it sends it with PSYNC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumePosition {
    /// The replication ID of the history.
    pub id: String,
    /// The number of the first byte that the replica misses.
    pub next_byte: i64,
}

/// A partial synchronisation that has begun.
#[derive(Debug)]
pub struct PartialSync {
    /// The replication ID under which the stream continues.
    pub id: ReplicationId,
    /// The number of bytes in the backlog that the replica misses.
    pub missing_bytes: u64,
}

impl Replication {
    /// Decides if a replica can resume the stream. Returns the offset before the first byte that it misses. The answer
    /// may have changed when the synchronisation begins ([`Self::begin_partial_sync`]).
    ///
    /// # Errors
    /// The reason for a full synchronisation.
    pub fn check_partial_sync(&self, resume: &ResumePosition) -> Result<ReplicationOffset, PartialSyncRefusal> {
        // No change of role comes between the two: bytes of a newer history would be taken for those of this one.
        let state = self.state();
        let backlog = self.replicas.backlog();
        find_offset(&state.history, &backlog, resume)
    }

    /// Decides the same, and pins that offset for the replica with this client id. A change of the history that comes
    /// later disconnects the replica, which has been published.
    ///
    /// # Errors
    /// The reason for a full synchronisation.
    pub fn begin_partial_sync(
        &self,
        resume: &ResumePosition,
        replica: ClientId,
    ) -> Result<PartialSync, PartialSyncRefusal> {
        let state = self.state();
        let mut backlog = self.replicas.backlog();
        let offset = find_offset(&state.history, &backlog, resume)?;
        backlog.pin(replica, offset);
        let end = backlog.range().map_or(offset, |range| range.end);
        Ok(PartialSync {
            id: state.history.id.clone(),
            missing_bytes: end.bytes_since(offset),
        })
    }
}

/// Returns the offset before the first byte that a replica misses of a history and its backlog.
fn find_offset(
    history: &ReplicationHistory,
    backlog: &ReplicationBacklog,
    resume: &ResumePosition,
) -> Result<ReplicationOffset, PartialSyncRefusal> {
    let ResumePosition { id, next_byte: wanted } = resume;
    let renamed = *id == history.second_id && *wanted <= history.second_offset();
    if *id != history.id && !renamed {
        return Err(match id.as_str() {
            "?" => PartialSyncRefusal::FullSyncRequested,
            _ if *id == history.second_id => PartialSyncRefusal::OffsetBeyondSecondId {
                wanted: *wanted,
                last: history.second_offset(),
            },
            _ => PartialSyncRefusal::UnknownReplicationId {
                theirs: id.clone(),
                current: history.id.clone(),
                second: history.second_id.clone(),
            },
        });
    }
    ReplicationOffset::before_byte(*wanted)
        .filter(|offset| backlog.contains(*offset))
        .ok_or_else(|| PartialSyncRefusal::NotInBacklog {
            id: id.clone(),
            wanted: *wanted,
        })
}
