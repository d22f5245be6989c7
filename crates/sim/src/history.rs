//! What clients did and saw, with the moments.

use crate::operation::Operation;
use crate::reply::SeenReply;

/// One operation of a client.
#[derive(Clone, Debug)]
pub struct Event {
    /// What was asked.
    pub operation: Operation,
    /// The step before which the server cannot have seen the whole request.
    pub sent_step: u64,
    /// The replies, and the step after which they had arrived; `None` if the connection ended before. Such an operation
    /// may have taken effect or not.
    pub answer: Option<(Vec<SeenReply>, u64)>,
}

/// The events of one connection, in order.
#[derive(Clone, Debug, Default)]
pub struct ConnectionHistory {
    /// The events.
    pub events: Vec<Event>,
}
