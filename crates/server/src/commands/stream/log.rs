//! The commands that the propagation log holds for streams: entries, and changes to groups. Every part that depends on
//! the time or on the order of execution is explicit in them.

use weft_base::DbIndex;
use weft_values::stream::{ConsumerGroup, PendingEntry, Stream, StreamId, TrimTarget};

use crate::commands::stream::arguments::format_id;
use crate::keyspace::effects::Effects;

/// Returns an ID as text.
pub fn id_to_bytes(id: StreamId) -> Vec<u8> {
    format_id(id, &mut [0; 41]).to_vec()
}

/// Returns the exact threshold to which a stream was trimmed. An approximate trim may keep more entries than its
/// argument says.
pub fn exact_trim_argument(stream: &Stream, keep: TrimTarget) -> Vec<u8> {
    match keep {
        TrimTarget::MaxLength(_) => stream.length().to_string().into_bytes(),
        TrimTarget::MinId(_) => match stream.entries(StreamId::MIN, StreamId::MAX).next() {
            Some(first) => id_to_bytes(first.id),
            None => id_to_bytes(StreamId::MAX),
        },
    }
}

/// A pending entry with its consumer.
struct PropagatedClaim {
    id: StreamId,
    consumer: Vec<u8>,
    pending: PendingEntry,
    last_id: StreamId,
}

/// The changes to a group, for propagation.
#[derive(Default)]
pub struct GroupPropagation {
    is_enabled: bool,
    created_consumer: Option<Vec<u8>>,
    claims: Vec<PropagatedClaim>,
    last_delivered: Option<(StreamId, i64)>,
}

impl GroupPropagation {
    /// Returns an empty record. `is_enabled` is `true` if changes are propagated.
    pub fn new(is_enabled: bool) -> Self {
        GroupPropagation {
            is_enabled,
            ..GroupPropagation::default()
        }
    }

    /// Records that a consumer was created that has no pending entries. A consumer with pending entries is created by
    /// their XCLAIM commands.
    pub fn add_created_consumer(&mut self, consumer: &[u8]) {
        if self.is_enabled {
            self.created_consumer = Some(consumer.to_vec());
        }
    }

    /// Records that an entry is now pending for a consumer. It also records an entry that was pending but is deleted:
    /// the propagated XCLAIM then removes it from the group.
    pub fn add_claim(&mut self, consumer: &[u8], id: StreamId, pending: PendingEntry, last_id: StreamId) {
        if self.is_enabled {
            self.claims.push(PropagatedClaim {
                id,
                consumer: consumer.to_vec(),
                pending,
                last_id,
            });
        }
    }

    /// Records that the group's last delivered ID has advanced.
    pub fn set_last_delivered(&mut self, group: &ConsumerGroup) {
        if self.is_enabled {
            self.last_delivered = Some((group.last_id, group.entries_read.unwrap_or(-1)));
        }
    }

    /// Propagates the recorded changes instead of the current command.
    pub fn propagate(self, effects: &mut Effects, db: DbIndex, key: &[u8], group: &[u8]) {
        if !self.is_enabled {
            return;
        }
        if let Some(consumer) = &self.created_consumer {
            effects.log_also(db, &[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
        }
        for claim in &self.claims {
            let (mut time, mut count) = (itoa::Buffer::new(), itoa::Buffer::new());
            let (mut id, mut last_id) = ([0; 41], [0; 41]);
            let words: [&[u8]; 14] = [
                b"XCLAIM",
                key,
                group,
                &claim.consumer,
                b"0",
                format_id(claim.id, &mut id),
                b"TIME",
                time.format(claim.pending.delivered_ms).as_bytes(),
                b"RETRYCOUNT",
                // As Valkey reads it: a signed number.
                count.format(claim.pending.deliveries.cast_signed()).as_bytes(),
                b"FORCE",
                b"JUSTID",
                b"LASTID",
                format_id(claim.last_id, &mut last_id),
            ];
            effects.log_also(db, &words);
        }
        if let Some((last_id, entries_read)) = self.last_delivered {
            let (mut id, mut read) = ([0; 41], itoa::Buffer::new());
            let words: [&[u8]; 7] = [
                b"XGROUP",
                b"SETID",
                key,
                group,
                format_id(last_id, &mut id),
                b"ENTRIESREAD",
                read.format(entries_read).as_bytes(),
            ];
            effects.log_also(db, &words);
        }
        effects.log_nothing();
    }
}
