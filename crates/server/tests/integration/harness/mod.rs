//! The common parts of the tests: servers on free ports of the loopback interface, real Valkeys, and a client.

pub mod client;
pub mod connection;
pub mod port;
pub mod server;
pub mod valkey;

use std::thread;
use std::time::{Duration, Instant};

use server::PATIENCE;

/// Waits until the condition holds, and fails with this description if it does not within [`PATIENCE`].
pub fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "this does not happen: {description}");
        thread::sleep(Duration::from_millis(5));
    }
}
