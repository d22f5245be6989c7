//! What runs the server: worker threads, the coordinator, background threads, self-tuning, the process.

pub mod background;
pub mod config_changes;
pub mod coordinator;
pub mod process;
pub mod reclaim;
pub mod shutdown;
pub mod tuning;
pub mod worker;
