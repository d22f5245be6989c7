//! The thread that reads the keyspace of a snapshot's moment and makes chunks of a dump of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};

use weft_table::{Blob, EntryRef, Shared, ValueRef};
use weft_values::Value;

use crate::config::id;
use crate::keyspace::lent::Loan;
use crate::keyspace::preimage::{LARGE_BYTES, Step, Visit, Walker};
use crate::keyspace::{Keyspace, Seat};
use crate::persist::rdb::{Gathering, Head, Key, Style, write_database};
use crate::state::Server;

/// How long a slot that is being written is left alone.
const RETRY: Duration = Duration::from_micros(50);
/// How long to wait between two looks at whether the consumer takes more, or somebody waits for a key.
const LOOK: Duration = Duration::from_millis(1);
/// Keys visited within one passage of the gate.
const KEYS_A_PASS: u64 = 256;

/// What the consumer gets.
pub enum Chunk {
    /// The next bytes.
    Bytes(Vec<u8>),
    /// There is nothing more.
    End,
}

/// A database as it was.
pub struct Database {
    /// Its number.
    pub number: usize,
    /// Its keys.
    pub keys: u64,
    /// Those that expire.
    pub with_expiry: u64,
}

/// It was cancelled, or the consumer failed.
pub struct Stopped;

/// A large value, of which a handle was taken under a lease.
struct Large {
    name: Box<[u8]>,
    value: Handle,
    expire_at_ms: Option<u64>,
    clock: u32,
    // Behind the handle: that is dropped first.
    _loan: Loan,
}

enum Handle {
    Object(Shared<Value>),
    Blob(Blob),
}

impl Large {
    /// The value of an entry, if it is large and can be shared.
    fn of(keyspace: &Keyspace, slot: u16, entry: EntryRef<'_, Value>) -> Option<Large> {
        let is_large = match entry.value() {
            ValueRef::Object(object) => object.allocated_bytes() > LARGE_BYTES,
            ValueRef::Blob(blob) => blob.len() > LARGE_BYTES,
            ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Packed(_) => false,
        };
        if !is_large {
            return None;
        }
        let loan = keyspace.lent.lend_to_snapshot(&keyspace.slots, slot);
        let value = match entry.value() {
            ValueRef::Blob(blob) => Handle::Blob(blob.clone()),
            _ => Handle::Object(entry.share()?),
        };
        Some(Large {
            name: entry.key().into(),
            value,
            expire_at_ms: entry.expire_at_ms(),
            clock: entry.clock(),
            _loan: loan,
        })
    }

    fn write(&self, out: &mut Vec<u8>, style: &Style) {
        let value = match &self.value {
            Handle::Object(object) => ValueRef::Object(&**object),
            Handle::Blob(blob) => ValueRef::Blob(blob),
        };
        let key = Key {
            name: &self.name,
            value,
            expire_at_ms: self.expire_at_ms,
            clock: self.clock,
        };
        style.write_key(out, key);
    }
}

/// What was visited and is not passed on yet.
struct Visited<'s> {
    keyspace: &'s Keyspace,
    style: Style,
    gathering: Gathering,
    large: Vec<Large>,
    keys: u64,
}

impl Visit for Visited<'_> {
    fn key(&mut self, slot: u16, entry: EntryRef<'_, Value>) {
        self.keys += 1;
        match Large::of(self.keyspace, slot, entry) {
            Some(large) => self.large.push(large),
            None => self.style.write_key(&mut self.gathering.bytes, entry.into()),
        }
    }

    fn record(&mut self, record: &[u8]) {
        self.keys += 1;
        self.gathering.bytes.extend_from_slice(record);
    }
}

/// Reads, and makes chunks.
pub struct Saver<'s> {
    server: &'s Arc<Server>,
    seat: &'s mut Seat,
    visited: Visited<'s>,
    chunks: SyncSender<Chunk>,
}

impl<'s> Saver<'s> {
    /// One that has done nothing yet.
    pub fn new(server: &'s Arc<Server>, seat: &'s mut Seat, style: Style, chunks: SyncSender<Chunk>) -> Self {
        let checked = server.config.boolean(id::RDBCHECKSUM);
        Saver {
            server,
            seat,
            visited: Visited {
                keyspace: &server.keyspace,
                style,
                gathering: Gathering::new(checked),
                large: Vec::new(),
                keys: 0,
            },
            chunks,
        }
    }

    /// Keys visited.
    pub fn keys(&self) -> u64 {
        self.visited.keys
    }

    /// Saves everything.
    pub fn save(&mut self, head: &Head<'_>, databases: &[Database]) -> Result<(), Stopped> {
        let compress = self.visited.style.compress;
        head.write(&mut self.visited.gathering.bytes, compress);
        for (index, database) in databases.iter().enumerate() {
            let Database {
                number,
                keys,
                with_expiry,
            } = *database;
            write_database(&mut self.visited.gathering.bytes, number, keys, with_expiry);
            let server = self.server;
            let keyspace = &server.keyspace;
            let is_last = index + 1 == databases.len();
            let mut walker = Walker::new(&keyspace.preimages, &keyspace.hasher, number, is_last);
            while self.step(&mut walker)? {}
        }
        let gathering = std::mem::replace(&mut self.visited.gathering, Gathering::new(false));
        self.send(Chunk::Bytes(gathering.finish()))?;
        self.send(Chunk::End)
    }

    /// Saves some keys; whether there are more.
    fn step(&mut self, walker: &mut Walker<'_>) -> Result<bool, Stopped> {
        let before = self.visited.keys;
        let last = self.visit_some(walker);
        let more = match last {
            Step::More => true,
            Step::End => false,
            Step::Contended => {
                std::thread::sleep(RETRY);
                true
            }
            Step::Left(left) => {
                walker.visit_left(&left, &mut self.visited);
                true
            }
        };
        self.write_large()?;
        self.serve_wanted()?;
        self.delay(self.visited.keys - before)?;
        self.server
            .snapshot
            .keys_done
            .store(self.visited.keys, Ordering::Relaxed);
        self.check()?;
        Ok(more)
    }

    /// Visits keys within one passage of the gate.
    fn visit_some(&mut self, walker: &mut Walker<'_>) -> Step {
        let keyspace = &self.server.keyspace;
        let lend = |slot| keyspace.lent.lend_to_snapshot(&keyspace.slots, slot);
        let slowed = self.server.config.integer(id::RDB_KEY_SAVE_DELAY) != 0;
        let until = self.visited.keys + if slowed { 1 } else { KEYS_A_PASS };
        let pass = self.seat.enter();
        loop {
            let step = walker.step(&pass, &lend, &mut self.visited);
            let much = self.visited.keys >= until || self.visited.gathering.is_much() || !self.visited.large.is_empty();
            if !matches!(step, Step::More) || much || pass.gate_is_closing() {
                return step;
            }
        }
    }

    /// Writes the large values that were met; each is given back before anybody is waited for.
    fn write_large(&mut self) -> Result<(), Stopped> {
        for large in std::mem::take(&mut self.visited.large) {
            large.write(&mut self.visited.gathering.bytes, &self.visited.style);
            drop(large);
            self.pass_on()?;
        }
        self.pass_on()
    }

    fn pass_on(&mut self) -> Result<(), Stopped> {
        if self.visited.gathering.is_much() {
            let chunk = Chunk::Bytes(self.visited.gathering.take());
            self.send(chunk)?;
        }
        Ok(())
    }

    fn send(&mut self, mut chunk: Chunk) -> Result<(), Stopped> {
        loop {
            match self.chunks.try_send(chunk) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(Stopped),
                Err(TrySendError::Full(refused)) => chunk = refused,
            }
            self.serve_wanted()?;
            std::thread::sleep(LOOK);
        }
    }

    fn check(&self) -> Result<(), Stopped> {
        if self.server.snapshot.is_cancelled() {
            return Err(Stopped);
        }
        Ok(())
    }

    /// Saves values out of turn that somebody wants to change. Uncompressed, for somebody waits.
    fn serve_wanted(&mut self) -> Result<(), Stopped> {
        self.check()?;
        let keyspace = &self.server.keyspace;
        let mut style = self.visited.style;
        style.compress = false;
        while let Some(wanted) = keyspace.preimages.next_wanted() {
            let large = loop {
                let share = |slot, entry: EntryRef<'_, Value>| Large::of(keyspace, slot, entry);
                let settled = keyspace.preimages.settle_wanted(&self.seat.enter(), &wanted, share);
                match settled {
                    Some(large) => break large,
                    None => std::thread::sleep(RETRY),
                }
                self.check()?;
            };
            if let Some(large) = large {
                let mut record = Vec::new();
                large.write(&mut record, &style);
                keyspace.preimages.add_record(&wanted, record);
            }
        }
        Ok(())
    }

    /// Waits as `rdb-key-save-delay` wants it after so many keys.
    fn delay(&mut self, keys: u64) -> Result<(), Stopped> {
        let delay = self.server.config.integer(id::RDB_KEY_SAVE_DELAY);
        if delay == 0 || keys == 0 {
            return Ok(());
        }
        // Below 0: 1 µs after every so many keys.
        let us = if delay > 0 {
            keys.saturating_mul(delay.unsigned_abs())
        } else {
            keys / delay.unsigned_abs()
        };
        let until = Instant::now() + Duration::from_micros(us);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
            self.serve_wanted()?;
        }
    }
}
