//! End-to-end tests. Each module starts its own servers; [`harness`] holds what they share.

mod harness;

mod access;
mod append_only;
mod background_dumps;
mod blocking;
mod cluster;
mod collections;
mod debugger;
mod defragmentation;
mod dumps;
mod eviction;
mod features;
mod loading;
mod long_commands;
mod memory;
mod metrics;
mod modules;
mod process;
mod replication;
mod scripts;
mod snapshots;
mod tls;
mod transactions;
mod uses_of_keys;
mod vulnerabilities;
mod workers;
