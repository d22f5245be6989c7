//! The common parts of the tests: servers on free ports of the loopback interface, real Valkeys, and a client.

pub mod client;
pub mod connection;
pub mod played_primary;
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

/// Returns an RDB file with one function library, whose code never ends. No server would load it with FUNCTION LOAD.
pub fn endless_library_dump() -> Vec<u8> {
    const FUNCTION: u8 = 245;
    const END: u8 = 255;
    const CODE: &[u8] = b"#!lua name=endless\nwhile true do end";
    const NO_CHECKSUM: [u8; 8] = [0; 8];
    let length = u8::try_from(CODE.len()).expect("a length of six bits");
    [&b"REDIS0011"[..], &[FUNCTION, length], CODE, &[END], &NO_CHECKSUM].concat()
}
