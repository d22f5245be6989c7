//! Decides if a replica can resume with a partial synchronisation, and logs the reason if it cannot.

use super::{Replicas, Replication};
use crate::observability::log;
use weft_base::ReplicationOffset;
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

impl Replication {
    /// Decides if a replica can resume the stream. Returns the offset before the first byte that it misses.
    ///
    /// # Errors
    /// The reason for a full synchronisation.
    pub fn check_partial_sync(&self, resume: &ResumePosition) -> Result<ReplicationOffset, PartialSyncRefusal> {
        let ResumePosition { id, next_byte: wanted } = resume;
        let history = self.state().history.clone();
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
                    current: history.id,
                    second: history.second_id,
                },
            });
        }
        ReplicationOffset::before_byte(*wanted)
            .filter(|offset| self.replicas.backlog().contains(*offset))
            .ok_or_else(|| PartialSyncRefusal::NotInBacklog {
                id: id.clone(),
                wanted: *wanted,
            })
    }
}
