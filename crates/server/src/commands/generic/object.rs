//! OBJECT: the encoding of a value and its last use.

use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::packed::PackedKind;

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::keyspace::access::LookupStatistics;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("object|encoding", leased(encoding)),
    ("object|freq", leased(freq)),
    ("object|help", leased(help)),
    ("object|idletime", leased(idletime)),
    ("object|refcount", leased(refcount)),
];

/// The size up to which Valkey keeps key and string in one allocation and calls the string `embstr`.
const EMBEDDED_BYTES: usize = 128;
/// Valkey's overhead beyond key and string: object header, string headers, terminators.
const EMBEDDED_OVERHEAD_BYTES: usize = 15;
/// The length of a key above which its header is longer.
const MAX_SHORT_KEY_BYTES: usize = 31;
const LONG_KEY_OVERHEAD_BYTES: usize = 2;

/// Returns the encoding of an entry's value, as OBJECT ENCODING reports it.
pub fn encoding_name(entry: EntryRef<'_, Value>) -> &'static str {
    if entry.is_raw() {
        "raw"
    } else {
        unmodified_encoding(entry)
    }
}

/// Returns the encoding that the value would have if it had not been modified in place.
fn unmodified_encoding(entry: EntryRef<'_, Value>) -> &'static str {
    let length = match entry.value() {
        ValueRef::Int(_) => return "int",
        ValueRef::Bytes(bytes) => bytes.len(),
        ValueRef::Blob(blob) => blob.len(),
        ValueRef::Packed(packed) => return PackedKind::of(packed).encoding_name(),
        ValueRef::Object(object) => return object.encoding_name(),
    };
    if is_embedded(entry.key().len(), length) {
        "embstr"
    } else {
        "raw"
    }
}

/// Returns `true` if Valkey would store a string of `length` bytes in one allocation with its key.
fn is_embedded(key_length: usize, length: usize) -> bool {
    let more = if key_length > MAX_SHORT_KEY_BYTES {
        LONG_KEY_OVERHEAD_BYTES
    } else {
        0
    };
    key_length + length + EMBEDDED_OVERHEAD_BYTES + more <= EMBEDDED_BYTES
}

/// Runs `visit` on the entry without counting that as a use, or replies with null if the key is missing.
fn with_entry<R>(ctx: &mut Context<'_, '_>, visit: impl FnOnce(EntryRef<'_, Value>) -> R) -> Option<R> {
    let db = ctx.keys.db;
    let shown = ctx.keys.read_with(0, db, LookupStatistics::NoEvent).map(visit);
    if shown.is_none() {
        ctx.reply.null();
    }
    shown
}

fn encoding(ctx: &mut Context<'_, '_>) -> CommandResult {
    if let Some(name) = with_entry(ctx, encoding_name) {
        ctx.reply.bulk(name.as_bytes());
    }
    Ok(())
}

fn refcount(ctx: &mut Context<'_, '_>) -> CommandResult {
    if with_entry(ctx, |_| ()).is_some() {
        // Clients never see a value that two keys share.
        ctx.reply.integer(1);
    }
    Ok(())
}

fn idletime(ctx: &mut Context<'_, '_>) -> CommandResult {
    let access_clock = ctx.keys.context.clock;
    let Some(clock) = with_entry(ctx, |entry| entry.clock()) else {
        return Ok(());
    };
    if access_clock.is_lfu {
        return Err(CommandError::constant(
            "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between \
             policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    ctx.reply.integer(access_clock.idle_s(clock) as i64);
    Ok(())
}

fn freq(ctx: &mut Context<'_, '_>) -> CommandResult {
    let access_clock = ctx.keys.context.clock;
    let Some(clock) = with_entry(ctx, |entry| entry.clock()) else {
        return Ok(());
    };
    if !access_clock.is_lfu {
        return Err(CommandError::constant(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
             between policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    ctx.reply.integer(i64::from(access_clock.frequency(clock)));
    Ok(())
}

/// The lines of OBJECT HELP, equal to Valkey's because clients compare them.
const HELP: &[&str] = &[
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Return the access frequency index of the <key>. The returned integer is",
    "    proportional to the logarithm of the recent access frequency of the key.",
    "IDLETIME <key>",
    "    Return the idle time of the <key>, that is the approximated number of",
    "    seconds elapsed since the last access to the key.",
    "REFCOUNT <key>",
    "    Return the number of references of the value associated with the specified",
    "    <key>.",
    "HELP",
    "    Print this help.",
];

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_lines(HELP)
}

#[cfg(test)]
mod tests;
