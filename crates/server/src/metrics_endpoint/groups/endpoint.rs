//! Metrics of the endpoint itself.

use std::time::Duration;

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric};

metrics! {
    RENDERINGS = Metric::counter("weft_metrics_renderings_total", "Renderings of these metrics before this one.");
    RENDERING_TIME = Metric::counter("weft_metrics_rendering_seconds_total", "CPU time spent on these renderings.");
    RENDERED_BYTES = Metric::gauge("weft_metrics_rendered_bytes", "Size of the last rendering.");
    CLOSED_EARLY = Metric::counter("weft_metrics_connections_closed_early_total", "Connections to the metrics endpoint that were closed before their response was received: the client was too slow, or there were too many connections.");
}

/// The figures of the endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndpointFigures {
    renderings: u64,
    cpu_time: Duration,
    /// The size of the last rendering in bytes.
    pub rendered_bytes: usize,
    /// The number of connections that were closed before their response was received.
    pub closed_early: u64,
}

impl EndpointFigures {
    /// Records a rendering.
    pub fn record_rendering(&mut self, cpu_time: Duration, bytes: usize) {
        self.renderings += 1;
        self.cpu_time += cpu_time;
        self.rendered_bytes = bytes;
    }
}

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, figures: &EndpointFigures) {
    out.single(&RENDERINGS, figures.renderings);
    out.single(&RENDERING_TIME, figures.cpu_time.as_secs_f64());
    out.single(&RENDERED_BYTES, figures.rendered_bytes);
    out.single(&CLOSED_EARLY, figures.closed_early);
}
