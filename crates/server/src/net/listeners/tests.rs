//! Tests that listening sockets open, move and close with the configuration, and that other processes' socket files are
//! kept.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use weft_reactor::Reactor;

use super::{ListenError, ListenerKinds, Listeners};
use weft_config::{Config, SetPermissions, StartAction};

/// Loads a configuration from the command line `options`.
fn config(options: &str) -> Config {
    let arguments: Vec<std::ffi::OsString> = ["weft-server"]
        .into_iter()
        .chain(options.split(' '))
        .map(Into::into)
        .collect();
    match StartAction::parse(&arguments) {
        Ok(StartAction::RunServer(command_line)) => Config::load(&command_line).expect("the options are fine"),
        other => panic!("{other:?}"),
    }
}

fn set(config: &Config, name: &str, value: &str) {
    let permissions = SetPermissions {
        may_set_protected: false,
        is_loading: false,
    };
    config
        .set(&[(name.as_bytes(), value.as_bytes())], permissions, &mut |_| Ok(()))
        .expect("can be set");
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.local_addr().expect("is bound").port()
}

fn accepts(address: &str, port: u16) -> bool {
    TcpStream::connect((address, port)).is_ok()
}

#[test]
fn the_port_and_the_addresses_change_at_run_time() {
    let (first, second) = (free_port(), free_port());
    let config = config(&format!("--bind 127.0.0.1 --port {first}"));
    let mut reactor = Reactor::new().expect("a reactor");
    let mut listeners = Listeners::open(&config, &mut reactor).expect("listens");
    assert!(accepts("127.0.0.1", first));

    set(&config, "port", &second.to_string());
    assert_eq!(listeners.listen_tcp(&config, &mut reactor), Ok(()));
    assert!(accepts("127.0.0.1", second));
    assert!(!accepts("127.0.0.1", first));

    set(&config, "bind", "127.0.0.1 127.0.0.2");
    assert_eq!(listeners.listen_tcp(&config, &mut reactor), Ok(()));
    assert!(accepts("127.0.0.1", second) && accepts("127.0.0.2", second));

    set(&config, "bind", "127.0.0.2");
    assert_eq!(listeners.listen_tcp(&config, &mut reactor), Ok(()));
    assert!(!accepts("127.0.0.1", second) && accepts("127.0.0.2", second));

    set(&config, "port", "0");
    assert_eq!(listeners.listen_tcp(&config, &mut reactor), Ok(()));
    assert!(!accepts("127.0.0.2", second));
    assert_eq!(listeners.kinds(), ListenerKinds::default());
}

#[test]
fn a_taken_port_is_refused_and_the_old_one_can_be_opened_again() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("binds");
    let taken_port = taken.local_addr().expect("is bound").port();
    let port = free_port();
    let config = config(&format!("--bind 127.0.0.2 127.0.0.1 --port {port}"));
    let mut reactor = Reactor::new().expect("a reactor");
    let mut listeners = Listeners::open(&config, &mut reactor).expect("listens");

    set(&config, "port", &taken_port.to_string());
    assert_eq!(listeners.listen_tcp(&config, &mut reactor), Err(ListenError));
    assert!(
        !accepts("127.0.0.2", taken_port),
        "the address that was free is given back"
    );

    set(&config, "port", &port.to_string());
    assert_eq!(listeners.listen_tcp(&config, &mut reactor), Ok(()));
    assert!(accepts("127.0.0.1", port) && accepts("127.0.0.2", port));
}

#[test]
fn a_port_can_change_between_tcp_and_tls() {
    let (first, second) = (free_port(), free_port());
    let config = config(&format!("--bind 127.0.0.1 --port {first} --tls-port {second}"));
    let mut reactor = Reactor::new().expect("a reactor");
    let mut listeners = Listeners::open(&config, &mut reactor).expect("listens");
    let tokens = |listeners: &Listeners| (0..5).filter(|token| listeners.is_tls(*token)).count();
    assert!(accepts("127.0.0.1", first) && accepts("127.0.0.1", second));
    assert!(listeners.kinds().tcp && listeners.kinds().tls);
    assert_eq!(tokens(&listeners), 1);
    set(&config, "port", "0");
    set(&config, "tls-port", &first.to_string());
    assert_eq!(listeners.listen_tcp(&config, &mut reactor), Ok(()));
    assert!(accepts("127.0.0.1", first) && !accepts("127.0.0.1", second));
    assert!(!listeners.kinds().tcp && listeners.kinds().tls);
    assert_eq!(tokens(&listeners), 1);
}

#[test]
fn only_optional_addresses_may_be_missing() {
    let mut reactor = Reactor::new().expect("a reactor");
    let port = free_port();
    // An address of the block reserved for documentation, which no machine has.
    let with_optional = config(&format!("--bind 127.0.0.1 -192.0.2.7 --port {port}"));
    let listeners = Listeners::open(&with_optional, &mut reactor).expect("listens on the other one");
    assert!(listeners.kinds().tcp && !listeners.kinds().unix);
    drop(reactor);

    let mut reactor = Reactor::new().expect("a reactor");
    let required = config(&format!("--bind 127.0.0.1 192.0.2.7 --port {port}"));
    assert_eq!(Listeners::open(&required, &mut reactor).err(), Some(ListenError));
    assert!(!accepts("127.0.0.1", port));
    let nothing = config(&format!("--bind -192.0.2.7 --port {port}"));
    assert_eq!(Listeners::open(&nothing, &mut reactor).err(), Some(ListenError));
}

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("weft-{name}-{}.sock", std::process::id()))
}

#[test]
fn a_leftover_socket_is_replaced_and_another_file_is_not() {
    let path = socket_path("leftover");
    let options = format!("--port 0 --unixsocketperm 700 --unixsocket {}", path.display());
    let config = config(&options);

    drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
    let mut reactor = Reactor::new().expect("a reactor");
    let listeners = Listeners::open(&config, &mut reactor).expect("listens");
    assert!(UnixStream::connect(&path).is_ok());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).expect("is there").permissions());
    assert_eq!(mode & 0o777, 0o700);
    listeners.remove_socket_file();
    assert!(!path.exists());

    std::fs::write(&path, "data").expect("writes");
    let mut reactor = Reactor::new().expect("a reactor");
    assert_eq!(Listeners::open(&config, &mut reactor).err(), Some(ListenError));
    assert_eq!(std::fs::read(&path).expect("is still there"), b"data");
    std::fs::remove_file(&path).expect("removes");
}

#[test]
fn the_socket_of_another_server_is_not_removed() {
    let path = socket_path("taken-over");
    let config = config(&format!("--port 0 --unixsocket {}", path.display()));
    let mut reactor = Reactor::new().expect("a reactor");
    let first = Listeners::open(&config, &mut reactor).expect("listens");
    let mut other_reactor = Reactor::new().expect("a reactor");
    let second = Listeners::open(&config, &mut other_reactor).expect("listens");
    first.remove_socket_file();
    assert!(UnixStream::connect(&path).is_ok());
    second.remove_socket_file();
    assert!(!path.exists());
}
