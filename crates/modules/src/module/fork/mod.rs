//! The child process of a module (`Fork`): a copy of the whole process at one moment, in which the module may work on
//! data that does not change.
//!
//! A copy of a process with many threads has only the thread that forks, and every lock as it was. So a module forks in
//! exclusive mode: no other thread changes data then. The allocators of this program and of the C library have no lock
//! taken in the child. Other locks may be taken for good, by a thread that the child does not have: those of the
//! configuration, of users, of statistics.
//!
//! ```text
//!   home: Fork ─┬─ parent ─▶ thread "weft-fork" waits for the child ─▶ job at home: the handler of the module
//!               │                 ▲
//!               └─ child ─▶ module code ─▶ ExitFromChild ── figures in shared memory ──▶ INFO
//!                      └─ thread "weft-child": ends the child on SIGUSR1, or when the parent is gone
//! ```
//!
//! 1. There is one child at a time.
//! 2. The child runs code of the module only, and ends with `_exit`. If it returns to the server, it ends.
//! 3. The child closes the sockets on which the server listens, and those of clients: their ends must be seen, and the
//!    ports be free, although the child lives.

mod child;
mod report;

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use weft_os::atomic::{AtomicU64, Ordering};
use weft_os::sync::{Condvar, Mutex};
use weft_os::time::Instant;

pub use child::{exit_from_child, is_child, report_progress, return_from_child};
use report::SharedReport;

use super::Module;
use crate::errno;
use crate::invoke;
use crate::session;

/// The function that is called once the child has ended (`ValkeyModuleForkDoneHandler`).
pub type DoneFunction = unsafe extern "C" fn(c_int, c_int, *mut c_void);

/// The exit code of a child that was ended by SIGUSR1.
pub const KILLED_EXIT_CODE: c_int = 255;
/// The time after which a child that does not end by itself is killed.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// The child, as its parent knows it.
struct Child {
    pid: libc::pid_t,
    module: Option<Arc<Module>>,
    done: Option<DoneFunction>,
    data: usize,
    report: SharedReport,
    /// `true` if a thread kills it and waits for its end. The module's function is not called then.
    is_killed: bool,
    /// `true` once it was waited for.
    has_ended: bool,
}

static CHILD: Mutex<Option<Child>> = Mutex::new(None);
static CHILD_ENDED: Condvar = Condvar::new();
/// The memory that the last child has had for itself, in bytes.
static LAST_PRIVATE_BYTES: AtomicU64 = AtomicU64::new(0);

/// What INFO shows.
#[derive(Clone, Copy, Default, Debug)]
pub struct ForkFigures {
    /// `true` while there is a child.
    pub is_running: bool,
    /// The progress that the child has reported, in percent.
    pub percent: f64,
    /// The memory that the last child had for itself at its end, in bytes.
    pub last_private_bytes: u64,
}

/// Returns what INFO shows.
pub fn figures() -> ForkFigures {
    if is_child() {
        return ForkFigures::default();
    }
    let child = CHILD.lock();
    ForkFigures {
        is_running: child.is_some(),
        percent: child.as_ref().map_or(0.0, |child| child.report.progress() * 100.0),
        last_private_bytes: LAST_PRIVATE_BYTES.load(Ordering::Relaxed),
    }
}

/// Forks. Returns the id of the child, 0 in the child, and -1 with an error number if there is none.
pub fn fork(done: Option<DoneFunction>, data: *mut c_void) -> libc::pid_t {
    match try_fork(done, data) {
        Ok(pid) => pid,
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(libc::EAGAIN);
            log::warn!("Can't fork for module: {}", text_of(number));
            errno::set(number);
            -1
        }
    }
}

/// Returns the text of an error number, without the number.
fn text_of(number: c_int) -> String {
    let text = io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn try_fork(done: Option<DoneFunction>, data: *mut c_void) -> io::Result<libc::pid_t> {
    let is_exclusive = session::current(|session| session.is_exclusive()).unwrap_or(false);
    if !is_exclusive {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    if is_child() {
        return Err(io::Error::from_raw_os_error(libc::EALREADY));
    }
    let mut running = CHILD.lock();
    if running.is_some() {
        return Err(io::Error::from_raw_os_error(libc::EALREADY));
    }
    let report = SharedReport::new()?;
    let parent = std::process::id();
    let started = Instant::now();
    // SAFETY: the child runs only code of the module and what this file describes (rules 2 and 3 above).
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // To release the lock, the child might need one that a thread of the parent holds. It does not lock again.
            std::mem::forget(running);
            child::begin(report, parent);
            Ok(0)
        }
        pid => {
            let micros = started.elapsed().as_micros() as u64;
            if let Some(host) = session::host() {
                host.note_fork(micros);
            }
            log::debug!("Module fork started pid: {pid}, after {micros} microseconds");
            *running = Some(Child {
                pid,
                module: invoke::running_module(),
                done,
                data: data as usize,
                report,
                is_killed: false,
                has_ended: false,
            });
            drop(running);
            wait_in_background(pid);
            Ok(pid)
        }
    }
}

/// Waits for the child on a thread of its own, and then has the module's function called at home.
fn wait_in_background(pid: libc::pid_t) {
    let wait = move || {
        let status = wait_for(pid);
        end_child(pid, status);
    };
    let spawned = weft_os::thread::Builder::new().name("weft-fork".to_owned()).spawn(wait);
    if let Err(error) = spawned {
        log::warn!("The end of the child of a module is not noticed: {error}");
    }
}

/// Waits for a process. Returns its exit code, and the signal that has ended it.
fn wait_for(pid: libc::pid_t) -> (c_int, c_int) {
    let mut status = 0;
    loop {
        // SAFETY: the status is a place for a number.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if waited == pid {
            break;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return (-1, 0);
        }
    }
    if libc::WIFSIGNALED(status) {
        return (-1, libc::WTERMSIG(status));
    }
    match libc::WEXITSTATUS(status) {
        KILLED_EXIT_CODE => (1, libc::SIGUSR1),
        code => (code, 0),
    }
}

/// Records that the child has ended, and sends the job that calls the module's function, unless a thread that kills the
/// child waits for this.
fn end_child(pid: libc::pid_t, (code, signal): (c_int, c_int)) {
    let mut running = CHILD.lock();
    let Some(child) = running.as_mut().filter(|child| child.pid == pid) else {
        return;
    };
    child.has_ended = true;
    LAST_PRIVATE_BYTES.store(child.report.private_bytes(), Ordering::Relaxed);
    if child.is_killed {
        CHILD_ENDED.notify_all();
        return;
    }
    log::info!("Module fork exited pid: {pid}, retcode: {code}, bysignal: {signal}");
    let Some(done) = child.done.take() else {
        *running = None;
        return;
    };
    let (data, module) = (child.data, child.module.clone());
    drop(running);
    let Some(host) = session::host() else {
        return;
    };
    host.run_with_session_soon(Box::new(move |session| {
        forget(pid);
        let call = || {
            // SAFETY: the function is the module's, which is loaded; the data are its own.
            unsafe { done(code, signal, data as *mut c_void) };
        };
        match module {
            Some(module) if module.is_unloaded() => {}
            Some(module) => invoke::call_into(&module, session, call),
            None => session::with_session(session, call),
        }
    }));
}

fn forget(pid: libc::pid_t) {
    let mut running = CHILD.lock();
    running.take_if(|child| child.pid == pid);
}

/// Ends the child, waits for its end, and does not call the module's function. Returns `false` if there is no such
/// child.
pub fn kill(pid: libc::pid_t) -> bool {
    if is_child() {
        return false;
    }
    let mut running = CHILD.lock();
    let Some(child) = running
        .as_mut()
        .filter(|child| child.pid == pid && !child.is_killed && !child.has_ended)
    else {
        return false;
    };
    log::debug!("Killing running module fork child: {pid}");
    child.is_killed = true;
    send(pid, libc::SIGUSR1);
    let deadline = Instant::now() + KILL_PATIENCE;
    let is_running = |running: &Option<Child>| running.as_ref().is_some_and(|child| !child.has_ended);
    while is_running(&running) {
        if CHILD_ENDED.wait_until(&mut running, deadline).timed_out() {
            send(pid, libc::SIGKILL);
            CHILD_ENDED.wait_while(&mut running, |running| is_running(running));
        }
    }
    running.take_if(|child| child.pid == pid);
    true
}

/// Ends the child of a module that is being unloaded.
pub fn kill_child_of(owner: &Arc<Module>) {
    let is_its = |child: &&Child| child.module.as_ref().is_some_and(|module| Arc::ptr_eq(module, owner));
    let pid = CHILD.lock().as_ref().filter(is_its).map(|child| child.pid);
    if let Some(pid) = pid {
        kill(pid);
    }
}

fn send(pid: libc::pid_t, signal: c_int) {
    // SAFETY: the process is a child that was not waited for, so the number is its own.
    unsafe { libc::kill(pid, signal) };
}
