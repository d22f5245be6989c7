//! A client of `churn`. It changes keys that no other client changes, so it knows what each of them holds.
//!
//! Keys may be missing at any time, because they are evicted, expire, or are flushed. A key that is there must have the
//! value that was written last.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::values::{ChurnValue, ValueKind};
use crate::batch_connection::{BatchConnection, is_bulk_string, is_out_of_memory, wrong_reply};
use crate::content::{ValuePool, key_name};
use crate::draw::Draw;
use crate::error::Result;
use crate::interruption::Interruption;

/// Of 100 changes, those that write a value of the same type, the next type, and those that delete a key. The others
/// give a key an expiry.
const SAME_TYPE_PERCENT: u64 = 50;
const NEXT_TYPE_PERCENT: u64 = 25;
const DELETE_PERCENT: u64 = 12;

/// The longest expiry that a key gets, in milliseconds.
const LONGEST_EXPIRY_MS: u64 = 20_000;

/// The number of keys that are shrunk in one batch.
const SHRINK_BATCH: usize = 64;

/// A way in which the data become a tenth of what they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shrinking {
    /// Each existing key gets a value with a tenth of the bytes.
    Rewriting,
    /// Nine keys of ten are deleted.
    Deleting,
}

impl Shrinking {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Shrinking::Rewriting => "values rewritten",
            Shrinking::Deleting => "keys deleted",
        }
    }
}

/// The client's knowledge of a key.
#[derive(Debug, Clone, Copy)]
struct KeyState {
    version: u32,
    kind: ValueKind,
    /// `true` if the value has a tenth of the version's bytes.
    is_tenth: bool,
    /// `false` if the server refused the last write.
    is_known: bool,
}

/// The reply that a request must get.
#[derive(Debug, Clone, Copy)]
enum AwaitedReply {
    /// OK: the key with this index has its new string.
    Stored(usize),
    /// The number of elements of the key with this index, which did not exist.
    Added(usize, u64),
    /// 0 or 1.
    Flag,
    /// The value of the key with this index, or nothing.
    Content(usize, ChurnValue),
}

/// The counts of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// The number of replies.
    pub requests: u64,
    /// The number of writes that the server refused because it was out of memory.
    pub refused: u64,
}

/// A client with its connection and its keys.
#[derive(Debug)]
pub struct ChurnClient {
    connection: BatchConnection,
    /// The number of the key with index 0, and the distance between the numbers of two keys.
    first: u64,
    step: u64,
    keys: Vec<KeyState>,
    draw: Draw,
    awaited: Vec<AwaitedReply>,
    /// What has happened so far.
    pub counts: ClientCounts,
}

impl ChurnClient {
    /// Connects client `number` of `clients`, which share the keys `0..keys`.
    ///
    /// # Errors
    /// Fails if the server refuses the connection.
    pub fn connect(address: SocketAddr, number: u64, clients: u64, keys: u64, seed: u64) -> Result<ChurnClient> {
        let own = keys / clients + u64::from(number < keys % clients);
        let state = KeyState {
            version: 0,
            kind: ValueKind::String,
            is_tenth: false,
            // A missing key has no wrong value.
            is_known: true,
        };
        Ok(ChurnClient {
            connection: BatchConnection::connect(address)?,
            first: number,
            step: clients,
            keys: vec![state; own.max(1) as usize],
            draw: Draw::new(seed, number),
            awaited: Vec::new(),
            counts: ClientCounts::default(),
        })
    }

    /// Sends a batch of changes, of which the last request is a read.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn send_changes(&mut self, batch: usize, values: &ValuePool) -> Result<()> {
        for _ in 1..batch.max(2) {
            self.append_change(values);
        }
        self.append_read();
        self.connection.send()
    }

    fn append_change(&mut self, values: &ValuePool) {
        let index = self.draw.below(self.keys.len() as u64) as usize;
        let kind = self.keys[index].kind;
        let choice = self.draw.below(100);
        let name = key_name(self.number(index));
        if choice < SAME_TYPE_PERCENT {
            self.append_write(index, kind, false, values);
        } else if choice < SAME_TYPE_PERCENT + NEXT_TYPE_PERCENT {
            self.append_write(index, kind.next(), false, values);
        } else if choice < SAME_TYPE_PERCENT + NEXT_TYPE_PERCENT + DELETE_PERCENT {
            self.connection.append(&[b"DEL", &name]);
            self.awaited.push(AwaitedReply::Flag);
        } else {
            let expiry_ms = 1 + self.draw.below(LONGEST_EXPIRY_MS);
            self.connection
                .append(&[b"PEXPIRE", &name, expiry_ms.to_string().as_bytes()]);
            self.awaited.push(AwaitedReply::Flag);
        }
    }

    /// Appends the commands that write the next version of a key, or a tenth of it.
    fn append_write(&mut self, index: usize, kind: ValueKind, is_tenth: bool, values: &ValuePool) {
        let state = &mut self.keys[index];
        state.version = state.version.wrapping_add(1);
        state.kind = kind;
        state.is_tenth = is_tenth;
        let value = self.value(index);
        let name = key_name(self.number(index));
        if kind == ValueKind::String {
            self.awaited.push(AwaitedReply::Stored(index));
        } else {
            self.connection.append(&[b"DEL", &name]);
            self.awaited.push(AwaitedReply::Flag);
            self.awaited.push(AwaitedReply::Added(index, value.elements));
        }
        value.append_write(&name, values, &mut self.connection);
    }

    fn append_read(&mut self) {
        let index = self.draw.below(self.keys.len() as u64) as usize;
        let value = self.value(index);
        let name = key_name(self.number(index));
        self.connection.append(&[value.kind.read_command().as_bytes(), &name]);
        self.awaited.push(AwaitedReply::Content(index, value));
    }

    /// Returns the value that a key should have.
    fn value(&self, index: usize) -> ChurnValue {
        let state = self.keys[index];
        let value = ChurnValue::new(self.number(index), state.version, state.kind);
        if state.is_tenth { value.tenth() } else { value }
    }

    fn number(&self, index: usize) -> u64 {
        self.first + index as u64 * self.step
    }

    /// Reads and checks the replies to the batch.
    ///
    /// # Errors
    /// Fails if the connection breaks or a reply is wrong.
    pub fn receive(&mut self, values: &ValuePool) -> Result<()> {
        let (keys, awaited, counts) = (&mut self.keys, &self.awaited, &mut self.counts);
        self.connection.receive(|number, reply| {
            counts.requests += 1;
            check(awaited[number], reply, keys, &mut counts.refused, values)
        })?;
        self.awaited.clear();
        Ok(())
    }

    /// Makes the client's data a tenth of what they are.
    ///
    /// # Errors
    /// Fails if the connection breaks, a reply is wrong, or the run is interrupted.
    pub fn shrink(&mut self, how: Shrinking, values: &ValuePool, interruption: &Interruption) -> Result<()> {
        for first in (0..self.keys.len()).step_by(SHRINK_BATCH) {
            interruption.check()?;
            let indexes = first..(first + SHRINK_BATCH).min(self.keys.len());
            match how {
                Shrinking::Deleting => {
                    for index in indexes.filter(|index| !index.is_multiple_of(10)) {
                        self.connection.append(&[b"DEL", &key_name(self.number(index))]);
                        self.awaited.push(AwaitedReply::Flag);
                    }
                }
                Shrinking::Rewriting => {
                    for index in self.existing(indexes)? {
                        self.append_write(index, self.keys[index].kind, true, values);
                    }
                }
            }
            self.connection.send()?;
            self.receive(values)?;
        }
        Ok(())
    }

    /// Returns those of the keys that exist.
    fn existing(&mut self, indexes: std::ops::Range<usize>) -> Result<Vec<usize>> {
        for index in indexes.clone() {
            self.connection.append(&[b"EXISTS", &key_name(self.number(index))]);
        }
        self.connection.send()?;
        let mut existing = Vec::new();
        self.connection.receive(|number, reply| match reply {
            b":1\r\n" => {
                existing.push(indexes.start + number);
                Ok(())
            }
            b":0\r\n" => Ok(()),
            _ => Err(wrong_reply("EXISTS", reply)),
        })?;
        Ok(existing)
    }
}

/// Changes keys with the clients of one thread until the stop flag is set. All clients of a thread have requests on
/// their way while it waits for the replies of one.
///
/// # Errors
/// Fails like [`ChurnClient::receive`].
pub fn change_until_stopped(
    clients: &mut [ChurnClient],
    batch: usize,
    values: &ValuePool,
    stop: &AtomicBool,
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        for client in &mut *clients {
            client.send_changes(batch, values)?;
        }
        for client in &mut *clients {
            client.receive(values)?;
        }
    }
    Ok(())
}

/// Checks a reply.
fn check(
    awaited: AwaitedReply,
    reply: &[u8],
    keys: &mut [KeyState],
    refused: &mut u64,
    values: &ValuePool,
) -> Result<()> {
    let mut written = |index: usize, is_right: bool, request: &str| {
        let is_refused = is_out_of_memory(reply);
        *refused += u64::from(is_refused);
        keys[index].is_known = is_right;
        if is_right || is_refused {
            Ok(())
        } else {
            Err(wrong_reply(request, reply))
        }
    };
    match awaited {
        AwaitedReply::Stored(index) => written(index, reply == b"+OK\r\n", "SET"),
        AwaitedReply::Added(index, elements) => {
            let is_right = reply == format!(":{elements}\r\n").as_bytes();
            written(index, is_right, "HSET, RPUSH, SADD or ZADD")
        }
        AwaitedReply::Flag if matches!(reply, b":0\r\n" | b":1\r\n") => Ok(()),
        AwaitedReply::Flag => Err(wrong_reply("DEL or PEXPIRE", reply)),
        AwaitedReply::Content(index, value) => {
            // A key whose last write was refused may have a value of another type.
            if !keys[index].is_known || is_content(value, reply, values) {
                return Ok(());
            }
            let request = format!("{} of {value:?}", value.kind.read_command());
            Err(wrong_reply(&request, reply))
        }
    }
}

/// Returns `true` if a reply says that the key has this value, or does not exist.
fn is_content(value: ChurnValue, reply: &[u8], values: &ValuePool) -> bool {
    if value.kind != ValueKind::String {
        return reply == b":0\r\n" || reply == format!(":{}\r\n", value.elements).as_bytes();
    }
    reply == b"$-1\r\n" || is_bulk_string(reply, value.text(values))
}
