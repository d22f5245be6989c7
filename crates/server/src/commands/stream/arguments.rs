//! Code that the stream commands share: parsing and writing of IDs, access to a key's stream, and replies with entries.

use weft_resp::Reply;
use weft_resp::number::{parse_i64, parse_u64};
use weft_table::{EntryRef, NewValue, ValueRef};
use weft_values::Value;
use weft_values::listpack::Element;
use weft_values::stream::{Stream, StreamEntry, StreamId};

use crate::commands::error::{CommandError, c_string_prefix};
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use crate::notify::keyspace_event::KeyspaceEvent;

const INVALID_ID: CommandError = CommandError::constant("ERR Invalid stream ID specified as stream command argument");
/// The largest length of an ID in a request, in bytes.
const MAX_ID_BYTES: usize = 127;

/// Returns `true` if a word equals `name`, in any case. As in Valkey, a word ends at its first zero byte.
pub fn is_word(word: &[u8], name: &str) -> bool {
    c_string_prefix(word).eq_ignore_ascii_case(name.as_bytes())
}

/// An ID whose sequence number may be left open (`5-*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialStreamId {
    /// The ID; its sequence number is 0 if it is open.
    pub id: StreamId,
    /// `true` if the sequence number is open.
    pub is_open: bool,
}

/// Parses an ID. `missing_seq` is the sequence number if it has none. `-` and `+` are the smallest and the largest ID.
///
/// # Errors
/// If the word is not an ID.
pub fn parse_id(word: &[u8], missing_seq: u64) -> Result<StreamId, CommandError> {
    if word.len() <= MAX_ID_BYTES {
        match c_string_prefix(word) {
            b"-" => return Ok(StreamId::MIN),
            b"+" => return Ok(StreamId::MAX),
            _ => {}
        }
    }
    parse_exact_id(word, missing_seq)
}

/// Parses an ID that consists of numbers. `missing_seq` is the sequence number if it has none.
///
/// # Errors
/// If the word is not such an ID.
#[inline]
pub fn parse_exact_id(word: &[u8], missing_seq: u64) -> Result<StreamId, CommandError> {
    match try_parse_id(word, missing_seq) {
        Some(PartialStreamId { id, is_open: false }) => Ok(id),
        _ => Err(INVALID_ID),
    }
}

/// Parses an ID that consists of numbers, or has `*` as its sequence number.
///
/// # Errors
/// If the word is not such an ID.
pub fn parse_partial_id(word: &[u8]) -> Result<PartialStreamId, CommandError> {
    try_parse_id(word, 0).ok_or(INVALID_ID)
}

#[inline]
fn try_parse_id(word: &[u8], missing_seq: u64) -> Option<PartialStreamId> {
    if word.len() > MAX_ID_BYTES {
        return None;
    }
    let word = c_string_prefix(word);
    let Some(dash) = word.iter().position(|byte| *byte == b'-') else {
        let id = StreamId::new(parse_lenient_u64(word)?, missing_seq);
        return Some(PartialStreamId { id, is_open: false });
    };
    let (ms, seq) = (parse_lenient_u64(&word[..dash])?, &word[dash + 1..]);
    let open = seq == b"*";
    let seq = if open { 0 } else { parse_lenient_u64(seq)? };
    Some(PartialStreamId {
        id: StreamId::new(ms, seq),
        is_open: open,
    })
}

/// Parses a number of an ID as Valkey does. A word that is not a plain decimal is parsed by the rules of C: blanks
/// before the number, a sign and leading zeros are allowed, and a negative number is subtracted from 2^64.
#[inline]
fn parse_lenient_u64(word: &[u8]) -> Option<u64> {
    parse_u64(word).or_else(|| match parse_i64(word) {
        Some(_) => None,
        None => parse_c_u64(word),
    })
}

#[cold]
fn parse_c_u64(word: &[u8]) -> Option<u64> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let blanks = word.iter().take_while(|byte| is_blank(byte)).count();
    let (negative, digits) = match &word[blanks..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let magnitude = digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })?;
    Some(if negative { magnitude.wrapping_neg() } else { magnitude })
}

/// Parses the start of a range. A `(` before an ID excludes it.
///
/// # Errors
/// If the word is not an ID, or if no ID follows the excluded one.
pub fn parse_range_start(word: &[u8]) -> Result<StreamId, CommandError> {
    match word {
        [b'(', id @ ..] if !id.is_empty() => parse_exact_id(id, 0)?
            .next()
            .ok_or(CommandError::constant("ERR invalid start ID for the interval")),
        _ => parse_id(word, 0),
    }
}

/// Parses the end of a range. A `(` before an ID excludes it.
///
/// # Errors
/// If the word is not an ID, or if no ID precedes the excluded one.
pub fn parse_range_end(word: &[u8]) -> Result<StreamId, CommandError> {
    match word {
        [b'(', id @ ..] if !id.is_empty() => parse_exact_id(id, u64::MAX)?
            .previous()
            .ok_or(CommandError::constant("ERR invalid end ID for the interval")),
        _ => parse_id(word, u64::MAX),
    }
}

/// Parses IDs up to the first word that is not an ID.
pub fn parse_leading_ids<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<StreamId> {
    words.map_while(|word| parse_exact_id(word, 0).ok()).collect()
}

/// Parses a list of IDs.
///
/// # Errors
/// If one of the words is not an ID.
pub fn parse_ids<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Vec<StreamId>, CommandError> {
    let mut ids = Vec::with_capacity(words.len());
    for word in words {
        ids.push(parse_exact_id(word, 0)?);
    }
    Ok(ids)
}

/// Parses an integer.
///
/// # Errors
/// If the word is not an integer.
pub fn parse_integer(word: &[u8]) -> Result<i64, CommandError> {
    parse_i64(word).ok_or(CommandError::NOT_AN_INTEGER)
}

/// Parses an integer.
///
/// # Errors
/// The text `otherwise` if the word is not an integer.
pub fn parse_integer_or(word: &[u8], otherwise: &'static str) -> Result<i64, CommandError> {
    parse_i64(word).ok_or(CommandError::constant(otherwise))
}

/// Writes an ID as a bulk string.
#[inline]
pub fn reply_id(reply: &mut Reply<'_>, id: StreamId) {
    let mut text = [0; 41];
    reply.bulk(format_id(id, &mut text));
}

/// Formats an ID into `text` and returns the used part.
#[inline]
pub fn format_id(id: StreamId, text: &mut [u8; 41]) -> &[u8] {
    let mut length = 0;
    let mut digits = itoa::Buffer::new();
    for (part, end) in [(id.ms, &b"-"[..]), (id.seq, b"")] {
        for bytes in [digits.format(part).as_bytes(), end] {
            text[length..length + bytes.len()].copy_from_slice(bytes);
            length += bytes.len();
        }
    }
    &text[..length]
}

/// Writes an entry: its ID, then its field names and values.
#[inline]
pub fn reply_entry(reply: &mut Reply<'_>, entry: &StreamEntry<'_>) {
    reply.array(2);
    reply_id(reply, entry.id);
    reply.array(entry.fields * 2);
    for (name, value) in entry.pairs() {
        reply_element(reply, name);
        reply_element(reply, value);
    }
}

#[inline]
fn reply_element(reply: &mut Reply<'_>, element: Element<'_>) {
    match element {
        Element::Bytes(bytes) => reply.bulk(bytes),
        Element::Int(number) => reply.bulk_integer(number),
    }
}

/// Returns the stream that an entry of the keyspace holds.
///
/// # Errors
/// `WRONGTYPE` if it holds another type.
#[inline]
pub fn entry_as_stream(entry: Option<EntryRef<'_, Value>>) -> Result<Option<&Stream>, CommandError> {
    match entry.map(|entry| entry.value()) {
        None => Ok(None),
        Some(ValueRef::Object(Value::Stream(stream))) => Ok(Some(stream)),
        Some(_) => Err(CommandError::WRONG_TYPE),
    }
}

/// The effects of editing a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamEdit {
    /// The number of changes, as added to the count of changes since the last save.
    pub dirty_count: u64,
    /// The keyspace event.
    pub event: Option<KeyspaceEvent>,
    /// A second keyspace event, after the first.
    pub second_event: Option<KeyspaceEvent>,
    /// `true` if clients that are blocked on the stream may be served now.
    pub serves_waiters: bool,
    /// `true` if clients that watch or cache the stream must be informed.
    pub marks_watches: bool,
}

impl StreamEdit {
    /// No change.
    pub const UNCHANGED: StreamEdit = StreamEdit::without_event(0);

    /// Returns a number of changes without an event. They are only propagated.
    pub const fn without_event(times: u64) -> StreamEdit {
        StreamEdit {
            dirty_count: times,
            event: None,
            second_event: None,
            serves_waiters: true,
            marks_watches: true,
        }
    }

    /// Returns one change with a keyspace event.
    pub const fn with_event(name: &'static str) -> StreamEdit {
        StreamEdit {
            dirty_count: 1,
            event: Some(KeyspaceEvent::stream(name)),
            second_event: None,
            serves_waiters: true,
            marks_watches: true,
        }
    }

    /// Returns the same edit for a change that cannot serve clients blocked on the stream.
    pub const fn without_waiters(self) -> StreamEdit {
        StreamEdit {
            serves_waiters: false,
            ..self
        }
    }

    /// Returns the same edit for a change that does not affect the entries. Clients that watch or cache the stream are
    /// not informed.
    pub const fn without_watches(self) -> StreamEdit {
        StreamEdit {
            marks_watches: false,
            ..self
        }
    }

    /// Returns the edit of a command that made `times` changes without an event. If it also created a consumer, this is
    /// one more change, with an event.
    pub fn with_consumer(created: bool, times: u64) -> StreamEdit {
        if created {
            StreamEdit {
                dirty_count: times + 1,
                ..StreamEdit::with_event("xgroup-createconsumer").without_watches()
            }
        } else {
            StreamEdit::without_event(times)
        }
    }
}

/// Edits the stream that a key holds, and closes the key. Returns `None` if the key is missing.
///
/// # Errors
/// `WRONGTYPE` if the key holds another type, or the error of `edit`, which must then have changed nothing.
#[inline]
pub fn edit_stream<R>(
    key: KeyWrite<'_>,
    edit: impl FnOnce(&mut Stream) -> Result<(R, StreamEdit), CommandError>,
) -> Result<Option<R>, CommandError> {
    edit_or_create_stream(key, false, edit)
}

/// Edits the stream that a key holds, like [`edit`]. If the key is missing and `create` is set, creates a stream first.
///
/// # Errors
/// The errors of [`edit`].
#[inline]
pub fn edit_or_create_stream<R>(
    mut key: KeyWrite<'_>,
    create: bool,
    edit: impl FnOnce(&mut Stream) -> Result<(R, StreamEdit), CommandError>,
) -> Result<Option<R>, CommandError> {
    let result = match key.entry_mut() {
        Some(mut entry) => match entry.object_mut() {
            Some(Value::Stream(stream)) => edit(stream).map(Some),
            _ => Err(CommandError::WRONG_TYPE),
        },
        None if create => {
            let mut stream = Stream::new();
            let result = edit(&mut stream);
            if result.is_ok() {
                key.set(NewValue::Object(Value::Stream(stream)), ExpiryUpdate::Remove);
            }
            result.map(Some)
        }
        None => Ok(None),
    };
    match result {
        Ok(Some((answer, edited))) => {
            close_edited_stream(key, edited);
            Ok(Some(answer))
        }
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    }
}

#[inline]
fn close_edited_stream(mut key: KeyWrite<'_>, edit: StreamEdit) {
    match (edit.event, edit.second_event) {
        (Some(event), Some(second)) => {
            key.record_event(event);
            key.changed_times(second, edit.dirty_count);
        }
        (Some(event), None) if !edit.serves_waiters => {
            key.record_event(event);
            key.changed_quietly(edit.dirty_count);
        }
        (Some(event), None) if !edit.marks_watches => key.changed_for_waiting(event, edit.dirty_count),
        (Some(event), None) => key.changed_times(event, edit.dirty_count),
        _ if edit.dirty_count > 0 => key.changed_quietly(edit.dirty_count),
        _ => {}
    }
}

/// Returns the error for a missing key or group.
pub fn no_group_error(key: &[u8], group: &[u8]) -> CommandError {
    let parts: [&[u8]; 5] = [
        b"NOGROUP No such key '",
        c_string_prefix(key),
        b"' or consumer group '",
        c_string_prefix(group),
        b"'",
    ];
    CommandError::from_bytes(parts.concat())
}

/// Returns the error for a missing group in an existing stream.
pub fn no_group_in_key_error(key: &[u8], group: &[u8]) -> CommandError {
    let parts: [&[u8]; 5] = [
        b"NOGROUP No such consumer group '",
        c_string_prefix(group),
        b"' for key name '",
        c_string_prefix(key),
        b"'",
    ];
    CommandError::from_bytes(parts.concat())
}

/// Returns the error for arguments that do not match any subcommand.
pub fn bad_subcommand_error(command: &str, subcommand: &[u8]) -> CommandError {
    let shown = c_string_prefix(subcommand);
    let parts: [&[u8]; 5] = [
        b"ERR unknown subcommand or wrong number of arguments for '",
        &shown[..shown.len().min(128)],
        b"'. Try ",
        command.as_bytes(),
        b" HELP.",
    ];
    CommandError::from_bytes(parts.concat())
}

/// The number of entries up to which the time for sending them is not estimated.
const MIN_ESTIMATED_ENTRIES: u64 = 500;
/// The number of bytes in blocks at which counting stops, because the estimate is high in any case.
const MAX_RANGE_BYTES: usize = 1 << 24;

/// The time for reading an element of an entry, in nanoseconds.
pub const READ_ELEMENT_NS: u64 = 2;
/// The number of elements at which counting stops, because the estimate is high in any case.
const MAX_READ_ELEMENTS: u64 = 1 << 18;

/// Returns the estimated time for sending up to `count` entries of a range, in nanoseconds: about one per byte, or the
/// time for reading them and the deleted entries among them if that is longer.
pub fn range_cost_ns(stream: &Stream, start: StreamId, end: StreamId, count: u64, is_reverse: bool) -> u64 {
    if start > stream.last_id() {
        return 0;
    }
    let elements = stream.elements_to_read(start, end, count, is_reverse, MAX_READ_ELEMENTS);
    let read_ns = elements * READ_ELEMENT_NS;
    let most = count.min(stream.length());
    if most <= MIN_ESTIMATED_ENTRIES {
        return read_ns;
    }
    let bytes = stream.bytes_between(start, end, MAX_RANGE_BYTES) as u64;
    let mean = stream.allocated_bytes() as u64 / stream.length().max(1);
    bytes.min(most.saturating_mul(mean.max(1))).max(read_ns)
}

#[cfg(test)]
mod tests;
