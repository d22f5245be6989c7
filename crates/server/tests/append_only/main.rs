//! The append-only file, seen from outside: what it gets, and what becomes of it when the server ends or starts.

mod eviction;
mod files;
mod propagation;
mod server;
