//! Commands on parts of strings, and commands that change strings in place.

use std::ops::{Deref, Range};

use weft_resp::number::parse_i64;
use weft_table::{Blob, EntryRef, NewValue, ValueRef};
use weft_values::Value;

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::keyspace::access::ExpiryUpdate;
use crate::keyspace::string_encoding::encode_string;
use crate::net::client::ClientFlags;
use crate::notify::keyspace_event::KeyspaceEvent;
use weft_config::id;

/// The commands on parts of strings, and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("append", leased(append)),
    ("getrange", leased(getrange)),
    ("setrange", leased(setrange)),
    ("strlen", leased(strlen)),
    ("substr", leased(getrange)),
];

/// Calls `visit` with the string's bytes. An integer is formatted first.
///
/// # Errors
/// `WRONGTYPE` if the value is not a string.
pub fn with_bytes<R>(value: ValueRef<'_, Value>, visit: impl FnOnce(&[u8]) -> R) -> Result<R, CommandError> {
    match value {
        ValueRef::Bytes(bytes) => Ok(visit(bytes)),
        ValueRef::Blob(blob) => Ok(visit(blob)),
        ValueRef::Int(number) => {
            let mut digits = [0u8; 20];
            Ok(visit(weft_resp::number::format_i64(number, &mut digits).as_bytes()))
        }
        ValueRef::Packed(_) | ValueRef::Object(_) => Err(CommandError::WRONG_TYPE),
    }
}

/// A string's bytes, independent of its entry: a copy of a short string, or a reference to a long one.
pub enum OwnedString {
    /// A copy.
    Copied(Vec<u8>),
    /// Shared with the entry.
    Shared(Blob),
}

impl OwnedString {
    /// Copies or references a string.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is not a string.
    pub fn from_value(value: ValueRef<'_, Value>) -> Result<Self, CommandError> {
        match value {
            ValueRef::Blob(blob) => Ok(OwnedString::Shared(blob.clone())),
            other => with_bytes(other, |bytes| OwnedString::Copied(bytes.to_vec())),
        }
    }
}

impl Default for OwnedString {
    fn default() -> Self {
        OwnedString::Copied(Vec::new())
    }
}

impl Deref for OwnedString {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            OwnedString::Copied(bytes) => bytes,
            OwnedString::Shared(blob) => blob,
        }
    }
}

/// The number of bytes that are copied or zeroed per nanosecond, including the allocation of memory.
const COPIED_BYTES_PER_NS: u64 = 2;

/// A string before it is changed in place.
pub struct PreviousString {
    /// Its length in bytes; 0 if the key is missing.
    pub length: usize,
    /// The estimated time of the change, in nanoseconds.
    pub cost_ns: u64,
}

/// Returns the length of a string before it is changed up to byte `end`, which may depend on this length, with the
/// estimated time of the change.
///
/// # Errors
/// `WRONGTYPE` if the value is not a string.
#[inline]
pub fn inspect_before_change(
    entry: Option<EntryRef<'_, Value>>,
    end: impl FnOnce(usize) -> usize,
) -> Result<PreviousString, CommandError> {
    let Some(value) = entry.map(|entry| entry.value()) else {
        return Ok(PreviousString {
            length: 0,
            cost_ns: end(0) as u64 / COPIED_BYTES_PER_NS,
        });
    };
    let length = string_len(value)?;
    let end = end(length);
    let moved = match value {
        ValueRef::Blob(blob) if blob.is_unique() && end <= blob.capacity() => end.saturating_sub(length),
        ValueRef::Blob(_) => end.max(length),
        _ => end,
    };
    Ok(PreviousString {
        length,
        cost_ns: moved as u64 / COPIED_BYTES_PER_NS,
    })
}

/// Returns the length of a string value in bytes.
fn string_len(value: ValueRef<'_, Value>) -> Result<usize, CommandError> {
    with_bytes(value, <[u8]>::len)
}

fn strlen(ctx: &mut Context<'_, '_>) -> CommandResult {
    let length = match ctx.keys.read(0) {
        Some(entry) => string_len(entry.value())?,
        None => 0,
    };
    ctx.reply.integer(length as i64);
    Ok(())
}

fn getrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    let start = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let end = parse_i64(ctx.arg(3)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let reply = &mut ctx.reply;
    let Some(entry) = ctx.keys.read(0) else {
        reply.bulk(b"");
        return Ok(());
    };
    with_bytes(entry.value(), |bytes| {
        match (clamp_range(start, end, bytes.len()), entry.value()) {
            (None, _) => reply.bulk(b""),
            (Some((from, to)), ValueRef::Blob(blob)) if ctx.shared.takes(to - from + 1) => {
                let part = BlobPart(blob.clone(), from..to + 1);
                reply.bulk_header(part.1.len());
                ctx.shared.push(reply.out.len(), Box::new(part));
                reply.crlf();
            }
            (Some((from, to)), _) => reply.bulk(&bytes[from..=to]),
        }
    })
}

/// A part of a string that is sent by reference.
struct BlobPart(Blob, Range<usize>);

impl AsRef<[u8]> for BlobPart {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

/// Resolves a range whose ends may be negative (counted from the end). Returns `None` if the range is empty.
pub fn clamp_range(start: i64, end: i64, length: usize) -> Option<(usize, usize)> {
    let length = length as i64;
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let resolve = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (start, end) = (resolve(start), resolve(end).min(length - 1));
    (length > 0 && start <= end).then_some((start as usize, end as usize))
}

fn append(ctx: &mut Context<'_, '_>) -> CommandResult {
    let added = ctx.arg(2);
    // The length of what is appended is bounded by the input.
    let limit = match ctx.client.flags.intersects(ClientFlags::REPLAYING) {
        true => usize::MAX,
        false => ctx.server.config.integer(id::PROTO_MAX_BULK_LEN).max(0) as usize,
    };
    let in_place_ns = ctx.max_worker_ns();
    let mut key = ctx.keys.write(0);
    let before = match inspect_before_change(key.entry(), |length| length.saturating_add(added.len())) {
        Ok(before) if before.length == 0 || before.length.saturating_add(added.len()) <= limit => before,
        other => {
            return Err(other.err().unwrap_or(CommandError::STRING_TOO_LONG));
        }
    };
    if before.cost_ns > in_place_ns {
        drop(key);
        ctx.detach();
        return Ok(());
    }
    match key.entry_mut() {
        Some(mut entry) => {
            entry.append(added);
        }
        None => key.set(encode_string(added), ExpiryUpdate::Remove),
    }
    key.changed(KeyspaceEvent::string("append"));
    ctx.reply.integer((before.length + added.len()) as i64);
    Ok(())
}

/// The length in bytes above which a new string is allocated without spare capacity.
const MAX_EXACT_ALLOCATION: u64 = 1024;

fn setrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    let offset = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let Ok(offset) = usize::try_from(offset) else {
        return Err(CommandError::constant("ERR offset is out of range"));
    };
    let value = ctx.arg(3);
    let limit = ctx.max_string_bytes();
    let in_place_ns = ctx.max_worker_ns();
    let mut key = ctx.keys.write(0);
    let end = offset as u64 + value.len() as u64;
    let before = inspect_before_change(key.entry(), |_| end as usize)?;
    if value.is_empty() {
        ctx.reply.integer(before.length as i64);
        return Ok(());
    }
    if end > limit {
        return Err(CommandError::STRING_TOO_LONG);
    }
    if before.cost_ns > in_place_ns {
        drop(key);
        ctx.detach();
        return Ok(());
    }
    if !key.exists() {
        // A large string is allocated with its final length, because growing it would reserve spare capacity.
        let length = if end > MAX_EXACT_ALLOCATION { end as usize } else { 0 };
        key.set(NewValue::Bytes(&vec![0; length]), ExpiryUpdate::Remove);
    }
    let mut total = before.length;
    if let Some(mut entry) = key.entry_mut() {
        let bytes = entry.bytes_mut(end as usize);
        bytes[offset..end as usize].copy_from_slice(value);
        total = bytes.len();
    }
    key.changed(KeyspaceEvent::string("setrange"));
    ctx.reply.integer(total as i64);
    Ok(())
}
