//! A transaction that a client has begun: the commands that wait for EXEC.
//!
//! The requests lie one behind the other, as they came in, with their keys hashed already: EXEC leases and runs them
//! without looking at a byte of them before.

use std::ops::Range;

use weft_resp::{ArgRange, Args};

use super::client_snapshot::ClientSnapshot;
use crate::keyspace::access::PlannedKey;

/// One queued command.
#[derive(Clone, Copy)]
pub struct Queued {
    /// Its index in the registry.
    pub command: usize,
    /// The database that it runs in.
    pub db: usize,
    request: (usize, usize),
    args: (usize, usize),
    keys: (usize, usize),
}

impl Queued {
    /// Size of the request, bytes.
    pub fn request_bytes(&self) -> usize {
        self.request.1 - self.request.0
    }

    /// Where its keys are among those of the transaction.
    pub fn key_indices(&self) -> Range<usize> {
        self.keys.0..self.keys.1
    }
}

/// Everything between MULTI and EXEC.
#[derive(Default)]
pub struct Transaction {
    requests: Vec<u8>,
    ranges: Vec<ArgRange>,
    /// The keys of all commands; while EXEC runs, behind them those that are watched.
    pub keys: Vec<PlannedKey>,
    /// The commands.
    pub commands: Vec<Queued>,
    /// The database that the next command will run in.
    pub db: usize,
    /// Whether a command was refused: EXEC will do nothing.
    pub refused: bool,
    /// Whether a command may change data, or tell replicas something else.
    pub writes: bool,
    /// Whether a command may not run out of memory.
    pub denied_out_of_memory: bool,
    /// Whether a command needs the whole keyspace.
    pub exclusive: bool,
    /// Whether a command tells of clients: EXEC needs their portraits.
    pub asks: bool,
    /// The other clients as they are right before EXEC, once that has asked for them.
    pub client_snapshots: Option<Vec<ClientSnapshot>>,
    /// Whether a command runs a script.
    pub scripts: bool,
    /// Whether a script says what it does, and may write.
    pub scripts_write: bool,
}

impl Transaction {
    /// Nothing yet, in that database.
    pub fn new(db: usize) -> Self {
        Transaction {
            db,
            ..Transaction::default()
        }
    }

    /// Adds a command: its index, its request with the arguments in it, its keys.
    pub fn push(&mut self, command: usize, request: &[u8], ranges: &[ArgRange], keys: &[PlannedKey]) {
        let (bytes, args, first_key) = (self.requests.len(), self.ranges.len(), self.keys.len());
        self.requests.extend_from_slice(request);
        self.ranges.extend_from_slice(ranges);
        self.keys.extend_from_slice(keys);
        self.commands.push(Queued {
            command,
            db: self.db,
            request: (bytes, self.requests.len()),
            args: (args, self.ranges.len()),
            keys: (first_key, self.keys.len()),
        });
    }

    /// The arguments of a command.
    pub fn args(&self, queued: &Queued) -> Args<'_> {
        Args::new(
            &self.requests[queued.request.0..queued.request.1],
            &self.ranges[queued.args.0..queued.args.1],
        )
    }

    /// The keys of a command.
    pub fn keys_of(&self, queued: &Queued) -> &[PlannedKey] {
        &self.keys[queued.keys.0..queued.keys.1]
    }

    /// How many keys the commands have.
    pub fn own_keys(&self) -> usize {
        self.commands.last().map_or(0, |last| last.keys.1)
    }

    /// Size of the requests that wait for EXEC, bytes.
    pub fn queued_bytes(&self) -> usize {
        self.requests.len()
    }

    /// What it takes, bytes.
    pub fn allocated_bytes(&self) -> usize {
        self.requests.capacity()
            + self.ranges.capacity() * size_of::<ArgRange>()
            + self.keys.capacity() * size_of::<PlannedKey>()
            + self.commands.capacity() * size_of::<Queued>()
    }
}
