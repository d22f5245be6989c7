//! What the server knows about modules besides what they have registered.

use std::time::Duration;

use std::sync::Arc;

use weft_base::ThreadIndex;
use weft_modules::session::idle::serve_idle_turn;
use weft_modules::session::lending::LentJob;
use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::Mutex;
use weft_os::sync::mpsc;

use super::blocked_calls::BlockedCalls;
use super::permit::Permit;
use super::{HOME_WORKER, Message, Server};
use crate::keyspace::Exclusive;

/// The state of modules.
#[derive(Default)]
pub struct Modules {
    /// The calls that are blocked.
    pub calls: BlockedCalls,
    /// The permit of serial commands.
    pub serial_permit: Permit,
    /// The text that clients get while a module gives way to them; `None` for the usual one.
    busy_reply: Mutex<Option<String>>,
    /// `true` while the modules of the configuration are loaded.
    is_starting: AtomicBool,
    /// `true` if the home worker was asked to evict keys, and has not begun.
    pub is_eviction_requested: AtomicBool,
    /// The home worker, if it waits for the thread that has exclusive mode, for code that has nothing of that thread
    /// but the keyspace.
    pub exclusive_home: Mutex<Option<HomeStandby>>,
    /// `true` while data are loaded by a thread that excludes runs on script threads.
    pub load_excludes_runs: AtomicBool,
}

impl Modules {
    /// Returns the text that clients get while a module gives way to them, without the code; `None` for the usual one.
    pub fn busy_reply(&self) -> Option<String> {
        self.busy_reply.lock().clone()
    }

    /// Sets the text that clients get while a module gives way to them.
    pub fn set_busy_reply(&self, text: Option<String>) {
        *self.busy_reply.lock() = text;
    }

    /// Returns `true` while the modules of the configuration are loaded.
    pub fn is_starting(&self) -> bool {
        self.is_starting.load(Ordering::Relaxed)
    }

    /// Records that the modules of the configuration are being loaded, or have been.
    pub fn set_starting(&self, is_starting: bool) {
        self.is_starting.store(is_starting, Ordering::Relaxed);
    }
}

/// The jobs of a thread for which the home worker stands by.
pub struct StandbyJobs {
    jobs: mpsc::Receiver<LentJob>,
    is_ready: mpsc::SyncSender<()>,
}

impl StandbyJobs {
    /// Runs the jobs until there are no more.
    pub fn run_all(self) {
        // The other thread waits for this, unless the server ends.
        if self.is_ready.send(()).is_ok() {
            self.jobs.iter().for_each(|job| job());
        }
    }
}

/// The interval at which a thread tries to exclude runs on script threads again.
const EXCLUSION_INTERVAL: Duration = Duration::from_millis(1);
/// The interval at which a thread that waits for the home worker checks if it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The home worker, which waits for the jobs of one thread. It goes on when this is dropped.
pub struct HomeStandby {
    jobs: mpsc::Sender<LentJob>,
}

impl HomeStandby {
    /// Lets the home worker run a job.
    pub fn run(&self, job: LentJob) {
        // The home worker waits for jobs until the sender is dropped.
        let _ = self.jobs.send(job);
    }
}

impl Server {
    /// Serves the connections of this thread, if it has any, while data are loaded and the gate is open for a moment.
    pub fn serve_while_loading(&self) {
        match self.modules.load_excludes_runs.load(Ordering::Relaxed) {
            true => self.admit_runs_for(serve_idle_turn),
            false => serve_idle_turn(),
        }
    }

    /// Ends the exclusion of runs on script threads, calls `serve`, and excludes runs again. The gate is open.
    ///
    /// Another thread may have excluded runs in the meantime. It may wait at the gate, so the gate stays open until it
    /// is done, or for the home worker, so `serve` is called again: it reads the mail of this worker.
    pub fn admit_runs_for(&self, mut serve: impl FnMut()) {
        let running = &self.scripting.running;
        running.end_exclusion();
        serve();
        let requester = running.new_requester();
        while !running.try_exclude_runs(requester) {
            weft_os::thread::sleep(EXCLUSION_INTERVAL);
            serve();
        }
    }

    /// Calls `run` where the code of modules may run: on the home worker, if it was summoned ([`Self::summon_home`]).
    /// The caller's thread, which counts in the row `thread_index`, has exclusive mode.
    pub fn call_modules(
        self: &Arc<Self>,
        all: &mut Exclusive<'_>,
        thread_index: ThreadIndex,
        home: &mut Option<HomeStandby>,
        run: &mut (dyn FnMut() + Send),
    ) {
        match self.persistence.call_modules.get() {
            Some(call) => call(self, all, thread_index, home, run),
            None => run(),
        }
    }

    /// Does the same for code that does not have the standby of the home worker.
    pub fn call_modules_in_exclusive_mode<R: Send>(
        self: &Arc<Self>,
        all: &mut Exclusive<'_>,
        thread_index: ThreadIndex,
        run: impl FnOnce() -> R + Send,
    ) -> R {
        let mut home = self.modules.exclusive_home.lock().take();
        let result = self.call_modules_once(all, thread_index, &mut home, run);
        *self.modules.exclusive_home.lock() = home;
        result
    }

    /// Does the same as [`Self::call_modules`] for a function that is consumed, and returns its result.
    pub fn call_modules_once<R: Send>(
        self: &Arc<Self>,
        all: &mut Exclusive<'_>,
        thread_index: ThreadIndex,
        home: &mut Option<HomeStandby>,
        run: impl FnOnce() -> R + Send,
    ) -> R {
        let (mut run, mut result) = (Some(run), None);
        self.call_modules(all, thread_index, home, &mut || {
            if let Some(run) = run.take() {
                result = Some(run());
            }
        });
        result.unwrap_or_else(|| unreachable!("a call is made once"))
    }

    /// Lets the home worker do nothing but the jobs of this thread, until the result is dropped. So the thread may
    /// enter exclusive mode and have code of modules run on the home worker, which does not wait at the gate meanwhile.
    ///
    /// Waits until the home worker stands by: only then may the caller wait at the gate, because the home worker may
    /// stand by for another thread that waits there. Returns `None` if the server ends before.
    ///
    /// The caller is not the home worker, is not inside the gate, and holds no lease.
    pub fn summon_home(&self) -> Option<HomeStandby> {
        let (sender, jobs) = mpsc::channel();
        let (is_ready, ready) = mpsc::sync_channel(1);
        self.worker(HOME_WORKER)
            .send(Message::StandBy(StandbyJobs { jobs, is_ready }));
        loop {
            match ready.recv_timeout(POLL_INTERVAL) {
                Ok(()) => return Some(HomeStandby { jobs: sender }),
                Err(mpsc::RecvTimeoutError::Timeout) if !self.worker(HOME_WORKER).has_ended() => {}
                Err(_) => return None,
            }
        }
    }
}
