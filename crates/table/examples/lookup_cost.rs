//! Prints the cost of a lookup, one at a time and interleaved in groups, and the memory cost of a key.
//!
//! `cargo run --release -p weft-table --example lookup_cost [keys] [value bytes] [tables] [ttl] [lookups]`

use std::hint::black_box;

use tikv_jemallocator::Jemalloc;
use weft_table::{Head, Hint, NewValue, Table, ValueDue, ValueRef};

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const NOW_MS: u64 = 1_800_000_000_000;

#[derive(Default)]
struct Slot {
    hint: Hint,
    table: Table<()>,
}

struct Keyspace {
    slots: Vec<Slot>,
    keys: u64,
    lookups: u64,
}

/// CPU time of this thread, which is disturbed less by other processes than wall-clock time.
struct Cpu(u64);

impl Cpu {
    fn now_ns() -> u64 {
        let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
        let first = schedule.split_whitespace().next().and_then(|ns| ns.parse().ok());
        first.expect("the first number")
    }

    fn start() -> Self {
        Self(Self::now_ns())
    }

    fn ns_each(&self, count: u64) -> f64 {
        (Self::now_ns() - self.0) as f64 / count as f64
    }
}

/// Returns a key of 16 bytes.
fn key_of(number: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

fn hash_of(key: &[u8; 16]) -> u64 {
    let (first, second) = key.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    mix(word(first) ^ mix(word(second)))
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("the second number") * 4096
}

impl Keyspace {
    fn filled(keys: u64, value_bytes: usize, tables: usize, with_expiry: bool) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(tables, Slot::default);
        let mut keyspace = Self {
            slots,
            keys,
            lookups: 4_000_000,
        };
        let value = vec![b'x'; value_bytes];
        for number in 0..keys {
            let key = key_of(number);
            let hash = hash_of(&key);
            let expire_at_ms = with_expiry.then_some(NOW_MS + mix(number) % 3_600_000);
            let slot = &mut keyspace.slots[Self::slot_of(hash, tables)];
            let value = NewValue::Bytes(&value);
            drop(slot.table.insert(hash, &key, value, expire_at_ms, 0));
            slot.table.publish(&slot.hint);
        }
        keyspace
    }

    fn relocate(&mut self) {
        let mut old = Vec::new();
        for slot in &mut self.slots {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                cursor = slot.table.relocate(from, &mut old);
            }
            if old.len() > 500 {
                old.clear();
            }
            slot.table.publish(&slot.hint);
        }
    }

    fn slot_of(hash: u64, tables: usize) -> usize {
        ((hash >> 50) as usize * tables) >> 14
    }

    fn slot(&self, hash: u64) -> &Slot {
        &self.slots[Self::slot_of(hash, self.slots.len())]
    }

    fn read(&self, hash: u64, key: &[u8; 16]) -> u64 {
        match self.slot(hash).table.find(hash, key).map(|entry| entry.value()) {
            Some(ValueRef::Bytes(bytes)) => bytes.chunks(64).map(|line| u64::from(line[0])).sum::<u64>(),
            Some(_) | None => 0,
        }
    }

    /// Returns the nanoseconds per lookup in groups of `group`, with prefetching if `staged`.
    fn lookup_ns(&self, group: usize, staged: bool) -> f64 {
        let large = self.slots.iter().any(|slot| slot.table.is_large());
        let mut random = fastrand::Rng::with_seed(1);
        let mut batch = vec![(0, [0; 16]); group];
        let mut sum = 0;
        let start = Cpu::start();
        for _ in 0..self.lookups / group as u64 {
            for probe in &mut batch {
                let key = key_of(random.u64(0..self.keys));
                *probe = (hash_of(&key), key);
            }
            if staged {
                let slot_line = |hash| std::ptr::from_ref(self.slot(hash)).cast::<i8>();
                batch.iter().for_each(|(hash, _)| prefetch(slot_line(*hash)));
                batch
                    .iter()
                    .for_each(|(hash, _)| self.slot(*hash).hint.prefetch_bucket(*hash));
                if large {
                    let stage = |hash| self.slot(hash).table.prefetch_large_bucket(hash);
                    batch.iter().for_each(|(hash, _)| stage(*hash));
                }
                batch
                    .iter()
                    .for_each(|(hash, _)| self.slot(*hash).table.entry_place(*hash, Head::Short).prefetch());
                batch
                    .iter()
                    .for_each(|(hash, _)| self.slot(*hash).table.value_place(*hash).prefetch());
            }
            sum += batch.iter().map(|(hash, key)| self.read(*hash, key)).sum::<u64>();
        }
        black_box(sum);
        start.ns_each(self.lookups)
    }

    /// Returns the nanoseconds per lookup of absent keys, one at a time.
    fn miss_ns(&self) -> f64 {
        let mut random = fastrand::Rng::with_seed(2);
        let start = Cpu::start();
        let mut found = 0;
        for _ in 0..self.lookups / 4 {
            let key = key_of(self.keys + random.u64(0..1 << 38));
            found += self.read(hash_of(&key), &key);
        }
        assert_eq!(found, 0);
        start.ns_each(self.lookups / 4)
    }

    /// Returns the nanoseconds per overwrite of a value in place.
    fn overwrite_ns(&mut self, value_bytes: usize) -> f64 {
        let mut random = fastrand::Rng::with_seed(3);
        let value = vec![b'y'; value_bytes];
        let start = Cpu::start();
        for _ in 0..self.lookups / 4 {
            let key = key_of(random.u64(0..self.keys));
            let hash = hash_of(&key);
            let slot = Self::slot_of(hash, self.slots.len());
            let found = self.slots[slot].table.find_mut(hash, &key);
            drop(found.map(|mut entry| entry.set_value(NewValue::Bytes(&value))));
        }
        start.ns_each(self.lookups / 4)
    }
}

fn prefetch(address: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rule 6: a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let mut argument = |default: u64| arguments.next().unwrap_or(default);
    let keys = argument(3_000_000);
    let value_bytes = argument(512) as usize;
    let tables = argument(16_384) as usize;
    let with_expiry = argument(0) != 0;

    let resident_before = resident_bytes();
    let start = Cpu::start();
    let mut keyspace = Keyspace::filled(keys, value_bytes, tables, with_expiry);
    let fill_ns = start.ns_each(keys);
    let resident = (resident_bytes() - resident_before) as f64 / keys as f64;
    let arrays: usize = keyspace.slots.iter().map(|slot| slot.table.memory_bytes()).sum();
    let load: f64 = keyspace.slots.iter().map(|slot| slot.table.load()).sum();
    println!("{keys} keys of 16 B, values of {value_bytes} B, {tables} tables, ttl {with_expiry}");
    println!(
        "  resident {resident:.1} B/key, arrays {:.2} B/key, load {:.3}, insert {fill_ns:.0} ns",
        arrays as f64 / keys as f64,
        load / tables as f64,
    );
    let start = Cpu::start();
    for _ in 0..2 {
        keyspace.relocate();
    }
    println!(
        "  resident {:.1} B/key after two passes of relocation of {:.0} ns/key",
        (resident_bytes() - resident_before) as f64 / keys as f64,
        start.ns_each(2 * keys),
    );
    keyspace.lookups = argument(4_000_000);
    if keyspace.lookups == 0 {
        std::process::exit(0);
    }
    let alone = keyspace.lookup_ns(1, false);
    let groups = [4, 16, 64].map(|group| keyspace.lookup_ns(group, true));
    println!(
        "  find {alone:.0} ns alone, {:.0} / {:.0} / {:.0} ns in groups of 4 / 16 / 64",
        groups[0], groups[1], groups[2]
    );
    println!(
        "  miss {:.0} ns, overwrite {:.0} ns alone",
        keyspace.miss_ns(),
        keyspace.overwrite_ns(value_bytes)
    );

    if with_expiry {
        let start = Cpu::start();
        let mut removed = Vec::new();
        let (mut count, mut calls) = (0, 0);
        for step in 1..=360 {
            for slot in &mut keyspace.slots {
                while slot
                    .table
                    .expire_due(NOW_MS + step * 10_000, 100, &mut removed, &mut |_, _| {
                        ValueDue::At(None)
                    })
                {
                    calls += 1;
                }
                calls += 1;
                count += removed.len() as u64;
                removed.clear();
            }
        }
        let each = start.ns_each(count);
        println!("  expired {count} in 360 rounds, {calls} calls, {each:.0} ns each");
    }
}
