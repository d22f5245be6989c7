//! A function for modules in a simulation, which knows no threads but those that it has started.

use std::ffi::{c_int, c_void};

use weft_os::thread;

use super::{ERR, Functions, OK};
use crate::functions;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![("StartThread", start_thread)];

/// The argument of a thread.
struct Argument(*mut c_void);

// SAFETY: the module gives the argument away to its thread.
unsafe impl Send for Argument {}

impl Argument {
    fn into_pointer(self) -> *mut c_void {
        self.0
    }
}

/// Starts a thread that calls a function of the module.
unsafe extern "C" fn start_thread(body: Option<unsafe extern "C" fn(*mut c_void)>, argument: *mut c_void) -> c_int {
    let Some(body) = body else {
        return ERR;
    };
    let argument = Argument(argument);
    let run = move || {
        // SAFETY: the module passes an argument that its function can take.
        unsafe { body(argument.into_pointer()) };
    };
    let started = thread::Builder::new().name("module-thread".to_owned()).spawn(run);
    if started.is_ok() { OK } else { ERR }
}
