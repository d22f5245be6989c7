//! Turns requests into replies: plan, admit, prefetch, lease, run, effects.
//!
//! ```text
//! bytes ──plan──▶ Plan (command, arguments, keys, hashes, slots)      once per request
//!       ──batch─▶ prefetch slot → bucket → entry → value               interleaved over all plans
//!       ──admit─▶ every check that can refuse the command, in order
//!       ──leased▶ leases all or nothing → execute: handler → effects, waiting clients → release
//! ```
//!
//! Imports go one way, from the last line of this list to the first:
//!
//! 1. `tunables`, `thread` and `request`: the state of a thread, and of one request.
//! 2. `leases`, `accounting`, `effects`, `propagate`, `slot_stats`, `hot_keys`, `record`, `notifications` and
//!    `execution_order`: the steps of a command.
//! 3. `serve`, `unserved`, `ended_waits`, `expired_sources`, `pins`, `script_flags`, `redirect`, `memory_limit` and
//!    `admit`: the rules around them.
//! 4. `execute`: runs a handler under leases that are held.
//! 5. `background`: runs a command on a background thread. It is passed the function that leases and runs.
//! 6. `script` and then `leased`: lease and run.
//! 7. `queueing`, `exec_queries`, `transaction`, and then `exec_libraries` and `exec_detached`: transactions, on a
//!    worker or on a script thread.
//! 8. `batch`, `replay`, and then `apply_threads` and `replicated_stream`: the callers.

pub mod accounting;
pub mod admit;
pub mod apply_threads;
pub mod background;
pub mod batch;
pub mod command_events;
mod deferral;
pub mod effects;
pub mod ended_waits;
mod engine_script;
pub mod exclusion;
mod exec_databases;
mod exec_detached;
mod exec_libraries;
mod exec_queries;
pub mod execute;
pub mod execution_order;
mod expired_sources;
pub mod home_events;
mod hot_keys;
pub mod import_stream;
pub mod leased;
pub mod leases;
pub mod memory_limit;
pub mod modules;
mod notifications;
mod paused_operations;
pub mod pins;
pub mod plan;
pub mod prefetch;
pub mod propagate;
mod protocol_error;
pub mod queueing;
pub mod record;
pub mod redirect;
pub mod replay;
mod replay_threads;
pub mod replicated_stream;
mod replies;
pub mod request;
pub mod script;
mod script_buffers;
mod script_flags;
pub mod serve;
mod slot_stats;
pub mod thread;
pub mod transaction;
pub mod tunables;
mod unfreed_values;
pub mod unserved;
pub mod watches;
