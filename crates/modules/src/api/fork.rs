//! Functions for the child process of a module.

use std::ffi::{c_double, c_int, c_void};

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::fork::{self, DoneFunction};

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("Fork", fork_process),
    ("SendChildHeartbeat", send_heartbeat),
    ("ExitFromChild", exit_from_child),
    ("KillForkChild", kill_child),
];

extern "C" fn fork_process(done: Option<DoneFunction>, data: *mut c_void) -> c_int {
    fork::fork(done, data)
}

extern "C" fn send_heartbeat(progress: c_double) {
    fork::report_progress(progress);
}

extern "C" fn exit_from_child(code: c_int) -> c_int {
    match fork::exit_from_child(code) {
        true => OK,
        false => ERR,
    }
}

extern "C" fn kill_child(pid: c_int) -> c_int {
    match fork::kill(pid) {
        true => OK,
        false => ERR,
    }
}
