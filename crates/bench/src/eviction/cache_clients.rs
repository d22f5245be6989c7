//! Clients that use a server as a cache: they read keys, and write those that are missing.
//!
//! The popularity of keys follows Zipf's law. All servers get the same rate of requests, because the age of a key and
//! the decay of its counter are measured in time: a server with a higher rate would see younger keys. From the warm-up
//! on, they also get the same keys in the same order, however many they needed before to be full.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::batch_connection::{BatchConnection, is_bulk_string, is_out_of_memory, wrong_reply};
use crate::client_threads::run_client_threads;
use crate::content::{ValuePool, key_name};
use crate::draw::{Draw, Zipf, scramble};
use crate::error::Result;
use crate::interruption::Interruption;
use crate::process;

/// The longest sleep without a check of the phase.
const SLEEP_SLICE: Duration = Duration::from_millis(20);

/// The number of the first draw of the warm-up. No phase before it draws as many.
pub const FIRST_PACED_DRAW: u64 = 1 << 48;

/// The part of a run in which the clients are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CachePhase {
    /// As many requests as possible, which are not counted.
    Fill,
    /// The rate of the measurement, without counting.
    WarmUp,
    /// Replies are counted.
    Measure,
    /// The clients end.
    Stop,
}

/// The phase that all clients share.
#[derive(Debug)]
pub struct SharedPhase(AtomicU8);

impl SharedPhase {
    /// Starts with the first phase.
    pub fn new() -> SharedPhase {
        SharedPhase(AtomicU8::new(CachePhase::Fill as u8))
    }

    /// Begins a later phase. An earlier one than the current one has no effect: a client that fails begins the last.
    pub fn begin(&self, phase: CachePhase) {
        self.0.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Returns the phase.
    pub fn current(&self) -> CachePhase {
        match self.0.load(Ordering::Relaxed) {
            0 => CachePhase::Fill,
            1 => CachePhase::WarmUp,
            2 => CachePhase::Measure,
            _ => CachePhase::Stop,
        }
    }
}

/// What the clients of a run do.
#[derive(Debug)]
pub struct CacheLoad<'a> {
    /// The address of the server.
    pub address: SocketAddr,
    /// The popularity of the keys.
    pub zipf: &'a Zipf,
    /// The values of the keys.
    pub values: &'a ValuePool,
    /// The seconds after which a written key expires; `None` for none.
    pub expire_s: Option<u64>,
    /// The number of connections over all threads.
    pub connections: usize,
    /// The number of keys that are read together.
    pub batch: usize,
    /// Reads per second over all connections, after the first phase.
    pub rate: f64,
    /// The cores of the client; one thread each.
    pub cores: &'a [usize],
    /// The seed of all random choices.
    pub seed: u64,
    /// The request to end the run before its time.
    pub interruption: &'a Interruption,
}

/// The counts of the measured phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// The number of reads.
    pub reads: u64,
    /// The number of reads that found their key.
    pub hits: u64,
    /// The number of writes that the server refused because it was out of memory, in all phases.
    pub refused: u64,
}

impl CacheCounts {
    /// Returns the share of reads that found their key.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.hits as f64 / self.reads as f64)
    }

    fn add(&mut self, other: &CacheCounts) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.refused += other.refused;
    }
}

/// Runs the clients until `watch` has ended, which sets the phases. Returns its result and the counts.
///
/// # Errors
/// Fails if a connection breaks, a reply is wrong, or `watch` fails.
///
/// # Panics
/// Panics if a thread of a client does.
pub fn run_clients<T>(load: &CacheLoad<'_>, watch: impl FnOnce(&SharedPhase) -> Result<T>) -> Result<(T, CacheCounts)> {
    process::raise_open_file_limit();
    let phase = &SharedPhase::new();
    let threads = load.cores.len().clamp(1, load.connections.max(1));
    let mut clients = Vec::new();
    for thread in 0..threads {
        clients.push(CacheClient::connect(load, thread, threads)?);
    }
    let (watched, all_counts) = run_client_threads(
        load.cores,
        clients,
        |client: CacheClient<'_>| client.run(phase),
        || phase.begin(CachePhase::Stop),
        || watch(phase),
    )?;
    let mut sum = CacheCounts::default();
    for counts in &all_counts {
        sum.add(counts);
    }
    Ok((watched, sum))
}

/// The client of one thread. It uses its connections in turn.
struct CacheClient<'a> {
    load: &'a CacheLoad<'a>,
    connections: Vec<BatchConnection>,
    /// The seed of the draws of this thread, and the number of keys drawn so far.
    seed: u64,
    drawn: u64,
    /// The time between two batches of this thread.
    interval: Duration,
}

impl<'a> CacheClient<'a> {
    /// Connects the connections of thread `number` of `threads`.
    fn connect(load: &'a CacheLoad<'a>, number: usize, threads: usize) -> Result<CacheClient<'a>> {
        let own = load.connections / threads + usize::from(number < load.connections % threads);
        let connections = (0..own.max(1))
            .map(|_| BatchConnection::connect(load.address))
            .collect::<Result<Vec<BatchConnection>>>()?;
        Ok(CacheClient {
            load,
            connections,
            seed: scramble(load.seed ^ scramble(number as u64)),
            drawn: 0,
            interval: Duration::from_secs_f64((load.batch * threads) as f64 / load.rate),
        })
    }

    /// Reads and writes until the last phase.
    fn run(mut self, phase: &SharedPhase) -> Result<CacheCounts> {
        let mut counts = CacheCounts::default();
        let mut due: Option<Instant> = None;
        for turn in 0.. {
            let current = phase.current();
            if current == CachePhase::Stop || self.load.interruption.is_requested() {
                break;
            }
            if current != CachePhase::Fill {
                if due.is_none() {
                    self.drawn = FIRST_PACED_DRAW;
                }
                let at = due.map_or_else(Instant::now, |last| last + self.interval);
                due = Some(at);
                wait_until(at, phase);
            }
            let connection = turn % self.connections.len();
            let (hits, refused) = self.use_cache(connection)?;
            counts.refused += refused;
            if current == CachePhase::Measure {
                counts.reads += self.load.batch as u64;
                counts.hits += hits;
            }
        }
        Ok(counts)
    }

    /// Reads a batch of keys, and writes those that are missing. Returns the number of keys that were found, and that
    /// of refused writes.
    fn use_cache(&mut self, connection: usize) -> Result<(u64, u64)> {
        let load = self.load;
        let mut keys = Vec::with_capacity(load.batch);
        for _ in 0..load.batch {
            keys.push(load.zipf.key(&mut Draw::new(self.seed, self.drawn)));
            self.drawn += 1;
        }
        let connection = &mut self.connections[connection];
        for key in &keys {
            connection.append(&[b"GET", &key_name(*key)]);
        }
        connection.send()?;
        let (mut hits, mut missing) = (0, Vec::new());
        connection.receive(|number, reply| {
            let key = keys[number];
            if reply == b"$-1\r\n" {
                missing.push(key);
            } else if is_bulk_string(reply, load.values.value(key)) {
                hits += 1;
            } else {
                return Err(wrong_reply("GET", reply));
            }
            Ok(())
        })?;
        // A key that was drawn twice is written once.
        missing.sort_unstable();
        missing.dedup();
        let mut refused = 0;
        for key in missing {
            let (name, value) = (key_name(key), load.values.value(key));
            match load.expire_s {
                None => connection.append(&[b"SET", &name, value]),
                Some(seconds) => connection.append(&[b"SET", &name, value, b"EX", seconds.to_string().as_bytes()]),
            }
        }
        connection.send()?;
        connection.receive(|_, reply| {
            refused += u64::from(is_out_of_memory(reply));
            match reply {
                b"+OK\r\n" => Ok(()),
                _ if is_out_of_memory(reply) => Ok(()),
                _ => Err(wrong_reply("SET", reply)),
            }
        })?;
        Ok((hits, refused))
    }
}

/// Sleeps until `at`, or until the clients must stop.
fn wait_until(at: Instant, phase: &SharedPhase) {
    loop {
        let rest = at.saturating_duration_since(Instant::now());
        if rest.is_zero() || phase.current() == CachePhase::Stop {
            return;
        }
        thread::sleep(rest.min(SLEEP_SLICE));
    }
}
