//! DUMP and RESTORE: a value as bytes that another server understands.

use weft_resp::number::parse_i64;
use weft_table::ValueRef;

use super::expire::is_already_expired;
use super::module_value_of;
use crate::commands::context::{Binding, CommandResult, Context, build_reply, leased};
use crate::commands::error::CommandError;
use crate::keyspace::access::ExpiryUpdate;
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::keyspace::string_encoding::encode_string;
use crate::notify::keyspace_event::KeyspaceEvent;
use crate::observability::log;
use weft_config::id;
use weft_modules::objects::value::ModuleValue;
use weft_os::atomic::{AtomicU64, Ordering};
use weft_rdb::dump_payload::{self, RestoredValue, TYPE_MODULE};
use weft_values::Value;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("dump", leased(dump).with_module_values()),
    ("restore", leased(restore).with_module_values()),
    ("restore-asking", leased(restore).with_module_values()),
];

/// The time to encode or decode a byte of a collection, in nanoseconds.
const COLLECTION_BYTE_NS: u64 = 5;
/// The time to verify, decompress and copy a byte of a restored string, in nanoseconds.
const STRING_BYTE_NS: u64 = 1;
/// The length in bytes above which strings are compressed in the background.
const MAX_INLINE_COMPRESSION_BYTES: usize = 64 * 1024;

fn dump(ctx: &mut Context<'_, '_>) -> CommandResult {
    let compress = ctx.server.config.boolean(id::RDBCOMPRESSION);
    let protocol = ctx.client.protocol;
    let in_place_ns = ctx.max_worker_ns();
    if let Some(value) = ctx.keys.peek(0).and_then(module_value_of) {
        // The lookup counts as one.
        let _ = ctx.keys.read(0);
        let (name, db) = (ctx.keys.name(0), ctx.keys.db.get() as u32);
        return match ctx.call_modules(|| value.dump(name, db, compress))? {
            Some(payload) => {
                ctx.reply.bulk(&payload);
                Ok(())
            }
            None => Err(CommandError::constant("ERR The module could not save the value")),
        };
    }
    let large = match ctx.keys.read(0).map(|entry| entry.value()) {
        None => {
            ctx.reply.null();
            return Ok(());
        }
        Some(ValueRef::Blob(blob)) if blob.len() > MAX_INLINE_COMPRESSION_BYTES => blob.clone(),
        Some(ValueRef::Object(object)) if object.allocated_bytes() as u64 * COLLECTION_BYTE_NS > in_place_ns => {
            ctx.detach();
            return Ok(());
        }
        Some(value) => {
            ctx.reply.bulk(&dump_payload::dump(value, compress));
            return Ok(());
        }
    };
    ctx.run_without_keys(move |_| {
        let bytes = dump_payload::dump(ValueRef::Blob(&large), compress);
        build_reply(protocol, |reply| reply.bulk(&bytes))
    })
}

/// The options of RESTORE.
#[derive(Default)]
struct RestoreOptions {
    should_replace: bool,
    is_absolute_ttl: bool,
    idle_s: Option<u64>,
    frequency: Option<u8>,
}

fn parse_restore_options(ctx: &Context<'_, '_>) -> Result<RestoreOptions, CommandError> {
    let mut options = RestoreOptions::default();
    let mut index = 4;
    while index < ctx.argc() {
        let option = ctx.arg(index);
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let next = (index + 1 < ctx.argc()).then(|| ctx.arg(index + 1));
        match next {
            _ if is("REPLACE") => options.should_replace = true,
            _ if is("ABSTTL") => options.is_absolute_ttl = true,
            Some(next) if is("IDLETIME") && options.frequency.is_none() => {
                let idle_s = parse_i64(next).ok_or(CommandError::NOT_AN_INTEGER)?;
                let invalid = CommandError::constant("ERR Invalid IDLETIME value, must be >= 0");
                options.idle_s = Some(u64::try_from(idle_s).map_err(|_| invalid)?);
                index += 1;
            }
            Some(next) if is("FREQ") && options.idle_s.is_none() => {
                let frequency = parse_i64(next).ok_or(CommandError::NOT_AN_INTEGER)?;
                let invalid = CommandError::constant("ERR Invalid FREQ value, must be >= 0 and <= 255");
                options.frequency = Some(u8::try_from(frequency).map_err(|_| invalid)?);
                index += 1;
            }
            _ => return Err(CommandError::SYNTAX),
        }
        index += 1;
    }
    Ok(options)
}

/// Returns the expiry of the restored key, in milliseconds since the Unix epoch. A time to live that overflows wraps
/// around into the past.
fn restored_expiry(ctx: &Context<'_, '_>, is_absolute: bool) -> Result<Option<i64>, CommandError> {
    let ttl = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    if ttl < 0 {
        return Err(CommandError::constant("ERR Invalid TTL value, must be >= 0"));
    }
    let base_ms = if is_absolute { 0 } else { ctx.now_ms as i64 };
    Ok((ttl > 0).then(|| ttl.wrapping_add(base_ms)))
}

/// Logs a bad payload, at most once a second, because clients may send any number of them.
#[cold]
fn log_bad_payload(now_ms: u64, payload: &[u8]) {
    static LAST_LOGGED_S: AtomicU64 = AtomicU64::new(0);
    static SUPPRESSED_COUNT: AtomicU64 = AtomicU64::new(0);
    let now_s = now_ms / 1000;
    if LAST_LOGGED_S.swap(now_s, Ordering::Relaxed) == now_s {
        SUPPRESSED_COUNT.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let kind = payload.first().copied().unwrap_or_default();
    let before = match SUPPRESSED_COUNT.swap(0, Ordering::Relaxed) {
        0 => String::new(),
        count => format!(" ({count} more since the last such line)"),
    };
    log::warning!("RESTORE was given a payload that makes no sense: integrity check failed for type {kind}{before}");
}

/// Returns the estimated time to decode a payload, in nanoseconds. Once it exceeds `in_place_ns`, the rest of the
/// payload is not examined any more.
fn restore_cost_ns(payload: &[u8], in_place_ns: u64) -> u64 {
    let byte_ns = if dump_payload::is_collection(payload) {
        COLLECTION_BYTE_NS
    } else {
        STRING_BYTE_NS
    };
    if in_place_ns == u64::MAX {
        // The command stays where it is, however long it takes.
        return 0;
    }
    let most_bytes = usize::try_from(in_place_ns / byte_ns).unwrap_or(usize::MAX);
    (dump_payload::claimed_bytes(payload, most_bytes) as u64).saturating_mul(byte_ns)
}

/// Returns the value of a valid payload; `None` if there is none.
fn parse_payload<'a>(ctx: &mut Context<'a, '_>) -> Result<Option<RestoredValue<'a>>, CommandError> {
    let payload = ctx.arg(3);
    let [TYPE_MODULE, value @ ..] = payload else {
        return Ok(dump_payload::parse_payload(
            payload,
            &ctx.server.config.encoding_limits(),
        ));
    };
    let (name, db) = (ctx.keys.name(0), ctx.keys.db.get() as u32);
    if !weft_modules::module::types::any_exist() {
        return Ok(None);
    }
    match ctx.call_modules(|| ModuleValue::decode(value, name, db))? {
        Ok(value) => Ok(Some(RestoredValue::Object(Value::Module(value)))),
        Err(error) => {
            log::warning!("{error}");
            Ok(None)
        }
    }
}

fn restore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = parse_restore_options(ctx)?;
    if !options.should_replace && ctx.keys.write(0).exists() {
        return Err(CommandError::constant("BUSYKEY Target key name already exists."));
    }
    let at_ms = restored_expiry(ctx, options.is_absolute_ttl)?;
    let relaxed = ctx.server.config.choice(id::RDB_VERSION_CHECK) == "relaxed";
    let cost_ns = restore_cost_ns(ctx.arg(3), ctx.max_worker_ns());
    if ctx.detach_if_long(cost_ns) {
        return Ok(());
    }
    if !dump_payload::is_valid(ctx.arg(3), relaxed) {
        return Err(CommandError::constant("ERR DUMP payload version or checksum are wrong"));
    }
    if let Some(kind) = dump_payload::foreign_type(ctx.arg(3)) {
        return Err(CommandError::from_text(format!(
            "ERR Unsupported foreign data type: {kind}"
        )));
    }
    let Some(loaded) = parse_payload(ctx)? else {
        log_bad_payload(ctx.now_ms, ctx.arg(3));
        return Err(CommandError::constant("ERR Bad data format"));
    };
    let expired = at_ms.is_some_and(|at_ms| is_already_expired(ctx, at_ms));
    let clock = restored_clock(ctx, &options);
    let mut key = ctx.keys.write_stored(0);
    let deleted = key.delete();
    if expired {
        if deleted {
            // The key is deleted because it is replaced, not because it has expired.
            let lazy = ctx.server.config.boolean(id::LAZYFREE_LAZY_SERVER_DEL);
            let word: &[u8] = if lazy { b"UNLINK" } else { b"DEL" };
            key.log_instead(&[word, ctx.args.argument(1)]);
            key.changed(KeyspaceEvent::generic("del"));
        }
    } else {
        let expiry = at_ms.map_or(ExpiryUpdate::Remove, |at_ms| ExpiryUpdate::SetTo(at_ms.max(0) as u64));
        loaded.insert_with(encode_string, |value| key.set(value, expiry));
        if let Some(clock) = clock
            && let Some(entry) = key.entry()
        {
            entry.set_clock(clock);
        }
        if let Some(at_ms) = at_ms
            && !options.is_absolute_ttl
        {
            let mut digits = itoa::Buffer::new();
            let mut words: Vec<&[u8]> = ctx.args.iter().collect();
            words[2] = digits.format(at_ms).as_bytes();
            words.push(b"ABSTTL");
            key.log_instead(&words);
        }
        key.changed(KeyspaceEvent::generic("restore"));
    }
    ctx.reply.ok();
    Ok(())
}

/// Returns the access clock that the options specify; each option counts only under a policy that uses it.
fn restored_clock(ctx: &Context<'_, '_>, options: &RestoreOptions) -> Option<u32> {
    let clock = ctx.keys.context.clock;
    if clock.is_lfu {
        options.frequency.map(|frequency| clock.with_frequency(frequency))
    } else {
        options.idle_s.map(|idle_s| clock.with_idle(idle_s))
    }
}

#[cfg(test)]
mod tests;
