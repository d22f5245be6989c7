//! Messages to clients about what other clients did: pub/sub, tracking, keyspace events, MONITOR.

pub mod keyspace_event;
pub mod messages;
pub mod monitor;
pub mod pubsub;
pub mod tracking;
