//! `weft-server`: an in-memory data store that speaks Valkey's protocol and executes on every I/O thread.
//!
//! Modules in reading order: `coordinator` accepts and places connections; a `worker` reads, plans
//! (`dispatch`), executes (`commands` over `keyspace`) and replies; `state` is what they share;
//! `config` and `observe` stand below all of them.
//!
//! A library only so that decoders can be fuzzed: everything but [`main`] and [`fuzzing`] is private.
#![forbid(unsafe_code)]

mod acl;
mod check;
mod clients_waiting;
mod cluster;
mod cluster_node;
mod commands;
mod config;
mod dispatch;
#[doc(hidden)]
pub mod fuzzing;
mod keyspace;
mod net;
mod notify;
mod observability;
mod persistence;
mod propagation;
mod rdb;
mod replication;
mod runtime;
mod scripting;
mod start;
mod state;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs the server until it is told to stop.
pub fn main() -> std::process::ExitCode {
    start::run()
}
