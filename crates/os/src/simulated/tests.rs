//! Tests that need a simulation. A process has one, so they are parts of one test.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{descriptor, disk, net, scheduler, thread};

#[test]
fn connections_threads_and_the_disk_of_a_simulation_do_not_depend_on_the_kernel() {
    scheduler::start(1, 10_000_000);
    connections_are_made_and_deliver_at_once();
    addresses_are_those_of_the_simulation();
    other_addresses_and_threads_use_the_kernel();
    a_thread_ends_before_another_one_runs();
    a_sync_that_has_ended_stays_valid_during_others();
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn connections_are_made_and_deliver_at_once() {
    let connect = || net::simulated_connection(loopback(20_000)).unwrap();
    let listen = || net::simulated_listener(loopback(20_000), 16).unwrap();
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let listener = listen().unwrap();
    assert_eq!(listen().unwrap_err().kind(), ErrorKind::AddrInUse);

    let mut client = connect().unwrap();
    client.write_all(b"request").unwrap();
    let mut served = TcpStream::from(rustix::net::accept(&listener).unwrap());
    let mut received = [0; 16];
    assert_eq!(served.read(&mut received).unwrap(), 7);
    served.write_all(b"reply").unwrap();
    assert_eq!(client.read(&mut received).unwrap(), 5);
    drop(served);
    assert_eq!(client.read(&mut received).unwrap(), 0);

    drop(listener);
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(listen().is_ok(), "the port is free again");
    assert_eq!(descriptor::writable_part(&[0; 100_000]).len(), 32 * 1024);
}

fn addresses_are_those_of_the_simulation() {
    let at = loopback(20_001);
    let listener = net::simulated_listener(at, 16).unwrap().unwrap();
    assert_eq!(net::listener_addr(&listener).unwrap(), at);
    let connect = || {
        let client = net::simulated_connection(at).unwrap().unwrap();
        (client, TcpStream::from(rustix::net::accept(&listener).unwrap()))
    };
    let ((first, first_served), (second, _second_served)) = (connect(), connect());
    assert_eq!(net::peer_addr(&first).unwrap(), at);
    assert_eq!(net::local_addr(&first_served).unwrap(), at);
    let own = net::local_addr(&first).unwrap();
    assert!(own.ip().is_loopback() && own.port() >= 40_000, "{own}");
    assert_eq!(net::peer_addr(&first_served).unwrap(), own);
    assert_ne!(net::local_addr(&second).unwrap(), own, "ports differ");
    assert!(!net::is_tcp(&first) && !net::is_tcp(&first_served));
    drop(first);
    assert_eq!(
        net::peer_addr(&first_served).unwrap(),
        own,
        "the address outlives its socket"
    );

    let any = net::simulated_listener(loopback(0), 16).unwrap().unwrap();
    let port = net::listener_addr(&any).unwrap().port();
    assert!(net::simulated_connection(loopback(port)).unwrap().is_ok());
}

fn other_addresses_and_threads_use_the_kernel() {
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 20_002));
    assert!(net::simulated_listener(everywhere, 16).is_none());
    let outside = std::thread::spawn(|| net::simulated_connection(loopback(20_002)).is_none());
    assert!(outside.join().unwrap(), "the thread is not simulated");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).unwrap();
    assert!(net::is_tcp(&client));
    assert_eq!(net::listener_addr(&listener).unwrap(), address);
    assert_eq!(net::peer_addr(&client).unwrap(), address);
    assert_eq!(net::local_addr(&client).unwrap(), client.local_addr().unwrap());
}

static HAS_DROPPED: AtomicBool = AtomicBool::new(false);
static LISTED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A thread-local variable whose destructor takes long.
struct SlowToDrop;

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        // Another thread runs meanwhile, if the scheduler takes this one for ended.
        std::thread::sleep(Duration::from_millis(50));
        HAS_DROPPED.store(true, Ordering::SeqCst);
    }
}

thread_local! {
    static SLOW_TO_DROP: SlowToDrop = const { SlowToDrop };
}

fn a_thread_ends_before_another_one_runs() {
    let thread = thread::spawn(|| {
        SLOW_TO_DROP.with(|_| ());
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        *LISTED.lock().unwrap() = Some(Path::new("/proc").join(link));
    });
    while !thread.is_finished() {
        thread::yield_now();
    }
    assert!(HAS_DROPPED.load(Ordering::SeqCst));
    let listed = LISTED.lock().unwrap().take();
    assert!(!listed.unwrap().exists(), "the kernel has removed the thread");
    thread.join().unwrap();
}

/// Threads append to one file and sync it, each over a description of its own, so that their syncs overlap.
fn a_sync_that_has_ended_stays_valid_during_others() {
    const THREADS: usize = 3;
    const APPENDS: usize = 20;
    let base = std::env::temp_dir().join(format!("weft-os-disk-{}", std::process::id()));
    let (folder, name) = (base.join("files"), "increment");
    std::fs::create_dir_all(&folder).unwrap();
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (folder, left) = (folder.clone(), base.join(format!("left-{number}")));
            thread::spawn(move || {
                let mut file = File::options()
                    .append(true)
                    .create(true)
                    .open(folder.join(name))
                    .unwrap();
                for _ in 0..APPENDS {
                    file.write_all(b"command").unwrap();
                    let written = file.metadata().unwrap().len();
                    disk::sync_data(&file).unwrap();
                    // Syncs of the other threads end meanwhile.
                    thread::sleep(Duration::from_millis(1));
                    disk::copy_synced(&folder, &left).unwrap();
                    let kept = std::fs::metadata(left.join(name)).unwrap().len();
                    assert!(kept >= written, "{kept} of {written} synced bytes are left");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    std::fs::remove_dir_all(&base).unwrap();
}
