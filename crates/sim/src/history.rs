//! The operations of the clients and their replies, with the steps at which they were sent and answered.

use crate::operation::Operation;
use crate::reply::SeenReply;

/// One operation of a client.
#[derive(Clone, Debug)]
pub struct Event {
    /// The operation.
    pub operation: Operation,
    /// The step before which the server cannot have seen the whole request.
    pub sent_step: u64,
    /// The simulated time at which the whole request was sent, in nanoseconds.
    pub sent_ns: u64,
    /// The idle time of the run until then: that in which no thread could run, in nanoseconds.
    pub sent_idle_ns: u64,
    /// The simulated time at which the replies had arrived, in nanoseconds.
    pub answer_ns: u64,
    /// The idle time of the run until then, in nanoseconds.
    pub answer_idle_ns: u64,
    /// The replies, and the step after which they had arrived; `None` if the connection ended before. Such an operation
    /// may have taken effect or not.
    pub answer: Option<(Vec<SeenReply>, u64)>,
}

impl Event {
    /// Returns `true` if a node of a cluster refused the operation because it does not own the slot.
    pub fn was_redirected(&self) -> bool {
        let Some((replies, _)) = &self.answer else {
            return false;
        };
        let has_error = |codes: &[&str]| {
            let is_one = |text: &str| codes.iter().any(|code| text.starts_with(code));
            matches!(replies.last(), Some(SeenReply::Error(text)) if is_one(text))
        };
        match self.operation {
            Operation::Transaction(_) => has_error(&["MOVED ", "EXECABORT "]),
            _ => has_error(&["MOVED ", "ERR Attempted to access a non local key"]),
        }
    }
}

impl Event {
    /// Returns `true` if a replica refused the operation, or its server became a replica while the operation waited.
    pub fn was_refused_by_replica(&self) -> bool {
        let Some((replies, _)) = &self.answer else {
            return false;
        };
        let is_refusal = |reply: &SeenReply| matches!(reply, SeenReply::Error(text) if text.contains("READONLY") || text.contains("UNBLOCKED"));
        self.operation.is_write() && replies.iter().any(is_refusal)
    }
}

impl Event {
    /// Returns the step after which the replies had arrived; `u64::MAX` if they never did.
    pub fn answer_step(&self) -> u64 {
        self.answer.as_ref().map_or(u64::MAX, |(_, step)| *step)
    }

    /// Returns the operations, each with its reply if the client has one. A transaction has several; one that was
    /// answered but has not run has none.
    pub fn parts(&self) -> Vec<(&Operation, Option<&SeenReply>)> {
        let replies = self.answer.as_ref().map(|(replies, _)| &**replies);
        match (&self.operation, replies) {
            (Operation::Transaction(operations), None) => {
                operations.iter().map(|operation| (operation, None)).collect()
            }
            (Operation::Transaction(operations), Some([.., SeenReply::Array(items)])) => {
                operations.iter().zip(items.iter().map(Some)).collect()
            }
            (Operation::Transaction(_), Some(_)) => Vec::new(),
            (operation, replies) => vec![(operation, replies.and_then(<[SeenReply]>::first))],
        }
    }

    /// Returns `true` if the reply shows that the operation has changed neither data nor the state of the server or of
    /// another connection, wherever its place in the order is. What has expired or was evicted may be missing from then
    /// on.
    pub fn has_changed_nothing(&self) -> bool {
        let is_harmless = |(operation, reply): (&Operation, Option<&SeenReply>)| match reply {
            // A killed script marks the watches of others.
            Some(SeenReply::Error(text)) => !(operation.is_script() && text.contains("Script killed by user")),
            Some(reply) => operation.only_reads() || operation.is_in_vain(reply),
            None => false,
        };
        self.answer.is_some() && self.parts().into_iter().all(is_harmless)
    }
}

/// The place of an event in the histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    /// The index of its connection.
    pub connection: usize,
    /// Its index there.
    pub index: usize,
}

impl EventId {
    /// Returns `true` if the event is not done. `done` has the number of events of each connection that are.
    pub fn remains(self, done: &[usize]) -> bool {
        self.index >= done[self.connection]
    }
}

/// Returns the number of events that are not done.
pub fn count_remaining(events: &[EventId], done: &[usize]) -> usize {
    events.iter().filter(|event| event.remains(done)).count()
}

/// Returns `true` if one of the events is not done.
pub fn any_remains(events: &[EventId], done: &[usize]) -> bool {
    events.iter().any(|event| event.remains(done))
}

/// A pipeline none of whose requests waits for another client.
#[derive(Clone, Copy, Debug)]
pub struct PipelineWait {
    /// The idle time of the run when it was sent, in nanoseconds.
    pub from_idle_ns: u64,
    /// The idle time of the run when all replies had arrived, in nanoseconds.
    pub until_idle_ns: u64,
    /// The index of its last event.
    pub last_event: usize,
}

/// The events of one connection, in order.
#[derive(Clone, Debug, Default)]
pub struct ConnectionHistory {
    /// The events.
    pub events: Vec<Event>,
    /// The waits for the replies to its pipelines.
    pub waits: Vec<PipelineWait>,
    /// The step before which the client did not close the connection, if it closed it while requests were unanswered.
    pub closed_step: Option<u64>,
}

impl ConnectionHistory {
    /// Returns `true` if the client has sent FLUSHALL.
    pub fn has_flushed(&self) -> bool {
        let mut operations = self.events.iter().map(|event| &event.operation);
        operations.any(|operation| match operation {
            Operation::FlushAll => true,
            Operation::Transaction(parts) => parts.contains(&Operation::FlushAll),
            _ => false,
        })
    }
}
