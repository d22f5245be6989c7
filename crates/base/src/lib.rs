//! `weft-base`: the terms that every part of Weft shares. It depends on no other crate of Weft.
//!
//! - [`clock`]: the monotonic clock and the wall clock.
//! - [`slots`]: the slots of the keyspace, and the slot of a key in a cluster.
//! - [`ClientId`]: the id of a client.
//! - [`LogSequence`]: a position in the propagation log.
//! - [`ReplicationOffset`]: a position in the stream for replicas.
//! - [`ParkId`]: the number of a parked connection.
//! - [`ParkedClient`]: a client whose connection is parked, and its worker.
//! - [`RoleEpoch`]: the number of a change of the primary to follow.
//! - [`ThreadIndex`]: the index of a worker or another thread.
//! - [`DbIndex`]: the index of a database.
//! - [`SlotIndex`]: the number of a slot.
//! - [`files`]: replacing a file atomically, and the error texts of system calls.
#![forbid(unsafe_code)]

mod client_id;
pub mod clock;
mod db_index;
pub mod files;
mod log_sequence;
mod park_id;
mod parked_client;
mod replication_offset;
mod role_epoch;
mod slot_index;
pub mod slots;
mod thread_index;

pub use client_id::ClientId;
pub use db_index::DbIndex;
pub use log_sequence::LogSequence;
pub use park_id::ParkId;
pub use parked_client::ParkedClient;
pub use replication_offset::ReplicationOffset;
pub use role_epoch::RoleEpoch;
pub use slot_index::SlotIndex;
pub use thread_index::ThreadIndex;
