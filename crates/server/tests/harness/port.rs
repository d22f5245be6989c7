//! A free port of the loopback interface.

use std::collections::HashSet;
use std::net::TcpStream;
use std::sync::{LazyLock, Mutex};

/// The ports to choose from: below those that the kernel gives to outgoing connections.
const FIRST: u32 = 11_000;
const PORTS: u32 = 21_000;

/// A port that nobody listens on and that this process was not given before.
///
/// The kernel gives a port that was just let go of to the next who asks. Two tests side by side would then start their
/// servers on one port, and the one whose server did not get it would talk to the other's until that ends. And who asks
/// whether a server listens yet on a port that connections go out from may connect to itself.
///
/// Whether a port is free is asked by connecting, not by listening: a process that is being started holds the listening
/// sockets of its parent until it runs its program, and who connects to such a remnant is reset a moment later.
pub fn free_port() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let mut given = GIVEN.lock().expect("no test panics in here");
    // Processes side by side begin at different places.
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
