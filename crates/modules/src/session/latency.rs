//! What modules tell the latency monitor of the server.

/// What any thread may ask of the server about latency.
pub trait LatencyHost {
    /// Adds a duration to the history of an event, if the latency monitor is on and the duration above its threshold.
    fn add_latency_sample(&self, event: &'static str, milliseconds: u64);
}
