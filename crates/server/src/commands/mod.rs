//! The commands: one file per group, each with its handlers and their bindings; and what they share.

use std::sync::OnceLock;

pub mod acl;
pub mod bitmap;
pub mod blocked;
pub mod client;
pub mod cluster;
pub mod command_info;
pub mod connection;
pub mod context;
pub mod database;
pub mod dump;
pub mod error;
pub mod expire;
pub mod expiry_argument;
pub mod function;
pub mod generic;
pub mod geo;
pub mod hash;
pub mod hash_expiry;
pub mod hyperloglog;
pub mod keys;
pub mod lcs;
pub mod list;
pub mod list_blocking;
pub mod migrate;
pub mod object;
pub mod permission;
pub mod pubsub;
pub mod randomkey;
pub mod registry;
pub mod replication;
pub mod reply_limit;
pub mod scan;
pub mod scan_options;
pub mod script;
pub mod server;
pub mod set;
pub mod set_algebra;
pub mod set_options;
pub mod sort;
pub mod sorted_set;
pub mod sorted_set_algebra;
pub mod sorted_set_blocking;
pub mod spec;
pub mod stream;
pub mod stream_arguments;
pub mod stream_blocking;
pub mod stream_claim;
pub mod stream_groups;
pub mod stream_info;
pub mod stream_log;
pub mod stream_pending;
pub mod stream_read;
pub mod string;
pub mod string_bytes;
pub mod string_many;
pub mod string_number;
pub mod tables;
pub mod transaction;
pub mod wait;

use context::Binding;
use registry::Registry;

static REGISTRY: OnceLock<Registry<Binding>> = OnceLock::new();

/// Every command that exists here, by group.
pub const GROUPS: &[&[(&str, Binding)]] = &[
    acl::BINDINGS,
    bitmap::BINDINGS,
    client::BINDINGS,
    cluster::BINDINGS,
    connection::BINDINGS,
    database::BINDINGS,
    dump::BINDINGS,
    expire::BINDINGS,
    function::BINDINGS,
    generic::BINDINGS,
    geo::BINDINGS,
    hash::BINDINGS,
    hash_expiry::BINDINGS,
    hyperloglog::BINDINGS,
    lcs::BINDINGS,
    list::BINDINGS,
    list_blocking::BINDINGS,
    migrate::BINDINGS,
    object::BINDINGS,
    pubsub::BINDINGS,
    randomkey::BINDINGS,
    replication::BINDINGS,
    scan::BINDINGS,
    script::BINDINGS,
    server::command::BINDINGS,
    server::commandlog::BINDINGS,
    server::config::BINDINGS,
    server::debug::BINDINGS,
    server::info::BINDINGS,
    server::latency::BINDINGS,
    server::lolwut::BINDINGS,
    server::memory::BINDINGS,
    server::modules::BINDINGS,
    server::monitor::BINDINGS,
    server::save::BINDINGS,
    server::shutdown::BINDINGS,
    server::time::BINDINGS,
    set::BINDINGS,
    set_algebra::BINDINGS,
    sort::BINDINGS,
    sorted_set::BINDINGS,
    sorted_set_algebra::BINDINGS,
    sorted_set_blocking::BINDINGS,
    stream::BINDINGS,
    stream_claim::BINDINGS,
    stream_groups::BINDINGS,
    stream_info::BINDINGS,
    stream_pending::BINDINGS,
    stream_read::BINDINGS,
    string::BINDINGS,
    string_bytes::BINDINGS,
    string_many::BINDINGS,
    string_number::BINDINGS,
    transaction::BINDINGS,
    wait::BINDINGS,
];

/// All commands, under the names they were born with.
pub fn all() -> Registry<Binding> {
    let bindings: Vec<(&str, Binding)> = GROUPS.iter().flat_map(|group| group.iter().copied()).collect();
    Registry::new(&bindings)
}

/// Makes the commands available, with the renames of the configuration. Called once, before any thread starts.
pub fn install(commands: Registry<Binding>) {
    // A second call could only come from a test in the same process, with the same commands.
    let _ = REGISTRY.set(commands);
}

/// The commands.
#[inline]
pub fn registry() -> &'static Registry<Binding> {
    REGISTRY.get_or_init(all)
}
