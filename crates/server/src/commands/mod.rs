//! The commands: one folder per group with the handlers and their bindings, and the code that the groups share.

pub mod bitmap;
pub mod blocked;
pub mod cluster;
pub mod connection;
pub mod context;
pub mod error;
pub mod generic;
pub mod geo;
pub mod hash;
pub mod hyperloglog;
pub mod list;
pub mod module_commands;
pub mod perform_blocked;
pub mod permission;
pub mod pubsub;
pub mod reply_limit;
pub mod scripting;
pub mod server;
pub mod set;
pub mod sorted_set;
pub mod stream;
pub mod string;
pub mod transaction;

use context::Binding;
use weft_command_table::registry::Registry;
use weft_sync::Current;

static REGISTRY: Current<Registry<Binding>> = Current::empty();

/// All commands with handlers, by group.
pub const GROUPS: &[&[(&str, Binding)]] = &[
    server::acl::BINDINGS,
    bitmap::BINDINGS,
    connection::client::BINDINGS,
    cluster::BINDINGS,
    connection::BINDINGS,
    generic::database::BINDINGS,
    generic::dump::BINDINGS,
    generic::expire::BINDINGS,
    scripting::function::BINDINGS,
    generic::BINDINGS,
    geo::BINDINGS,
    hash::BINDINGS,
    hash::expiry::BINDINGS,
    hyperloglog::BINDINGS,
    string::lcs::BINDINGS,
    list::BINDINGS,
    list::blocking::BINDINGS,
    generic::migrate::BINDINGS,
    generic::object::BINDINGS,
    pubsub::BINDINGS,
    generic::randomkey::BINDINGS,
    server::replication::BINDINGS,
    generic::scan::BINDINGS,
    scripting::script::BINDINGS,
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
    server::weft::BINDINGS,
    set::BINDINGS,
    set::algebra::BINDINGS,
    generic::sort::BINDINGS,
    sorted_set::BINDINGS,
    sorted_set::algebra::BINDINGS,
    sorted_set::blocking::BINDINGS,
    stream::BINDINGS,
    stream::claim::BINDINGS,
    stream::groups::BINDINGS,
    stream::info::BINDINGS,
    stream::pending::BINDINGS,
    stream::read::BINDINGS,
    string::BINDINGS,
    string::bytes::BINDINGS,
    string::many::BINDINGS,
    string::number::BINDINGS,
    transaction::BINDINGS,
    generic::wait::BINDINGS,
];

/// Returns the registry of all commands under their original names.
pub fn full_registry() -> Registry<Binding> {
    let bindings: Vec<(&str, Binding)> = GROUPS.iter().flat_map(|group| group.iter().copied()).collect();
    Registry::new(&bindings)
}

/// Makes the commands available, with the renames of the configuration. The server calls this once, before it starts
/// any thread.
pub fn install_registry(commands: Registry<Binding>) {
    // Only a test in the same process can call this a second time, and it installs the same commands.
    REGISTRY.set_if_empty(Box::leak(Box::new(commands)));
}

/// Makes other commands available, because a module has registered some or is gone. Threads may use those before for as
/// long as they like.
fn replace_registry(commands: Registry<Binding>) {
    REGISTRY.set(Box::leak(Box::new(commands)));
}

/// Returns the current commands; without a call of [`install_registry`], those without modules under their original
/// names.
#[inline]
pub fn registry() -> &'static Registry<Binding> {
    match REGISTRY.get() {
        Some(commands) => commands,
        None => first_registry(),
    }
}

#[cold]
fn first_registry() -> &'static Registry<Binding> {
    REGISTRY.set_if_empty(Box::leak(Box::new(full_registry())))
}
