//! Clients and their connections: what a worker owns of each.

pub mod client;
pub mod connection;
pub mod listeners;
pub mod portrait;
pub mod tls;
pub mod transaction;
pub mod usage;
