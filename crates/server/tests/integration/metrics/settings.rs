//! The parameters of the endpoint: off by default, at the start, and at run time.

use std::net::{TcpListener, TcpStream};

use super::{Client, connect, free_port, has_thread, process_id, request, scrape, socket_count, start, wait_until};
use crate::harness::server::Server;

fn listens(address: &str, port: u16) -> bool {
    TcpStream::connect((address, port)).is_ok()
}

#[test]
fn it_is_off_by_default_and_changes_at_run_time() {
    let server = Server::start(&[]);
    let process = process_id(&server);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["CONFIG", "GET", "metrics-port"]), "(metrics-port 0)");
    assert_eq!(
        client.call(&["CONFIG", "GET", "metrics-bind"]),
        "(metrics-bind 127.0.0.1 -::1)"
    );
    assert!(!has_thread(&process));
    let sockets = socket_count(&process);

    let ports = [free_port(), free_port()];
    for port in ports {
        let set = client.call(&["CONFIG", "SET", "metrics-port", &port.to_string()]);
        assert_eq!(set, "OK");
        scrape(port);
        assert!(has_thread(&process));
    }
    assert!(!listens("127.0.0.1", ports[0]), "the old port is closed");
    assert!(!listens("127.0.0.2", ports[1]));
    let set = client.call(&["CONFIG", "SET", "metrics-bind", "127.0.0.1 127.0.0.2"]);
    assert_eq!(set, "OK");
    assert!(listens("127.0.0.1", ports[1]) && listens("127.0.0.2", ports[1]));

    // Off, and on again at the same port: the sockets are closed when CONFIG SET has replied.
    for _ in 0..5 {
        assert_eq!(client.call(&["CONFIG", "SET", "metrics-port", "0"]), "OK");
        assert!(!listens("127.0.0.1", ports[1]));
        let set = client.call(&["CONFIG", "SET", "metrics-port", &ports[1].to_string()]);
        assert_eq!(set, "OK");
        scrape(ports[1]);
    }
    let silent = connect(ports[1]);
    assert_eq!(client.call(&["CONFIG", "SET", "metrics-port", "0"]), "OK");
    wait_until("the thread ends", || !has_thread(&process));
    wait_until("its sockets are closed", || socket_count(&process) <= sockets);
    drop(silent);
}

#[test]
fn a_port_in_use_is_refused_and_the_old_one_is_kept() {
    let (server, port) = start(&[]);
    let mut client = Client::connect(server.port);
    let taken = TcpListener::bind("127.0.0.1:0").expect("binds");
    let taken_port = taken.local_addr().expect("is bound").port().to_string();
    let refused = "CONFIG SET failed (possibly related to argument 'metrics-port') - Unable to listen on this port. Check \
                   server logs.";
    for _ in 0..2 {
        let answer = client.call(&["CONFIG", "SET", "metrics-port", &taken_port]);
        assert!(answer.contains(refused), "{answer}");
        scrape(port);
    }
    let answer = client.call(&["CONFIG", "SET", "metrics-bind", "192.0.2.7"]);
    assert!(answer.contains("Failed to bind to specified addresses."), "{answer}");
    scrape(port);
    let answer = client.call(&["CONFIG", "SET", "metrics-port", "65536"]);
    assert!(
        answer.contains("argument must be between 0 and 65535 inclusive"),
        "{answer}"
    );
    // Within a transaction, too.
    let other = free_port().to_string();
    client.transact(&[&["CONFIG", "SET", "metrics-port", &other]]);
    scrape(other.parse().expect("a port"));
    // From off, a failure leaves it off.
    assert_eq!(client.call(&["CONFIG", "SET", "metrics-port", "0"]), "OK");
    let answer = client.call(&["CONFIG", "SET", "metrics-port", &taken_port]);
    assert!(answer.contains(refused), "{answer}");
    assert!(!has_thread(&process_id(&server)));
}

#[test]
fn connections_do_not_delay_the_end_of_the_process() {
    let (server, port) = start(&[]);
    let silent: Vec<TcpStream> = (0..10).map(|_| connect(port)).collect();
    assert_eq!(request(port, "GET", "/health").status, 200);
    let mut client = Client::connect(server.port);
    let process = process_id(&server);
    client.send(&["SHUTDOWN", "NOSAVE"]);
    let has_ended = || {
        let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        state
            .rsplit_once(')')
            .is_none_or(|(_, state)| state.trim_start().starts_with('Z'))
    };
    wait_until("the process ends", has_ended);
    assert!(!listens("127.0.0.1", port));
    drop(silent);
}
