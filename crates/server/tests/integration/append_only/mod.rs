//! End-to-end tests of the append-only file: its contents, and the files when the server ends or starts.

mod checks;
mod eviction;
mod files;
mod propagation;
mod rewriting;
pub mod server;
