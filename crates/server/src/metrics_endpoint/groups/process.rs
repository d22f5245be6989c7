//! Metrics of the process: build, start, loading, CPU time.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric};
use crate::observability::process;
use crate::state::Server;
use weft_os::atomic::Ordering;

metrics! {
    BUILD_INFO = Metric::gauge("weft_build_info", "Always 1; the labels name the build and the mode.")
        .labelled(&["version", "valkey_version", "mode"]);
    START_TIME = Metric::gauge("weft_start_time_seconds", "Start of the process, in seconds since the Unix epoch.");
    UPTIME = Metric::gauge("weft_uptime_seconds", "Time since the start of the process.");
    CPU = Metric::counter("weft_cpu_seconds_total", "CPU time of all threads, in user mode and in the kernel.")
        .labelled(&["mode"]);
    LOADING = Metric::gauge("weft_loading", "1 while data is being loaded and clients get LOADING, otherwise 0.");
    LOADED_BYTES = Metric::gauge("weft_loading_loaded_bytes", "Bytes that the current load has read; only during a load.");
    LOADING_TOTAL_BYTES = Metric::gauge("weft_loading_total_bytes", "Bytes that the current load has to read; only during a load whose size is known.");
}

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    let mode = match server.cluster {
        Some(_) => "cluster",
        None => "standalone",
    };
    let build = [env!("CARGO_PKG_VERSION"), weft_config::COMPATIBLE_VERSION, mode];
    out.family(&BUILD_INFO).add(&build, 1u64);
    out.single(&START_TIME, server.lifecycle.started_unix_s);
    out.single(&UPTIME, server.lifecycle.started.elapsed().as_secs_f64());
    let time = process::cpu();
    let mut cpu = out.family(&CPU);
    cpu.add(&["user"], time.user_s);
    cpu.add(&["system"], time.system_s);
    let is_loading = is_loading(server);
    out.single(&LOADING, is_loading);
    if is_loading {
        let progress = &server.replication.loading;
        out.single(&LOADED_BYTES, progress.loaded_bytes.load(Ordering::Relaxed));
        match progress.total_bytes.load(Ordering::Relaxed) {
            0 => {}
            total => out.single(&LOADING_TOTAL_BYTES, total),
        }
    }
}

/// Returns `true` while data is being loaded and clients get LOADING.
pub fn is_loading(server: &Server) -> bool {
    server.lacks_data()
}
