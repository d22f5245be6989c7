//! A check of debug builds: no lease ends while its thread has made changes that have no position in the log yet.
//!
//! The next thread to lease the cell would get an earlier position in the log for a later change, and a replica would
//! repeat the two in the wrong order. That is as true of a cell that was only read. The owner of the log calls
//! [`note_unlogged_changes`] on every thread that writes. In release builds nothing here does anything.

/// Records if the calling thread has changes that have no position in the log yet.
#[inline]
pub fn note_unlogged_changes(are_there: bool) {
    #[cfg(debug_assertions)]
    HAS_UNLOGGED_CHANGES.with(|unlogged| unlogged.set(are_there));
    #[cfg(not(debug_assertions))]
    let _ = are_there;
}

/// Panics in debug builds if the calling thread has changes without a position in the log.
#[inline]
pub(crate) fn assert_all_logged() {
    #[cfg(debug_assertions)]
    assert!(
        !HAS_UNLOGGED_CHANGES.with(std::cell::Cell::get) || std::thread::panicking(),
        "a lease ends before the changes under it are logged"
    );
}

#[cfg(debug_assertions)]
std::thread_local! {
    static HAS_UNLOGGED_CHANGES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
