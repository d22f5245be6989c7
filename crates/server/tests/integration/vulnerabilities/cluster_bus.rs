//! Vulnerabilities of the cluster bus and of the cluster configuration file.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Target;
use crate::harness::port::free_port;
use crate::harness::server::PATIENCE;
use crate::harness::wait_until;

const HEADER: usize = 2256;

/// A message with a full header, from a node with this ID.
fn message(kind: u16, sender: &[u8; 40], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[..4].copy_from_slice(b"RCmb");
    bytes[4..8].copy_from_slice(&((HEADER + body.len()) as u32).to_be_bytes());
    bytes[8..10].copy_from_slice(&1_u16.to_be_bytes());
    bytes[10..12].copy_from_slice(&7000_u16.to_be_bytes());
    bytes[12..14].copy_from_slice(&kind.to_be_bytes());
    bytes[40..80].copy_from_slice(sender);
    bytes[2248..2250].copy_from_slice(&17000_u16.to_be_bytes());
    bytes[2251] = 1;
    bytes.extend_from_slice(body);
    bytes
}

fn with(mut bytes: Vec<u8>, at: usize, value: &[u8]) -> Vec<u8> {
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

/// Lengths and counts in a message are checked against the message: gossip entries, extensions, published messages.
#[test]
fn cve_2026_21863_malformed_messages_of_the_bus_are_refused() {
    let bus = free_port();
    let number = bus.to_string();
    let mut target = Target::start(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &number,
        "--cluster-node-timeout",
        "60000",
    ]);
    let own: [u8; 40] = target
        .witness
        .call(&["CLUSTER", "MYID"])
        .into_bytes()
        .try_into()
        .expect("an ID");
    let other = [b'a'; 40];
    let extension =
        |kind: u16, length: u32, data: &[u8]| [&length.to_be_bytes()[..], &kind.to_be_bytes(), &[0, 0], data].concat();
    let flagged = |body: &[u8], extensions: u16| {
        with(
            with(message(2, &other, body), 2214, &extensions.to_be_bytes()),
            2253,
            &[4],
        )
    };
    let mut packets = vec![
        // Extensions beyond the end, without a length, with a length of zero and with one that overflows.
        flagged(b"", 1),
        flagged(b"", 65535),
        flagged(&extension(0, 8, b""), 2),
        flagged(&extension(0, 0, b""), 1),
        flagged(&extension(0, 4, b""), 1),
        flagged(&extension(0, u32::MAX, b""), 1),
        flagged(&extension(0, 4096, b"short\0\0\0"), 1),
        flagged(&extension(0, 16, b"no end!!"), 1),
        flagged(&extension(2, 16, b"notanode"), 1),
        flagged(&extension(3, 8, b""), 1),
        flagged(&extension(4, 16, b"xxxxxxxx"), 1),
        flagged(&extension(999, 16, b"xxxxxxxx"), 1),
        // More gossip than there is.
        with(message(0, &other, b""), 14, &u16::MAX.to_be_bytes()),
        with(message(2, &own, &[0; 104]), 14, &2_u16.to_be_bytes()),
        // Lengths that are too small, too large and not those of the type.
        with(message(0, &other, b""), 4, &0_u32.to_be_bytes()),
        with(message(0, &other, b""), 4, &8_u32.to_be_bytes()),
        with(message(0, &other, b""), 4, &u32::MAX.to_be_bytes()),
        message(3, &other, b"short"),
        message(4, &other, &[0xff; 8]),
        message(4, &other, &[0, 0, 0, 8, 0xff, 0xff, 0xff, 0xff, 1]),
        message(10, &other, &[0xff; 16]),
        message(7, &other, &[0xff; 10]),
        message(9, &other, &[0xff; 16]),
        message(0x8004, &other, b""),
        with(message(0x8004, &other, b""), 4, &16_u32.to_be_bytes()),
        message(77, &other, b""),
        with(message(0, &other, b""), 8, &9_u16.to_be_bytes()),
        message(0, &[0xff; 40], b""),
        message(5, &other, b""),
        message(6, &own, b""),
        b"RCmb".to_vec(),
        b"HELO".repeat(1000),
        vec![0; 100_000],
    ];
    let mut random = fastrand::Rng::with_seed(21863);
    for kind in 0..11 {
        for _ in 0..20 {
            let body: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
            let mut bytes = message(kind, if random.bool() { &own } else { &other }, &body);
            for _ in 0..random.usize(..4) {
                let at = random.usize(14..bytes.len());
                bytes[at] = random.u8(..);
            }
            packets.push(bytes);
        }
    }
    for packet in packets {
        let mut link = TcpStream::connect(("127.0.0.1", bus)).expect("connects");
        link.set_read_timeout(Some(Duration::from_millis(20)))
            .expect("sets a timeout");
        let _ = link.write_all(&packet);
        let _ = link.read(&mut [0; 4096]);
        target.serves();
    }
    assert_eq!(target.witness.call(&["CLUSTER", "MYID"]).as_bytes(), own);
    assert!(target.witness.call(&["CLUSTER", "NODES"]).contains("myself,master"));
    target.serves_within(200 << 20);
}

/// A connection that announces a long message and sends little of it takes little memory.
#[test]
fn cve_2026_21863_announced_lengths_of_the_bus_take_no_memory() {
    let bus = free_port();
    let number = bus.to_string();
    let mut target = Target::start(&["--cluster-enabled", "yes", "--cluster-port", &number]);
    let announced = with(message(4, &[b'a'; 40], b""), 4, &(500_u32 << 20).to_be_bytes());
    let links: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut link = TcpStream::connect(("127.0.0.1", bus)).expect("connects");
            let _ = link.write_all(&announced);
            link
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    target.serves_within(200 << 20);
    drop(links);
    target.serves();
}

/// Connects to the bus, and sends these bytes in small pieces.
fn send_in_pieces(bus: u16, bytes: &[u8], piece_bytes: usize) -> TcpStream {
    let mut link = TcpStream::connect(("127.0.0.1", bus)).expect("connects");
    link.set_nodelay(true).expect("sets an option");
    link.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    for piece in bytes.chunks(piece_bytes) {
        link.write_all(piece).expect("sends");
    }
    link
}

/// A link whose message is to be too long is closed before the message comes. What is shorter takes memory as it comes.
/// A message whose counts are wrong is skipped.
#[test]
fn cve_2026_21863_long_messages_in_small_pieces_take_little_memory() {
    let bus = free_port();
    let number = bus.to_string();
    let mut target = Target::start(&["--cluster-enabled", "yes", "--cluster-port", &number]);
    let other = [b'a'; 40];
    let announcing = |length: u32| with(message(4, &other, b""), 4, &length.to_be_bytes());
    for length in [17 << 20, 1 << 30, 1 << 31, u32::MAX] {
        let mut link = send_in_pieces(bus, &announcing(length)[..8], 1);
        let mut rest = Vec::new();
        link.read_to_end(&mut rest).expect("the link is closed");
        assert!(rest.is_empty(), "{length} bytes were announced");
        target.serves();
    }
    let long = [announcing(15 << 20), vec![b'x'; 200_000]].concat();
    let links: Vec<TcpStream> = (0..64).map(|number| send_in_pieces(bus, &long, 500 + number)).collect();
    target.serves_within(200 << 20);
    drop(links);
    let ping = message(0, &other, b"");
    for wrong in [
        with(message(0, &other, &[0; 300]), 14, &u16::MAX.to_be_bytes()),
        message(4, &other, &[0xff; 300]),
        message(10, &other, &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe, b'c', b'p']),
    ] {
        // Behind it, the node answers a PING.
        let mut link = send_in_pieces(bus, &[wrong, ping.clone()].concat(), 7);
        let mut pong = vec![0; HEADER];
        link.read_exact(&mut pong).expect("receives");
        assert!(pong.starts_with(b"RCmb") && pong[12..14] == [0, 1]);
        target.serves();
    }
    assert!(target.witness.call(&["CLUSTER", "NODES"]).contains("myself,master"));
    target.serves_within(200 << 20);
}

/// CVE-2017-15047: a cluster configuration file may hold anything. The server starts, or says what is wrong.
#[test]
fn cve_2017_15047_a_damaged_cluster_configuration_file_is_an_error() {
    let id = "0123456789012345678901234567890123456789";
    let migrating = format!("{id} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected [16384->-{id}]\n");
    let lines = [
        format!("{id} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-16384\n"),
        format!("{id} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 99999999999\n"),
        format!("{id} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected -5-3\n"),
        format!("{id} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected [-1-<-{id}]\n"),
        format!("{id} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected [5\n"),
        migrating,
        format!("{id} 127.0.0.1:7000@17000 myself,master {id} 0 0 1 connected\n"),
        format!("{id} x\n"),
        format!("vars currentEpoch\n{id}\n"),
        "\0\u{1}\n".to_owned(),
    ];
    for (index, line) in lines.iter().enumerate() {
        let directory = std::env::temp_dir().join(format!("weft-nodes-{}-{index}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("makes a directory");
        std::fs::write(directory.join("nodes.conf"), line).expect("writes");
        let (port, bus) = (free_port(), free_port().to_string());
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_weft-server"))
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--dir",
            ])
            .arg(&directory)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("starts");
        // A server that listens and then finds the fault closes the connection.
        let answers = || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            stream.write_all(b"PING\r\n").ok()?;
            let mut reply = [0; 7];
            stream.read_exact(&mut reply).ok()?;
            (reply == *b"+PONG\r\n").then_some(())
        };
        wait_until("the server answers or ends", || {
            child.try_wait().expect("is waited for").is_some() || answers().is_some()
        });
        if let Some(status) = child.try_wait().expect("is waited for") {
            assert_eq!(status.code(), Some(1), "{line:?}");
        }
        let _ = child.kill();
        let _ = child.wait();
        std::fs::remove_dir_all(&directory).expect("removes");
    }
}
