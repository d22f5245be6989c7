//! Metrics of scripts and functions.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric};
use crate::observability::metrics::Counter;
use crate::state::Server;
use weft_scripting::ScriptKind;

metrics! {
    ON_SCRIPT_THREADS = Metric::gauge("weft_scripts_on_script_threads", "Scripts and functions that run on a script thread, because they may take long.");
    BUSY = Metric::gauge("weft_script_busy", "1 while a script runs for longer than busy-reply-threshold, otherwise 0.");
    PARALLEL = Metric::counter("weft_scripts_written_in_parallel_total", "Scripts that wrote under an undo log, beside which other scripts may write.");
    UNDONE = Metric::counter("weft_scripts_undone_total", "Runs of scripts that were undone and began anew.");
    CACHED = Metric::gauge("weft_cached_scripts", "Scripts in the cache of EVAL.");
    CACHE_BYTES = Metric::gauge("weft_cached_scripts_bytes", "Memory of the scripts in the cache.");
    EVICTED = Metric::counter("weft_evicted_scripts_total", "Scripts that were evicted from the cache.");
    LIBRARIES = Metric::gauge("weft_function_libraries", "Loaded libraries.");
    FUNCTIONS = Metric::gauge("weft_functions", "Functions of the loaded libraries.");
    LIBRARY_BYTES = Metric::gauge("weft_function_libraries_bytes", "Memory of the loaded libraries.");
    INTERPRETER_BYTES = Metric::gauge("weft_script_interpreter_bytes", "Memory of the Lua interpreters of all threads.")
        .labelled(&["kind"]);
}

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    let scripts = &server.scripting;
    let metrics = &server.stats.metrics;
    out.single(&ON_SCRIPT_THREADS, scripts.running.on_script_threads());
    out.single(&BUSY, scripts.running.has_overdue());
    out.single(&PARALLEL, metrics.sum(Counter::ScriptsWrittenInParallel));
    out.single(&UNDONE, metrics.sum(Counter::ScriptsUndone));
    out.single(&CACHED, scripts.cache.script_count());
    out.single(&CACHE_BYTES, scripts.cache.bytes());
    out.single(&EVICTED, scripts.cache.evicted());
    let libraries = scripts.libraries.current();
    out.single(&LIBRARIES, libraries.libraries().len());
    out.single(&FUNCTIONS, libraries.function_count());
    out.single(&LIBRARY_BYTES, scripts.libraries.bytes());
    let mut interpreters = out.family(&INTERPRETER_BYTES);
    interpreters.add(&["eval"], scripts.interpreter_bytes(ScriptKind::Eval));
    interpreters.add(&["function"], scripts.interpreter_bytes(ScriptKind::Function));
}
