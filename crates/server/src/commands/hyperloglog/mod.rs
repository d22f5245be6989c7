//! HyperLogLog commands: strings that count distinct elements.
//!
//! The count is cached in the string itself, so PFCOUNT of a single key writes. This is the only change of a value
//! without an event.

mod self_test;

use weft_table::{EntryMut, EntryRef, NewValue, ValueRef};
use weft_values::Value;
use weft_values::hyperloglog::{
    self as hll, CorruptedHyperLogLog, HyperLogLogEncoding, HyperLogLogUnion, HyperLogLogWriter, RegisterUpdate,
};

use super::context::{Binding, CommandResult, Context, build_reply, leased};
use super::error::{CommandError, c_string_prefix};
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use crate::notify::keyspace_event::KeyspaceEvent;
use weft_config::id;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("pfadd", leased(pfadd).with_register()),
    ("pfcount", leased(pfcount)),
    ("pfdebug", leased(pfdebug)),
    ("pfmerge", leased(pfmerge)),
    ("pfselftest", leased(pfselftest)),
];

const NOT_A_HYPERLOGLOG: CommandError =
    CommandError::constant("WRONGTYPE Key is not a valid HyperLogLog string value.");
const CORRUPTED: CommandError = CommandError::constant("INVALIDOBJ Corrupted HLL object detected");

impl From<CorruptedHyperLogLog> for CommandError {
    fn from(CorruptedHyperLogLog: CorruptedHyperLogLog) -> Self {
        CORRUPTED
    }
}

/// The time to add an element to a long sparse HyperLogLog, in nanoseconds.
const ADD_NS: u64 = 200;
/// The time to sum the registers of a dense one, in nanoseconds.
const MERGE_NS: u64 = 10_000;

/// Returns the bytes of a HyperLogLog.
///
/// # Errors
/// If the value is not a HyperLogLog.
fn hyperloglog_bytes(entry: EntryRef<'_, Value>) -> Result<(&[u8], HyperLogLogEncoding), CommandError> {
    let bytes: &[u8] = match entry.value() {
        ValueRef::Bytes(bytes) => bytes,
        ValueRef::Blob(blob) => blob,
        ValueRef::Int(_) => return Err(NOT_A_HYPERLOGLOG),
        ValueRef::Packed(_) | ValueRef::Object(_) => return Err(CommandError::WRONG_TYPE),
    };
    let encoding = hll::encoding(bytes).ok_or(NOT_A_HYPERLOGLOG)?;
    Ok((bytes, encoding))
}

fn sparse_max_bytes(ctx: &Context<'_, '_>) -> usize {
    usize::try_from(ctx.server.config.integer(id::HLL_SPARSE_MAX_BYTES)).unwrap_or(usize::MAX)
}

/// The bytes that a command copies per nanosecond.
const COPIED_BYTES_PER_NS: u64 = 2;

/// Returns the time that a change takes to copy a value that is a sparse HyperLogLog, in nanoseconds. One made by
/// SETRANGE may have hundreds of megabytes, many more than those that commands produce.
fn copying_ns(entry: Option<EntryRef<'_, Value>>) -> u64 {
    match entry.map(hyperloglog_bytes) {
        Some(Ok((bytes, HyperLogLogEncoding::Sparse))) => bytes.len() as u64 / COPIED_BYTES_PER_NS,
        _ => 0,
    }
}

/// Moves the handler to a background thread if a change has to copy much.
fn detaches_to_copy(ctx: &mut Context<'_, '_>) -> bool {
    // It does not count as a lookup of the key.
    let estimated_ns = copying_ns(ctx.keys.peek(0));
    ctx.detach_if_long(estimated_ns)
}

/// Stores a modified HyperLogLog. It counts as a string that was modified in place.
fn store_modified(key: &mut KeyWrite<'_>, bytes: &[u8]) {
    key.set(NewValue::Bytes(bytes), ExpiryUpdate::Keep);
    if let Some(mut entry) = key.entry_mut() {
        entry.bytes_mut(0);
    }
}

fn pfadd(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.detach_if_long((ctx.argc() as u64).saturating_mul(ADD_NS)) {
        return Ok(());
    }
    let limit = sparse_max_bytes(ctx);
    let max_ns = ctx.max_worker_ns();
    let args = ctx.args;
    let mut key = ctx.keys.write(0);
    let updates = (2..args.len()).map(|index| RegisterUpdate::of(args.argument(index)));
    match add_elements(&mut key, updates, limit, max_ns)? {
        None => {
            drop(key);
            ctx.detach();
        }
        Some(0) => ctx.reply.integer(0),
        Some(changes) => {
            key.changed_times(KeyspaceEvent::string("pfadd"), changes);
            ctx.reply.integer(1);
        }
    }
    Ok(())
}

/// Adds elements. Returns the number of elements that changed a register, plus one if the key was created; `None`, with
/// nothing changed, if copying the value would take longer than `max_ns`.
fn add_elements(
    key: &mut KeyWrite<'_>,
    updates: impl Iterator<Item = RegisterUpdate>,
    limit: usize,
    max_ns: u64,
) -> Result<Option<u64>, CommandError> {
    let (mut bytes, mut changes) = match key.entry_mut() {
        None => (hll::empty(), 1),
        Some(entry) => match hyperloglog_bytes(entry.as_ref())? {
            (_, HyperLogLogEncoding::Dense) => return Ok(Some(add_to_dense(entry, updates))),
            (_, HyperLogLogEncoding::Sparse) if copying_ns(Some(entry.as_ref())) > max_ns => return Ok(None),
            (bytes, HyperLogLogEncoding::Sparse) => (bytes.to_vec(), 0),
        },
    };
    let mut writer = HyperLogLogWriter::new(&mut bytes, limit).ok_or(NOT_A_HYPERLOGLOG)?;
    for update in updates {
        changes += u64::from(writer.raise(update)?);
    }
    if changes > 0 {
        hll::invalidate_cardinality(&mut bytes);
        store_modified(key, &bytes);
    }
    Ok(Some(changes))
}

/// Adds elements in place. The registers of a shared string are copied only for a change.
fn add_to_dense(mut entry: EntryMut<'_, Value>, updates: impl Iterator<Item = RegisterUpdate>) -> u64 {
    let mut changes = 0;
    for update in updates {
        let raises = hyperloglog_bytes(entry.as_ref())
            .is_ok_and(|(bytes, _)| hll::dense_register(bytes, update.index) < update.count);
        if raises {
            let bytes = entry.bytes_mut(hll::DENSE_BYTES);
            changes += u64::from(hll::raise_dense_register(bytes, update));
            hll::invalidate_cardinality(bytes);
        }
    }
    changes
}

fn pfcount(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.keys.len() != 1 {
        return count_union(ctx);
    }
    let count = match ctx.keys.read(0) {
        None => 0,
        Some(entry) => {
            let (bytes, _) = hyperloglog_bytes(entry)?;
            match hll::cached_cardinality(bytes) {
                Some(count) => count,
                None => {
                    let count = hll::cardinality(bytes)?;
                    cache_count(ctx, count);
                    count
                }
            }
        }
    };
    ctx.reply.integer(count as i64);
    Ok(())
}

fn cache_count(ctx: &mut Context<'_, '_>, count: u64) {
    let mut key = ctx.keys.write(0).opened_again();
    if let Some(mut entry) = key.entry_mut() {
        hll::cache_cardinality(entry.bytes_mut(0), count);
    }
    key.changed(KeyspaceEvent::NO_EVENT);
}

fn count_union(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.detach_if_long(ctx.keys.len() as u64 * MERGE_NS) {
        return Ok(());
    }
    let union = merge_keys(ctx)?.0;
    ctx.reply.integer(union.cardinality() as i64);
    Ok(())
}

/// Merges all keys. The second part is `true` if one of them is dense.
fn merge_keys(ctx: &mut Context<'_, '_>) -> Result<(HyperLogLogUnion, bool), CommandError> {
    let mut union = HyperLogLogUnion::default();
    let mut any_dense = false;
    for index in 0..ctx.keys.len() {
        if let Some(entry) = ctx.keys.read(index) {
            let (bytes, encoding) = hyperloglog_bytes(entry)?;
            union.merge(bytes)?;
            any_dense |= encoding == HyperLogLogEncoding::Dense;
        }
    }
    Ok((union, any_dense))
}

fn pfmerge(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.detach_if_long(ctx.keys.len() as u64 * MERGE_NS) || detaches_to_copy(ctx) {
        return Ok(());
    }
    let limit = sparse_max_bytes(ctx);
    if !ctx.keeps_expired() {
        // The first lookup of the destination deletes it if it has expired, and misses it after that.
        drop(ctx.keys.write(0));
    }
    let (union, any_dense) = merge_keys(ctx)?;
    let mut key = ctx.keys.write(0);
    match merge_into(&mut key, &union, any_dense, limit) {
        Ok(()) => key.changed(KeyspaceEvent::string("pfadd")),
        Err(error) => {
            return Err(error);
        }
    }
    ctx.reply.ok();
    Ok(())
}

fn merge_into(
    key: &mut KeyWrite<'_>,
    union: &HyperLogLogUnion,
    has_dense: bool,
    limit: usize,
) -> Result<(), CommandError> {
    let mut bytes = match key.entry() {
        None => hll::empty(),
        Some(entry) => hyperloglog_bytes(entry)?.0.to_vec(),
    };
    let mut writer = HyperLogLogWriter::new(&mut bytes, limit).ok_or(NOT_A_HYPERLOGLOG)?;
    if has_dense {
        writer.make_dense()?;
    }
    for mark in union.register_updates() {
        writer.raise(mark)?;
    }
    hll::invalidate_cardinality(&mut bytes);
    store_modified(key, &bytes);
    Ok(())
}

fn pfdebug(ctx: &mut Context<'_, '_>) -> CommandResult {
    let name = ctx.arg(1).to_ascii_lowercase();
    if name == b"simd" {
        return accept_simd_switch(ctx);
    }
    // As in Valkey, the key is looked up for writing, which counts as no hit or miss.
    drop(ctx.keys.write(0));
    let Some(entry) = ctx.keys.peek(0) else {
        return Err(CommandError::constant("ERR The specified key does not exist"));
    };
    let (bytes, encoding) = hyperloglog_bytes(entry)?;
    match name.as_slice() {
        b"getreg" => {
            make_dense(ctx)?;
            reply_with_registers(ctx)
        }
        b"decode" if encoding != HyperLogLogEncoding::Sparse => {
            Err(CommandError::constant("ERR HLL encoding is not sparse"))
        }
        b"decode" => {
            let text = hll::format_runs(bytes);
            ctx.reply.bulk(text.as_bytes());
            Ok(())
        }
        b"encoding" => {
            ctx.reply.simple(encoding.name());
            Ok(())
        }
        b"todense" => {
            let made = make_dense(ctx)?;
            ctx.reply.integer(i64::from(made));
            Ok(())
        }
        _ => Err(CommandError::with_word(
            "ERR Unknown PFDEBUG subcommand '",
            c_string_prefix(ctx.arg(1)),
            "'",
        )),
    }
}

/// Accepts the switch for vector instructions without effect, for tests that use it.
fn accept_simd_switch(ctx: &mut Context<'_, '_>) -> CommandResult {
    match ctx.arg(2).to_ascii_lowercase().as_slice() {
        b"on" => ctx.reply.simple("enabled"),
        b"off" => ctx.reply.simple("disabled"),
        _ => return Err(CommandError::constant("ERR Argument must be ON or OFF")),
    }
    Ok(())
}

/// Makes the HyperLogLog dense. Returns `true` if it was sparse.
fn make_dense(ctx: &mut Context<'_, '_>) -> Result<bool, CommandError> {
    let mut key = ctx.keys.write(0);
    let dense = key.entry().map(|entry| -> Result<_, CommandError> {
        let mut bytes = hyperloglog_bytes(entry)?.0.to_vec();
        let mut writer = HyperLogLogWriter::new(&mut bytes, usize::MAX).ok_or(NOT_A_HYPERLOGLOG)?;
        let made = writer.make_dense()?;
        Ok(made.then_some(bytes))
    });
    match dense {
        Some(Ok(Some(bytes))) => {
            store_modified(&mut key, &bytes);
            key.changed(KeyspaceEvent::NO_EVENT);
            Ok(true)
        }
        Some(Err(error)) => Err(error),
        Some(Ok(None)) | None => Ok(false),
    }
}

fn reply_with_registers(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some(entry) = ctx.keys.peek(0) else {
        return Err(CORRUPTED);
    };
    let (bytes, _) = hyperloglog_bytes(entry)?;
    ctx.reply.array(hll::REGISTERS);
    for index in 0..hll::REGISTERS {
        ctx.reply.integer(i64::from(hll::dense_register(bytes, index)));
    }
    Ok(())
}

fn pfselftest(ctx: &mut Context<'_, '_>) -> CommandResult {
    let protocol = ctx.client.protocol;
    let limit = sparse_max_bytes(ctx);
    ctx.run_without_keys(move |_| {
        build_reply(protocol, |reply| match self_test::run_self_test(limit) {
            Ok(()) => reply.ok(),
            Err(failure) => reply.error_bytes(format!("TESTFAILED {failure}").as_bytes()),
        })
    })
}
