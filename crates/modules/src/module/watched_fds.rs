//! File descriptors that modules watch, and functions that they want called on the home worker.
//!
//! The thread "module-fds" waits for events. It has each reported once, and watches the descriptor again after the home
//! worker has called the module, which may have removed it, or left something to be read.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, LazyLock};

use weft_os::sync::{Mutex, OnceLock};

use super::Module;
use crate::invoke;
use crate::session::{self, Session, with_session};

/// `VALKEYMODULE_EVENTLOOP_READABLE`.
pub const READABLE: c_int = 1;
/// `VALKEYMODULE_EVENTLOOP_WRITABLE`.
pub const WRITABLE: c_int = 2;

/// The most events that the thread takes at once.
const MAX_EVENTS: usize = 64;

/// A function for the events of a descriptor (`ValkeyModuleEventLoopFunc`).
pub type EventFunction = unsafe extern "C" fn(c_int, *mut c_void, c_int);
/// A function that is called once (`ValkeyModuleEventLoopOneShotFunc`).
pub type OneShotFunction = unsafe extern "C" fn(*mut c_void);

/// The functions for one descriptor.
#[derive(Clone)]
struct Watched {
    module: Option<Arc<Module>>,
    readable: Option<EventFunction>,
    writable: Option<EventFunction>,
    data: *mut c_void,
}

// SAFETY: the data are only passed back to the module.
unsafe impl Send for Watched {}

impl Watched {
    fn events(&self) -> u32 {
        let mut events = libc::EPOLLONESHOT;
        if self.readable.is_some() {
            events |= libc::EPOLLIN;
        }
        if self.writable.is_some() {
            events |= libc::EPOLLOUT;
        }
        events as u32
    }
}

static WATCHED: LazyLock<Mutex<HashMap<c_int, Watched>>> = LazyLock::new(Mutex::default);
static EPOLL: OnceLock<OwnedFd> = OnceLock::new();

/// Starts the thread, unless it runs.
fn epoll() -> std::io::Result<&'static OwnedFd> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock();
    if let Some(epoll) = EPOLL.get() {
        return Ok(epoll);
    }
    // SAFETY: the function only creates a descriptor.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and belongs to nothing else.
    let epoll = EPOLL.get_or_init(|| unsafe { OwnedFd::from_raw_fd(fd) });
    weft_os::thread::Builder::new()
        .name("module-fds".to_owned())
        .spawn(wait_for_events)?;
    Ok(epoll)
}

/// Registers a descriptor for its functions, or removes it if there are none.
fn update(fd: c_int, before: bool, watched: Option<&Watched>) -> std::io::Result<()> {
    let epoll = epoll()?;
    let mut event = libc::epoll_event {
        events: watched.map_or(0, Watched::events),
        u64: fd as u64,
    };
    let operation = match (before, watched.is_some()) {
        (false, true) => libc::EPOLL_CTL_ADD,
        (true, true) => libc::EPOLL_CTL_MOD,
        (_, false) => libc::EPOLL_CTL_DEL,
    };
    // SAFETY: both descriptors are open or the call fails, and the event lives until it returns.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Watches a descriptor for the events of `mask`.
///
/// # Errors
/// Those of `epoll_ctl`.
pub fn add(fd: c_int, mask: c_int, function: EventFunction, data: *mut c_void) -> std::io::Result<()> {
    let mut all = WATCHED.lock();
    let before = all.get(&fd).cloned();
    let mut watched = before.clone().unwrap_or(Watched {
        module: None,
        readable: None,
        writable: None,
        data,
    });
    watched.module = invoke::running_module().or(watched.module);
    watched.data = data;
    if mask & READABLE != 0 {
        watched.readable = Some(function);
    }
    if mask & WRITABLE != 0 {
        watched.writable = Some(function);
    }
    match update(fd, before.is_some(), Some(&watched)) {
        Ok(()) => {}
        // The module has closed the descriptor and opened another one with the same number.
        Err(error) if before.is_some() && error.raw_os_error() == Some(libc::ENOENT) => {
            update(fd, false, Some(&watched))?;
        }
        Err(error) => return Err(error),
    }
    all.insert(fd, watched);
    Ok(())
}

/// Stops watching a descriptor for the events of `mask`.
pub fn remove(fd: c_int, mask: c_int) {
    let mut all = WATCHED.lock();
    let Some(watched) = all.get_mut(&fd) else {
        return;
    };
    if mask & READABLE != 0 {
        watched.readable = None;
    }
    if mask & WRITABLE != 0 {
        watched.writable = None;
    }
    let left = (watched.readable.is_some() || watched.writable.is_some()).then(|| watched.clone());
    // The module may have closed the descriptor, which removes it, too.
    let _ = update(fd, true, left.as_ref());
    if left.is_none() {
        all.remove(&fd);
    }
}

/// The job of the thread.
fn wait_for_events() {
    let Some(epoll) = EPOLL.get() else {
        return;
    };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_EVENTS];
    loop {
        // SAFETY: the events live until the function returns, and there are as many as it is told.
        let count = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), MAX_EVENTS as c_int, -1) };
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            let (fd, flags) = (event.u64 as c_int, event.events as c_int);
            let failed = flags & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            let mut mask = 0;
            if failed || flags & libc::EPOLLIN != 0 {
                mask |= READABLE;
            }
            if failed || flags & libc::EPOLLOUT != 0 {
                mask |= WRITABLE;
            }
            if let Some(host) = session::host() {
                host.run_with_session_soon(Box::new(move |session| handle(session, fd, mask)));
            }
        }
    }
}

/// Calls the functions for the events of a descriptor, and watches it again.
fn handle(session: &mut dyn Session, fd: c_int, mask: c_int) {
    for event in [READABLE, WRITABLE] {
        // The function for the first event may have removed the other one.
        let Some(watched) = WATCHED.lock().get(&fd).cloned() else {
            return;
        };
        let function = match event {
            READABLE => watched.readable,
            _ => watched.writable,
        };
        let Some(function) = function.filter(|_| mask & event != 0) else {
            continue;
        };
        let data = watched.data;
        // SAFETY: the function and its data are the module's.
        let call = || unsafe { function(fd, data, event) };
        match &watched.module {
            Some(module) if module.is_unloaded() => {
                remove(fd, READABLE | WRITABLE);
                return;
            }
            Some(module) => invoke::call_into(module, session, call),
            None => with_session(session, call),
        }
    }
    let all = WATCHED.lock();
    if let Some(watched) = all.get(&fd) {
        // If that fails, the module has closed the descriptor.
        let _ = update(fd, true, Some(watched));
    }
}

/// A pointer on its way to the home worker.
struct Data(*mut c_void);

// SAFETY: the data are only passed back to the module.
unsafe impl Send for Data {}

/// Calls a function soon, on the home worker.
pub fn call_soon(function: OneShotFunction, data: *mut c_void) {
    let (data, module) = (Data(data), invoke::running_module());
    let Some(host) = session::host() else {
        return;
    };
    host.run_with_session_soon(Box::new(move |session| {
        let data = data;
        // SAFETY: the function and its data are the module's.
        let call = || unsafe { function(data.0) };
        match &module {
            Some(module) if module.is_unloaded() => {}
            Some(module) => invoke::call_into(module, session, call),
            None => with_session(session, call),
        }
    }));
}
