//! `weft-server`: an in-memory data store that speaks Valkey's protocol and executes on every I/O thread.
//!
//! Modules in reading order: `coordinator` accepts and places connections; a `worker` reads, plans
//! (`dispatch`), executes (`commands` over `keyspace`) and replies; `state` is what they share;
//! `config` and `observe` stand below all of them.
//!
//! A library only so that decoders can be fuzzed: everything but [`main`] and [`fuzzing`] is private.
#![forbid(unsafe_code)]

mod acl;
mod aof;
mod apply;
mod background;
mod blocking;
mod bus;
mod check;
mod cluster;
mod commands;
mod config;
mod coordinator;
mod dispatch;
mod feed;
mod follow;
#[doc(hidden)]
pub mod fuzzing;
mod journal;
mod keyspace;
mod messages;
mod net;
mod observe;
mod persist;
mod process;
mod pubsub;
mod reclaim;
mod repl;
mod role;
mod saving;
mod script;
mod shutdown;
mod snapshot;
mod start;
mod state;
mod supply;
mod topology;
mod tracking;
mod tuning;
mod watch;
mod worker;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs the server until it is told to stop.
pub fn main() -> std::process::ExitCode {
    start::run()
}
