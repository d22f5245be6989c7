//! Clients that wait: blocked for keys, or watching keys for a transaction.

pub mod blocking;
pub mod watch;
