//! Finds a free port of the loopback interface.

use std::collections::HashSet;
use std::net::TcpStream;
use std::sync::{LazyLock, Mutex};

/// The range of the ports: below those that the kernel uses for outgoing connections.
const FIRST: u32 = 11_000;
const PORTS: u32 = 21_000;

/// Returns a port on which no process listens and that this process did not return before.
///
/// The kernel gives a released port to the next process that asks. Two concurrent tests would then start their servers
/// on one port, and the test whose server did not get it would talk to the other server until that one ends. Also, a
/// test that checks by connecting if a server listens may connect to itself if the port is one used for outgoing
/// connections.
///
/// The check is done by connecting, not by listening. A starting process holds the listening sockets of its parent
/// until it executes its program, and a connection to such a remnant is reset a moment later.
pub fn free_port() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let mut given = GIVEN.lock().expect("no test panics in here");
    // Concurrent processes start at different ports.
    let start = std::process::id().wrapping_mul(997);
    for step in 0..PORTS {
        let port = (FIRST + start.wrapping_add(step) % PORTS) as u16;
        if !given.contains(&port) && TcpStream::connect(("127.0.0.1", port)).is_err() {
            given.insert(port);
            return port;
        }
    }
    panic!("no port is free");
}
