//! `weft-bench keyspace`: measures leases, tables and prefetch without sockets, on one thread and on several.
//!
//! It uses the structures of the server (a `Domain` of 16384 tables) and the same block-wise prefetch, with threads
//! that do nothing else. The result is the throughput that the keyspace itself allows. One throughput is computed from
//! the CPU time of the threads, which other processes on the machine disturb less than wall time. Both are printed.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use weft_sync::{Domain, GatePassage, ThreadSeat};
use weft_table::{Head, Hint, NewValue, PrefetchTarget, Table, ValueRef};

use crate::error::{Error, ErrorContext, Result};

const SLOTS: usize = 16384;
/// The number of keys that are looked up together.
const BLOCK_KEYS: usize = 16;

type BenchKeyspace = Domain<Hint, Table<()>>;

/// The parameters of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct KeyspaceOptions {
    /// The number of keys in the keyspace.
    pub keys: u64,
    /// The size of each value in bytes.
    pub value_bytes: usize,
    /// The larger number of threads; one thread is always measured too.
    pub threads: usize,
    /// The length of one measurement in seconds.
    pub seconds: f64,
    /// The number of interleaved rounds.
    pub rounds: usize,
}

#[derive(Clone, Copy)]
struct KeyspaceWork {
    name: &'static str,
    /// The percentage of operations that read.
    read_percent: u64,
    /// `true` if all keys are in one slot.
    is_one_slot: bool,
}

const LOADS: [KeyspaceWork; 2] = [
    KeyspaceWork {
        name: "80% reads, 20% writes, uniform keys",
        read_percent: 80,
        is_one_slot: false,
    },
    KeyspaceWork {
        name: "reads of one hot slot",
        read_percent: 100,
        is_one_slot: true,
    },
];

/// The throughput of one measurement, in operations per second.
#[derive(Clone, Copy)]
struct Throughput {
    by_cpu: f64,
    by_wall: f64,
}

/// Measures and prints a table.
///
/// # Errors
/// Fails if a thread panics or its CPU time cannot be read.
pub fn run(options: KeyspaceOptions) -> Result<()> {
    println!("| work | threads | M op/s by CPU time | M op/s by wall time | CPU ratio to one thread | wall ratio |");
    println!("|---|---:|---:|---:|---:|---:|");
    for work in LOADS {
        let keyspace = fill(options, work)?;
        let mut one = Vec::new();
        let mut many = Vec::new();
        for _ in 0..options.rounds {
            one.push(measure(&keyspace, options, work, 1)?);
            many.push(measure(&keyspace, options, work, options.threads)?);
        }
        let (one, many) = (median(&one), median(&many));
        for (threads, speed) in [(1, one), (options.threads, many)] {
            println!(
                "| {} | {threads} | {:.2} | {:.2} | {:.2} | {:.2} |",
                work.name,
                speed.by_cpu / 1e6,
                speed.by_wall / 1e6,
                speed.by_cpu / one.by_cpu,
                speed.by_wall / one.by_wall
            );
        }
    }
    Ok(())
}

fn median(speeds: &[Throughput]) -> Throughput {
    let of = |figure: fn(&Throughput) -> f64| {
        let mut figures: Vec<f64> = speeds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    Throughput {
        by_cpu: of(|speed| speed.by_cpu),
        by_wall: of(|speed| speed.by_wall),
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Hashes a number. A good mixer of 64 bits replaces the server's keyed hash.
fn hash(number: u64, one_slot: bool) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    if one_slot { mixed >> 14 } else { mixed }
}

fn slot(hash: u64) -> usize {
    (hash >> 50) as usize
}

fn fill(options: KeyspaceOptions, work: KeyspaceWork) -> Result<Arc<BenchKeyspace>> {
    let keyspace = Arc::new(Domain::new(SLOTS, options.threads + 1, |_| (Hint::new(), Table::new())));
    let mut seat = join(&keyspace)?;
    let value = vec![b'v'; options.value_bytes];
    // The one slot holds about as many keys as each slot does when all slots are filled.
    let keys = if work.is_one_slot {
        options.keys / SLOTS as u64 + 1
    } else {
        options.keys
    };
    let mut exclusive = seat.exclusive();
    for number in 0..keys {
        let hash = hash(number, work.is_one_slot);
        let (hint, table) = exclusive.parts_mut(slot(hash));
        drop(table.insert(hash, &key(number), NewValue::Bytes(&value), None, 0));
        table.publish(hint);
    }
    drop(exclusive);
    drop(seat);
    Ok(keyspace)
}

fn join(keyspace: &Arc<BenchKeyspace>) -> Result<ThreadSeat<Hint, Table<()>>> {
    keyspace
        .join()
        .ok_or_else(|| Error::Usage("more threads than the keyspace allows".to_owned()))
}

fn measure(
    keyspace: &Arc<BenchKeyspace>,
    options: KeyspaceOptions,
    work: KeyspaceWork,
    threads: usize,
) -> Result<Throughput> {
    let stop = Arc::new(AtomicBool::new(false));
    let barrier = Arc::new(Barrier::new(threads + 1));
    let done = Arc::new(AtomicU64::new(0));
    let mut handles = Vec::new();
    for thread in 0..threads {
        let seat = join(keyspace)?;
        let (stop, barrier, done) = (stop.clone(), barrier.clone(), done.clone());
        handles.push(std::thread::spawn(move || -> std::io::Result<(u64, f64)> {
            barrier.wait();
            let before = cpu_seconds()?;
            let operations = run_operations(seat, options, work, thread as u64, &stop);
            done.fetch_add(operations, Ordering::Relaxed);
            Ok((operations, cpu_seconds()? - before))
        }));
    }
    barrier.wait();
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    stop.store(true, Ordering::Relaxed);
    let mut by_cpu = 0.0;
    for handle in handles {
        let ended = handle
            .join()
            .map_err(|_| Error::Server("a thread panicked".to_owned()))?;
        let (operations, seconds) = ended.context("reading the CPU time of a thread")?;
        by_cpu += operations as f64 / seconds.max(f64::EPSILON);
    }
    let by_wall = done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    Ok(Throughput { by_cpu, by_wall })
}

fn run_operations(
    mut seat: ThreadSeat<Hint, Table<()>>,
    options: KeyspaceOptions,
    work: KeyspaceWork,
    thread: u64,
    stop: &AtomicBool,
) -> u64 {
    let keys = if work.is_one_slot {
        options.keys / SLOTS as u64 + 1
    } else {
        options.keys
    };
    let value = vec![b'w'; options.value_bytes];
    let mut state = 0x1234_5678_9abc_def1u64 ^ (thread << 40);
    let mut operations = 0;
    let mut numbers = [0u64; BLOCK_KEYS];
    while !stop.load(Ordering::Relaxed) {
        let pass = seat.enter();
        for number in &mut numbers {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *number = state % keys;
        }
        prefetch(&pass, &numbers, work.is_one_slot);
        for number in numbers {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let reads = (state >> 33) % 100 < work.read_percent;
            while !try_operation(&pass, number, reads, &value, work.is_one_slot) {}
            operations += 1;
        }
    }
    operations
}

fn prefetch(pass: &GatePassage<'_, Hint, Table<()>>, numbers: &[u64; BLOCK_KEYS], one_slot: bool) {
    let domain = pass.domain();
    let hashes = numbers.map(|number| hash(number, one_slot));
    for hash in hashes {
        domain.prefetch(slot(hash));
    }
    for hash in hashes {
        domain.header(slot(hash)).prefetch_bucket(hash);
    }
    let entry = |table: &Table<()>, hash| table.entry_place(hash, Head::Short);
    let value = |table: &Table<()>, hash| table.value_place(hash);
    for step in [&entry as &dyn Fn(&Table<()>, u64) -> PrefetchTarget, &value] {
        let mut places = [PrefetchTarget::NOWHERE; BLOCK_KEYS];
        {
            let leases = hashes.map(|hash| pass.try_read(slot(hash)));
            for ((lease, hash), place) in leases.iter().zip(hashes).zip(&mut places) {
                if let Some(table) = lease {
                    *place = step(table, hash);
                }
            }
        }
        for place in places {
            place.prefetch();
        }
    }
}

/// Executes one operation. Returns `false` if another thread holds a lease on the slot.
fn try_operation(
    pass: &GatePassage<'_, Hint, Table<()>>,
    number: u64,
    reads: bool,
    value: &[u8],
    one_slot: bool,
) -> bool {
    let hash = hash(number, one_slot);
    if reads {
        let Some(table) = pass.read_spinning(slot(hash)) else {
            return false;
        };
        if let Some(entry) = table.find(hash, &key(number))
            && let ValueRef::Bytes(bytes) = entry.value()
        {
            // Reading the value replaces the copy into a reply.
            black_box(bytes.iter().step_by(64).fold(0u8, |sum, byte| sum ^ byte));
        }
        return true;
    }
    let Some(mut table) = pass.write_spinning(slot(hash)) else {
        return false;
    };
    if let Some(mut entry) = table.find_mut(hash, &key(number)) {
        drop(entry.set_value(NewValue::Bytes(value)));
    }
    true
}

/// Returns the CPU time of the calling thread in seconds.
fn cpu_seconds() -> std::io::Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok());
    first
        .map(|ns| ns / 1e9)
        .ok_or_else(|| std::io::Error::other("unreadable schedstat"))
}
