//! Jobs that modules run after the unit in which they were notified of an event. What they write is a part of the unit.
//!
//! There is one queue in the process. It belongs to the thread in exclusive mode: only such a thread adds jobs and runs
//! them, when its unit ends. Slot-safe and serial commands under leases do neither.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use weft_os::atomic::{AtomicUsize, Ordering};
use weft_os::sync::Mutex;

use super::Module;
use crate::invoke;
use crate::objects::context::{Caller, Context};
use crate::session::Session;

/// A job (`ValkeyModulePostNotificationJobFunc`).
pub type JobFunction = unsafe extern "C" fn(*mut Context, *mut c_void);
/// A function that frees the data of a job.
pub type FreeFunction = unsafe extern "C" fn(*mut c_void);

/// A job that has not run yet.
struct Job {
    module: Arc<Module>,
    db: u32,
    function: JobFunction,
    data: *mut c_void,
    free: Option<FreeFunction>,
}

// SAFETY: the data are only passed back to the module.
unsafe impl Send for Job {}

static JOBS: Mutex<VecDeque<Job>> = Mutex::new(VecDeque::new());
/// The number of jobs that wait.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Adds a job. The caller is in exclusive mode.
pub fn add(module: &Arc<Module>, db: u32, function: JobFunction, data: *mut c_void, free: Option<FreeFunction>) {
    JOBS.lock().push_back(Job {
        module: module.clone(),
        db,
        function,
        data,
        free,
    });
    WAITING.fetch_add(1, Ordering::AcqRel);
}

/// Returns `true` if there are jobs.
#[inline]
pub fn are_waiting() -> bool {
    WAITING.load(Ordering::Acquire) > 0
}

/// Runs all jobs, and those that they add. The caller is in exclusive mode. A module whose jobs add jobs for ever is
/// wrong.
pub fn run_all(session: &mut dyn Session) {
    loop {
        let next = JOBS.lock().pop_front();
        let Some(job) = next else {
            return;
        };
        WAITING.fetch_sub(1, Ordering::AcqRel);
        if job.module.is_unloaded() {
            continue;
        }
        let caller = Caller {
            db: job.db,
            ..Caller::none()
        };
        let context = Context::new(job.module.clone(), caller);
        context.reply_state.discard();
        invoke::call_into(&job.module, session, || {
            // SAFETY: the context lives until the function has returned; the data are the module's.
            unsafe {
                (job.function)(context.as_pointer(), job.data);
                if let Some(free) = job.free {
                    free(job.data);
                }
            }
            drop(context);
        });
    }
}
