//! Metrics of the workers, and of how they run commands: the figures of INFO's section `# Weft`.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric, SampleValue, seconds};
use crate::observability::metrics::{Counter, DeferralReason, Maximum};
use crate::observability::stalls::StallKind;
use crate::state::{Server, WorkerLink};
use weft_base::ThreadIndex;
use weft_os::atomic::Ordering;

metrics! {
    WORKERS = Metric::gauge("weft_workers", "Worker threads.");
    ACTIVE = Metric::gauge("weft_workers_active", "Worker threads that take connections.");
    TUNINGS = Metric::counter("weft_worker_tunings_total", "Changes of the number of active workers.");
    BUSY = Metric::counter("weft_worker_busy_seconds_total", "Time in which the worker was not waiting for events. Its rate is the worker's busy share.")
        .labelled(&["worker"]);
    CONNECTIONS = Metric::gauge("weft_worker_connections", "Connections of the worker.").labelled(&["worker"]);
    REQUESTS = Metric::counter("weft_worker_requests_total", "Requests that the worker has executed.")
        .labelled(&["worker"]);
    UNREAD = Metric::gauge("weft_worker_unread_messages", "Messages of other threads that the worker has not read. Clients that cause more than it can deliver are put off.")
        .labelled(&["worker"]);
    MOVED = Metric::counter("weft_moved_connections_total", "Connections that moved from one worker to another.");
    BATCHES = Metric::counter("weft_batches_total", "Batches of requests that workers ran.");
    LARGEST_BATCH = Metric::gauge("weft_largest_batch_requests", "Requests of the largest batch since the start or CONFIG RESETSTAT.");
    LONGEST_TURN = Metric::gauge("weft_longest_turn_seconds", "Longest turn of a worker's event loop since the start or CONFIG RESETSTAT.");
    PREFETCH_BATCHES = Metric::counter("weft_prefetch_batches_total", "Batches whose keys were fetched into the CPU cache ahead.");
    PREFETCH_ENTRIES = Metric::counter("weft_prefetch_entries_total", "Keys that were fetched into the CPU cache ahead.");
    DEFERRED = Metric::counter("weft_deferred_commands_total", "Times that a command was put off, by reason: another thread had a lease of its slot, or a value was being copied or saved (lease), or the command had to wait for the log (log), for scripts (script), for a key that MIGRATE sends (migrate) or for the delivery of messages (mailbox).")
        .labelled(&["reason"]);
    EXCLUSIVE = Metric::counter("weft_exclusive_commands_total", "Times that a command closed the gate and ran in exclusive mode.");
    GATE_CLOSINGS = Metric::counter("weft_gate_closings_total", "Times that any thread closed the gate, for a command or for background work such as the beginning of a snapshot or a change of the role. CONFIG RESETSTAT does not reset it.");
    BACKGROUND = Metric::counter("weft_background_commands_total", "Commands that ran on a background thread.");
    UNFINISHED_JOBS = Metric::gauge("weft_unfinished_jobs", "Jobs that wait for or run on background and script threads.");
    STALLS = Metric::counter("weft_stalls_total", "Turns of workers, leases of other threads, uses of exclusive mode and unread messages that have lasted for stall-report-threshold.")
        .labelled(&["kind"]);
    STALLED = Metric::gauge("weft_current_stalls", "Those of them that have not ended.").labelled(&["kind"]);
    APPLY_THREADS = Metric::counter("weft_apply_thread_commands_total", "Commands of a primary's stream that ran on helping threads.");
}

/// Returns a figure of the worker with this index.
type WorkerFigure<'f> = dyn Fn(usize, &WorkerLink) -> SampleValue + 'f;

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    let metrics = &server.stats.metrics;
    out.single(&WORKERS, server.workers.len());
    out.single(&ACTIVE, server.lifecycle.active_workers.load(Ordering::Relaxed));
    out.single(&TUNINGS, server.lifecycle.tunings.load(Ordering::Relaxed));
    let families: [(&Metric, &WorkerFigure<'_>); 4] = [
        (&BUSY, &|index, _| {
            // Workers joined the keyspace first, so a worker's row is its index.
            seconds(metrics.thread_sum(ThreadIndex::new(index), Counter::BusyNs)).into()
        }),
        (&CONNECTIONS, &|_, worker| {
            worker.connections.load(Ordering::Relaxed).into()
        }),
        (&REQUESTS, &|_, worker| {
            worker.executed_commands.load(Ordering::Relaxed).into()
        }),
        (&UNREAD, &|_, worker| worker.mailbox.len().into()),
    ];
    for (metric, value) in families {
        let mut family = out.family(metric);
        for (index, worker) in server.workers.iter().enumerate() {
            family.add(&[itoa::Buffer::new().format(index)], value(index, worker));
        }
    }
    out.single(&LARGEST_BATCH, metrics.highest(Maximum::FullestBatch));
    out.single(&LONGEST_TURN, seconds(metrics.highest(Maximum::LongestTurnNs)));
    let mut deferred = out.family(&DEFERRED);
    for reason in DeferralReason::ALL {
        deferred.add(&[reason.label()], metrics.sum(reason.counter()));
    }
    out.single(&GATE_CLOSINGS, server.keyspace.slots.closings());
    out.single(&UNFINISHED_JOBS, server.background.unfinished_jobs());
    let stalls = &server.stats.stalls;
    let families: [(&Metric, &dyn Fn(StallKind) -> u64); 2] = [
        (&STALLS, &|kind| stalls.begun(kind)),
        (&STALLED, &|kind| stalls.current(kind)),
    ];
    for (metric, count) in families {
        let mut family = out.family(metric);
        for kind in StallKind::ALL {
            family.add(&[kind.label()], count(kind));
        }
    }
    for (metric, counter) in [
        (&MOVED, Counter::ConnectionsMoved),
        (&BATCHES, Counter::Batches),
        (&PREFETCH_BATCHES, Counter::PrefetchBatches),
        (&PREFETCH_ENTRIES, Counter::PrefetchEntries),
        (&EXCLUSIVE, Counter::ExclusiveCommands),
        (&BACKGROUND, Counter::BackgroundCommands),
        (&APPLY_THREADS, Counter::ApplyThreadCommands),
    ] {
        out.single(metric, metrics.sum(counter));
    }
}
