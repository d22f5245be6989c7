//! Streams in the encoding of RDB files.
//!
//! ```text
//!   blocks    count, then for each: first ID (a string of 16 bytes), listpack (a string)
//!   counters  length, last ID, first ID *, largest deleted ID *, entries ever added *
//!   groups    count, then for each:
//!               name, last ID, entries read *
//!               pending entries: count, then for each: ID (16 bytes), time of delivery (8 bytes), deliveries
//!               consumers: count, then for each: name, time seen (8 bytes), time active (8 bytes) +,
//!                          pending entries: count, then for each: ID (16 bytes)
//! ```
//!
//! Numbers are lengths. An ID among the counters consists of two of them. Times are little-endian. Fields marked `*`
//! exist since the second version of the encoding, and `+` since the third.

use std::collections::BTreeMap;

use weft_values::listpack::{DECIMAL_MAX_BYTES, format_decimal};
use weft_values::stream::{ConsumerGroup, PendingEntry, Stream, StreamBuilder, StreamId, StreamMetadata};

use super::strings::{ParsedString, RdbReader, write_length, write_string};

/// The type of the first version of the encoding.
pub const TYPE_FIRST: u8 = 15;
/// With counters from which the lag of groups follows.
pub const TYPE_SECOND: u8 = 19;
/// The type of the third version, with the times at which consumers were active.
pub const TYPE_THIRD: u8 = 21;

/// The stored value for an unknown number of entries read.
const UNKNOWN_ENTRIES_READ: usize = u64::MAX as usize;

/// Appends a stream in the third version. Strings are compressed if `compress` is set.
pub fn write(out: &mut Vec<u8>, stream: &Stream, compress: bool) {
    let counters = stream.metadata();
    write_length(out, stream.blocks().len());
    let mut whole = Vec::new();
    for (base, block) in stream.blocks() {
        write_string(out, &base.to_bytes(), compress);
        whole.clear();
        block.write_listpack(&mut whole);
        write_string(out, &whole, compress);
    }
    write_length(out, counters.length as usize);
    for id in [counters.last_id, counters.first_id, counters.max_deleted_id] {
        write_id(out, id);
    }
    write_length(out, counters.entries_added as usize);
    write_length(out, stream.groups().len());
    for group in stream.groups() {
        write_group(out, group, compress);
    }
}

fn write_id(out: &mut Vec<u8>, id: StreamId) {
    write_length(out, id.ms as usize);
    write_length(out, id.seq as usize);
}

fn write_group(out: &mut Vec<u8>, group: &ConsumerGroup, compress: bool) {
    write_string(out, group.name(), compress);
    write_id(out, group.last_id);
    write_length(
        out,
        group.entries_read.map_or(UNKNOWN_ENTRIES_READ, |read| read as usize),
    );
    write_length(out, group.pending().len());
    for (id, pending) in group.pending() {
        out.extend(id.to_bytes());
        out.extend(pending.delivered_ms.to_le_bytes());
        write_length(out, pending.deliveries as usize);
    }
    write_length(out, group.consumers().len());
    for (_, consumer) in group.consumers() {
        write_string(out, consumer.name(), compress);
        out.extend(consumer.seen_ms.to_le_bytes());
        out.extend(consumer.active_ms.to_le_bytes());
        write_length(out, consumer.pending().len());
        for id in consumer.pending() {
            out.extend(id.to_bytes());
        }
    }
}

/// Reads a stream. `version` is the type that preceded it. Returns `None` if the bytes are invalid or inconsistent.
pub fn read(reader: &mut RdbReader<'_>, version: u8) -> Option<Stream> {
    let mut builder = StreamBuilder::default();
    for _ in 0..reader.length()? {
        let base = StreamId::from_bytes(into_bytes(reader.string()?).try_into().ok()?);
        match reader.string()? {
            ParsedString::Bytes(whole) => builder.add_block(base, whole)?,
            ParsedString::Decompressed(whole) => builder.add_block(base, &whole)?,
            ParsedString::Int(_) => return None,
        }
    }
    let length = reader.length()? as u64;
    let last_id = read_id(reader)?;
    let mut counters = StreamMetadata {
        last_id,
        entries_added: length,
        ..StreamMetadata::default()
    };
    if version >= TYPE_SECOND {
        // The first entry is found among the entries.
        read_id(reader)?;
        counters.max_deleted_id = read_id(reader)?;
        counters.entries_added = reader.length()? as u64;
    }
    let mut stream = builder.finish(counters);
    if stream.metadata().length != length {
        return None;
    }
    for _ in 0..reader.length()? {
        read_group(reader, version, &mut stream)?;
    }
    Some(stream)
}

fn read_id(reader: &mut RdbReader<'_>) -> Option<StreamId> {
    Some(StreamId::new(reader.length()? as u64, reader.length()? as u64))
}

fn read_raw_id(reader: &mut RdbReader<'_>) -> Option<StreamId> {
    reader.bytes(16)?.try_into().ok().map(StreamId::from_bytes)
}

fn read_time_ms(reader: &mut RdbReader<'_>) -> Option<i64> {
    reader.bytes(8)?.try_into().ok().map(i64::from_le_bytes)
}

fn into_bytes(loaded: ParsedString<'_>) -> Vec<u8> {
    match loaded {
        ParsedString::Int(number) => format_decimal(number, &mut [0; DECIMAL_MAX_BYTES]).to_vec(),
        ParsedString::Bytes(bytes) => bytes.to_vec(),
        ParsedString::Decompressed(bytes) => bytes,
    }
}

fn read_group(reader: &mut RdbReader<'_>, version: u8, stream: &mut Stream) -> Option<()> {
    let name = into_bytes(reader.string()?);
    let last_id = read_id(reader)?;
    let entries_read = if version >= TYPE_SECOND {
        Some(reader.length()?)
            .filter(|read| *read != UNKNOWN_ENTRIES_READ)
            .map(|read| read as i64)
    } else {
        stream.metadata().entries_added_up_to(last_id)
    };
    let group = stream.create_group(&name, last_id, entries_read)?;
    let mut unclaimed = BTreeMap::new();
    for _ in 0..reader.length()? {
        let id = read_raw_id(reader)?;
        let delivery = (read_time_ms(reader)?, reader.length()? as u64);
        if unclaimed.insert(id, delivery).is_some() {
            return None;
        }
    }
    for _ in 0..reader.length()? {
        read_consumer(reader, version, group, &mut unclaimed)?;
    }
    unclaimed.is_empty().then_some(())
}

/// Reads a consumer and assigns its pending entries to it.
fn read_consumer(
    reader: &mut RdbReader<'_>,
    version: u8,
    group: &mut ConsumerGroup,
    unclaimed: &mut BTreeMap<StreamId, (i64, u64)>,
) -> Option<()> {
    let name = into_bytes(reader.string()?);
    let seen_ms = read_time_ms(reader)?;
    let active_ms = if version >= TYPE_THIRD {
        read_time_ms(reader)?
    } else {
        seen_ms
    };
    let (number, true) = group.find_or_create_consumer(&name, seen_ms) else {
        return None;
    };
    group.consumer_mut(number).active_ms = active_ms;
    for _ in 0..reader.length()? {
        let id = read_raw_id(reader)?;
        let (delivered_ms, deliveries) = unclaimed.remove(&id)?;
        let pending = PendingEntry {
            delivered_ms,
            deliveries,
            consumer: number,
        };
        group.set_pending(id, pending);
    }
    Some(())
}

#[cfg(test)]
mod tests;
