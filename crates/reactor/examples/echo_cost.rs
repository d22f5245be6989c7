//! Measures the reactor's cost per request: an echo server on one thread, clients on another.
//!
//! `echo_cost [connections] [request bytes] [seconds]` prints requests per second and the server thread's CPU time per
//! request. Under `strace -cf` it shows the system calls of the reactor.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use weft_reactor::{Event, Listener, Output, Reactor, ReceiveOutcome, thread_cpu_us};

fn main() -> std::io::Result<()> {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let argument = |at: usize, otherwise| arguments.get(at).copied().unwrap_or(otherwise);
    let (connections, bytes, seconds) = (argument(0, 50), argument(1, 64), argument(2, 3));
    let listener = Listener::tcp(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, 512)?;
    let address = listener.local_address().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    let server = thread::spawn(move || serve(listener, connections));
    let begun = Instant::now();
    let requests = ask(address, connections, bytes, Duration::from_secs(seconds as u64))?;
    let passed = begun.elapsed();
    let cpu_us = server.join().map_err(|_| std::io::ErrorKind::Other)??;
    println!(
        "{connections} connections, {bytes} bytes: {:.0} requests/s, {:.2} us of server CPU per request",
        requests as f64 / passed.as_secs_f64(),
        cpu_us as f64 / requests as f64
    );
    Ok(())
}

/// Echoes until all connections have been accepted and closed. Returns the CPU time used, in microseconds.
fn serve(listener: Listener, connections: usize) -> std::io::Result<u64> {
    let mut reactor = Reactor::new()?;
    reactor.register_listener(0, listener)?;
    let (mut events, mut output) = (Vec::new(), Output::new());
    let (mut arrived, mut gone) = (0, 0);
    while gone < connections {
        reactor.wait(None, &mut events, 128)?;
        for event in events.drain(..) {
            match event {
                Event::Accepted(_, socket) => {
                    arrived += 1;
                    socket.set_nodelay(true)?;
                    reactor.register(arrived, socket)?;
                }
                Event::Readable(token) => match reactor.receive(token, &mut output.bytes, 16 * 1024)? {
                    ReceiveOutcome::Bytes { .. } => {
                        reactor.send(token, &mut output)?;
                    }
                    ReceiveOutcome::WouldBlock => {}
                    ReceiveOutcome::Closed => {
                        reactor.deregister(token);
                        gone += 1;
                    }
                },
                _ => {}
            }
        }
    }
    Ok(thread_cpu_us())
}

/// Keeps one request of every connection outstanding. Returns the number of answered requests.
fn ask(address: SocketAddr, connections: usize, bytes: usize, time: Duration) -> std::io::Result<u64> {
    let streams: std::io::Result<Vec<_>> = (0..connections).map(|_| TcpStream::connect(address)).collect();
    let mut streams = streams?;
    let (request, mut reply) = (vec![b'x'; bytes], vec![0; bytes]);
    let (begun, mut requests) = (Instant::now(), 0);
    while begun.elapsed() < time {
        for stream in &mut streams {
            stream.write_all(&request)?;
        }
        for stream in &mut streams {
            stream.read_exact(&mut reply)?;
            requests += 1;
        }
    }
    Ok(requests)
}
