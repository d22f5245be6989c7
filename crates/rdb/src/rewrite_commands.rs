//! Conversion of values to the commands that create them, for an append-only file whose base consists of commands.
//!
//! | type | commands |
//! |---|---|
//! | string | SET |
//! | list, set, sorted set | RPUSH, SADD, ZADD, up to 64 elements each |
//! | hash | HSETEX for each field with an expiry, HMSET for up to 64 other fields |
//! | stream | XADD for each entry, XSETID, then XGROUP and XCLAIM for groups, consumers and pending entries |
//!
//! A key with an expiry is followed by PEXPIREAT.

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

/// Appends the commands that create a key.
pub fn write_key(name: &[u8], value: &RestoredValue<'_>, expire_at_ms: i64, out: &mut Vec<u8>) {
    match value.content() {
        PayloadContent::String(bytes) => write_command([&b"SET"[..], name, &bytes].into_iter(), out),
        PayloadContent::List(list) => write_list(name, list, out),
        PayloadContent::Set(set) => write_set(name, set, out),
        PayloadContent::SortedSet(set) => write_sorted_set(name, set, out),
        PayloadContent::Hash(hash) => write_hash(name, hash, out),
        PayloadContent::Stream(stream) => write_stream(name, stream, out),
    }
    if expire_at_ms > 0 {
        let at_ms = expire_at_ms.to_string();
        write_command([&b"PEXPIREAT"[..], name, at_ms.as_bytes()].into_iter(), out);
    }
}

/// Starts a new command for every 64 elements. Each element consists of `words` arguments.
struct CommandBatches<'w> {
    command: &'w [u8],
    name: &'w [u8],
    args_per_element: usize,
    left: usize,
    in_command: usize,
}

impl<'w> CommandBatches<'w> {
    fn new(command: &'w [u8], name: &'w [u8], words: usize, elements: usize) -> Self {
        CommandBatches {
            command,
            name,
            args_per_element: words,
            left: elements,
            in_command: 0,
        }
    }

    /// Starts a command if necessary. Called for each element, before its arguments are written.
    fn begin_element(&mut self, out: &mut Vec<u8>) {
        if self.in_command == 0 {
            self.in_command = self.left.min(ELEMENTS_PER_COMMAND);
            begin_command(2 + self.in_command * self.args_per_element, out);
            write_word(self.command, out);
            write_word(self.name, out);
        }
        self.in_command -= 1;
        self.left -= 1;
    }
}

fn write_list(name: &[u8], list: ListRef<'_>, out: &mut Vec<u8>) {
    let mut batches = CommandBatches::new(b"RPUSH", name, 1, list.len());
    list.visit(0, Direction::Forward, |element| {
        batches.begin_element(out);
        write_word(element.text(&mut [0; DECIMAL_MAX_BYTES]), out);
        ControlFlow::Continue(())
    });
}

fn write_set(name: &[u8], set: SetView<'_>, out: &mut Vec<u8>) {
    let mut batches = CommandBatches::new(b"SADD", name, 1, set.len());
    for member in set.iter() {
        batches.begin_element(out);
        write_word(member.text(&mut [0; DECIMAL_MAX_BYTES]), out);
    }
}

fn write_sorted_set(name: &[u8], set: SortedSetView<'_>, out: &mut Vec<u8>) {
    let mut batches = CommandBatches::new(b"ZADD", name, 2, set.len());
    let mut text = Vec::new();
    for (member, score) in set.iter() {
        batches.begin_element(out);
        text.clear();
        format_f64_shortest(score, &mut text);
        write_word(&text, out);
        write_word(member.text(&mut [0; DECIMAL_MAX_BYTES]), out);
    }
}

fn write_hash(name: &[u8], hash: HashRef<'_>, out: &mut Vec<u8>) {
    let expiring = write_expiring_fields(name, hash, out);
    let mut batches = CommandBatches::new(b"HMSET", name, 2, hash.len() - expiring);
    let mut write = |field: &[u8], value: &[u8]| {
        batches.begin_element(out);
        write_word(field, out);
        write_word(value, out);
    };
    match hash {
        HashRef::Large(hash) => {
            for (_, record) in hash.records().iter() {
                if record.expire_at_ms.is_none() {
                    write(record.key, record.value);
                }
            }
        }
        packed => packed.for_each(0, |field| {
            write(
                field.name.text(&mut [0; DECIMAL_MAX_BYTES]),
                field.value.text(&mut [0; DECIMAL_MAX_BYTES]),
            );
        }),
    }
}

/// Writes the fields with an expiry. Returns their number.
fn write_expiring_fields(name: &[u8], hash: HashRef<'_>, out: &mut Vec<u8>) -> usize {
    let HashRef::Large(hash) = hash else {
        return 0;
    };
    let mut count = 0;
    for (_, record) in hash.records().iter() {
        let Some(at_ms) = record.expire_at_ms else {
            continue;
        };
        count += 1;
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
    count
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
            let deliveries = pending.deliveries.to_string();
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
