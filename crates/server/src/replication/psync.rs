//! Whether a replica can go on where it was, and what the log says if it cannot.

use std::sync::atomic::Ordering;

use super::{Replicas, Replication};
use crate::observability::log;

/// Why a replica needs all data.
#[derive(Debug)]
pub enum Refusal {
    /// It does not ask for anything else.
    Wanted,
    /// Its history has this server's second name, but goes on behind the place where the name ended.
    Parted {
        /// The offset it wants.
        wanted: i64,
        /// The last one of that name.
        last: i64,
    },
    /// It has another history.
    Stranger {
        /// The name of its history.
        its: String,
        /// The names of this server's.
        ours: (String, String),
    },
    /// What it misses is not in the backlog.
    NoBacklog {
        /// The name of its history.
        id: String,
        /// The offset it wants.
        wanted: i64,
    },
}

impl Refusal {
    /// Tells the log about the replica of this name, and counts.
    pub fn tell(&self, name: &str, replicas: &Replicas) {
        match self {
            Refusal::Wanted => {
                log::notice!("Full resync requested by replica {name}");
                return;
            }
            Refusal::Parted { wanted, last } => log::notice!(
                "Partial resynchronization not accepted: Requested offset for second ID was {wanted}, but I can reply up \
                 to {last}"
            ),
            Refusal::Stranger { its, ours } => log::notice!(
                "Partial resynchronization not accepted: Replication ID mismatch (Replica asked for '{its}', my \
                 replication IDs are '{}' and '{}')",
                ours.0,
                ours.1
            ),
            Refusal::NoBacklog { id, wanted } => log::notice!(
                "Unable to partial resync with replica {name} for lack of backlog (Replica request was: {id}:{wanted})."
            ),
        }
        replicas.partial_refused.fetch_add(1, Ordering::Relaxed);
    }
}

impl Replication {
    /// Whether who has the history `id` and misses what begins at offset `wanted` can go on there.
    ///
    /// # Errors
    /// Why not.
    pub fn may_resume(&self, (id, wanted): &(String, i64)) -> Result<(), Refusal> {
        let history = self.state().history.clone();
        let renamed = *id == history.second_id && *wanted <= history.second_offset;
        if *id != history.id && !renamed {
            return Err(match id.as_str() {
                "?" => Refusal::Wanted,
                _ if *id == history.second_id => Refusal::Parted {
                    wanted: *wanted,
                    last: history.second_offset,
                },
                _ => Refusal::Stranger {
                    its: id.clone(),
                    ours: (history.id, history.second_id),
                },
            });
        }
        if !self.replicas.backlog().has(wanted.saturating_sub(1)) {
            return Err(Refusal::NoBacklog {
                id: id.clone(),
                wanted: *wanted,
            });
        }
        Ok(())
    }
}
