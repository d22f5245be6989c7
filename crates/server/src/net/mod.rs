//! Clients and their connections: the state that a worker owns for each.

pub mod client;
pub mod client_info;
pub mod client_snapshot;
pub mod connection;
pub mod handler_view;
pub mod kill_mark;
pub mod library_loads;
pub mod listeners;
pub mod transaction;
pub mod usage;
