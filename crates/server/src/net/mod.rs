//! Clients and their connections: what a worker owns of each.

pub mod client;
pub mod client_snapshot;
pub mod connection;
pub mod listeners;
pub mod tls;
pub mod transaction;
pub mod usage;
