//! Locks and condition variables whose waiting the scheduler decides about. They have the interface of `parking_lot`.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub use super::mpsc;
use super::scheduler::{self, Resource, Wakeup};
use super::time::Instant;

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

/// The right to use what a [`Mutex`] guards.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    // `None` only while a condition variable waits, and while the guard is dropped.
    inner: Option<parking_lot::MutexGuard<'a, T>>,
}

#[allow(missing_docs)]
impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

#[allow(missing_docs)]
impl<T: ?Sized> Mutex<T> {
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            lock: self,
            inner: Some(self.acquire()),
        }
    }
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        scheduler::step();
        self.0.try_lock().map(|inner| MutexGuard {
            lock: self,
            inner: Some(inner),
        })
    }
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
    #[track_caller]
    fn acquire(&self) -> parking_lot::MutexGuard<'_, T> {
        scheduler::step();
        loop {
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
            scheduler::block(Resource::Address(self.address()), None);
        }
    }
    fn address(&self) -> usize {
        std::ptr::from_ref(&self.0).cast::<()>().addr()
    }
    fn wake_waiting(&self) {
        scheduler::wake(self.address(), usize::MAX);
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_deref().expect("the guard is held")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_deref_mut().expect("the guard is held")
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.inner.take());
        self.lock.wake_waiting();
        if !std::thread::panicking() {
            scheduler::step();
        }
    }
}

/// `true` if a wait ended because its time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

#[allow(missing_docs)]
impl WaitTimeoutResult {
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(
    // It has a size so that each has an address of its own.
    u8,
);

#[allow(missing_docs)]
impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(0)
    }
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_at_most(guard, None);
    }
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        WaitTimeoutResult(self.wait_at_most(guard, Some(timeout)) == Wakeup::TimedOut)
    }
    #[track_caller]
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(guard) {
            self.wait(guard);
        }
    }
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        timeout: Duration,
    ) -> WaitTimeoutResult {
        let deadline = Instant::now() + timeout;
        while condition(guard) {
            if self.wait_until(guard, deadline).timed_out() {
                return WaitTimeoutResult(condition(guard));
            }
        }
        WaitTimeoutResult(false)
    }
    #[track_caller]
    pub fn notify_one(&self) -> bool {
        scheduler::step();
        scheduler::wake(self.address(), 1) > 0
    }
    #[track_caller]
    pub fn notify_all(&self) -> usize {
        scheduler::step();
        scheduler::wake(self.address(), usize::MAX)
    }
    /// The mutex is released without a step, so that no notification between the two is lost.
    #[track_caller]
    fn wait_at_most<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Option<Duration>) -> Wakeup {
        drop(guard.inner.take());
        guard.lock.wake_waiting();
        let wakeup = scheduler::block(Resource::Address(self.address()), timeout);
        guard.inner = Some(guard.lock.acquire());
        wakeup
    }
    fn address(&self) -> usize {
        std::ptr::from_ref(&self.0).addr()
    }
}

/// A lock for many readers or one writer.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

/// The right to read what a [`RwLock`] guards.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T: ?Sized>(Option<parking_lot::RwLockReadGuard<'a, T>>, usize);

/// The right to change what a [`RwLock`] guards.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T: ?Sized>(Option<parking_lot::RwLockWriteGuard<'a, T>>, usize);

#[allow(missing_docs)]
impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(parking_lot::RwLock::new(value))
    }
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

#[allow(missing_docs)]
impl<T: ?Sized> RwLock<T> {
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        scheduler::step();
        loop {
            if let Some(guard) = self.0.try_read() {
                return RwLockReadGuard(Some(guard), self.address());
            }
            scheduler::block(Resource::Address(self.address()), None);
        }
    }
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        scheduler::step();
        loop {
            if let Some(guard) = self.0.try_write() {
                return RwLockWriteGuard(Some(guard), self.address());
            }
            scheduler::block(Resource::Address(self.address()), None);
        }
    }
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        scheduler::step();
        self.0
            .try_read()
            .map(|guard| RwLockReadGuard(Some(guard), self.address()))
    }
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        scheduler::step();
        self.0
            .try_write()
            .map(|guard| RwLockWriteGuard(Some(guard), self.address()))
    }
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
    fn address(&self) -> usize {
        std::ptr::from_ref(&self.0).cast::<()>().addr()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_deref().expect("the guard is held")
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_deref().expect("the guard is held")
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("the guard is held")
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.0.take());
        scheduler::wake(self.1, usize::MAX);
        if !std::thread::panicking() {
            scheduler::step();
        }
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.0.take());
        scheduler::wake(self.1, usize::MAX);
        if !std::thread::panicking() {
            scheduler::step();
        }
    }
}

/// A cell that is set once.
#[derive(Debug)]
pub struct OnceLock<T>(std::sync::OnceLock<T>);

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        OnceLock::new()
    }
}

#[allow(missing_docs)]
impl<T> OnceLock<T> {
    pub const fn new() -> OnceLock<T> {
        OnceLock(std::sync::OnceLock::new())
    }
    pub fn get(&self) -> Option<&T> {
        scheduler::step();
        self.0.get()
    }
    pub fn set(&self, value: T) -> Result<(), T> {
        scheduler::step();
        self.0.set(value)
    }
    /// No other thread runs during the initialization, so that none waits for it with the baton.
    pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        scheduler::step();
        scheduler::without_switches(|| self.0.get_or_init(init))
    }
}

/// A mutual exclusion lock that its holder may take again.
#[derive(Debug, Default)]
pub struct ReentrantMutex<T: ?Sized>(parking_lot::ReentrantMutex<T>);

/// The right to read what a [`ReentrantMutex`] guards.
#[derive(Debug)]
pub struct ReentrantMutexGuard<'a, T: ?Sized>(Option<parking_lot::ReentrantMutexGuard<'a, T>>, usize);

#[allow(missing_docs)]
impl<T> ReentrantMutex<T> {
    pub const fn new(value: T) -> ReentrantMutex<T> {
        ReentrantMutex(parking_lot::ReentrantMutex::new(value))
    }
}

#[allow(missing_docs)]
impl<T: ?Sized> ReentrantMutex<T> {
    #[track_caller]
    pub fn lock(&self) -> ReentrantMutexGuard<'_, T> {
        scheduler::step();
        loop {
            if let Some(guard) = self.0.try_lock() {
                return ReentrantMutexGuard(Some(guard), self.address());
            }
            scheduler::block(Resource::Address(self.address()), None);
        }
    }
    #[track_caller]
    pub fn try_lock(&self) -> Option<ReentrantMutexGuard<'_, T>> {
        scheduler::step();
        self.0
            .try_lock()
            .map(|guard| ReentrantMutexGuard(Some(guard), self.address()))
    }
    fn address(&self) -> usize {
        std::ptr::from_ref(&self.0).cast::<()>().addr()
    }
}

impl<T: ?Sized> Deref for ReentrantMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_deref().expect("the guard is held")
    }
}

impl<T: ?Sized> Drop for ReentrantMutexGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.0.take());
        scheduler::wake(self.1, usize::MAX);
        if !std::thread::panicking() {
            scheduler::step();
        }
    }
}
