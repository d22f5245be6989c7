//! What the stream commands share: IDs in requests and replies, access to a key's stream, entries in replies.

use weft_resp::Reply;
use weft_resp::number::{parse_i64, parse_u64};
use weft_table::{EntryRef, NewValue, ValueRef};
use weft_values::Value;
use weft_values::listpack::Element;
use weft_values::stream::{Stream, StreamEntry, StreamId};

use crate::commands::error::{CommandError, shown};
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use crate::notify::keyspace_event::Event;

const INVALID_ID: CommandError = CommandError::constant("ERR Invalid stream ID specified as stream command argument");
/// No ID is longer.
const ID_MAX_BYTES: usize = 127;

/// Whether a word is this one, in upper or lower case. As in Valkey, a word ends at its first zero byte.
pub fn is_word(word: &[u8], name: &str) -> bool {
    shown(word).eq_ignore_ascii_case(name.as_bytes())
}

/// An ID of which the second part may have been left open (`5-*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenId {
    /// The ID; its second part is 0 if it was left open.
    pub id: StreamId,
    /// Whether it was.
    pub open: bool,
}

/// Reads an ID; `missing_seq` is its second part if it has none. `-` and `+` are the smallest and the largest.
///
/// # Errors
/// If it is none.
pub fn any_id(word: &[u8], missing_seq: u64) -> Result<StreamId, CommandError> {
    if word.len() <= ID_MAX_BYTES {
        match shown(word) {
            b"-" => return Ok(StreamId::MIN),
            b"+" => return Ok(StreamId::MAX),
            _ => {}
        }
    }
    exact_id(word, missing_seq)
}

/// Reads an ID that is given in numbers.
///
/// # Errors
/// If it is none.
#[inline]
pub fn exact_id(word: &[u8], missing_seq: u64) -> Result<StreamId, CommandError> {
    match read_id(word, missing_seq) {
        Some(OpenId { id, open: false }) => Ok(id),
        _ => Err(INVALID_ID),
    }
}

/// Reads an ID that is given in numbers, or with `*` as its second part.
///
/// # Errors
/// If it is none.
pub fn open_id(word: &[u8]) -> Result<OpenId, CommandError> {
    read_id(word, 0).ok_or(INVALID_ID)
}

#[inline]
fn read_id(word: &[u8], missing_seq: u64) -> Option<OpenId> {
    if word.len() > ID_MAX_BYTES {
        return None;
    }
    let word = shown(word);
    let Some(dash) = word.iter().position(|byte| *byte == b'-') else {
        let id = StreamId::new(loose_u64(word)?, missing_seq);
        return Some(OpenId { id, open: false });
    };
    let (ms, seq) = (loose_u64(&word[..dash])?, &word[dash + 1..]);
    let open = seq == b"*";
    let seq = if open { 0 } else { loose_u64(seq)? };
    Some(OpenId {
        id: StreamId::new(ms, seq),
        open,
    })
}

/// A number as Valkey reads those of IDs. What is no plain decimal gets a second chance by the rules of C: blanks
/// before it, a sign, zeros; a minus then counts from 2^64 downwards.
#[inline]
fn loose_u64(word: &[u8]) -> Option<u64> {
    parse_u64(word).or_else(|| match parse_i64(word) {
        Some(_) => None,
        None => c_u64(word),
    })
}

#[cold]
fn c_u64(word: &[u8]) -> Option<u64> {
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

/// Reads the start of a range: `(` before an ID leaves that ID out.
///
/// # Errors
/// If it is no ID, or none that anything follows.
pub fn range_start(word: &[u8]) -> Result<StreamId, CommandError> {
    match word {
        [b'(', id @ ..] if !id.is_empty() => exact_id(id, 0)?
            .next()
            .ok_or(CommandError::constant("ERR invalid start ID for the interval")),
        _ => any_id(word, 0),
    }
}

/// Reads the end of a range: `(` before an ID leaves that ID out.
///
/// # Errors
/// If it is no ID, or one that nothing comes before.
pub fn range_end(word: &[u8]) -> Result<StreamId, CommandError> {
    match word {
        [b'(', id @ ..] if !id.is_empty() => exact_id(id, u64::MAX)?
            .previous()
            .ok_or(CommandError::constant("ERR invalid end ID for the interval")),
        _ => any_id(word, u64::MAX),
    }
}

/// Reads IDs up to the first word that is none.
pub fn leading_ids<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<StreamId> {
    words.map_while(|word| exact_id(word, 0).ok()).collect()
}

/// Reads IDs.
///
/// # Errors
/// If one is none.
pub fn all_ids<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Vec<StreamId>, CommandError> {
    let mut ids = Vec::with_capacity(words.len());
    for word in words {
        ids.push(exact_id(word, 0)?);
    }
    Ok(ids)
}

/// Reads an integer.
///
/// # Errors
/// If it is none.
pub fn integer(word: &[u8]) -> Result<i64, CommandError> {
    parse_i64(word).ok_or(CommandError::NOT_AN_INTEGER)
}

/// Reads an integer.
///
/// # Errors
/// If it is none; `otherwise` is the text.
pub fn integer_or(word: &[u8], otherwise: &'static str) -> Result<i64, CommandError> {
    parse_i64(word).ok_or(CommandError::constant(otherwise))
}

/// Writes an ID as a bulk string.
#[inline]
pub fn reply_id(reply: &mut Reply<'_>, id: StreamId) {
    let mut text = [0; 41];
    reply.bulk(id_text(id, &mut text));
}

/// An ID as text.
#[inline]
pub fn id_text(id: StreamId, text: &mut [u8; 41]) -> &[u8] {
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

/// Writes an entry: its ID, then its names and values.
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

/// The stream that an entry of the keyspace holds.
///
/// # Errors
/// `WRONGTYPE` if it holds something else.
#[inline]
pub fn stream_of(entry: Option<EntryRef<'_, Value>>) -> Result<Option<&Stream>, CommandError> {
    match entry.map(|entry| entry.value()) {
        None => Ok(None),
        Some(ValueRef::Object(Value::Stream(stream))) => Ok(Some(stream)),
        Some(_) => Err(CommandError::WRONG_TYPE),
    }
}

/// What became of a stream that was edited.
#[derive(Clone, Copy, Debug)]
pub struct StreamEdit {
    /// Changes, as the dirty count has them.
    pub times: u64,
    /// What happened that others hear of.
    pub event: Option<Event>,
    /// What happened then.
    pub second: Option<Event>,
    /// Whether those who wait for the stream may have something now.
    pub wakes: bool,
    /// Whether those who watch the stream or keep copies of it mind.
    pub seen: bool,
}

impl StreamEdit {
    /// Nothing happened.
    pub const NOTHING: StreamEdit = StreamEdit::quietly(0);

    /// Changes of which nobody hears.
    pub const fn quietly(times: u64) -> StreamEdit {
        StreamEdit {
            times,
            event: None,
            second: None,
            wakes: true,
            seen: true,
        }
    }

    /// One change, of which others hear.
    pub const fn event(name: &'static str) -> StreamEdit {
        StreamEdit {
            times: 1,
            event: Some(Event::stream(name)),
            second: None,
            wakes: true,
            seen: true,
        }
    }

    /// The same change, of which those who wait for the stream get nothing.
    pub const fn that_wakes_nobody(self) -> StreamEdit {
        StreamEdit { wakes: false, ..self }
    }

    /// The same change, of something beside the entries: to those who watch the stream or keep copies it is as before.
    pub const fn beside_entries(self) -> StreamEdit {
        StreamEdit { seen: false, ..self }
    }

    /// What a command did that made a consumer if it needed one, and then changed things quietly.
    pub fn with_consumer(created: bool, times: u64) -> StreamEdit {
        if created {
            StreamEdit {
                times: times + 1,
                ..StreamEdit::event("xgroup-createconsumer").beside_entries()
            }
        } else {
            StreamEdit::quietly(times)
        }
    }
}

/// Edits the stream that a key holds, and closes the key. `None` without the key.
///
/// # Errors
/// `WRONGTYPE` if the key holds something else, and what `edit` says: then nothing has changed.
#[inline]
pub fn edit<R>(
    key: KeyWrite<'_>,
    edit: impl FnOnce(&mut Stream) -> Result<(R, StreamEdit), CommandError>,
) -> Result<Option<R>, CommandError> {
    edit_or_create(key, false, edit)
}

/// Edits the stream that a key holds, as [`edit`]; without the key, one is made if `create` says so.
///
/// # Errors
/// As [`edit`].
#[inline]
pub fn edit_or_create<R>(
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
            close(key, edited);
            Ok(Some(answer))
        }
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    }
}

#[inline]
fn close(mut key: KeyWrite<'_>, edited: StreamEdit) {
    match (edited.event, edited.second) {
        (Some(event), Some(second)) => {
            key.record_event(event);
            key.changed_times(second, edited.times);
        }
        (Some(event), None) if !edited.wakes => {
            key.record_event(event);
            key.changed_quietly(edited.times);
        }
        (Some(event), None) if !edited.seen => key.changed_for_waiting(event, edited.times),
        (Some(event), None) => key.changed_times(event, edited.times),
        _ if edited.times > 0 => key.changed_quietly(edited.times),
        _ => {}
    }
}

/// The error for a key or group that does not exist.
pub fn no_group(key: &[u8], group: &[u8]) -> CommandError {
    let parts: [&[u8]; 5] = [
        b"NOGROUP No such key '",
        shown(key),
        b"' or consumer group '",
        shown(group),
        b"'",
    ];
    CommandError::bytes(parts.concat())
}

/// The error for a group that does not exist in a stream that does.
pub fn no_group_in_key(key: &[u8], group: &[u8]) -> CommandError {
    let parts: [&[u8]; 5] = [
        b"NOGROUP No such consumer group '",
        shown(group),
        b"' for key name '",
        shown(key),
        b"'",
    ];
    CommandError::bytes(parts.concat())
}

/// The error for arguments that no subcommand of this name takes.
pub fn bad_subcommand(command: &str, subcommand: &[u8]) -> CommandError {
    let shown = shown(subcommand);
    let parts: [&[u8]; 5] = [
        b"ERR unknown subcommand or wrong number of arguments for '",
        &shown[..shown.len().min(128)],
        b"'. Try ",
        command.as_bytes(),
        b" HELP.",
    ];
    CommandError::bytes(parts.concat())
}

/// Fewer entries are not worth an estimate of the work.
const FEW_ENTRIES: u64 = 500;
/// More bytes than this of blocks are much, whoever asks.
const MANY_BYTES: usize = 1 << 24;

/// An estimate of what it takes to send up to `count` entries of a range, ns: about a nanosecond for each byte.
pub fn range_cost_ns(stream: &Stream, start: StreamId, end: StreamId, count: u64) -> u64 {
    let most = count.min(stream.length());
    if most <= FEW_ENTRIES {
        return 0;
    }
    let bytes = stream.bytes_between(start, end, MANY_BYTES) as u64;
    let mean = stream.allocated_bytes() as u64 / stream.length().max(1);
    bytes.min(most.saturating_mul(mean.max(1)))
}

#[cfg(test)]
mod tests;
