//! The switch between a real or simulated build (`weft-os`) and a model (loom).
//!
//! The crate takes its atomics, locks, cells and hints from here only. With `--cfg loom` they are loom's, which run a
//! test once per interleaving and check every access to a cell. Otherwise they are those of `weft-os`, and the cell
//! tracking below compiles to nothing.

#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(loom)]
pub(crate) use model::*;

/// Locks a mutex whose critical sections cannot leave it half changed, so that poison has no meaning.
#[cfg(loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Sleeps on a condition variable, ignoring poison as [`lock`] does.
#[cfg(loom)]
pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks a mutex whose critical sections cannot leave it half changed.
#[cfg(not(loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Sleeps on a condition variable.
#[cfg(not(loom))]
pub(crate) fn wait<'a, T>(condition: &Condvar, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(&mut guard);
    guard
}

#[cfg(not(loom))]
mod real {
    pub(crate) use weft_os::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use weft_os::hint::spin_loop;
    pub(crate) use weft_os::sync::{Condvar, Mutex, MutexGuard};

    use std::marker::PhantomData;

    /// Does nothing; the model has a fence here.
    #[inline]
    pub(crate) fn model_fence() {}

    /// Waits briefly for another thread that is in the middle of an operation. `waits` is the number of earlier calls.
    pub(crate) fn back_off(waits: u32) {
        if waits < 32 {
            spin_loop();
        } else {
            weft_os::thread::sleep(std::time::Duration::from_micros(20));
        }
    }

    /// Data whose accesses are governed by this crate's rules.
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(data: T) -> Self {
            Self(std::cell::UnsafeCell::new(data))
        }

        /// Marks the start of a period in which the data is only read.
        #[inline]
        pub(crate) fn begin_read(&self) -> ReadAccess<T> {
            ReadAccess(PhantomData)
        }

        /// Marks the start of a period in which only the caller accesses the data.
        #[inline]
        pub(crate) fn begin_write(&self) -> WriteAccess<T> {
            WriteAccess(PhantomData)
        }
    }

    /// A period of reading; takes no space in a real build.
    pub(crate) struct ReadAccess<T>(PhantomData<*const T>);

    impl<T> ReadAccess<T> {
        #[inline]
        pub(crate) fn pointer(&self, cell: &UnsafeCell<T>) -> *const T {
            cell.0.get()
        }

        #[inline]
        pub(crate) fn end(&mut self) {}
    }

    /// A period of writing; takes no space in a real build.
    pub(crate) struct WriteAccess<T>(PhantomData<*mut T>);

    impl<T> WriteAccess<T> {
        #[inline]
        pub(crate) fn pointer(&self, cell: &UnsafeCell<T>) -> *mut T {
            cell.0.get()
        }

        #[inline]
        pub(crate) fn end(&mut self) {}
    }
}

#[cfg(loom)]
mod model {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

    use loom::cell::{ConstPtr, MutPtr};

    /// loom models sequential consistency for fences only, not for loads and stores, so the model needs a fence.
    pub(crate) fn model_fence() {
        loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Runs a test once per interleaving with at most `preemptions` switches away from a running thread.
    #[cfg(test)]
    pub(crate) fn explore(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(scenario);
    }

    /// Counts how often something happens over all interleavings of an exploration. It is no part of the model: loom
    /// neither resets it between two interleavings nor switches threads at it.
    #[cfg(test)]
    pub(crate) struct Occurrences(std::sync::atomic::AtomicUsize);

    #[cfg(test)]
    impl Occurrences {
        pub(crate) const fn new() -> Self {
            Self(std::sync::atomic::AtomicUsize::new(0))
        }

        /// Counts one occurrence if `happens`. Returns `happens`.
        pub(crate) fn count_if(&self, happens: bool) -> bool {
            self.0
                .fetch_add(usize::from(happens), std::sync::atomic::Ordering::Relaxed);
            happens
        }

        /// Fails a test whose subject did not occur in any interleaving.
        pub(crate) fn assert_any(&self, what: &str) {
            let count = self.0.load(std::sync::atomic::Ordering::Relaxed);
            assert!(count > 0, "no interleaving had {what}");
        }
    }

    /// Does nothing: every spin of the crate is bounded, and a yield here would always let the awaited thread run in
    /// time, so that loom would never explore what follows an unsuccessful spin.
    pub(crate) fn spin_loop() {}

    /// Lets the awaited thread run.
    pub(crate) fn back_off(_waits: u32) {
        loom::thread::yield_now();
    }

    /// Data whose accesses loom checks.
    pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(data: T) -> Self {
            Self(loom::cell::UnsafeCell::new(data))
        }

        pub(crate) fn begin_read(&self) -> ReadAccess<T> {
            ReadAccess(Some(self.0.get()))
        }

        pub(crate) fn begin_write(&self) -> WriteAccess<T> {
            WriteAccess(Some(self.0.get_mut()))
        }
    }

    /// A period of reading: loom fails the test if a write overlaps it.
    pub(crate) struct ReadAccess<T>(Option<ConstPtr<T>>);

    impl<T> ReadAccess<T> {
        pub(crate) fn pointer(&self, _cell: &UnsafeCell<T>) -> *const T {
            self.0
                .as_ref()
                .expect("the access has not ended")
                .with(|pointer| pointer)
        }

        pub(crate) fn end(&mut self) {
            self.0 = None;
        }
    }

    /// A period of writing: loom fails the test if any other access overlaps it.
    pub(crate) struct WriteAccess<T>(Option<MutPtr<T>>);

    impl<T> WriteAccess<T> {
        pub(crate) fn pointer(&self, _cell: &UnsafeCell<T>) -> *mut T {
            self.0
                .as_ref()
                .expect("the access has not ended")
                .with(|pointer| pointer)
        }

        pub(crate) fn end(&mut self) {
            self.0 = None;
        }
    }
}
