//! Conversion of values to the commands that create them, for an append-only file whose base consists of commands.
//!
//! | type | commands |
//! |---|---|
//! | string | SET, then APPEND for each further GiB |
//! | list, set, sorted set | RPUSH, SADD, ZADD, up to 64 elements and about 1 GiB each |
//! | hash | HSETEX for each field with an expiry, HMSET for up to 64 other fields and about 1 GiB |
//! | stream | XADD for each entry, XSETID, then XGROUP and XCLAIM for groups, consumers and pending entries |
//!
//! A key with an expiry is followed by PEXPIREAT.
//!
//! A command of more than 4 GiB could not be read again ([`weft_resp::ArgRange`]). An element that a client has sent is
//! smaller, but many of them, or a string that commands have extended, may not be.

use std::ops::ControlFlow;

use weft_resp::number::format_f64_shortest;
use weft_values::hash::HashRef;
use weft_values::list::{Direction, ListRef};
use weft_values::listpack::DECIMAL_MAX_BYTES;
use weft_values::set::SetView;
use weft_values::sorted_set::SortedSetView;
use weft_values::stream::{ConsumerGroup, Stream, StreamId};

use super::dump_payload::{PayloadContent, RestoredValue};
use weft_resp::command::begin_command;
use weft_resp::command::write_command;
use weft_resp::command::write_word;

/// The maximum number of elements that one command adds.
const ELEMENTS_PER_COMMAND: usize = 64;
/// The size of elements, or of a piece of a string, above which another command begins, in bytes. The target of a slot
/// migration takes it under the defaults of its limits.
const BYTES_PER_COMMAND: usize = 256 << 20;

/// Appends the commands that create a key.
pub fn write_key(name: &[u8], value: &RestoredValue<'_>, expire_at_ms: i64, out: &mut Vec<u8>) {
    write_key_in_pieces(name, value, expire_at_ms, BYTES_PER_COMMAND, out);
}

/// Does the same. `max_bytes` takes the place of [`BYTES_PER_COMMAND`].
fn write_key_in_pieces(name: &[u8], value: &RestoredValue<'_>, expire_at_ms: i64, max_bytes: usize, out: &mut Vec<u8>) {
    match value.content() {
        PayloadContent::String(bytes) => write_string(name, &bytes, max_bytes, out),
        PayloadContent::List(list) => write_list(name, list, max_bytes, out),
        PayloadContent::Set(set) => write_set(name, set, max_bytes, out),
        PayloadContent::SortedSet(set) => write_sorted_set(name, set, max_bytes, out),
        PayloadContent::Hash(hash) => write_hash(name, hash, max_bytes, out),
        PayloadContent::Stream(stream) => write_stream(name, stream, out),
    }
    if expire_at_ms > 0 {
        let at_ms = expire_at_ms.to_string();
        write_command([&b"PEXPIREAT"[..], name, at_ms.as_bytes()].into_iter(), out);
    }
}

fn write_string(name: &[u8], bytes: &[u8], max_bytes: usize, out: &mut Vec<u8>) {
    let (first, rest) = bytes.split_at(bytes.len().min(max_bytes));
    write_command([&b"SET"[..], name, first].into_iter(), out);
    for piece in rest.chunks(max_bytes) {
        write_command([&b"APPEND"[..], name, piece].into_iter(), out);
    }
}

/// Collects elements into commands. Each element consists of `args_per_element` arguments.
struct CommandBatches<'w> {
    command: &'w [u8],
    name: &'w [u8],
    args_per_element: usize,
    max_bytes: usize,
    /// The arguments of the command that is being collected.
    arguments: Vec<u8>,
    elements: usize,
}

impl<'w> CommandBatches<'w> {
    fn new(command: &'w [u8], name: &'w [u8], args_per_element: usize, max_bytes: usize) -> Self {
        CommandBatches {
            command,
            name,
            args_per_element,
            max_bytes,
            arguments: Vec::new(),
            elements: 0,
        }
    }

    /// Adds an element.
    fn add(&mut self, arguments: &[&[u8]], out: &mut Vec<u8>) {
        debug_assert_eq!(
            arguments.len(),
            self.args_per_element,
            "an element has all of its arguments"
        );
        let bytes: usize = arguments.iter().map(|argument| argument.len()).sum();
        if self.elements == ELEMENTS_PER_COMMAND || self.arguments.len().saturating_add(bytes) > self.max_bytes {
            self.end_command(out);
        }
        arguments
            .iter()
            .for_each(|argument| write_word(argument, &mut self.arguments));
        self.elements += 1;
    }

    /// Writes the command that was collected, if it has any element.
    fn end_command(&mut self, out: &mut Vec<u8>) {
        if self.elements > 0 {
            begin_command(2 + self.elements * self.args_per_element, out);
            write_word(self.command, out);
            write_word(self.name, out);
            out.extend_from_slice(&self.arguments);
        }
        self.arguments.clear();
        self.elements = 0;
    }
}

fn write_list(name: &[u8], list: ListRef<'_>, max_bytes: usize, out: &mut Vec<u8>) {
    let mut batches = CommandBatches::new(b"RPUSH", name, 1, max_bytes);
    list.visit(0, Direction::Forward, |element| {
        batches.add(&[element.text(&mut [0; DECIMAL_MAX_BYTES])], out);
        ControlFlow::Continue(())
    });
    batches.end_command(out);
}

fn write_set(name: &[u8], set: SetView<'_>, max_bytes: usize, out: &mut Vec<u8>) {
    let mut batches = CommandBatches::new(b"SADD", name, 1, max_bytes);
    for member in set.iter() {
        batches.add(&[member.text(&mut [0; DECIMAL_MAX_BYTES])], out);
    }
    batches.end_command(out);
}

fn write_sorted_set(name: &[u8], set: SortedSetView<'_>, max_bytes: usize, out: &mut Vec<u8>) {
    let mut batches = CommandBatches::new(b"ZADD", name, 2, max_bytes);
    let mut text = Vec::new();
    for (member, score) in set.iter() {
        text.clear();
        format_f64_shortest(score, &mut text);
        batches.add(&[&text, member.text(&mut [0; DECIMAL_MAX_BYTES])], out);
    }
    batches.end_command(out);
}

fn write_hash(name: &[u8], hash: HashRef<'_>, max_bytes: usize, out: &mut Vec<u8>) {
    write_expiring_fields(name, hash, out);
    let mut batches = CommandBatches::new(b"HMSET", name, 2, max_bytes);
    match hash {
        HashRef::Large(hash) => {
            for (_, record) in hash.records().iter() {
                if record.expire_at_ms.is_none() {
                    batches.add(&[record.key, record.value], out);
                }
            }
        }
        packed => packed.for_each(0, |field| {
            let mut digits = [0; DECIMAL_MAX_BYTES];
            let name = field.name.text(&mut digits);
            batches.add(&[name, field.value.text(&mut [0; DECIMAL_MAX_BYTES])], out);
        }),
    }
    batches.end_command(out);
}

/// Writes the fields with an expiry.
fn write_expiring_fields(name: &[u8], hash: HashRef<'_>, out: &mut Vec<u8>) {
    let HashRef::Large(hash) = hash else {
        return;
    };
    for (_, record) in hash.records().iter() {
        let Some(at_ms) = record.expire_at_ms else {
            continue;
        };
        let at_ms = at_ms.to_string();
        let head = [&b"HSETEX"[..], name, b"PXAT", at_ms.as_bytes(), b"FIELDS", b"1"];
        write_command(
            head.into_iter()
                .chain([record.key, record.value])
                .collect::<Vec<_>>()
                .into_iter(),
            out,
        );
    }
}

fn format_id(id: StreamId) -> Vec<u8> {
    format!("{}-{}", id.ms, id.seq).into_bytes()
}

fn write_stream(name: &[u8], stream: &Stream, out: &mut Vec<u8>) {
    if stream.length() == 0 {
        // Only an entry creates a stream, even if none stays.
        let words: [&[u8]; 7] = [b"XADD", name, b"MAXLEN", b"0", b"0-1", b"x", b"y"];
        write_command(words.into_iter(), out);
    }
    for entry in stream.entries(StreamId::MIN, StreamId::MAX) {
        begin_command(3 + entry.fields * 2, out);
        write_word(b"XADD", out);
        write_word(name, out);
        write_word(&format_id(entry.id), out);
        for (field, value) in entry.pairs() {
            write_word(field.text(&mut [0; DECIMAL_MAX_BYTES]), out);
            write_word(value.text(&mut [0; DECIMAL_MAX_BYTES]), out);
        }
    }
    let counters = stream.metadata();
    let (last, deleted) = (format_id(counters.last_id), format_id(counters.max_deleted_id));
    let added = counters.entries_added.to_string();
    let words: [&[u8]; 7] = [
        b"XSETID",
        name,
        &last,
        b"ENTRIESADDED",
        added.as_bytes(),
        b"MAXDELETEDID",
        &deleted,
    ];
    write_command(words.into_iter(), out);
    for group in stream.groups() {
        write_group(name, group, out);
    }
}

fn write_group(name: &[u8], group: &ConsumerGroup, out: &mut Vec<u8>) {
    let last = format_id(group.last_id);
    let read = group.entries_read.unwrap_or(-1).to_string();
    let words: [&[u8]; 7] = [
        b"XGROUP",
        b"CREATE",
        name,
        group.name(),
        &last,
        b"ENTRIESREAD",
        read.as_bytes(),
    ];
    write_command(words.into_iter(), out);
    for (_, consumer) in group.consumers() {
        if consumer.pending().is_empty() {
            let words: [&[u8]; 5] = [b"XGROUP", b"CREATECONSUMER", name, group.name(), consumer.name()];
            write_command(words.into_iter(), out);
        }
        for id in consumer.pending() {
            let Some(pending) = group.pending().get(id) else {
                continue;
            };
            let (id, delivered) = (format_id(*id), pending.delivered_ms.to_string());
            // As XCLAIM reads it: a signed number.
            let deliveries = pending.deliveries.cast_signed().to_string();
            let words: [&[u8]; 12] = [
                b"XCLAIM",
                name,
                group.name(),
                consumer.name(),
                b"0",
                &id,
                b"TIME",
                delivered.as_bytes(),
                b"RETRYCOUNT",
                deliveries.as_bytes(),
                b"JUSTID",
                b"FORCE",
            ];
            write_command(words.into_iter(), out);
        }
    }
}

#[cfg(test)]
mod tests;
