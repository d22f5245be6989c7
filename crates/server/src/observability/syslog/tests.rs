//! Tests that lines reach the daemon, also after its restart.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use super::Syslog;
use crate::observability::log::Level;

fn daemon(path: &PathBuf) -> UnixDatagram {
    let daemon = UnixDatagram::bind(path).expect("binds");
    let patience = Some(Duration::from_secs(10));
    daemon.set_read_timeout(patience).expect("sets a timeout");
    daemon
}

fn receive(daemon: &UnixDatagram) -> String {
    let mut buffer = [0; 1024];
    let count = daemon.recv(&mut buffer).expect("receives");
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

#[test]
fn a_restarted_daemon_is_found_again() {
    let path = std::env::temp_dir().join(format!("weft-syslog-{}", std::process::id()));
    let syslog = Syslog::new(path.clone(), "weft".into(), 128);
    syslog.send(Level::Warning, "lost: nobody listens");

    let first = daemon(&path);
    syslog.send(Level::Warning, "one");
    let line = receive(&first);
    assert!(line.starts_with("<132>"), "local0 and warning: {line}");
    assert!(line.ends_with(&format!(" weft[{}]: one", std::process::id())), "{line}");

    drop(first);
    std::fs::remove_file(&path).expect("removes the socket");
    let second = daemon(&path);
    syslog.send(Level::Debug, "two");
    let line = receive(&second);
    assert!(line.starts_with("<135>"), "local0 and debug: {line}");
    assert!(line.ends_with(": two"), "{line}");
    let _ = std::fs::remove_file(&path);
}
