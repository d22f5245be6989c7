//! Atomics of which every operation is a step of the scheduler.
//!
//! Only one thread runs at a time, so all operations are sequentially consistent here, whatever ordering they name. The
//! models of `weft-sync` check the orderings.

pub use std::sync::atomic::Ordering;

use super::scheduler::step;

/// A fence is a step.
#[track_caller]
pub fn fence(_order: Ordering) {
    step();
}

macro_rules! any_atomic {
    ($name:ident, $value:ty) => {
        /// An atomic of which every operation is a step of the scheduler.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(std::sync::atomic::$name);

        #[allow(missing_docs)]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }
            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }
            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }
            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.swap(value, order)
            }
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                now: $value,
                next: $value,
                a: Ordering,
                b: Ordering,
            ) -> Result<$value, $value> {
                step();
                self.0.compare_exchange(now, next, a, b)
            }
            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                now: $value,
                next: $value,
                a: Ordering,
                b: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(now, next, a, b)
            }
            #[inline]
            #[track_caller]
            pub fn fetch_update(
                &self,
                a: Ordering,
                b: Ordering,
                mut next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut now = self.load(b);
                while let Some(value) = next(now) {
                    match self.compare_exchange(now, value, a, b) {
                        done @ Ok(_) => return done,
                        Err(other) => now = other,
                    }
                }
                Err(now)
            }
            #[inline]
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
            #[inline]
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }

        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

macro_rules! fetch {
    ($name:ident, $value:ty, $($operation:ident)*) => {
        #[allow(missing_docs)]
        impl $name {
            $(
                #[inline]
                #[track_caller]
                pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.$operation(value, order)
                }
            )*
        }
    };
}

macro_rules! integers {
    ($($name:ident $value:ty),*) => {
        $(
            any_atomic!($name, $value);
            fetch!($name, $value, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
        )*
    };
}

integers!(
    AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize,
    AtomicI8 i8, AtomicI16 i16, AtomicI32 i32, AtomicI64 i64, AtomicIsize isize
);
any_atomic!(AtomicBool, bool);

/// An atomic pointer of which every operation is a step of the scheduler.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicPtr<T>(std::sync::atomic::AtomicPtr<T>);

#[allow(missing_docs)]
impl<T> AtomicPtr<T> {
    pub const fn new(pointer: *mut T) -> AtomicPtr<T> {
        AtomicPtr(std::sync::atomic::AtomicPtr::new(pointer))
    }
    #[inline]
    #[track_caller]
    pub fn load(&self, order: Ordering) -> *mut T {
        step();
        self.0.load(order)
    }
    #[inline]
    #[track_caller]
    pub fn store(&self, pointer: *mut T, order: Ordering) {
        step();
        self.0.store(pointer, order);
    }
    #[inline]
    #[track_caller]
    pub fn swap(&self, pointer: *mut T, order: Ordering) -> *mut T {
        step();
        self.0.swap(pointer, order)
    }
    #[inline]
    pub fn get_mut(&mut self) -> &mut *mut T {
        self.0.get_mut()
    }
    #[inline]
    pub fn into_inner(self) -> *mut T {
        self.0.into_inner()
    }
}
fetch!(AtomicBool, bool, fetch_and fetch_or fetch_xor);
