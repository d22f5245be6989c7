//! The append-only file, seen from outside: what it gets, and what becomes of it when the server ends or starts.

mod checks;
#[path = "../harness/client.rs"]
mod client;
mod eviction;
mod files;
mod propagation;
mod rewriting;
mod server;
