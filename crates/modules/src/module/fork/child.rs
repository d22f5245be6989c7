//! The child process: what it does besides running code of the module.

use std::ffi::c_int;
use std::mem::size_of;
use std::sync::OnceLock;
use std::time::Duration;

use super::KILLED_EXIT_CODE;
use super::report::SharedReport;
use crate::session;

/// The report to the parent; only a child has one.
static REPORT: OnceLock<SharedReport> = OnceLock::new();

/// The interval at which the child checks that its parent is still there.
const PARENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which the child reports the memory that it has for itself.
const MEMORY_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Returns `true` in the child of a module.
#[inline]
pub fn is_child() -> bool {
    REPORT.get().is_some()
}

/// Prepares this process, which `parent` has just forked. It has one thread.
pub(super) fn begin(report: SharedReport, parent: u32) {
    let _ = REPORT.set(report);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the default action. The server's would wake a thread that this process does not have.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: as above; a report of what the threads do would be about those of the parent.
    unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
    close_server_sockets();
    if let Some(host) = session::host() {
        host.become_child();
    }
    wait_for_end_in_background(parent);
}

/// Starts a thread that ends this process on SIGUSR1, or when the parent is gone, as it may be already.
fn wait_for_end_in_background(parent: u32) {
    // SAFETY: the calls take a set of signals, which they initialise first.
    let signals = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        signals
    };
    let wait = move || {
        let interval = libc::timespec {
            tv_sec: PARENT_CHECK_INTERVAL.as_secs() as libc::time_t,
            tv_nsec: 0,
        };
        loop {
            // SAFETY: the set and the interval live until it returns.
            let signal = unsafe { libc::sigtimedwait(&raw const signals, std::ptr::null_mut(), &raw const interval) };
            // SAFETY: it has no preconditions.
            let is_orphan = unsafe { libc::getppid() } as u32 != parent;
            if signal == libc::SIGUSR1 {
                log::warn!("Received SIGUSR1 in child, exiting now.");
            }
            if signal == libc::SIGUSR1 || is_orphan {
                exit(KILLED_EXIT_CODE);
            }
        }
    };
    let spawned = std::thread::Builder::new().name("weft-child".to_owned()).spawn(wait);
    if let Err(error) = spawned {
        // The parent could not end it.
        log::warn!("The child of a module cannot start a thread: {error}");
        exit(1);
    }
}

/// An address of a socket: its family, and its port or path.
#[derive(PartialEq, Eq)]
struct SocketPlace(u16, Vec<u8>);

/// Returns the place to which a descriptor is bound, and `true` if it listens there; `None` for other descriptors.
fn place_of(descriptor: c_int) -> Option<(SocketPlace, bool)> {
    let mut listens: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the number and the length live until it returns.
    let result = unsafe {
        let value = (&raw mut listens).cast();
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_ACCEPTCONN,
            value,
            &raw mut length,
        )
    };
    if result != 0 {
        return None;
    }
    // SAFETY: an address consists of integers.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the address and its length live until it returns.
    let result = unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &raw mut length) };
    if result != 0 {
        return None;
    }
    let length = (length as usize).min(size_of::<libc::sockaddr_storage>());
    // SAFETY: these bytes are those of the address.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const address).cast::<u8>(), length) };
    let family = address.ss_family;
    let place = match c_int::from(family) {
        libc::AF_INET | libc::AF_INET6 => bytes.get(2..4)?,
        libc::AF_UNIX => bytes.get(2..).filter(|path| !path.is_empty())?,
        _ => return None,
    };
    // Addresses of both versions of IP share the ports.
    let family = if c_int::from(family) == libc::AF_UNIX {
        family
    } else {
        0
    };
    Some((SocketPlace(family, place.to_vec()), listens != 0))
}

/// Closes the sockets that listen, and those that were accepted there. Other descriptors may be the module's.
fn close_server_sockets() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<c_int>().ok());
    let sockets: Vec<(c_int, (SocketPlace, bool))> =
        numbers.filter_map(|number| Some((number, place_of(number)?))).collect();
    let is_served = |place: &SocketPlace| sockets.iter().any(|(_, (other, listens))| *listens && other == place);
    for (number, (place, _)) in &sockets {
        if is_served(place) {
            // SAFETY: nothing in this process uses the socket: the threads that have it are not here.
            unsafe { libc::close(*number) };
        }
    }
}

/// Reports the progress between 0 and 1. Has no effect in the parent.
pub fn report_progress(progress: f64) {
    thread_local! {
        static LAST_MEMORY_REPORT: std::cell::Cell<Option<std::time::Instant>> = const { std::cell::Cell::new(None) };
    }
    let Some(report) = REPORT.get() else {
        return;
    };
    report.set_progress(progress);
    let now = std::time::Instant::now();
    let is_recent = |time: std::time::Instant| now.duration_since(time) < MEMORY_REPORT_INTERVAL;
    if !LAST_MEMORY_REPORT.get().is_some_and(is_recent) {
        LAST_MEMORY_REPORT.set(Some(now));
        report.set_private_bytes(private_bytes());
    }
}

/// Ends the child. Returns `false` in the parent.
pub fn exit_from_child(code: c_int) -> bool {
    let Some(report) = REPORT.get() else {
        return false;
    };
    report.set_private_bytes(private_bytes());
    exit(code)
}

/// Ends this process if it is a child: code of the module has returned to the server, which a child must not go on to
/// be.
pub fn return_from_child(module: &str) {
    if is_child() {
        log::warn!("The child of a module ({module}) has returned to the server instead of calling ExitFromChild");
        exit(1);
    }
}

fn exit(code: c_int) -> ! {
    // SAFETY: it ends the process, without any function that was registered for its end.
    unsafe { libc::_exit(code) }
}

/// Returns the memory that this process does not share with its parent, in bytes.
fn private_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
