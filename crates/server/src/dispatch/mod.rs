//! Turns requests into replies: plan, admit, prefetch, lease, run, effects.
//!
//! ```text
//! bytes ──plan──▶ Plan (command, arguments, keys, hashes, slots)      once per request
//!       ──batch─▶ prefetch slot → bucket → entry → value               interleaved over all plans
//!       ──admit─▶ every check that can refuse the command, in order
//!       ──execute▶ leases all or nothing → handler → effects, waiting clients → release
//! ```

pub mod admit;
pub mod background;
pub mod batch;
pub mod effects;
pub mod execute;
mod expired_sources;
pub mod memory_limit;
mod notifications;
pub mod pins;
pub mod plan;
pub mod prefetch;
pub mod propagate;
pub mod record;
pub mod redirect;
pub mod replay;
pub mod replicated_stream;
pub mod script;
pub mod serve;
mod slot_stats;
pub mod transaction;
pub mod tunables;
