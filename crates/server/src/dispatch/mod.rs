//! From requests to replies: plan, admit, prefetch, lease, run, effects.
//!
//! ```text
//! bytes ──plan──▶ Plan (command, arguments, keys, hashes, slots)      once per request
//!       ──batch─▶ prefetch slot → bucket → entry → value               interleaved over all plans
//!       ──admit─▶ every refusal, in order
//!       ──execute▶ leases all or nothing → handler → effects, waiting clients → release
//! ```

pub mod admit;
mod announce;
pub mod background;
pub mod batch;
pub mod cluster;
pub mod effects;
pub mod execute;
pub mod loans;
pub mod logging;
pub mod plan;
pub mod prefetch;
pub mod record;
pub mod replay;
pub mod room;
pub mod script;
pub mod serve;
mod slot_stats;
mod sources;
pub mod stream;
pub mod transaction;
pub mod tunables;
