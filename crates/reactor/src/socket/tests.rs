//! Tests of addresses and options.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::Listener;

#[test]
fn tcp_names_are_address_and_port_with_brackets_around_ipv6() {
    for (address, prefix) in [
        (IpAddr::V4(Ipv4Addr::LOCALHOST), "127.0.0.1:"),
        (IpAddr::V6(Ipv6Addr::LOCALHOST), "[::1]:"),
    ] {
        let Ok(listener) = Listener::tcp(address, 0, 16) else {
            assert!(address.is_ipv6(), "IPv4 loopback must work");
            continue;
        };
        let at = listener.local_address().unwrap();
        let client = Socket::from(TcpStream::connect(at).unwrap());
        let served = listener.accept().unwrap();
        assert_eq!(served.local_name(), format!("{prefix}{}", at.port()));
        assert_eq!(served.peer_name(), client.local_name());
        assert_eq!(client.peer_name(), served.local_name());
        assert!(served.peer_name().starts_with(prefix) && !served.is_unix());
    }
}

#[test]
fn unix_names_are_the_listening_path_at_both_ends() {
    let path = std::env::temp_dir().join(format!("weft-names-{}.sock", std::process::id()));
    let listener = Listener::unix(&path, Some(0o700), 16).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    let client = Socket::from(UnixStream::connect(&path).unwrap());
    let served = listener.accept().unwrap();
    std::fs::remove_file(&path).unwrap();
    let name = format!("[{}:0]:0", path.display());
    for socket in [&client, &served] {
        assert_eq!((socket.peer_name(), socket.local_name()), (name.clone(), name.clone()));
        assert!(socket.set_nodelay(true).is_ok() && socket.set_keepalive(300).is_ok());
    }
    assert_eq!(mode & 0o777, 0o700);
    assert!(listener.local_address().is_none());
    let (unnamed, _other) = UnixStream::pair().unwrap();
    assert_eq!(Socket::from(unnamed).peer_name(), "?:0");
}

#[test]
fn the_kernel_keeps_no_more_than_it_may() {
    let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0, 16).unwrap();
    let socket = Socket::connect_tcp(listener.local_address().unwrap()).unwrap();
    socket.set_buffer_sizes(100_000).unwrap();
    assert_eq!(sockopt::socket_send_buffer_size(&socket).unwrap(), 200_000);
    assert_eq!(sockopt::socket_recv_buffer_size(&socket).unwrap(), 200_000);
}

#[test]
fn keepalive_probes_three_times_a_third_of_the_interval_apart() {
    let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0, 16).unwrap();
    let socket = Socket::connect_tcp(listener.local_address().unwrap()).unwrap();
    for (seconds, idle, interval) in [(300, 300, 100), (2, 2, 1)] {
        socket.set_keepalive(seconds).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(idle));
        assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), Duration::from_secs(interval));
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 3);
    }
    socket.set_keepalive(0).unwrap();
    assert!(!sockopt::socket_keepalive(&socket).unwrap());
    for nodelay in [true, false] {
        socket.set_nodelay(nodelay).unwrap();
        assert_eq!(sockopt::tcp_nodelay(&socket).unwrap(), nodelay);
    }
}
