//! The threads that run the server: workers, the coordinator, background threads; self-tuning, shutdown, the process.

pub mod background;
pub mod config_changes;
pub mod coordinator;
pub mod defragmentation;
pub mod process;
pub mod reclaim;
pub mod shutdown;
pub mod tuning;
pub mod watchdog;
pub mod worker;
