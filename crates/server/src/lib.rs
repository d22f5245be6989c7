//! `weft-server`: an in-memory data store that speaks Valkey's protocol and executes commands on every I/O thread.
//!
//! Modules in reading order: `runtime::coordinator` accepts connections and assigns them to workers. A
//! `runtime::worker` reads, plans (`dispatch`), executes (`commands` over `keyspace`) and replies. `state` is what they
//! share; `config` and `observability` are below all of them. `docs/ARCHITECTURE.md` has the map.
//!
//! This is a library only so that decoders can be fuzzed: everything except [`main`], [`fuzzing`] and the
//! entry of a simulation is private.
#![forbid(unsafe_code)]

mod check;
mod clients_waiting;
mod cluster_node;
mod commands;
mod dispatch;
#[doc(hidden)]
pub mod fuzzing;
mod keyspace;
mod metrics_endpoint;
mod net;
mod notify;
mod observability;
mod persistence;
mod propagation;
mod replication;
mod runtime;
#[cfg(feature = "simulated")]
pub mod simulation;
mod slot_migration;
mod start;
mod state;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs the server until it is shut down.
pub fn main() -> std::process::ExitCode {
    start::run()
}
