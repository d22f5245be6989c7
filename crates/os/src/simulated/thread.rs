//! Simulated threads: threads of the operating system that run one at a time.

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

pub use std::thread::{AccessError, LocalKey, Result, Scope, panicking, scope};

use super::scheduler::{self, Resource, ThreadId};

/// The number of processors of a simulation, wherever it runs: a seed must do the same everywhere.
const PROCESSORS: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// Returns the number of processors.
///
/// # Errors
/// Never; the signature is that of the standard library.
pub fn available_parallelism() -> io::Result<NonZeroUsize> {
    Ok(PROCESSORS)
}

/// Creates threads with a name and a stack size.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
    stack_size: Option<usize>,
}

/// A handle with which a thread is woken.
#[derive(Clone, Debug)]
pub struct Thread {
    id: ThreadId,
}

/// The right to wait for the end of a thread.
#[derive(Debug)]
pub struct JoinHandle<T> {
    inner: std::thread::JoinHandle<T>,
    thread: Thread,
}

/// The right to wait for the end of a thread that borrows. It must be used: the end of a scope waits for threads
/// without letting them run.
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    inner: std::thread::ScopedJoinHandle<'scope, T>,
    thread: ThreadId,
}

#[allow(missing_docs)]
impl Builder {
    pub fn new() -> Builder {
        Builder::default()
    }
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name);
        self
    }
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }
    pub fn spawn<F, T>(self, run: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let builder = self.system_builder();
        let (id, baton, seed) = scheduler::register(self.name.unwrap_or_default());
        let own_baton = baton.clone();
        let inner = builder.spawn(move || {
            scheduler::enter(id, &own_baton);
            fastrand::seed(seed);
            run()
        })?;
        scheduler::await_start(&baton);
        scheduler::step();
        Ok(JoinHandle {
            inner,
            thread: Thread { id },
        })
    }
    pub fn spawn_scoped<'scope, 'env, F, T>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        run: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let builder = self.system_builder();
        let (id, baton, seed) = scheduler::register(self.name.unwrap_or_default());
        let own_baton = baton.clone();
        let inner = builder.spawn_scoped(scope, move || {
            scheduler::enter(id, &own_baton);
            fastrand::seed(seed);
            run()
        })?;
        scheduler::await_start(&baton);
        scheduler::step();
        Ok(ScopedJoinHandle { inner, thread: id })
    }
    fn system_builder(&self) -> std::thread::Builder {
        let mut builder = std::thread::Builder::new();
        if let Some(name) = &self.name {
            builder = builder.name(name.clone());
        }
        if let Some(bytes) = self.stack_size {
            builder = builder.stack_size(bytes);
        }
        builder
    }
}

#[allow(missing_docs)]
impl<T> ScopedJoinHandle<'_, T> {
    pub fn join(self) -> Result<T> {
        while !scheduler::is_finished(self.thread) {
            scheduler::block(Resource::End(self.thread), None);
        }
        self.inner.join()
    }
}

#[allow(missing_docs)]
impl<T> JoinHandle<T> {
    pub fn join(self) -> Result<T> {
        while !scheduler::is_finished(self.thread.id) {
            scheduler::block(Resource::End(self.thread.id), None);
        }
        self.inner.join()
    }
    pub fn thread(&self) -> &Thread {
        &self.thread
    }
    pub fn is_finished(&self) -> bool {
        scheduler::step();
        scheduler::is_finished(self.thread.id)
    }
}

#[allow(missing_docs)]
impl Thread {
    pub fn unpark(&self) {
        scheduler::unpark(self.id);
    }
}

/// Creates a thread.
///
/// # Panics
/// If the operating system cannot create it.
pub fn spawn<F, T>(run: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new()
        .spawn(run)
        .expect("the operating system can create a thread")
}

/// Returns the handle of the calling thread.
pub fn current() -> Thread {
    Thread {
        id: scheduler::current(),
    }
}

/// Returns the number of the calling thread, beginning with 1, or `None` if it is not simulated.
pub fn simulated_id() -> Option<i32> {
    scheduler::is_simulated().then(|| i32::try_from(scheduler::current() + 1).unwrap_or(i32::MAX))
}

/// Sleeps in simulated time.
pub fn sleep(duration: Duration) {
    scheduler::block(Resource::Time, Some(duration));
}

/// Lets another thread run.
pub fn yield_now() {
    scheduler::yield_now();
}

/// Waits for the token of [`Thread::unpark`].
pub fn park() {
    scheduler::park(None);
}

/// Waits for the token of [`Thread::unpark`] at most for a time.
pub fn park_timeout(timeout: Duration) {
    scheduler::park(Some(timeout));
}
