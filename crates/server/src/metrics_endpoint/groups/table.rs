//! The macro that declares the metrics of a topic.

/// Declares metrics as statics, and `TABLE` with all of them. Only tests use the table, so the compiler reports a
/// metric that is never written.
macro_rules! metrics {
    ($($name:ident = $metric:expr;)+) => {
        $(static $name: $crate::metrics_endpoint::exposition::Metric = $metric;)+
        /// The metrics of this topic.
        #[cfg(test)]
        pub(super) static TABLE: &[&$crate::metrics_endpoint::exposition::Metric] = &[$(&$name),+];
    };
}
pub(super) use metrics;
