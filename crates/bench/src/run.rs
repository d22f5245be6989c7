//! One measured run: connections, client threads, and the server's CPU time around the window.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use crate::control::ControlConnection;
use crate::draw::scramble;
use crate::driver::{Driver, LoadConnection, LoadTally, MeasurementWindow, RequestPace, ThreadPlan};
use crate::error::{Error, ErrorContext, Result};
use crate::interruption::Interruption;
use crate::load::Workload;
use crate::load_stream::LoadStream;
use crate::process::{self, CpuSample};
use crate::subscribers::SubscriberProgress;
use crate::tls::TlsStream;

#[cfg(test)]
mod tests;

/// The time that client threads have to reach their loops before the first request is due.
const START_DELAY: Duration = Duration::from_millis(2);

/// The number of new keys that a connection may create in a run.
pub const NEW_KEYS_PER_CONNECTION: u64 = 100_000_000;

/// The parameters of a run that do not depend on the workload.
#[derive(Debug, Clone)]
pub struct RunParameters {
    /// The address of the server.
    pub address: SocketAddr,
    /// The number of connections over all threads.
    pub connections: usize,
    /// The number of client threads.
    pub threads: usize,
    /// The maximum number of outstanding requests per connection.
    pub pipeline: u64,
    /// Requests per second over all connections; `None` is a closed loop.
    pub rate: Option<f64>,
    /// The length of the load before the window.
    pub warmup: Duration,
    /// The length of the measured window.
    pub window: Duration,
    /// The time after the window for which replies are awaited.
    pub drain: Duration,
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of the first key that does not exist, for loads that create keys. Each connection takes
    /// [`NEW_KEYS_PER_CONNECTION`] numbers.
    pub first_new_key: u64,
    /// The progress of the subscribers that receive what the load publishes.
    pub subscribers: Option<Arc<SubscriberProgress>>,
    /// The RESP version, 2 or 3; with TLS only 2.
    pub protocol: u8,
    /// The configuration of TLS, if the address expects it.
    pub tls: Option<Arc<ClientConfig>>,
    /// The cores to which the client threads are pinned in turn; if empty, they are not pinned.
    pub cores: Vec<usize>,
    /// The process id of the server, for reading its CPU time.
    pub server_pid: Option<u32>,
    /// The request to end the run before its time.
    pub interruption: Interruption,
}

/// The measurements of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The number of replies per second in the window.
    pub requests_per_s: f64,
    /// The CPU time of all threads of the server per request, in microseconds.
    pub server_cpu_us: Option<f64>,
    /// The share of one core that the server used (above 1 with several threads).
    pub server_busy_cores: Option<f64>,
    /// The CPU time of the server per message that a subscriber received, in microseconds.
    pub server_cpu_us_per_delivery: Option<f64>,
    /// The CPU time of this client per request, in microseconds.
    pub client_cpu_us: f64,
    /// The median latency in microseconds.
    pub p50_us: f64,
    /// The 99th percentile of latency in microseconds.
    pub p99_us: f64,
    /// The 99.9th percentile of latency in microseconds.
    pub p999_us: f64,
    /// The largest latency in microseconds.
    pub max_us: f64,
    /// The number of replies in the window.
    pub replies: u64,
    /// The number of all replies, including those of the warm-up and after the window.
    pub all_replies: u64,
    /// The number of nil replies where they are allowed, including the warm-up.
    pub misses: u64,
    /// Open loop: the number of requests without a reply at the end.
    pub unanswered: u64,
    /// The server's resident memory after the window, in bytes.
    pub server_rss_bytes: Option<u64>,
}

/// Opens the connections of a run, with the requested protocol.
fn connect(shape: &RunParameters) -> Result<Vec<LoadStream>> {
    process::raise_open_file_limit();
    let open = |_| {
        // The protocol is switched on a plain connection only.
        let protocol = if shape.tls.is_some() { 2 } else { shape.protocol };
        let stream = ControlConnection::connect(shape.address, protocol)?.into_stream();
        Ok(match &shape.tls {
            None => LoadStream::Plain(stream),
            Some(config) => LoadStream::Tls(Box::new(TlsStream::connect(stream, config)?)),
        })
    };
    (0..shape.connections).map(open).collect()
}

/// Runs `workload` and measures it.
///
/// # Errors
/// Fails if a reply is wrong, a connection breaks, the statistics of a process cannot be read, or the run is
/// interrupted.
pub fn measure(shape: &RunParameters, workload: &Workload) -> Result<Measurement> {
    let mut streams = connect(shape)?.into_iter();
    let threads = shape.threads.clamp(1, shape.connections);
    let groups = (0..threads)
        .map(|thread| {
            let count = shape.connections / threads + usize::from(thread < shape.connections % threads);
            let seed_and_budget = |place: usize| {
                let number = (place * threads + thread) as u64;
                if workload.has_own_keys() {
                    (number, u64::MAX)
                } else if workload.has_new_keys() {
                    let first = shape.first_new_key + number * NEW_KEYS_PER_CONNECTION;
                    (first, NEW_KEYS_PER_CONNECTION)
                } else {
                    let seed = scramble(shape.seed ^ scramble((thread << 32 | place) as u64));
                    (seed, u64::MAX)
                }
            };
            (0..count)
                .zip(streams.by_ref())
                .map(|(place, stream)| {
                    let (seed, budget) = seed_and_budget(place);
                    LoadConnection::new(stream, seed, budget)
                })
                .collect::<Result<Vec<LoadConnection>>>()
        })
        .collect::<Result<Vec<Vec<LoadConnection>>>>()?;
    let from = shape.warmup;
    let window = MeasurementWindow {
        begin: Instant::now() + START_DELAY,
        from_ns: from.as_nanos() as u64,
        until_ns: (from + shape.window).as_nanos() as u64,
        drain_ns: shape.drain.as_nanos() as u64,
    };
    let watch = |window: &MeasurementWindow| observe_window(window, shape);
    let (tally, observed) = run_drivers(shape, workload, window, groups, watch)?;
    let observed = observed?;
    let rss = shape.server_pid.map(process::rss_bytes).transpose()?;
    Ok(summarize(&tally, &observed, shape.window, rss))
}

/// Sends every request of a sequential workload once: keys `0..keys`, distributed over the connections. Returns the
/// time it took.
///
/// # Errors
/// Fails if a reply is wrong or missing, if a connection breaks, or if the run is interrupted.
pub fn send_each_once(shape: &RunParameters, workload: &Workload, keys: u64) -> Result<Duration> {
    let streams = connect(shape)?;
    let count = streams.len() as u64;
    let share = |place: u64| (u128::from(keys) * u128::from(place) / u128::from(count)) as u64;
    let connections = (0..count)
        .zip(streams)
        .map(|(place, stream)| LoadConnection::new(stream, share(place), share(place + 1) - share(place)))
        .collect::<Result<Vec<LoadConnection>>>()?;
    let begin = Instant::now();
    let window = MeasurementWindow {
        begin,
        from_ns: 0,
        until_ns: u64::MAX,
        drain_ns: u64::MAX,
    };
    let (tally, ()) = run_drivers(shape, workload, window, vec![connections], |_| ())?;
    if tally.all_replies != keys {
        return Err(Error::Server(format!(
            "{} of {keys} keys were filled",
            tally.all_replies
        )));
    }
    Ok(begin.elapsed())
}

/// Runs one driver per group of connections, and meanwhile `watch` on the calling thread.
fn run_drivers<T>(
    shape: &RunParameters,
    workload: &Workload,
    window: MeasurementWindow,
    groups: Vec<Vec<LoadConnection>>,
    watch: impl FnOnce(&MeasurementWindow) -> T,
) -> Result<(LoadTally, T)> {
    let stop = AtomicBool::new(false);
    let threads = groups.len();
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for (number, connections) in groups.into_iter().enumerate() {
            let pace = pace(shape.rate, number, threads);
            let pipeline = shape.pipeline;
            let plan = ThreadPlan {
                workload,
                pipeline,
                pace,
                window,
                stop: &stop,
                interruption: &shape.interruption,
            };
            let core = shape.cores.get(number % shape.cores.len().max(1)).copied();
            let handle = thread::Builder::new()
                .name(format!("client-{number}"))
                .spawn_scoped(scope, move || {
                    if let Some(core) = core {
                        process::pin_this_thread(&[core])?;
                    }
                    thread::sleep(window.begin.saturating_duration_since(Instant::now()));
                    Driver::new(plan, connections)?.run()
                })
                .context("starting a client thread")?;
            handles.push(handle);
        }
        let watched = watch(&window);
        let mut total = LoadTally::new();
        for handle in handles {
            total.merge(&handle.join().expect("a client thread does not panic")?);
        }
        shape.interruption.check()?;
        Ok((total, watched))
    })
}

/// Returns the pacing of thread `number` of `threads`: its share of the total rate, interleaved with the other threads.
fn pace(rate: Option<f64>, number: usize, threads: usize) -> RequestPace {
    match rate {
        None => RequestPace::Closed,
        Some(rate) => {
            let total_interval_ns = 1e9 / rate;
            RequestPace::Open {
                interval_ns: total_interval_ns * threads as f64,
                offset_ns: total_interval_ns * number as f64,
            }
        }
    }
}

/// The CPU time used in the window.
#[derive(Debug)]
struct ProcessorTime {
    server_ns: Option<u64>,
    client_ns: u64,
    /// The number of messages that subscribers received.
    deliveries: Option<u64>,
    elapsed: Duration,
}

/// The readings at one end of the window.
struct WindowSample {
    at: Instant,
    server: Option<CpuSample>,
    client: CpuSample,
    delivered: Option<u64>,
}

impl WindowSample {
    fn read(shape: &RunParameters) -> Result<WindowSample> {
        let delivered = |progress: &Arc<SubscriberProgress>| progress.delivered.load(Ordering::Relaxed);
        Ok(WindowSample {
            at: Instant::now(),
            server: shape.server_pid.map(CpuSample::read).transpose()?,
            client: CpuSample::read(std::process::id())?,
            delivered: shape.subscribers.as_ref().map(delivered),
        })
    }
}

/// Reads CPU times at both ends of the window.
fn observe_window(window: &MeasurementWindow, shape: &RunParameters) -> Result<ProcessorTime> {
    let sample = |at_ns: u64| {
        let at = window.begin + Duration::from_nanos(at_ns);
        shape.interruption.sleep_until(at)?;
        WindowSample::read(shape)
    };
    let before = sample(window.from_ns)?;
    let after = sample(window.until_ns)?;
    let server = before.server.zip(after.server);
    let delivered = before.delivered.zip(after.delivered);
    Ok(ProcessorTime {
        server_ns: server.map(|(before, after)| after.nanoseconds_since(&before)),
        client_ns: after.client.nanoseconds_since(&before.client),
        deliveries: delivered.map(|(before, after)| after - before),
        elapsed: after.at - before.at,
    })
}

fn summarize(
    tally: &LoadTally,
    observed: &ProcessorTime,
    window: Duration,
    server_rss_bytes: Option<u64>,
) -> Measurement {
    // Samples and replies cover slightly different spans when the client is descheduled. CPU time is therefore taken as
    // a rate.
    let per_s = |ns: u64| ns as f64 / observed.elapsed.as_secs_f64();
    let requests_per_s = tally.replies as f64 / window.as_secs_f64();
    let cpu_us = |ns: u64| per_s(ns) / 1e3 / requests_per_s.max(f64::MIN_POSITIVE);
    let quantile_us = |quantile: f64| tally.latencies.value_at_quantile(quantile) as f64 / 1e3;
    let deliveries = observed.server_ns.zip(observed.deliveries);
    Measurement {
        requests_per_s,
        server_cpu_us: observed.server_ns.map(cpu_us),
        server_busy_cores: observed.server_ns.map(|ns| per_s(ns) / 1e9),
        server_cpu_us_per_delivery: deliveries.map(|(ns, count)| ns as f64 / 1e3 / count.max(1) as f64),
        client_cpu_us: cpu_us(observed.client_ns),
        p50_us: quantile_us(0.5),
        p99_us: quantile_us(0.99),
        p999_us: quantile_us(0.999),
        max_us: tally.latencies.max() as f64 / 1e3,
        replies: tally.replies,
        all_replies: tally.all_replies,
        misses: tally.misses,
        unanswered: tally.unanswered,
        server_rss_bytes,
    }
}
