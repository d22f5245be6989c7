//! Random operations on a table, compared with a standard map; every allocated byte is accounted for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;

use weft_table::relocation::Mover;
use weft_table::{Blob, Garbage, NewValue, OwnedValue, PACKED_MAX_BYTES, Removed, Shared, Table, ValueDue, ValueRef};

/// Checks that all memory is freed with the layout with which it was allocated.
struct Exact;

thread_local! {
    /// The bytes that this thread has allocated and not freed; each test runs in its own thread.
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

const STAMP_BYTES: usize = 16;

fn stamped(layout: Layout) -> (Layout, usize) {
    let prefix = STAMP_BYTES.max(layout.align());
    let whole = Layout::from_size_align(layout.size() + prefix, prefix).unwrap();
    (whole, prefix)
}

fn count(bytes: isize) {
    LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
}

fn stamp(layout: Layout) -> [usize; 2] {
    [layout.size(), layout.align()]
}

// SAFETY: every block is a system block with a prefix that keeps the alignment.
unsafe impl GlobalAlloc for Exact {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (whole, prefix) = stamped(layout);
        // SAFETY: the prefix before the block has room for the stamp.
        unsafe {
            let block = System.alloc(whole).add(prefix);
            block.sub(STAMP_BYTES).cast::<[usize; 2]>().write(stamp(layout));
            count(layout.size() as isize);
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (whole, prefix) = stamped(layout);
        // SAFETY: `alloc` wrote the stamp and made the prefix.
        unsafe {
            let found = block.sub(STAMP_BYTES).cast::<[usize; 2]>().read();
            if found != stamp(layout) {
                eprintln!("freed with {layout:?}, allocated with {found:?}");
                std::process::abort();
            }
            count(-(layout.size() as isize));
            System.dealloc(block.sub(prefix), whole);
        }
    }
}

#[global_allocator]
static ALLOCATOR: Exact = Exact;

/// Runs `test` and checks that it freed all its memory.
fn assert_no_leak(test: impl Fn()) {
    use_every_class();
    let before = (LIVE_BYTES.get(), cell_bytes());
    test();
    assert_eq!((LIVE_BYTES.get(), cell_bytes()), before, "bytes leaked");
}

/// Entries that are cells do not come from the global allocator and are counted separately.
fn cell_bytes() -> i64 {
    #[cfg(feature = "jemalloc")]
    return weft_table::cells::taken_bytes();
    #[cfg(not(feature = "jemalloc"))]
    0
}

/// Creates this thread's magazines and the first run of each class, which are retained.
fn use_every_class() {
    let mut table = Table::<Object>::new();
    for len in 0..250_usize {
        let key = vec![b'k'; len];
        drop(table.insert(hash(&key), &key, NewValue::Int(1), None, 0));
    }
}

fn seed() -> u64 {
    let seed = std::env::var("WEFT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("WEFT_SEED={seed}");
    seed
}

/// A good hash whose top 14 bits are those of one slot.
fn hash(key: &[u8]) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    for byte in key {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state ^ state >> 31) >> 14 | 0x1234 << 50
}

/// Hashes that differ only in a few bits: overflowing homes, segments that cannot be split.
fn poor_hash(key: &[u8]) -> u64 {
    hash(key) & 0x3 << 40
}

type Object = Box<u32>;

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Int(i64),
    String(Vec<u8>),
    Packed(Vec<u8>),
    Object(Object),
}

#[derive(Clone, Debug)]
struct Expected {
    value: Value,
    expire_at_ms: Option<u64>,
    clock: u32,
    raw: bool,
}

struct Run {
    table: Table<Object>,
    /// Handles that were created, and the values that they must show for ever.
    handles: Vec<(Shared<Object>, u32)>,
    model: HashMap<Vec<u8>, Expected>,
    random: fastrand::Rng,
    hash: fn(&[u8]) -> u64,
    keys: u32,
    now_ms: u64,
    /// The position of the walk that moves entries.
    relocated_to: u32,
}

impl Run {
    fn key(&mut self) -> Vec<u8> {
        let number = self.random.u32(0..self.keys);
        let mut key = format!("key:{number:012}").into_bytes();
        match number % 97 {
            0 => key.resize(254 + (number % 3) as usize, b'k'),
            1 if number < 1000 => key.resize(70_000, b'k'),
            2 => key.truncate(4),
            3 => key = number.to_le_bytes()[..(number % 4) as usize].to_vec(),
            _ => {}
        }
        key
    }

    fn string(&mut self) -> Vec<u8> {
        let len = match self.random.u32(0..100) {
            0..50 => self.random.usize(0..32),
            50..80 => self.random.usize(0..600),
            80..97 => self.random.usize(0..20_000),
            _ => self.random.usize(0..200_000),
        };
        let first = self.random.u8(..);
        (0..len).map(|at| first.wrapping_add(at as u8)).collect()
    }

    fn int(&mut self) -> i64 {
        self.random.i64(..) >> self.random.u32(0..64)
    }

    fn expiry(&mut self) -> Option<u64> {
        match self.random.u32(0..10) {
            0..5 => None,
            5 => Some(self.random.u64(..) >> self.random.u32(0..20)),
            _ => Some(self.now_ms + self.random.u64(0..100_000)),
        }
    }

    /// Returns a value in the model's form, and whether it is stored as a blob.
    fn value(&mut self) -> (Value, bool) {
        match self.random.u32(0..12) {
            0..3 => (Value::Int(self.int()), false),
            10.. => {
                let mut packed = self.string();
                packed.truncate(PACKED_MAX_BYTES);
                (Value::Packed(packed), false)
            }
            3..8 => (Value::String(self.string()), false),
            8 => (Value::String(self.string()), true),
            _ => (Value::Object(Box::new(self.random.u32(..))), false),
        }
    }

    fn insert(&mut self) {
        let key = self.key();
        let (value, as_blob) = self.value();
        let expire_at_ms = self.expiry();
        let clock = self.random.u32(..1 << 24);
        drop(
            self.table
                .insert((self.hash)(&key), &key, new_value(&value, as_blob), expire_at_ms, clock),
        );
        let expected = Expected {
            value,
            expire_at_ms,
            clock,
            raw: false,
        };
        self.model.insert(key, expected);
    }

    fn remove(&mut self) {
        let key = self.key();
        let removed = self.table.remove((self.hash)(&key), &key);
        let expected = self.model.remove(&key);
        assert_eq!(removed.is_some(), expected.is_some());
        if let (Some(removed), Some(expected)) = (removed, expected) {
            assert_eq!(removed.key(), key);
            check_removed(removed, &expected);
        }
    }

    fn rename(&mut self) {
        let (from, to) = (self.key(), self.key());
        let Some(removed) = self.table.remove((self.hash)(&from), &from) else {
            return;
        };
        drop(self.table.insert_removed((self.hash)(&to), &to, removed));
        let expected = self.model.remove(&from).unwrap();
        self.model.insert(to, expected);
    }

    fn change(&mut self) {
        let key = self.key();
        let action = self.random.u32(0..6);
        let (value, as_blob) = self.value();
        let string = self.string();
        let expiry = self.expiry();
        let clock = self.random.u32(..1 << 24);
        let Some(mut entry) = self.table.find_mut((self.hash)(&key), &key) else {
            assert!(!self.model.contains_key(&key));
            return;
        };
        let expected = self.model.get_mut(&key).unwrap();
        match action {
            0 => {
                drop(entry.set_value(new_value(&value, as_blob)));
                expected.value = value;
                expected.raw = false;
            }
            1 => {
                drop(entry.set_expire(expiry));
                expected.expire_at_ms = expiry;
            }
            2 => {
                entry.set_clock(clock);
                expected.clock = clock;
            }
            3 => {
                if let (Some(packed), Value::Packed(expected)) = (entry.packed_mut(), &mut expected.value) {
                    assert_eq!(packed, expected);
                    packed.reverse();
                    expected.reverse();
                }
                if let (Some(handle), Value::Object(object)) = (entry.as_ref().share(), &expected.value)
                    && self.handles.len() < 100
                {
                    assert!(entry.as_ref().is_shared() && !handle.is_unique());
                    self.handles.push((handle, **object));
                }
                if !self.handles.is_empty() && clock.is_multiple_of(2) {
                    let (handle, wanted) = self.handles.swap_remove(clock as usize % self.handles.len());
                    assert_eq!(**handle, wanted, "a handle showed a changed value");
                }
                if let Some(object) = entry.object_mut() {
                    **object = clock;
                    expected.value = Value::Object(Box::new(clock));
                }
            }
            4 if matches!(expected.value, Value::Int(_) | Value::String(_)) => {
                let mut bytes = as_string(&expected.value);
                bytes.extend_from_slice(&string);
                assert_eq!(entry.append(&string), bytes.len());
                expected.value = Value::String(bytes);
                expected.raw = true;
            }
            5 if matches!(expected.value, Value::Int(_) | Value::String(_)) => {
                // A shared blob must be copied before it is changed.
                let shared = match entry.value() {
                    ValueRef::Blob(blob) => Some(blob.clone()),
                    _ => None,
                };
                let mut bytes = as_string(&expected.value);
                let before = bytes.clone();
                let min_len = string.len().min(bytes.len() + 100);
                bytes.resize(bytes.len().max(min_len), 0);
                let found = entry.bytes_mut(min_len);
                assert_eq!(found, bytes);
                if let (Some(last), Some(expected)) = (found.last_mut(), bytes.last_mut()) {
                    (*last, *expected) = (b'!', b'!');
                }
                assert!(shared.is_none_or(|shared| shared[..] == before));
                expected.value = Value::String(bytes);
                expected.raw = true;
            }
            _ => {}
        }
    }

    fn expire(&mut self) {
        self.now_ms += self.random.u64(0..5_000);
        let at_most = self.random.usize(1..50);
        let mut removed = Vec::new();
        loop {
            let before = removed.len();
            let more = self
                .table
                .expire_due(self.now_ms, at_most, &mut removed, &mut |_, _| ValueDue::At(None));
            assert!(removed.len() - before <= at_most);
            if !more {
                break;
            }
        }
        for removed in removed {
            let expected = self.model.remove(removed.key()).expect("the key existed");
            assert!(expected.expire_at_ms.unwrap() < self.now_ms, "the key was not due");
            check_removed(removed, &expected);
        }
        for expected in self.model.values() {
            assert!(
                expected.expire_at_ms.is_none_or(|at| at >= self.now_ms),
                "a due key was left"
            );
        }
    }

    fn relocate(&mut self) {
        let mut cursor = Some(0);
        let mut old = Vec::new();
        while let Some(from) = cursor {
            cursor = self.table.relocate(from, &mut old);
        }
        assert!(!old.is_empty());
    }

    /// Moves some entries and objects. Objects of which a handle exists must stay.
    fn relocate_entries(&mut self) {
        let mut mover = Mover::of_everything();
        mover.begin_step(self.random.u32(1..1000));
        let (from, handles) = (self.relocated_to, &self.handles);
        let next = self.table.relocate_entries(from, &mut mover, &mut |_, object, mover| {
            assert!(handles.iter().all(|(handle, _)| !handle.is_of(object)));
            mover.boxed(object);
        });
        assert!(next.is_none_or(|next| next > from));
        // Colliding entries may all be before the position at which this step has begun.
        assert!(mover.take_counts().moved > 0 || from > 0 || self.table.is_empty());
        self.relocated_to = next.unwrap_or(0);
    }

    fn check(&self) {
        assert_eq!(self.table.len(), self.model.len());
        let with_expiry = self.model.values().filter(|e| e.expire_at_ms.is_some());
        assert_eq!(self.table.with_expiry(), with_expiry.count());
        let earliest = self.model.values().filter_map(|e| e.expire_at_ms).min();
        match (earliest, self.table.next_due_ms()) {
            (Some(earliest), due) => assert!(due.is_some_and(|due| due <= earliest)),
            (None, due) => assert_eq!(due, None),
        }
        for (key, expected) in &self.model {
            let entry = self.table.find((self.hash)(key), key).expect("the key exists");
            assert_eq!(entry.key(), key);
            check_value(entry.value(), &expected.value);
            assert_eq!(entry.expire_at_ms(), expected.expire_at_ms);
            assert_eq!(entry.clock(), expected.clock);
            assert_eq!(entry.is_raw(), expected.raw);
            assert!(entry.allocated_bytes() >= 16.max(key.len()));
        }
        assert_eq!(self.table.iter().count(), self.model.len());
        assert_eq!(self.table.random(7).is_some(), !self.model.is_empty());
    }
}

fn new_value(value: &Value, as_blob: bool) -> NewValue<'_, Object> {
    match value {
        Value::Int(number) => NewValue::Int(*number),
        Value::String(bytes) if as_blob => NewValue::Blob(Blob::from_slice(bytes)),
        Value::String(bytes) => NewValue::Bytes(bytes),
        Value::Packed(bytes) => NewValue::Packed(bytes),
        Value::Object(object) => NewValue::Object(object.clone()),
    }
}

fn as_string(value: &Value) -> Vec<u8> {
    match value {
        Value::Int(number) => number.to_string().into_bytes(),
        Value::String(bytes) => bytes.clone(),
        Value::Packed(_) | Value::Object(_) => panic!("not a string"),
    }
}

fn check_value(found: ValueRef<'_, Object>, expected: &Value) {
    match (found, expected) {
        (ValueRef::Int(found), Value::Int(expected)) => assert_eq!(found, *expected),
        (ValueRef::Bytes(found), Value::String(expected)) => assert!(found == expected),
        (ValueRef::Blob(found), Value::String(expected)) => assert!(found[..] == expected[..]),
        (ValueRef::Packed(found), Value::Packed(expected)) => assert!(found == expected),
        (ValueRef::Object(found), Value::Object(expected)) => assert_eq!(found, expected),
        (found, expected) => panic!("found {found:?}, expected {expected:?}"),
    }
}

fn check_removed(removed: Removed<Object>, expected: &Expected) {
    check_value(removed.value(), &expected.value);
    assert_eq!(removed.expire_at_ms(), expected.expire_at_ms);
    assert_eq!(removed.clock(), expected.clock);
    match (removed.into_value(), &expected.value) {
        (OwnedValue::Int(found), Value::Int(expected)) => assert_eq!(found, *expected),
        (OwnedValue::Bytes(found), Value::String(expected)) => assert!(found == *expected),
        (OwnedValue::Blob(found), Value::String(expected)) => {
            assert!(found.into_vec() == *expected);
        }
        (OwnedValue::Packed(found), Value::Packed(expected)) => assert!(found == *expected),
        (OwnedValue::Object(found), Value::Object(expected)) => assert_eq!(found.into_inner(), *expected),
        (found, expected) => panic!("found {found:?}, expected {expected:?}"),
    }
}

fn random_operations(keys: u32, steps: u32, hash: fn(&[u8]) -> u64) {
    let seed = seed();
    assert_no_leak(|| {
        let mut run = Run {
            table: Table::new(),
            handles: Vec::new(),
            model: HashMap::new(),
            random: fastrand::Rng::with_seed(seed),
            hash,
            keys,
            now_ms: 1_800_000_000_000,
            relocated_to: 0,
        };
        for step in 0..steps {
            // The table grows and shrinks alternately, so that it splits and merges.
            let growing = (step / (steps / 6)).is_multiple_of(2);
            match run.random.u32(0..100) {
                0..40 if growing => run.insert(),
                0..60 if !growing => run.remove(),
                40..60 => run.insert(),
                60..65 => run.rename(),
                65..98 => run.change(),
                98 => run.relocate_entries(),
                _ if step % 7 == 0 => run.expire(),
                _ => run.relocate(),
            }
            if step % (steps / 20) == 0 {
                run.check();
            }
        }
        run.check();
        let taken = run.table.take();
        assert!(run.table.is_empty() && taken.len() == run.model.len());
    });
}

#[test]
fn a_small_table_agrees_with_the_model() {
    random_operations(300, 30_000, hash);
}

#[test]
fn a_tiny_table_agrees_with_the_model() {
    random_operations(9, 10_000, hash);
}

#[test]
fn a_large_table_agrees_with_the_model() {
    random_operations(20_000, 60_000, hash);
}

#[test]
fn colliding_hashes_cost_speed_but_nothing_else() {
    random_operations(3_000, 8_000, poor_hash);
}

#[test]
fn garbage_reports_its_bytes() {
    assert_no_leak(|| {
        let mut table = Table::<Object>::new();
        let key = b"0123456789abcdef";
        let mut set = |value: NewValue<'_, Object>| table.insert(hash(key), key, value, None, 0);
        assert!(set(NewValue::Bytes(&[1; 512])).is_none());
        assert!(set(NewValue::Bytes(&[2; 500])).is_none(), "512 bytes are used again");
        assert_eq!(set(NewValue::Int(5)).bytes(), 512 + 32);
        assert!(set(NewValue::Int(-500)).is_none());
        assert_eq!(set(NewValue::Int(-5_000_000_000)).bytes(), 24);
        assert!(set(NewValue::Bytes(&[3; 100_000])).is_none(), "32 bytes are used again");
        let garbage = set(NewValue::Object(Box::new(9)));
        assert!((100_000..120_000).contains(&garbage.bytes()));
        assert_eq!(set(NewValue::Int(1)).object(), Some(&Box::new(9)));
        assert_eq!(Garbage::<Object>::default().bytes(), 0);
    });
}

#[test]
fn dropping_a_large_table_frees_it() {
    assert_no_leak(|| {
        let mut table = Table::<Object>::new();
        for number in 0..50_000_u32 {
            let key = number.to_be_bytes();
            drop(table.insert(hash(&key), &key, NewValue::Object(Box::new(number)), Some(5), 0));
        }
        assert!(table.is_large());
    });
}

#[test]
fn memory_returns_after_mass_deletes() {
    assert_no_leak(|| {
        let mut table = Table::<Object>::new();
        let count = 100_000_u32;
        for number in 0..count {
            let key = number.to_be_bytes();
            drop(table.insert(hash(&key), &key, NewValue::Int(1), Some(u64::from(number)), 0));
        }
        let full = table.memory_bytes();
        for number in 0..count - 100 {
            let key = number.to_be_bytes();
            table.remove(hash(&key), &key).expect("the key exists");
            if number % 10_000 == 0 {
                assert!(table.load() > 0.5, "{} at {number}", table.load());
            }
        }
        assert!(table.memory_bytes() < full / 500, "{} of {full}", table.memory_bytes());
        assert!(!table.is_large());
        let (mut removed, mut calls) = (Vec::new(), 0);
        while table.expire_due(1 << 40, 7, &mut removed, &mut |_, _| ValueDue::At(None)) {
            calls += 1;
        }
        assert_eq!((removed.len(), calls), (100, 14));
        assert_eq!((table.len(), table.memory_bytes()), (0, 0));
    });
}
