//! Counters of the server and of its commands. Each thread adds to its own row; readers sum up the rows.

use weft_base::ThreadIndex;
use weft_os::sync::OnceLock;

use weft_os::atomic::{AtomicU64, Ordering};
use weft_os::statistics;
use weft_sync::StripedCounters;

/// The counters of the server, with their names in INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// `total_connections_received`
    ConnectionsReceived,
    /// `rejected_connections`
    ConnectionsRejected,
    /// `weft_moved_connections`
    ConnectionsMoved,
    /// `weft_apply_thread_commands`
    ApplyThreadCommands,
    /// `total_net_input_bytes`
    NetInputBytes,
    /// `total_net_output_bytes`
    NetOutputBytes,
    /// `total_net_cluster_slot_import_bytes`
    SlotImportBytes,
    /// `total_net_cluster_slot_export_bytes`
    SlotExportBytes,
    /// `total_reads_processed`
    Reads,
    /// `total_writes_processed`
    Writes,
    /// `keyspace_hits`
    KeyspaceHits,
    /// `keyspace_misses`
    KeyspaceMisses,
    /// `expired_keys`
    ExpiredKeys,
    /// `expired_fields`
    ExpiredFields,
    /// `evicted_keys`
    EvictedKeys,
    /// `evicted_clients`
    EvictedClients,
    /// `rdb_changes_since_last_save`
    Dirty,
    /// `total_error_replies`
    ErrorReplies,
    /// `acl_access_denied_auth`
    DeniedAuth,
    /// `acl_access_denied_cmd`
    DeniedCommand,
    /// `acl_access_denied_key`
    DeniedKey,
    /// `acl_access_denied_channel`
    DeniedChannel,
    /// `acl_access_denied_tls_cert`
    DeniedCertificate,
    /// `acl_access_denied_db`
    DeniedDatabase,
    /// `client_query_buffer_limit_disconnections`
    QueryBufferDisconnections,
    /// `client_output_buffer_limit_disconnections`
    OutputBufferDisconnections,
    /// The turns of the workers' event loops, and the coordinator's runs of its periodic tasks (`eventloop_cycles`).
    Turns,
    /// The number of batches that ran.
    Batches,
    /// `io_threaded_total_prefetch_batches`
    PrefetchBatches,
    /// `io_threaded_total_prefetch_entries`
    PrefetchEntries,
    /// See [`DeferralReason::Lease`].
    DeferralsForLease,
    /// See [`DeferralReason::Log`].
    DeferralsForLog,
    /// See [`DeferralReason::Script`].
    DeferralsForScript,
    /// See [`DeferralReason::Migrate`].
    DeferralsForMigrate,
    /// See [`DeferralReason::Mailbox`].
    DeferralsForMailbox,
    /// The number of times that a command took exclusive mode.
    ExclusiveCommands,
    /// The number of commands that were moved from the worker to another thread.
    BackgroundCommands,
    /// `weft_scripts_written_in_parallel`
    ScriptsWrittenInParallel,
    /// `weft_scripts_undone`
    ScriptsUndone,
    /// The number of uses of keys that were sampled (WEFT HOTKEYS).
    HotKeySamples,
    /// The nanoseconds spent on deleting expired keys (`expire_cycle_cpu_milliseconds`).
    ExpiryNs,
    /// The nanoseconds of the coordinator's periodic work (`eventloop_duration_cron_sum`).
    CronNs,
    /// The nanoseconds in which the worker was not waiting; of the coordinator, the same as `CronNs`.
    BusyNs,
}

/// The reasons for which a command is put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferralReason {
    /// Another thread has a lease of a slot that the command needs, or a value that the command would change is being
    /// copied or saved. Reasons that are none of the others count here as well.
    Lease,
    /// The command must wait until the log has caught up.
    Log,
    /// The command needs exclusive mode or the token of scripts, while scripts run.
    Script,
    /// MIGRATE is sending a key that the command would change.
    Migrate,
    /// The command sent a message to a worker that has too many unread ones; the client's next command waits.
    Mailbox,
}

impl DeferralReason {
    /// All reasons.
    pub const ALL: [DeferralReason; 5] = [
        DeferralReason::Lease,
        DeferralReason::Log,
        DeferralReason::Script,
        DeferralReason::Migrate,
        DeferralReason::Mailbox,
    ];

    /// Returns the label of the metrics.
    pub const fn label(self) -> &'static str {
        match self {
            DeferralReason::Lease => "lease",
            DeferralReason::Log => "log",
            DeferralReason::Script => "script",
            DeferralReason::Migrate => "migrate",
            DeferralReason::Mailbox => "mailbox",
        }
    }

    /// Returns the counter of the commands that were put off for this reason.
    pub const fn counter(self) -> Counter {
        match self {
            DeferralReason::Lease => Counter::DeferralsForLease,
            DeferralReason::Log => Counter::DeferralsForLog,
            DeferralReason::Script => Counter::DeferralsForScript,
            DeferralReason::Migrate => Counter::DeferralsForMigrate,
            DeferralReason::Mailbox => Counter::DeferralsForMailbox,
        }
    }
}

/// The maxima since the start or the last reset, with their names in INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Maximum {
    /// `eventloop_duration_max`, in nanoseconds.
    LongestTurnNs,
    /// `eventloop_cmd_per_cycle_max`
    FullestBatch,
}

const MAXIMA: usize = Maximum::FullestBatch as usize + 1;
const COUNTERS: usize = Counter::BusyNs as usize + 1;
const PER_COMMAND: usize = 4;
/// The precision of the latency histogram, which is log-linear: 16 steps per doubling of nanoseconds, so the error is ≤
/// 6.25%.
const STEPS_BITS: u32 = 4;
const STEPS: usize = 1 << STEPS_BITS;
/// The number of doublings: the last bucket also counts everything from 2^42 ns (73 minutes) on.
const DOUBLINGS: usize = 38;
const BUCKETS: usize = DOUBLINGS * STEPS;

/// The figures of one command.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandFigures {
    /// The number of executions.
    pub calls: u64,
    /// The time in the handler, in nanoseconds.
    pub nanoseconds: u64,
    /// The number of calls that were rejected before execution.
    pub rejected: u64,
    /// The number of executions that failed.
    pub failed: u64,
}

/// The figures of all commands on one thread, which is the only writer.
struct CommandRow {
    /// [`PER_COMMAND`] counters of each command, in one stripe.
    counters: StripedCounters,
    /// The latencies of each command that has any.
    histograms: Box<[OnceLock<Box<LatencyRow>>]>,
}

impl CommandRow {
    fn new(command_count: usize) -> CommandRow {
        CommandRow {
            counters: StripedCounters::new(1, command_count * PER_COMMAND),
            histograms: (0..command_count).map(|_| OnceLock::new()).collect(),
        }
    }

    #[inline]
    fn add(&self, index: usize, delta: i64) {
        self.counters.add_as_only_writer(0, index, delta);
    }
}

/// All counters.
pub struct Metrics {
    /// The index under which the coordinator counts. It has no seat at the keyspace, so the index is behind those of
    /// all threads that have one.
    pub coordinator_row: ThreadIndex,
    rows: StripedCounters,
    maxima: [AtomicU64; MAXIMA],
    /// A row for each thread. Most threads run no commands, so a row is allocated for the first one.
    command_rows: Box<[OnceLock<Box<CommandRow>>]>,
    command_count: usize,
    /// The same for the commands of modules, whose ids are those from `command_count` on.
    module_rows: Box<[OnceLock<Box<CommandRow>>]>,
    max_module_commands: usize,
}

/// The latencies of one command on one thread, which is the only writer. Counts have 64 bits: a thread that runs a
/// million commands per second would wrap 32 bits in little more than an hour.
struct LatencyRow {
    buckets: [statistics::AtomicU64; BUCKETS],
    /// The sum of the samples, in nanoseconds.
    nanoseconds: statistics::AtomicU64,
    /// The number of resets that were requested. Any thread requests them.
    requested_resets: statistics::AtomicU64,
    /// The number of them that the thread has carried out. Until then the figures do not count. Another thread cannot
    /// set them to zero: the one that counts would bring back what it has just read.
    completed_resets: statistics::AtomicU64,
}

impl LatencyRow {
    fn new() -> LatencyRow {
        LatencyRow {
            buckets: [const { statistics::AtomicU64::new(0) }; BUCKETS],
            nanoseconds: statistics::AtomicU64::new(0),
            requested_resets: statistics::AtomicU64::new(0),
            completed_resets: statistics::AtomicU64::new(0),
        }
    }

    /// Only the thread of the row may call this.
    #[inline]
    fn record(&self, nanoseconds: u64) {
        if self.is_outdated() {
            self.complete_reset();
        }
        let add = |figure: &statistics::AtomicU64, delta: u64| {
            figure.store(figure.load(Ordering::Relaxed).wrapping_add(delta), Ordering::Relaxed);
        };
        add(&self.buckets[bucket_of(nanoseconds)], 1);
        add(&self.nanoseconds, nanoseconds);
    }

    fn request_reset(&self) {
        self.requested_resets.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns `true` if the figures are those of before a reset.
    #[inline]
    fn is_outdated(&self) -> bool {
        let completed = self.completed_resets.load(Ordering::Acquire);
        completed != self.requested_resets.load(Ordering::Relaxed)
    }

    #[cold]
    fn complete_reset(&self) {
        let requested = self.requested_resets.load(Ordering::Relaxed);
        for figure in self.buckets.iter().chain([&self.nanoseconds]) {
            figure.store(0, Ordering::Relaxed);
        }
        self.completed_resets.store(requested, Ordering::Release);
    }
}

impl Metrics {
    /// Creates zeroed counters for `seats` threads, `command_count` commands, and up to `max_module_commands` commands
    /// of modules.
    pub fn new(seats: usize, command_count: usize, max_module_commands: usize) -> Self {
        let rows = || (0..seats).map(|_| OnceLock::new()).collect();
        Metrics {
            coordinator_row: ThreadIndex::new(seats),
            rows: StripedCounters::new(seats + 1, COUNTERS),
            maxima: [const { AtomicU64::new(0) }; MAXIMA],
            command_rows: rows(),
            command_count,
            module_rows: rows(),
            max_module_commands,
        }
    }

    /// Adds to a counter in the row of a thread. Only that thread may call this.
    #[inline]
    pub fn add(&self, thread_index: ThreadIndex, counter: Counter, delta: u64) {
        if delta != 0 {
            self.rows
                .add_as_only_writer(thread_index.get(), counter as usize, delta as i64);
        }
    }

    /// Returns the sum of a counter over all threads.
    pub fn sum(&self, counter: Counter) -> u64 {
        self.rows.sum(counter as usize).max(0) as u64
    }

    /// Returns the number of times that a command was put off, for any reason (`weft_deferrals`).
    pub fn deferrals(&self) -> u64 {
        DeferralReason::ALL
            .into_iter()
            .map(|reason| self.sum(reason.counter()))
            .sum()
    }

    /// Raises a maximum to `value`. New maxima are rare, so threads mostly only read the cache line.
    #[inline]
    pub fn raise(&self, maximum: Maximum, value: u64) {
        let highest = &self.maxima[maximum as usize];
        if value > highest.load(Ordering::Relaxed) {
            highest.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// Returns a maximum over all threads.
    pub fn highest(&self, maximum: Maximum) -> u64 {
        self.maxima[maximum as usize].load(Ordering::Relaxed)
    }

    /// Resets all counters except `kept`, and all maxima.
    pub fn reset_all_but(&self, kept: &[Counter]) {
        for index in (0..COUNTERS).filter(|index| kept.iter().all(|counter| *counter as usize != *index)) {
            self.rows.reset(index);
        }
        for maximum in &self.maxima {
            maximum.store(0, Ordering::Relaxed);
        }
    }

    /// Returns a counter of one thread.
    pub fn thread_sum(&self, thread_index: ThreadIndex, counter: Counter) -> u64 {
        self.rows.of_stripe(thread_index.get(), counter as usize).max(0) as u64
    }

    /// Records one execution of a command.
    #[inline]
    pub fn record_execution(&self, thread_index: ThreadIndex, command: usize, nanoseconds: u64, failed: bool) {
        let (row, command) = self.command_row(thread_index, command);
        let base = command * PER_COMMAND;
        row.add(base, 1);
        row.add(base + 1, nanoseconds as i64);
        if failed {
            row.add(base + 3, 1);
        }
    }

    /// Returns the row of the calling thread that has a command, and the index of the command there.
    #[inline]
    fn command_row(&self, thread_index: ThreadIndex, command: usize) -> (&CommandRow, usize) {
        let (rows, index, size) = match command.checked_sub(self.command_count) {
            None => (&self.command_rows, command, self.command_count),
            Some(index) => (&self.module_rows, index, self.max_module_commands),
        };
        let row = rows[thread_index.get()].get_or_init(|| Box::new(CommandRow::new(size)));
        (row, index)
    }

    /// Allocates the row of a thread before it runs a command.
    pub fn create_command_row(&self, thread_index: ThreadIndex) {
        self.command_row(thread_index, 0);
    }

    /// Returns the rows of the threads that have run commands, without those of modules.
    fn used_command_rows(&self) -> impl Iterator<Item = &CommandRow> {
        self.command_rows.iter().filter_map(|row| row.get().map(Box::as_ref))
    }

    /// Returns the rows of the threads that have run commands of modules.
    fn used_module_rows(&self) -> impl Iterator<Item = &CommandRow> {
        self.module_rows.iter().filter_map(|row| row.get().map(Box::as_ref))
    }

    /// Returns the rows that may have figures of a command, and the index of the command there.
    fn used_rows_of(&self, command: usize) -> (impl Iterator<Item = &CommandRow>, usize) {
        let (rows, index) = match command.checked_sub(self.command_count) {
            None => (&self.command_rows, command),
            Some(index) => (&self.module_rows, index),
        };
        (rows.iter().filter_map(|row| row.get().map(Box::as_ref)), index)
    }

    /// Adds to the time of a command whose execution was recorded, or subtracts from it.
    pub fn correct_time(&self, thread_index: ThreadIndex, command: usize, nanoseconds: i64) {
        let (row, command) = self.command_row(thread_index, command);
        row.add(command * PER_COMMAND + 1, nanoseconds);
    }

    /// Records the latency of one execution.
    #[inline]
    pub fn record_latency(&self, thread_index: ThreadIndex, command: usize, nanoseconds: u64) {
        let (row, command) = self.command_row(thread_index, command);
        if let Some(row) = row.histograms.get(command) {
            row.get_or_init(|| Box::new(LatencyRow::new())).record(nanoseconds);
        }
    }

    /// Records that a command was rejected.
    pub fn record_rejection(&self, thread_index: ThreadIndex, command: usize) {
        let (row, command) = self.command_row(thread_index, command);
        row.add(command * PER_COMMAND + 2, 1);
    }

    /// Records the failure of a command whose execution was recorded as a success.
    pub fn record_failure(&self, thread_index: ThreadIndex, command: usize) {
        let (row, command) = self.command_row(thread_index, command);
        row.add(command * PER_COMMAND + 3, 1);
    }

    /// Returns the figures of one command over all threads.
    pub fn command(&self, command: usize) -> CommandFigures {
        let sum = |figure: usize| {
            let (rows, command) = self.used_rows_of(command);
            let total: i64 = rows.map(|row| row.counters.sum(command * PER_COMMAND + figure)).sum();
            total.max(0) as u64
        };
        CommandFigures {
            calls: sum(0),
            nanoseconds: sum(1),
            rejected: sum(2),
            failed: sum(3),
        }
    }

    /// Returns the number of executions of all commands (`total_commands_processed`).
    pub fn commands_processed(&self) -> u64 {
        self.of_all_commands(0)
    }

    /// Returns the time in the handlers of all commands, in nanoseconds.
    pub fn command_nanoseconds(&self) -> u64 {
        self.of_all_commands(1)
    }

    fn of_all_commands(&self, figure: usize) -> u64 {
        let indexes = |count: usize| (0..count).map(move |command| command * PER_COMMAND + figure);
        let sum = || -> i64 {
            let all = self.used_command_rows().map(|row| (row, self.command_count));
            let of_modules = self.used_module_rows().map(|row| (row, self.max_module_commands));
            let all = all.chain(of_modules);
            all.map(|(row, count)| row.counters.sum_of(indexes(count))).sum()
        };
        statistics::read_in_one_step(sum).max(0) as u64
    }

    /// Returns the latency histogram of one command over all threads; `None` if the command never ran.
    pub fn histogram(&self, command: usize) -> Option<Histogram> {
        let mut histogram: Option<Histogram> = None;
        for row in self.latency_rows(command).filter(|row| !row.is_outdated()) {
            let sums = histogram.get_or_insert_with(|| Histogram {
                counts: vec![0; BUCKETS],
                total: 0,
                nanoseconds: 0,
            });
            for (sum, bucket) in sums.counts.iter_mut().zip(&row.buckets) {
                let count = bucket.load(Ordering::Relaxed);
                *sum += count;
                sums.total += count;
            }
            sums.nanoseconds += row.nanoseconds.load(Ordering::Relaxed);
        }
        histogram.filter(|histogram| histogram.total > 0)
    }

    /// Resets the latency histogram of one command.
    pub fn reset_histogram(&self, command: usize) {
        self.latency_rows(command).for_each(LatencyRow::request_reset);
    }

    /// Returns the rows of the threads that have recorded latencies of the command.
    fn latency_rows(&self, command: usize) -> impl Iterator<Item = &LatencyRow> {
        let (rows, command) = self.used_rows_of(command);
        rows.filter_map(move |row| row.histograms.get(command)?.get().map(Box::as_ref))
    }

    /// Resets all figures of commands.
    pub fn reset_commands(&self) {
        for command in 0..self.command_count + self.max_module_commands {
            self.reset_command(command);
        }
    }

    /// Resets all figures of one command.
    pub fn reset_command(&self, command: usize) {
        let (rows, index) = self.used_rows_of(command);
        for row in rows {
            (0..PER_COMMAND).for_each(|figure| row.counters.reset(index * PER_COMMAND + figure));
        }
        self.reset_histogram(command);
    }
}

/// The latency histogram of one command.
pub struct Histogram {
    counts: Vec<u64>,
    /// The number of samples.
    pub total: u64,
    /// The sum of the samples, in nanoseconds.
    pub nanoseconds: u64,
}

impl Histogram {
    /// Returns the latency below which `percentile` per cent of the samples are, in nanoseconds.
    pub fn percentile_ns(&self, percentile: f64) -> u64 {
        let wanted = ((percentile / 100.0) * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_edge_ns(bucket);
            }
        }
        0
    }

    /// Returns the number of samples below 2^`exponent` ns, for each of the ascending exponents. It is exact below 2^42
    /// ns, where the last bucket ends.
    pub fn counts_below_powers(&self, exponents: &[u32]) -> Vec<u64> {
        let mut next = 0;
        let mut below = 0;
        let count = |exponent: &u32| {
            let end = (exponent.saturating_sub(STEPS_BITS) as usize * STEPS).clamp(next, BUCKETS);
            below += self.counts[next..end].iter().sum::<u64>();
            next = end;
            below
        };
        exponents.iter().map(count).collect()
    }

    /// Returns cumulative counts at doubling limits in microseconds, as LATENCY HISTOGRAM shows them: (limit, samples
    /// at or below it).
    ///
    /// The limits are powers of two of nanoseconds, from 1024 on, truncated to microseconds. As in Valkey, a limit
    /// includes the samples that a histogram with two significant digits cannot distinguish from it.
    pub fn cumulative_us(&self) -> Vec<(u64, u64)> {
        let mut rows: Vec<(u64, u64)> = Vec::new();
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            seen += count;
            let power = upper_edge_ns(bucket).max(1 << 10).next_power_of_two();
            let limit_us = (power + power / 128 - 1) / 1000;
            match rows.last_mut() {
                Some(last) if last.0 == limit_us => last.1 = seen,
                _ => rows.push((limit_us, seen)),
            }
        }
        rows
    }
}

fn bucket_of(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(STEPS as u64);
    let exponent = 63 - value.leading_zeros();
    let step = (value >> (exponent - STEPS_BITS)) as usize & (STEPS - 1);
    ((exponent - STEPS_BITS) as usize * STEPS + step).min(BUCKETS - 1)
}

fn upper_edge_ns(bucket: usize) -> u64 {
    let exponent = (bucket / STEPS) as u32 + STEPS_BITS;
    let step = (bucket % STEPS) as u64;
    (1u64 << exponent) + ((step + 1) << (exponent - STEPS_BITS)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_lies_in_its_bucket_with_at_most_a_sixteenth_of_error() {
        for shift in 4..42 {
            for offset in [0u64, 1, 3, 7] {
                let value = (1u64 << shift) + offset * ((1u64 << shift) >> 4);
                let edge = upper_edge_ns(bucket_of(value));
                assert!(edge >= value, "{value} above its bucket's edge {edge}");
                assert!(edge - value <= value / 16, "{value} far below its edge {edge}");
            }
        }
    }

    #[test]
    fn only_threads_that_run_commands_have_rows() {
        let metrics = Metrics::new(100, 3, 0);
        assert_eq!(
            (metrics.commands_processed(), metrics.used_command_rows().count()),
            (0, 0)
        );
        for (thread, nanoseconds) in [(7, 10), (99, 20), (7, 30)] {
            metrics.record_execution(ThreadIndex::new(thread), 1, nanoseconds, thread == 99);
        }
        metrics.record_rejection(ThreadIndex::new(7), 2);
        assert_eq!(metrics.used_command_rows().count(), 2);
        let figures = metrics.command(1);
        assert_eq!((figures.calls, figures.nanoseconds, figures.failed), (3, 60, 1));
        assert_eq!((metrics.command(2).rejected, metrics.commands_processed()), (1, 3));
        metrics.reset_commands();
        metrics.record_execution(ThreadIndex::new(0), 1, 5, false);
        metrics.record_execution(ThreadIndex::new(7), 1, 5, false);
        assert_eq!((metrics.command(1).calls, metrics.command_nanoseconds()), (2, 10));
        assert_eq!(metrics.command(2).rejected, 0);
    }

    #[test]
    fn a_maximum_is_the_highest_since_the_last_reset() {
        let metrics = Metrics::new(2, 1, 0);
        for value in [5, 9, 7] {
            metrics.raise(Maximum::FullestBatch, value);
        }
        assert_eq!(metrics.highest(Maximum::FullestBatch), 9);
        assert_eq!(metrics.highest(Maximum::LongestTurnNs), 0);
        metrics.reset_all_but(&[]);
        metrics.raise(Maximum::FullestBatch, 4);
        assert_eq!(metrics.highest(Maximum::FullestBatch), 4, "lower than before the reset");
    }

    #[test]
    fn percentiles_and_doublings_agree_with_the_samples() {
        let metrics = Metrics::new(2, 3, 0);
        for seat in 0..2 {
            for _ in 0..50 {
                metrics.record_latency(ThreadIndex::new(seat), 1, 900);
            }
        }
        metrics.record_latency(ThreadIndex::new(0), 1, 900_000);
        let histogram = metrics.histogram(1).expect("it ran");
        assert_eq!(histogram.total, 101);
        assert!(histogram.percentile_ns(50.0) < 1000);
        assert!(histogram.percentile_ns(100.0) >= 900_000);
        assert_eq!(histogram.cumulative_us(), vec![(1, 100), (1056, 101)]);
        assert!(metrics.histogram(0).is_none());
    }

    #[test]
    fn a_latency_beyond_the_last_bucket_is_counted_in_it() {
        let metrics = Metrics::new(1, 1, 0);
        for nanoseconds in [1 << 41, 1 << 42, u64::MAX] {
            metrics.record_latency(ThreadIndex::new(0), 0, nanoseconds);
        }
        let histogram = metrics.histogram(0).expect("it ran");
        assert_eq!(histogram.counts_below_powers(&[40, 41, 42, 63]), [0, 0, 3, 3]);
    }

    #[test]
    fn counts_below_powers_are_exact_and_sums_are_those_of_the_samples() {
        let metrics = Metrics::new(2, 1, 0);
        let samples = [0, 1, 255, 256, 257, 1023, 1024, 5000, 1 << 30];
        for (index, nanoseconds) in samples.into_iter().enumerate() {
            metrics.record_latency(ThreadIndex::new(index % 2), 0, nanoseconds);
        }
        let histogram = metrics.histogram(0).expect("it ran");
        assert_eq!(histogram.counts_below_powers(&[8, 10, 20, 31]), [3, 6, 8, 9]);
        assert_eq!((histogram.total, histogram.nanoseconds), (9, samples.iter().sum()));
    }

    #[test]
    fn a_reset_writes_nothing_that_the_counting_thread_writes() {
        let metrics = Metrics::new(1, 1, 0);
        metrics.record_latency(ThreadIndex::new(0), 0, 100);
        let row = metrics.latency_rows(0).next().expect("it has a row");
        let bucket = &row.buckets[bucket_of(100)];
        for _ in 0..3 {
            metrics.reset_histogram(0);
            metrics.reset_histogram(0);
            assert!(metrics.histogram(0).is_none());
            assert_eq!(
                bucket.load(Ordering::Relaxed),
                1,
                "the thread may be about to store the next number"
            );
            metrics.record_latency(ThreadIndex::new(0), 0, 100);
            let histogram = metrics.histogram(0).expect("it ran");
            assert_eq!((histogram.total, histogram.nanoseconds), (1, 100));
        }
    }

    #[test]
    fn counts_of_latencies_exceed_32_bits() {
        let metrics = Metrics::new(1, 1, 0);
        metrics.record_latency(ThreadIndex::new(0), 0, 100);
        let row = metrics.latency_rows(0).next().expect("it has a row");
        row.buckets[bucket_of(100)].store(u64::from(u32::MAX), Ordering::Relaxed);
        metrics.record_latency(ThreadIndex::new(0), 0, 100);
        assert_eq!(metrics.histogram(0).map(|histogram| histogram.total), Some(1 << 32));
    }
}
