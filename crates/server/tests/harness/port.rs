//! A free port of the loopback interface.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{LazyLock, Mutex};

/// A port that nobody listens on and that this process was not given before.
///
/// The kernel gives a port that was just let go of to the next who asks. Two tests side by side would
/// then start their servers on one port, and the one whose server did not get it would talk to the
/// other's until that ends.
pub fn free_port() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("is bound").port();
        if GIVEN.lock().expect("no test panics in here").insert(port) {
            return port;
        }
    }
}
