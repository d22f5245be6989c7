//! The scheduler of a simulation: one thread runs at a time, and a seed decides which.
//!
//! # How it works
//!
//! A simulated thread is a thread of the operating system that runs only while it holds the *baton*. It passes the
//! baton on at a *step*: every operation on an atomic, a lock, a condition variable, a channel, a clock or a socket is
//! one. Most steps only count down the thread's quantum. When that is used up, the scheduler draws the next thread
//! among all that can run. A thread that waits is *blocked* on a resource, with or without a deadline, and cannot be
//! drawn.
//!
//! ```text
//!              drawn                    waits for a resource
//!   runnable ─────────▶ holds the baton ───────────────────▶ blocked
//!      ▲                    │ quantum used up                   │
//!      └────────────────────┴───────────────────────────────────┘ woken, or its deadline has passed
//! ```
//!
//! Simulated time advances a little with each step. While no thread can run it jumps to the next deadline. If there is
//! none, the threads have deadlocked, and the process ends with a report.
//!
//! Sockets are real ones of this process, which are asked without waiting. A thread that waits for sockets can run
//! again when any thread has done something to a socket ([`activity`]), and once more before the time jumps.
//!
//! A thread that was not created by [`thread::spawn`](super::thread::spawn) is not simulated: steps mean nothing to it.
//!
//! A thread begins and ends while no other one runs, so that what the allocator counts does not depend on the kernel's
//! choice of the thread that runs first. The thread that creates another one waits until that one waits for the baton.
//! A thread that ends passes the baton on in the last destructor of its thread-local variables, and the next thread
//! waits until the kernel has removed it.
//!
//! # Rules
//!
//! 1. Only the thread with the baton changes [`Core`], and it does not keep the lock of the core while it waits.
//! 2. A thread that holds a lock which the scheduler does not know reaches no step: the next thread that takes the lock
//!    would wait for ever, with the baton.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::strategy::{StallPlaces, Strategy};

/// The number of a simulated thread, in the order of creation.
pub type ThreadId = usize;

/// The exit code of a process whose threads have deadlocked.
pub const DEADLOCK_EXIT_CODE: i32 = 71;
/// The exit code of a process that took more steps than allowed.
pub const ENDLESS_EXIT_CODE: i32 = 72;

const NOT_SIMULATED: usize = usize::MAX;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(NOT_SIMULATED) };
    /// The steps until the scheduler decides again.
    static QUANTUM: Cell<u32> = const { Cell::new(0) };
    /// The number of calls of [`without_switches`] under way.
    static UNDIVIDED: Cell<u32> = const { Cell::new(0) };
    /// The quantum that was drawn.
    static DRAWN: Cell<u32> = const { Cell::new(0) };
    /// The place in the source of the latest step.
    static LATEST_PLACE: Cell<u32> = const { Cell::new(0) };
    /// Its destructor passes the baton on when the thread ends, also by a panic. It is created first, and so dropped
    /// after all others.
    static LEAVE_AT_END: LeaveAtEnd = const { LeaveAtEnd };
}

struct LeaveAtEnd;

impl Drop for LeaveAtEnd {
    fn drop(&mut self) {
        leave();
    }
}

static SCHEDULER: OnceLock<Mutex<Core>> = OnceLock::new();
/// The places in the source at which threads are stalled, if the run has some.
static STALL_PLACES: OnceLock<StallPlaces> = OnceLock::new();

/// The resource that a blocked thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// An object of this build, named by its address.
    Address(usize),
    /// Sockets. The number is that of the activities that the thread has seen.
    Sockets(u64),
    /// Its token of `unpark`.
    Park,
    /// Nothing: it sleeps.
    Time,
    /// Nothing: the scheduler has stalled it, or the disk is at work.
    Stall,
    /// The end of a thread.
    End(ThreadId),
}

/// Why a blocked thread runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// The resource may be there.
    Woken,
    /// The deadline has passed.
    TimedOut,
}

enum State {
    Runnable(Wakeup),
    Blocked { on: Resource, deadline_ns: Option<u64> },
    Finished,
}

/// The right to run, which is passed from thread to thread.
pub(super) struct Baton {
    is_here: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Baton {
    fn give(&self) {
        self.is_here.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn wait(&self) {
        while !self.is_here.swap(false, Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

struct ThreadRecord {
    name: String,
    state: State,
    baton: Arc<Baton>,
    has_park_token: bool,
    /// Set while the thread asks its sockets without knowing that there is something.
    is_asking: bool,
    /// Set when the thread has woken another one, until its next step.
    has_woken: bool,
    /// Set when the thread has read the wall clock, until its next step.
    has_read_clock: bool,
}

struct Core {
    threads: Vec<ThreadRecord>,
    strategy: Strategy,
    now_ns: u64,
    idle_ns: u64,
    unix_base_ns: u64,
    steps: u64,
    max_steps: u64,
    switches: u64,
    /// A hash over all decisions: equal for two runs that took the same way.
    trace: u64,
    /// Receives a line for each decision: the step, the time and the thread that runs next. Two runs of a seed whose
    /// digests differ are compared by it.
    trace_file: Option<BufWriter<File>>,
    activities: u64,
    /// Set once every thread that waits for sockets has been asked since the last thread ran for another reason.
    has_asked_sockets: bool,
    /// The directory in which the kernel lists the thread that has left last, until it is known to be gone.
    leaver: Option<PathBuf>,
}

/// Figures of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunFigures {
    /// The number of steps.
    pub steps: u64,
    /// The number of times that another thread was chosen.
    pub switches: u64,
    /// A hash over all decisions: equal for two runs that took the same way.
    pub trace: u64,
    /// The simulated time since the start, in nanoseconds.
    pub now_ns: u64,
    /// The part of it in which no thread could run although none was stalled, in nanoseconds.
    pub idle_ns: u64,
}

/// Starts the simulation with the calling thread as its first one.
///
/// # Panics
/// If a simulation runs already.
pub fn start(seed: u64, max_steps: u64) {
    let mut core = Core {
        threads: Vec::new(),
        strategy: Strategy::new(seed),
        now_ns: 1_000_000_000,
        idle_ns: 0,
        // 14 November 2023. Fixed, so that times in replies are equal for equal seeds.
        unix_base_ns: 1_700_000_000_000_000_000,
        steps: 0,
        max_steps,
        switches: 0,
        trace: 0xcbf2_9ce4_8422_2325,
        trace_file: std::env::var_os("WEFT_SIM_TRACE")
            .and_then(|path| File::create(path).ok())
            .map(BufWriter::new),
        activities: 0,
        has_asked_sockets: false,
        leaver: None,
    };
    fastrand::seed(core.strategy.thread_seed());
    if let Some(places) = core.strategy.stall_places() {
        let _ = STALL_PLACES.set(places);
    }
    let (id, baton) = core.add_thread("main".to_owned());
    assert!(SCHEDULER.set(Mutex::new(core)).is_ok(), "a simulation runs already");
    adopt_current_thread(id, &baton);
}

/// Returns the figures of the run so far.
pub fn figures() -> RunFigures {
    let mut core = lock();
    if let Some(file) = &mut core.trace_file {
        let _ = file.flush();
    }
    RunFigures {
        steps: core.steps,
        switches: core.switches,
        trace: core.trace,
        now_ns: core.now_ns,
        idle_ns: core.idle_ns,
    }
}

/// Returns `true` if the calling thread is simulated.
pub fn is_simulated() -> bool {
    CURRENT.get() != NOT_SIMULATED
}

/// A scheduling point.
#[inline]
#[track_caller]
pub fn step() {
    if let Some(places) = STALL_PLACES.get() {
        let place = StallPlaces::number_of(Location::caller());
        if places.contain(LATEST_PLACE.replace(place), place) {
            return decide(Reason::StallPlace(place));
        }
    }
    let left = QUANTUM.get();
    if left > 0 {
        QUANTUM.set(left - 1);
    } else {
        decide(Reason::Quantum);
    }
}

/// Runs something that must not wait, and during which no other thread may run.
pub(crate) fn without_switches<T>(run: impl FnOnce() -> T) -> T {
    UNDIVIDED.set(UNDIVIDED.get() + 1);
    let result = run();
    UNDIVIDED.set(UNDIVIDED.get() - 1);
    result
}

/// A scheduling point after which another thread runs if one can.
pub fn yield_now() {
    if is_simulated() {
        QUANTUM.set(0);
        decide(Reason::Quantum);
    }
}

/// Why the scheduler decides at a step.
#[derive(Clone, Copy)]
enum Reason {
    /// The quantum is used up, or the thread gives up the rest of it.
    Quantum,
    /// The step is at a place at which threads are stalled.
    StallPlace(u32),
}

/// The slow part of a step: draws the next thread.
#[cold]
fn decide(reason: Reason) {
    let me = CURRENT.get();
    if me == NOT_SIMULATED || UNDIVIDED.get() > 0 {
        return;
    }
    let mut core = lock();
    core.count_steps();
    let stall_ns = match reason {
        _ if std::mem::take(&mut core.threads[me].has_woken) => core.strategy.next_preemption_ns(),
        _ if std::mem::take(&mut core.threads[me].has_read_clock) => core.strategy.next_stall_after_clock_ns(),
        Reason::Quantum => core.strategy.next_stall_ns(),
        Reason::StallPlace(place) => core.strategy.next_stall_at_place_ns(place),
    };
    if let Some(stall_ns) = stall_ns {
        let until = core.now_ns + stall_ns;
        core.threads[me].state = State::Blocked {
            on: Resource::Stall,
            deadline_ns: Some(until),
        };
    }
    switch_from(me, core);
}

/// Blocks the calling thread until `on` wakes it or `timeout` has passed. Returns at once if the thread is not
/// simulated.
pub fn block(on: Resource, timeout: Option<Duration>) -> Wakeup {
    let me = CURRENT.get();
    if me == NOT_SIMULATED {
        std::thread::yield_now();
        return Wakeup::Woken;
    }
    let mut core = lock();
    core.count_steps();
    core.threads[me].is_asking &= matches!(on, Resource::Sockets(_));
    let deadline_ns = timeout.map(|timeout| core.now_ns.saturating_add(nanoseconds(timeout)));
    core.threads[me].state = State::Blocked { on, deadline_ns };
    switch_from(me, core)
}

/// Keeps the calling thread for as long as a disk takes for a sync.
pub(super) fn wait_for_disk() {
    if !is_simulated() || UNDIVIDED.get() > 0 {
        return;
    }
    step();
    let took_ns = lock().strategy.next_sync_ns();
    if took_ns > 0 {
        block(Resource::Stall, Some(Duration::from_nanos(took_ns)));
    }
}

/// Wakes up to `count` threads that are blocked on `address`, drawn at random, and returns their number.
pub fn wake(address: usize, count: usize) -> usize {
    let Some(core) = SCHEDULER.get() else {
        return 0;
    };
    let mut core = core.lock().unwrap_or_else(PoisonError::into_inner);
    let mut woken = 0;
    while woken < count {
        let waiting: Vec<usize> = (0..core.threads.len())
            .filter(|&id| matches!(core.threads[id].state, State::Blocked { on: Resource::Address(at), .. } if at == address))
            .collect();
        if waiting.is_empty() {
            break;
        }
        let drawn = waiting[core.strategy.index(waiting.len())];
        core.threads[drawn].state = State::Runnable(Wakeup::Woken);
        woken += 1;
    }
    if woken > 0 {
        core.note_wakeup();
    }
    woken
}

/// Records that something was done to a socket, so that threads which wait for sockets are asked again.
pub fn activity() {
    if is_simulated() {
        let mut core = lock();
        core.activities += 1;
        core.note_wakeup();
        drop(core);
        step();
    }
}

/// Records that the calling thread has found something to do at its sockets.
pub(super) fn found_at_sockets() {
    let me = CURRENT.get();
    if me != NOT_SIMULATED {
        let mut core = lock();
        core.threads[me].is_asking = false;
        core.has_asked_sockets = false;
    }
}

/// Returns the number of activities, to be passed to [`Resource::Sockets`] by a thread that asks its sockets next.
pub fn activities() -> u64 {
    lock().activities
}

/// Blocks until the token of `unpark` is there, and takes it.
pub(super) fn park(timeout: Option<Duration>) {
    let me = CURRENT.get();
    if me == NOT_SIMULATED {
        return;
    }
    step();
    if std::mem::take(&mut lock().threads[me].has_park_token) {
        return;
    }
    block(Resource::Park, timeout);
    lock().threads[me].has_park_token = false;
}

/// Gives a thread its token.
pub(super) fn unpark(id: ThreadId) {
    step();
    let mut core = lock();
    let thread = &mut core.threads[id];
    thread.has_park_token = true;
    if let State::Blocked { on: Resource::Park, .. } = thread.state {
        thread.state = State::Runnable(Wakeup::Woken);
        core.note_wakeup();
    }
}

/// The number of the calling thread.
pub(super) fn current() -> ThreadId {
    CURRENT.get()
}

/// Registers a thread that is about to be created. Its baton comes with a seed for its random numbers.
pub(super) fn register(name: String) -> (ThreadId, Arc<Baton>, u64) {
    let mut core = lock();
    let seed = core.strategy.thread_seed();
    let (id, baton) = core.add_thread(name);
    (id, baton, seed)
}

/// Makes the calling thread, which was registered, wait for its first turn.
pub(super) fn enter(id: ThreadId, baton: &Arc<Baton>) {
    LEAVE_AT_END.with(|_| ());
    adopt_current_thread(id, baton);
    baton.wait();
    await_leaver();
    draw_quantum(&mut lock());
}

/// Waits until a thread that was just created waits for its first turn.
pub(super) fn await_start(baton: &Baton) {
    while baton.thread.get().is_none() {
        std::thread::yield_now();
    }
}

/// Waits until the kernel has removed the thread that has left last.
fn await_leaver() {
    let leaver = lock().leaver.take();
    if let Some(directory) = leaver {
        while directory.exists() {
            std::thread::yield_now();
        }
    }
}

/// Ends the calling thread: another one gets the baton.
fn leave() {
    let me = CURRENT.get();
    if me == NOT_SIMULATED {
        // The whole process ends.
        return;
    }
    // The link is relative to its directory. Without `/proc`, nothing is waited for.
    let listed = std::fs::read_link("/proc/thread-self").ok();
    let mut core = lock();
    core.count_steps();
    core.leaver = listed.map(|link| Path::new("/proc").join(link));
    core.threads[me].state = State::Finished;
    // Its sockets may have been closed.
    core.activities += 1;
    core.has_asked_sockets = false;
    for thread in &mut core.threads {
        if let State::Blocked {
            on: Resource::End(id), ..
        } = thread.state
            && id == me
        {
            thread.state = State::Runnable(Wakeup::Woken);
        }
    }
    let next = core.next_thread();
    core.switches += 1;
    let baton = core.threads[next].baton.clone();
    drop(core);
    CURRENT.set(NOT_SIMULATED);
    baton.give();
}

/// Returns `true` once the thread has ended.
pub(super) fn is_finished(id: ThreadId) -> bool {
    matches!(lock().threads[id].state, State::Finished)
}

/// The simulated monotonic clock, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    if is_simulated() {
        step();
    }
    SCHEDULER.get().map_or(0, |_| lock().now_ns)
}

/// The simulated time since the Unix epoch, in nanoseconds.
pub(super) fn unix_ns() -> u64 {
    let now = now_ns();
    SCHEDULER.get().map_or(0, |_| {
        let mut core = lock();
        core.note_clock_read();
        core.unix_base_ns + now
    })
}

/// Prints what every thread waits for.
pub fn print_threads() {
    let core = lock();
    core.print_threads();
}

fn lock() -> MutexGuard<'static, Core> {
    let core = SCHEDULER.get().expect("no simulation was started");
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

fn adopt_current_thread(id: ThreadId, baton: &Arc<Baton>) {
    let _ = baton.thread.set(std::thread::current());
    CURRENT.set(id);
}

fn draw_quantum(core: &mut Core) {
    let quantum = core.strategy.next_quantum();
    QUANTUM.set(quantum);
    DRAWN.set(quantum);
}

/// Passes the baton to the next thread and waits until it comes back.
fn switch_from(me: ThreadId, mut core: MutexGuard<'static, Core>) -> Wakeup {
    let next = core.next_thread();
    if next != me {
        core.switches += 1;
        let (theirs, mine) = (core.threads[next].baton.clone(), core.threads[me].baton.clone());
        drop(core);
        theirs.give();
        mine.wait();
        await_leaver();
        core = lock();
    }
    draw_quantum(&mut core);
    match core.threads[me].state {
        State::Runnable(wakeup) => {
            core.threads[me].state = State::Runnable(Wakeup::Woken);
            wakeup
        }
        _ => unreachable!("a thread that cannot run has the baton"),
    }
}

impl Core {
    fn add_thread(&mut self, name: String) -> (ThreadId, Arc<Baton>) {
        let baton = Arc::new(Baton {
            is_here: AtomicBool::new(false),
            thread: OnceLock::new(),
        });
        self.threads.push(ThreadRecord {
            name,
            state: State::Runnable(Wakeup::Woken),
            baton: baton.clone(),
            has_park_token: false,
            is_asking: false,
            has_woken: false,
            has_read_clock: false,
        });
        (self.threads.len() - 1, baton)
    }

    /// Records that the calling thread has woken another one, which may run in its place, as some operating systems let
    /// it. The next step decides that.
    fn note_wakeup(&mut self) {
        let me = CURRENT.get();
        if self.strategy.has_preemptions() && me != NOT_SIMULATED {
            self.threads[me].has_woken = true;
            // The steps that were not used do not count.
            DRAWN.set(DRAWN.get() - QUANTUM.replace(0));
        }
    }

    /// Lets the calling thread be stalled at its next step: what it does next may go by a time that is past.
    fn note_clock_read(&mut self) {
        let me = CURRENT.get();
        if self.strategy.has_stalls_after_clock() && me != NOT_SIMULATED {
            self.threads[me].has_read_clock = true;
            DRAWN.set(DRAWN.get() - QUANTUM.replace(0));
        }
    }

    /// Counts the steps of the calling thread since the last decision, and the time that they took.
    fn count_steps(&mut self) {
        let used = u64::from(DRAWN.get() - QUANTUM.get()) + 1;
        DRAWN.set(QUANTUM.get());
        self.steps += used;
        self.now_ns += used * self.strategy.step_ns;
        if self.steps > self.max_steps {
            eprintln!("simulation: no end after {} steps", self.steps);
            self.print_threads();
            exit(ENDLESS_EXIT_CODE);
        }
    }

    /// Draws the thread that runs next, and lets time pass until there is one.
    fn next_thread(&mut self) -> ThreadId {
        loop {
            self.wake_due();
            let runnable: Vec<usize> = (0..self.threads.len()).filter(|&id| self.can_run(id)).collect();
            if !runnable.is_empty() {
                let next = self.strategy.choose(&runnable);
                self.threads[next].resume();
                // Asking sockets in vain is no progress; everything else is.
                self.has_asked_sockets &= self.threads[next].is_asking;
                self.trace = (self.trace ^ (next as u64) ^ self.steps).wrapping_mul(0x0000_0100_0000_01b3);
                if let Some(file) = &mut self.trace_file {
                    let _ = writeln!(file, "{} {} {}", self.steps, self.now_ns, self.threads[next].name);
                }
                return next;
            }
            if !self.has_asked_sockets {
                self.has_asked_sockets = true;
                self.activities += 1;
                continue;
            }
            self.jump_to_next_deadline();
        }
    }

    /// Returns `true` if the thread can be given the baton.
    fn can_run(&self, id: ThreadId) -> bool {
        match self.threads[id].state {
            State::Runnable(_) => true,
            State::Blocked {
                on: Resource::Sockets(seen),
                ..
            } => seen < self.activities,
            State::Blocked { .. } | State::Finished => false,
        }
    }

    fn wake_due(&mut self) {
        for thread in &mut self.threads {
            if let State::Blocked {
                deadline_ns: Some(deadline),
                ..
            } = thread.state
                && deadline <= self.now_ns
            {
                thread.state = State::Runnable(Wakeup::TimedOut);
                thread.is_asking = false;
            }
        }
    }

    fn jump_to_next_deadline(&mut self) {
        let deadlines = self.threads.iter().filter_map(|thread| match thread.state {
            State::Blocked { deadline_ns, .. } => deadline_ns,
            State::Runnable(_) | State::Finished => None,
        });
        let Some(next) = deadlines.min() else {
            eprintln!("simulation: deadlock: no thread can run and none waits for a time");
            self.print_threads();
            exit(DEADLOCK_EXIT_CODE);
        };
        let jump = next.saturating_sub(self.now_ns);
        self.now_ns += jump;
        let is_stalled = |thread: &ThreadRecord| {
            matches!(
                thread.state,
                State::Blocked {
                    on: Resource::Stall,
                    ..
                }
            )
        };
        if !self.threads.iter().any(is_stalled) {
            self.idle_ns += jump;
        }
    }

    fn print_threads(&self) {
        eprintln!(
            "simulation: {} steps, {} ms of simulated time",
            self.steps,
            self.now_ns / 1_000_000
        );
        for (id, thread) in self.threads.iter().enumerate() {
            match thread.state {
                State::Finished => {}
                State::Runnable(_) => eprintln!("  {id} {}: runnable", thread.name),
                State::Blocked { on, deadline_ns } => {
                    let left = deadline_ns.map(|deadline| deadline.saturating_sub(self.now_ns) / 1000);
                    eprintln!("  {id} {}: blocked on {on:?}, for at most {left:?} us", thread.name);
                }
            }
        }
    }
}

impl ThreadRecord {
    /// Makes a thread that waits for sockets runnable: it asks them itself.
    fn resume(&mut self) {
        if let State::Blocked { .. } = self.state {
            self.state = State::Runnable(Wakeup::Woken);
            self.is_asking = true;
        }
    }
}

/// Ends the process. The calling thread passes the baton to no other one.
fn exit(code: i32) -> ! {
    CURRENT.set(NOT_SIMULATED);
    std::process::exit(code)
}

/// Returns a duration in nanoseconds, at most about 500 years.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
