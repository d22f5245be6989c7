//! The same file must be loaded alike on any number of threads, and with batches of any length.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::*;
use crate::keyspace::staging::StagedDatabases;
use weft_rdb::strings::write_length;

/// Numbers of threads and lengths of batches.
const SHAPES: [(usize, usize); 6] = [(1, 1), (1, 200), (2, 1), (2, 1 << 16), (8, 1), (8, 300)];

fn on_threads((count, batch_bytes): (usize, usize)) -> Fixture {
    Fixture {
        threads: LoadThreads { count, batch_bytes },
        ..Fixture::new()
    }
}

/// Gives its bytes in pieces, as a socket does.
struct InPieces<'a>(&'a [u8], usize);

impl std::io::Read for InPieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.1.min(buffer.len());
        self.0.read(&mut buffer[..count])
    }
}

/// The result of a load as text, with the offset of a fault.
fn outcome(fixture: &mut Fixture, bytes: &[u8]) -> String {
    let pieces = InPieces(bytes, 100);
    let read = fixture.with_loader(true, |loader| loader.read(&mut RdbSource::new(pieces, true)));
    format!("{read:?}")
}

fn string_record(name: &str, value: &str) -> Vec<u8> {
    let mut record = vec![0];
    for text in [name, value] {
        write_length(&mut record, text.len());
        record.extend_from_slice(text.as_bytes());
    }
    record
}

#[test]
fn a_file_of_valkey_is_the_same_on_any_number_of_threads() {
    let file = without_aux_fields();
    let wanted = outcome(&mut Fixture::new(), &file);
    for shape in SHAPES {
        let mut place = on_threads(shape);
        assert_eq!(outcome(&mut place, &file), wanted, "{shape:?}");
        assert_eq!(place.keys(), expected(), "{shape:?}");
        assert_eq!(place.keyspace.counts.volatile_values(DbIndex::FIRST), 1, "{shape:?}");
    }
}

#[test]
fn a_file_cut_at_any_byte_ends_at_the_same_offset_with_the_same_fault() {
    let file = without_aux_fields();
    let (mut alone, mut places) = (Fixture::new(), [(1, 50), (3, 1), (2, 200)].map(on_threads));
    for length in (0..file.len()).filter(|length| length % 3 == 0 || *length > file.len() - 40) {
        let wanted = outcome(&mut alone, &file[..length]);
        assert!(wanted.contains("Truncated"), "after {length} bytes: {wanted}");
        for place in &mut places {
            assert_eq!(outcome(place, &file[..length]), wanted, "after {length} bytes");
        }
    }
}

#[test]
fn damage_gives_the_same_fault_at_the_same_offset() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let file = without_aux_fields();
    let (mut alone, mut places) = (Fixture::new(), [(1, 50), (3, 1), (2, 200)].map(on_threads));
    for _ in 0..600 {
        let mut damaged = file.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..damaged.len());
            damaged[at] = random.u8(..);
        }
        let wanted = outcome(&mut alone, &damaged);
        for place in &mut places {
            assert_eq!(outcome(place, &damaged), wanted, "{:?}", place.threads);
        }
    }
}

#[test]
fn the_first_fault_of_the_file_is_reported_whichever_thread_finds_it() {
    let damaged = |name: &str| [b"\x10".to_vec(), string_record(name, "abcd")[1..].to_vec()].concat();
    let mut records = Vec::new();
    let mut wanted = 0;
    for number in 0..4000 {
        records.extend(string_record(&format!("key:{number}"), "value"));
        if number >= 2000 && number % 100 == 0 {
            records.extend(damaged(&format!("bad:{number}")));
            if wanted == 0 {
                wanted = MAGIC_BYTES + records.len();
            }
        }
    }
    // The reader meets a fault, too.
    records.push(99);
    for shape in SHAPES {
        let read = on_threads(shape).read_with_offset(&file(b"VALKEY080", &records), false);
        let (offset, fault) = read.expect_err("is damaged");
        assert_eq!(offset, wanted as u64, "{shape:?}: {fault:?}");
        assert!(matches!(fault, RdbFault::Damaged(_)), "{shape:?}: {fault:?}");
    }
}

#[test]
fn the_last_of_two_equal_keys_stays_or_is_refused() {
    let mut records = Vec::new();
    for round in 0..50 {
        for number in 0..40 {
            records.extend(string_record(&format!("key:{number}"), &format!("round {round:02}")));
        }
    }
    let file = file(b"VALKEY080", &records);
    let last = {
        let mut place = Fixture::new();
        place.read(&file, true).expect("is loaded");
        place.keys()
    };
    assert_eq!(last.len(), 40);
    for shape in SHAPES {
        let mut place = on_threads(shape);
        place.read(&file, true).expect("is loaded");
        assert_eq!(place.keys(), last, "{shape:?}");
        let refused = on_threads(shape)
            .read_with_offset(&file, false)
            .expect_err("has a key twice");
        assert!(matches!(refused.1, RdbFault::Duplicate(DbIndex::FIRST)), "{shape:?}");
        let first_round = records.len() / 50 + MAGIC_BYTES;
        assert_eq!(
            refused.0,
            (first_round + string_record("key:0", "round 01").len()) as u64
        );
    }
}

#[test]
fn lengths_that_claim_gigabytes_take_no_memory() {
    const HUGE: &[u8] = &[0x81, 0, 0, 0x10, 0, 0, 0, 0, 0];
    // Every type: first its length, or that of its first element, is huge.
    for kind in (0..=5).chain(9..=22) {
        for before in [&b""[..], b"\x01", b"\x01\x01f", b"\x01\x01\x01"] {
            let records = [&[kind], &b"\x01k"[..], before, HUGE, b"rest"].concat();
            for shape in [(1, 1), (2, 1)] {
                let read = on_threads(shape).read(&file(b"VALKEY080", &records), false);
                assert!(read.is_err(), "type {kind} after {before:?}");
            }
        }
    }
    // A number of keys that no file could hold only reserves tables for slots that get keys.
    let sizes = [&[opcode::DATABASE_SIZE], HUGE, HUGE, &string_record("k", "v")[..]].concat();
    let read = on_threads((2, 1)).read(&file(b"VALKEY080", &sizes), false);
    assert_eq!(read.map(|loaded| loaded.keys).ok(), Some(1));
}

#[test]
fn dropped_keys_are_reported_once_and_counted() {
    let mut records = Vec::new();
    for number in 0..3000 {
        if number % 3 == 0 {
            records.extend(*b"\xfd\x01\0\0\0");
        }
        records.extend(string_record(&format!("key:{number:04}"), "value"));
    }
    for shape in SHAPES {
        let mut place = on_threads(shape);
        let mut dropped = Vec::new();
        let mut tell = |db: DbIndex, name: &[u8]| dropped.push((db, name.to_vec()));
        let thread_index = ThreadIndex::new(place.seat.index());
        let mut all = place.seat.exclusive();
        let destination = LoadDestination::Keyspace(&mut all);
        let mut loader = loader_into(destination, &place.keyspace, &place.config, thread_index);
        loader.threads = place.threads;
        loader.on_dropped_key = Some(&mut tell);
        let bytes = file(b"VALKEY080", &records);
        let loaded = loader.read(&mut RdbSource::new(&bytes[..], true)).expect("is loaded");
        assert_eq!(
            (loaded.keys, loaded.expired, dropped.len()),
            (2000, 1000, 1000),
            "{shape:?}"
        );
        dropped.sort();
        dropped.dedup();
        assert_eq!(dropped.len(), 1000);
        assert_eq!(place.keyspace.counts.keys(DbIndex::FIRST), 2000);
    }
}

#[test]
fn staging_tables_are_filled_on_any_number_of_threads() {
    let bytes = without_aux_fields();
    for shape in SHAPES {
        let mut place = on_threads(shape);
        let mut staged = StagedDatabases::new(16);
        let (destination, thread_index) = (LoadDestination::Staging(&mut staged), ThreadIndex::FIRST);
        let mut loader = loader_into(destination, &place.keyspace, &place.config, thread_index);
        (loader.threads, loader.now_ms) = (place.threads, 0);
        loader.read(&mut RdbSource::new(&bytes[..], true)).expect("is loaded");
        let thread_index = ThreadIndex::new(place.seat.index());
        let mut all = place.seat.exclusive();
        drop(staged.install(&mut all, &place.keyspace.counts, thread_index, 0));
        drop(all);
        assert_eq!(place.keys(), expected(), "{shape:?}");
    }
}

#[test]
fn other_threads_are_let_in_while_no_key_is_being_inserted() {
    let mut records = Vec::new();
    for number in 0..20_000 {
        records.extend(string_record(&format!("key:{number}"), "value"));
    }
    let bytes = file(b"VALKEY080", &records);
    let mut place = on_threads((3, 500));
    let mut visitor = place.keyspace.slots.join().expect("has a seat");
    let (is_over, visits, attempts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                attempts.fetch_add(1, Relaxed);
                let pass = visitor.enter();
                for slot in 0..weft_base::slots::SLOTS {
                    assert!(pass.try_read(slot).is_some(), "no loader holds a slot");
                }
                visits.fetch_add(1, Relaxed);
            }
        });
        // On a busy machine the load could be over before the visitor has begun.
        while visits.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        let reported = AtomicU64::new(0);
        let report = |bytes| {
            reported.store(bytes, Relaxed);
            // On a busy machine the load could be over before the visitor gets a processor again to wait at the gate.
            while attempts.load(Relaxed) == visits.load(Relaxed) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(100));
        };
        let thread_index = ThreadIndex::new(place.seat.index());
        let mut all = place.seat.exclusive();
        let destination = LoadDestination::Keyspace(&mut all);
        let mut loader = loader_into(destination, &place.keyspace, &place.config, thread_index);
        loader.threads = place.threads;
        loader.progress = Some(ProgressCallback {
            every_bytes: 2000,
            report: &report,
            meanwhile: &|| {},
            used_memory: &|_| {},
        });
        let loaded = loader.read(&mut RdbSource::new(&bytes[..], true)).expect("is loaded");
        drop(all);
        is_over.store(true, Relaxed);
        assert_eq!(loaded.keys, 20_000);
        assert!(reported.load(Relaxed) > bytes.len() as u64 - 4000);
    });
    assert!(visits.load(Relaxed) > 10, "the gate was opened at intervals");
    assert_eq!(place.keyspace.counts.keys(DbIndex::FIRST), 20_000);
}
