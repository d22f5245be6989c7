//! Servers in a simulation: several in one process, whose threads the scheduler of `weft-os` runs.

use std::ffi::OsString;

use weft_os::thread::{self, JoinHandle};

pub use crate::dispatch::execution_order::{Execution, ExecutionStage, executions, request_digest};
pub use crate::keyspace::hash::share_slots;
use crate::keyspace::hash::{KeyHasher, secrets_from_seed};

/// Starts a server with the arguments of a command line. The result of the thread is `true` if the server was shut down
/// in an orderly way.
///
/// The server installs no signal handlers and changes nothing else of the process.
///
/// # Panics
/// If the operating system cannot create a thread.
pub fn start_server(name: &str, arguments: Vec<OsString>) -> JoinHandle<bool> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || crate::start::run_simulated(&arguments))
        .expect("the operating system can create a thread")
}

/// Returns the slot of a key in a server that is no node of a cluster, and was started with this `hash-seed`.
pub fn slot_with_hash_seed(seed: &str, key: &str) -> usize {
    let hasher = KeyHasher::with_secrets(secrets_from_seed(seed.as_bytes()), false);
    KeyHasher::slot(hasher.hash(key.as_bytes()))
}
