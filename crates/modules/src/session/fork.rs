//! Child processes of modules: what they need of the server.

/// What any thread may do about child processes.
pub trait ForkHost {
    /// Records that a fork has stopped everything for this many microseconds.
    fn note_fork(&self, micros: u64);
    /// Prepares this process, which is a child now: its lines in the log, and its title.
    fn become_child(&self);
}
