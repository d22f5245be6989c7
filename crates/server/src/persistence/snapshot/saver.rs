//! A thread that reads parts of the keyspace as of a snapshot's moment and encodes them as chunks of an RDB file.
//!
//! A command that wants to change a large value waits while the value is being written. Writing takes several times as
//! long as copying, and compressing a long string takes even longer. So a value that a command waits for is copied,
//! unpinned, and written afterwards, unless the copy would take too much memory. A long string is always copied before
//! it is compressed. A value that is changed often is requested soon after the snapshot's moment, so it has been saved
//! before the walker reaches it.

use std::sync::Arc;
use std::time::Duration;

use weft_base::SlotIndex;
use weft_table::{Blob, EntryRef, Shared, ValueRef};
use weft_values::Value;

use crate::keyspace::before_image::{AwaitedKey, LARGE_BYTES, SnapshotVisitor, SnapshotWalker, WalkerStep};
use crate::keyspace::pinned::Pin;
use crate::keyspace::{Keyspace, Seat};
use crate::persistence::rdb_file::{BufferedWriter, KeyEncodingOptions, SavedKey};
use crate::state::Server;
use weft_config::id;
use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::mpsc::{SyncSender, TrySendError};
use weft_os::time::Instant;

/// The time after which a slot that was leased by a writer is tried again.
const RETRY_INTERVAL: Duration = Duration::from_micros(50);
/// The interval between checks for space at the consumer and for keys that writers wait for.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The largest size of a value that is copied for a waiting writer, in bytes.
const MAX_COPY_BYTES: usize = 256 << 20;
/// The size of a string above which it is copied before it is compressed, in bytes.
const LONG_STRING_BYTES: usize = 512 << 10;
/// The number of keys visited in one passage of the gate.
const KEYS_PER_PASS: u64 = if cfg!(feature = "simulated") { 1 } else { 256 };

/// A message to the consumer.
pub enum SnapshotChunk {
    /// The next bytes: whole records.
    Bytes(Vec<u8>),
    /// All records are sent.
    End,
}

/// The interval at which a saver asks if it should pause.
pub const TURN: Duration = Duration::from_millis(if cfg!(any(test, feature = "simulated")) { 0 } else { 10 });

/// The snapshot stopped: it was cancelled, the consumer failed, or the format lacks a value.
pub struct SaveStopped;

/// A large value, of which a handle was taken under a lease.
struct LargeValue {
    name: Box<[u8]>,
    value: ValueHandle,
    expire_at_ms: Option<u64>,
    clock: u32,
    // Declared after the handle, so that it is dropped after it.
    pin: Option<Pin>,
}

enum ValueHandle {
    Object(Shared<Value>),
    Blob(Blob),
}

impl LargeValue {
    /// Takes a handle of an entry's value if it is large and can be shared.
    fn from_entry(keyspace: &Keyspace, slot: SlotIndex, entry: EntryRef<'_, Value>) -> Option<LargeValue> {
        let is_large = match entry.value() {
            ValueRef::Object(object) => object.allocated_bytes() > LARGE_BYTES,
            ValueRef::Blob(blob) => blob.len() > LARGE_BYTES,
            ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Packed(_) => false,
        };
        if !is_large {
            return None;
        }
        let pin = keyspace.pinned.pin_for_snapshot(&keyspace.slots, slot);
        debug_assert!(
            keyspace.slots.header(slot.index()).has_pinned_values(),
            "the slot of a pinned value is marked"
        );
        let value = match entry.value() {
            ValueRef::Blob(blob) => ValueHandle::Blob(blob.clone()),
            _ => ValueHandle::Object(entry.share()?),
        };
        Some(LargeValue {
            name: entry.key().into(),
            value,
            expire_at_ms: entry.expire_at_ms(),
            clock: entry.clock(),
            pin: Some(pin),
        })
    }

    /// The size of the value in bytes.
    fn bytes(&self) -> usize {
        match &self.value {
            ValueHandle::Object(object) => object.allocated_bytes(),
            ValueHandle::Blob(blob) => blob.len(),
        }
    }

    /// Replaces the handle with a copy and unpins the value, so that the original may be changed.
    fn copy_and_unpin(&mut self) {
        self.value = match &self.value {
            ValueHandle::Object(object) => ValueHandle::Object(Shared::new(Value::clone(object))),
            ValueHandle::Blob(blob) => ValueHandle::Blob(Blob::from_slice(blob)),
        };
        self.pin = None;
    }

    fn is_long_string(&self) -> bool {
        matches!(&self.value, ValueHandle::Blob(blob) if blob.len() > LONG_STRING_BYTES)
    }

    /// Appends the key and the value to `out`. Returns `true` if the format can represent the value.
    fn write_key(&self, out: &mut Vec<u8>, style: &KeyEncodingOptions) -> bool {
        let value = match &self.value {
            ValueHandle::Object(object) => ValueRef::Object(&**object),
            ValueHandle::Blob(blob) => ValueRef::Blob(blob),
        };
        let key = SavedKey {
            name: &self.name,
            value,
            expire_at_ms: self.expire_at_ms,
            clock: self.clock,
        };
        style.write_key(out, key)
    }
}

/// Visited keys that are not sent yet.
struct PendingEntries<'s> {
    keyspace: &'s Keyspace,
    style: KeyEncodingOptions,
    output: BufferedWriter,
    large: Vec<LargeValue>,
    keys: u64,
    /// `true` while the format could represent every value.
    is_representable: bool,
}

impl SnapshotVisitor for PendingEntries<'_> {
    fn visit_key(&mut self, slot: SlotIndex, entry: EntryRef<'_, Value>) {
        self.keys += 1;
        match LargeValue::from_entry(self.keyspace, slot, entry) {
            Some(large) => self.large.push(large),
            None => self.is_representable &= self.style.write_key(&mut self.output.bytes, entry.into()),
        }
    }

    fn visit_record(&mut self, record: &[u8]) {
        self.keys += 1;
        self.output.bytes.extend_from_slice(record);
    }
}

/// What the threads that save a snapshot share.
pub struct SharedSave<'s> {
    /// The server.
    pub server: &'s Arc<Server>,
    /// The options for encoding keys.
    pub style: KeyEncodingOptions,
    /// The queue of the consumer.
    pub chunks: SyncSender<SnapshotChunk>,
    /// Set when one of the threads has stopped before its end: the others stop, too.
    pub has_stopped: AtomicBool,
}

/// Reads parts of the keyspace and produces chunks.
pub struct SnapshotSaver<'s> {
    shared: &'s SharedSave<'s>,
    server: &'s Arc<Server>,
    seat: &'s mut Seat,
    visited: PendingEntries<'s>,
    /// Requested values that are not written yet.
    urgent: Vec<(AwaitedKey, LargeValue)>,
    /// Large values that were visited and are not written yet. The next one is last.
    unwritten: Vec<LargeValue>,
}

impl<'s> SnapshotSaver<'s> {
    /// Creates a saver.
    pub fn new(shared: &'s SharedSave<'s>, seat: &'s mut Seat) -> Self {
        SnapshotSaver {
            shared,
            server: shared.server,
            seat,
            visited: PendingEntries {
                keyspace: &shared.server.keyspace,
                style: shared.style,
                output: BufferedWriter::new(false),
                large: Vec::new(),
                keys: 0,
                is_representable: true,
            },
            urgent: Vec::new(),
            unwritten: Vec::new(),
        }
    }

    /// The number of keys visited.
    pub fn keys(&self) -> u64 {
        self.visited.keys
    }

    /// Returns `true` if the format could represent all values so far.
    pub fn is_representable(&self) -> bool {
        self.visited.is_representable
    }

    /// The buffer of the records that are not sent yet.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.visited.output.bytes
    }

    /// Saves a part. Returns `false` if `should_pause` returned `true` before the end; it is called once per [`TURN`].
    /// Then every key that was visited is written, and another thread may go on with the walker.
    ///
    /// # Errors
    /// If the snapshot stops.
    pub fn save_part(
        &mut self,
        walker: &mut SnapshotWalker<'_>,
        mut should_pause: impl FnMut() -> bool,
    ) -> Result<bool, SaveStopped> {
        let mut turn_end = Instant::now() + TURN;
        while self.step(walker)? {
            if Instant::now() < turn_end {
                continue;
            }
            if should_pause() {
                return Ok(false);
            }
            turn_end = Instant::now() + TURN;
        }
        Ok(true)
    }

    /// Sends the records that are not sent yet.
    ///
    /// # Errors
    /// If the snapshot stops.
    pub fn flush(&mut self) -> Result<(), SaveStopped> {
        assert!(
            self.visited.large.is_empty() && self.unwritten.is_empty() && self.urgent.is_empty(),
            "every visited value is written between two steps"
        );
        if self.visited.output.bytes.is_empty() {
            return Ok(());
        }
        let chunk = SnapshotChunk::Bytes(self.visited.output.take());
        self.send(chunk)
    }

    /// Waits for other threads, and saves the values that writers wait for.
    ///
    /// # Errors
    /// If the snapshot stops.
    pub fn wait(&mut self) -> Result<(), SaveStopped> {
        weft_os::thread::sleep(POLL_INTERVAL);
        self.save_urgent_keys()
    }

    /// Sends what was saved, and does nothing for a while.
    ///
    /// # Errors
    /// If the snapshot stops.
    pub fn pause(&mut self, duration: Duration) -> Result<(), SaveStopped> {
        self.flush()?;
        weft_os::thread::sleep(duration);
        self.check_cancelled()
    }

    /// Saves some keys. Returns `true` if there are more.
    fn step(&mut self, walker: &mut SnapshotWalker<'_>) -> Result<bool, SaveStopped> {
        let before = self.visited.keys;
        let last = self.visit_in_pass(walker);
        let more = match last {
            WalkerStep::More => true,
            WalkerStep::End => false,
            WalkerStep::Contended => {
                weft_os::thread::sleep(RETRY_INTERVAL);
                true
            }
            WalkerStep::Images(left) => {
                walker.visit_images(&left, &mut self.visited);
                true
            }
        };
        self.write_large()?;
        self.save_urgent_keys()?;
        self.delay(self.visited.keys - before)?;
        let progress = &self.server.persistence.snapshot;
        let new = self.visited.keys - before;
        let before = progress.keys_done.fetch_add(new, Ordering::Relaxed);
        debug_assert!(
            before + new <= progress.keys_total.load(Ordering::Relaxed),
            "a snapshot has no more keys than at its moment"
        );
        self.check_cancelled()?;
        Ok(more)
    }

    /// Visits keys within one passage of the gate.
    fn visit_in_pass(&mut self, walker: &mut SnapshotWalker<'_>) -> WalkerStep {
        let keyspace = &self.server.keyspace;
        let lend = |slot| keyspace.pinned.pin_for_snapshot(&keyspace.slots, slot);
        let slowed = self.server.config.integer(id::RDB_KEY_SAVE_DELAY) != 0;
        let until = self.visited.keys + if slowed { 1 } else { KEYS_PER_PASS };
        let pass = self.seat.enter();
        loop {
            let step = walker.step(&pass, &lend, &mut self.visited);
            let much = self.visited.keys >= until || self.visited.output.is_full() || !self.visited.large.is_empty();
            if !matches!(step, WalkerStep::More) || much || pass.gate_is_closing() {
                return step;
            }
        }
    }

    /// Writes the large values that were visited. Each is unpinned before the thread waits for anything.
    fn write_large(&mut self) -> Result<(), SaveStopped> {
        self.unwritten.extend(self.visited.large.drain(..).rev());
        while let Some(mut large) = self.unwritten.pop() {
            if large.is_long_string() && self.visited.style.should_compress {
                large.copy_and_unpin();
            }
            self.take_urgent_keys()?;
            self.visited.is_representable &= large.write_key(&mut self.visited.output.bytes, &self.visited.style);
            drop(large);
            self.send_if_full()?;
        }
        self.send_if_full()
    }

    fn send_if_full(&mut self) -> Result<(), SaveStopped> {
        if self.visited.output.is_full() {
            let chunk = SnapshotChunk::Bytes(self.visited.output.take());
            self.send(chunk)?;
        }
        Ok(())
    }

    /// Sends a message to the consumer.
    ///
    /// # Errors
    /// If the snapshot stops.
    pub fn send(&mut self, mut chunk: SnapshotChunk) -> Result<(), SaveStopped> {
        loop {
            match self.shared.chunks.try_send(chunk) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(SaveStopped),
                Err(TrySendError::Full(refused)) => chunk = refused,
            }
            self.copy_and_unpin_rest();
            self.save_urgent_keys()?;
            weft_os::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Unpins the remaining values, so that no writer waits for them while this thread waits for the consumer.
    fn copy_and_unpin_rest(&mut self) {
        let mut copied = 0;
        for large in self.unwritten.iter_mut().filter(|large| large.pin.is_some()) {
            copied += large.bytes();
            if copied > MAX_COPY_BYTES {
                return;
            }
            large.copy_and_unpin();
        }
    }

    fn check_cancelled(&self) -> Result<(), SaveStopped> {
        let must_stop = self.shared.has_stopped.load(Ordering::Relaxed)
            || self.server.persistence.snapshot.is_cancelled()
            || !self.visited.is_representable;
        match must_stop {
            true => Err(SaveStopped),
            false => Ok(()),
        }
    }

    /// Saves the values that writers wait for. All of them are taken before the first is written.
    fn save_urgent_keys(&mut self) -> Result<(), SaveStopped> {
        self.check_cancelled()?;
        loop {
            self.take_urgent_keys()?;
            let Some((wanted, large)) = self.urgent.pop() else {
                return Ok(());
            };
            debug_assert!(
                large.pin.is_none() || large.bytes() > MAX_COPY_BYTES,
                "a value that a writer waits for is copied unless it is too large"
            );
            let mut style = self.visited.style;
            // Without a pin the value is a copy, which no writer waits for.
            style.should_compress &= large.pin.is_none();
            let mut record = Vec::new();
            self.visited.is_representable &= large.write_key(&mut record, &style);
            self.server.keyspace.before_images.add_record(&wanted, record);
        }
    }

    /// Takes the values that writers wait for, as copies. The walker does not pass their slots before they are written.
    fn take_urgent_keys(&mut self) -> Result<(), SaveStopped> {
        let keyspace = &self.server.keyspace;
        while let Some(wanted) = keyspace.before_images.next_urgent_key() {
            let large = loop {
                let share = |slot, entry: EntryRef<'_, Value>| LargeValue::from_entry(keyspace, slot, entry);
                let outcome = keyspace
                    .before_images
                    .save_urgent_key(&self.seat.enter(), &wanted, share);
                match outcome {
                    Some(large) => break large,
                    None => weft_os::thread::sleep(RETRY_INTERVAL),
                }
                self.check_cancelled()?;
            };
            let Some(mut large) = large else { continue };
            if large.bytes() <= MAX_COPY_BYTES {
                large.copy_and_unpin();
            }
            self.urgent.push((wanted, large));
        }
        Ok(())
    }

    /// Waits as required by `rdb-key-save-delay` after this number of keys.
    fn delay(&mut self, keys: u64) -> Result<(), SaveStopped> {
        let delay = self.server.config.integer(id::RDB_KEY_SAVE_DELAY);
        if delay == 0 || keys == 0 {
            return Ok(());
        }
        // Below 0: a delay of 1 µs after that many keys.
        let us = if delay > 0 {
            keys.saturating_mul(delay.unsigned_abs())
        } else {
            keys / delay.unsigned_abs()
        };
        let until = Instant::now() + Duration::from_micros(us);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Setting the delay to 0 ends it.
            if left.is_zero() || self.server.config.integer(id::RDB_KEY_SAVE_DELAY) == 0 {
                return Ok(());
            }
            weft_os::thread::sleep(left.min(POLL_INTERVAL));
            self.save_urgent_keys()?;
        }
    }
}
