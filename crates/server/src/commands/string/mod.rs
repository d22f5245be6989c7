//! The string commands.

pub mod bytes;
pub mod lcs;
pub mod many;
pub mod number;
pub mod set_options;
use super::context::{Binding, CommandResult, Context, leased, reply_bulk};
use crate::commands::generic::expire::deletion_threshold_ms;
use crate::commands::generic::expiry_argument::{ExpiryUnit, parse_positive_expiry_ms};
use crate::commands::string::bytes::with_bytes;
use crate::commands::string::set_options::{
    SetCondition, SetOptions, SetOptionsGrammar, parse_options, resolve_expiry,
};
use crate::keyspace::access::{ExpiryUpdate, KeyWrite, is_expired};
use crate::keyspace::string_encoding::encode_string;
use crate::notify::keyspace_event::KeyspaceEvent;

/// The string commands and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("delifeq", leased(delifeq)),
    ("get", leased(get)),
    ("getdel", leased(getdel)),
    ("getex", leased(getex)),
    ("getset", leased(getset)),
    ("psetex", leased(psetex)),
    ("set", leased(set)),
    ("setex", leased(setex)),
    ("setnx", leased(setnx)),
];

fn get(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_string(0)
}

fn getset(ctx: &mut Context<'_, '_>) -> CommandResult {
    let value = ctx.arg(2);
    let keeps_expired = ctx.keeps_expired();
    let mut key = ctx.keys.write_after_read(0, keeps_expired);
    match key.entry() {
        Some(entry) => reply_bulk(&mut ctx.reply, &mut ctx.shared, entry)?,
        None => ctx.reply.null(),
    }
    key.begin_another_use();
    key.set(encode_string(value), ExpiryUpdate::Remove);
    key.log_instead(&[b"SET", ctx.args.argument(1), value]);
    key.changed(KeyspaceEvent::string("set"));
    Ok(())
}

fn getdel(ctx: &mut Context<'_, '_>) -> CommandResult {
    let keeps_expired = ctx.keeps_expired();
    // A key that has expired and stays is not found, and deleted nevertheless.
    let is_hidden = ctx.keys.misses_kept_key(0, keeps_expired);
    let mut key = match is_hidden {
        true => ctx.keys.write_stored(0),
        false => ctx.keys.write(0).counted(),
    };
    match key.entry().filter(|_| !is_hidden) {
        Some(entry) => reply_bulk(&mut ctx.reply, &mut ctx.shared, entry)?,
        None => ctx.reply.null(),
    }
    if key.delete() {
        key.log_instead(&[b"DEL", ctx.args.argument(1)]);
        key.changed(KeyspaceEvent::generic("del"));
    }
    Ok(())
}

fn set(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc() == 3 {
        let value = ctx.arg(2);
        let mut key = ctx.keys.write(0);
        key.set(encode_string(value), ExpiryUpdate::Remove);
        key.changed(KeyspaceEvent::string("set"));
        ctx.reply.ok();
        return Ok(());
    }
    let options = parse_options(ctx, 3..ctx.argc(), SetOptionsGrammar::Set)?;
    let expiry = resolve_expiry(ctx, &options)?;
    set_with_options(ctx, &options, expiry)
}

fn set_with_options(ctx: &mut Context<'_, '_>, options: &SetOptions<'_>, expiry: ExpiryUpdate) -> CommandResult {
    let value = ctx.arg(2);
    let passed_ms = deletion_threshold_ms(ctx, expiry);
    let mut key = if options.returns_old_value {
        let keeps_expired = ctx.keeps_expired();
        ctx.keys.write_after_read(0, keeps_expired)
    } else {
        ctx.keys.write(0)
    };
    let mut answered = false;
    if options.returns_old_value {
        key.begin_another_use();
        match key.entry() {
            Some(entry) => reply_bulk(&mut ctx.reply, &mut ctx.shared, entry)?,
            None => ctx.reply.null(),
        }
        answered = true;
    }
    let met = match options.condition {
        SetCondition::None => Ok(true),
        SetCondition::Missing => Ok(!key.exists()),
        SetCondition::Present => Ok(key.exists()),
        SetCondition::Equal(wanted) => match key.entry() {
            Some(entry) => with_bytes(entry.value(), |bytes| bytes == wanted),
            None => Ok(false),
        },
    };
    match met {
        Err(error) => {
            return Err(error);
        }
        Ok(false) => {
            if !answered {
                ctx.reply.null();
            }
            return Ok(());
        }
        Ok(true) => {}
    }
    // An absolute time in milliseconds is logged as it was sent, with all other options.
    let logged_as: Option<&[u8]> = match options.expiry {
        Some((ExpiryUnit::UnixMilliseconds, _)) => None,
        _ if ctx.args.len() == 5 => Some(ctx.args.argument(0)),
        _ => Some(b"SET"),
    };
    store_unless_expired(key, value, expiry, passed_ms, logged_as);
    if options.returns_old_value && options.expiry.is_none() && ctx.keys.effects.is_logging() {
        propagate_without_get(ctx);
    }
    if !answered {
        ctx.reply.ok();
    }
    Ok(())
}

/// Propagates SET without GET, because the log needs no reply.
#[cold]
fn propagate_without_get(ctx: &mut Context<'_, '_>) {
    let mut words: Vec<&[u8]> = Vec::with_capacity(ctx.argc());
    for (index, word) in ctx.args.iter().enumerate() {
        let is_compared = index > 3 && ctx.arg(index - 1).eq_ignore_ascii_case(b"IFEQ");
        if index < 3 || is_compared || !word.eq_ignore_ascii_case(b"GET") {
            words.push(word);
        }
    }
    ctx.keys.effects.log_instead(&words);
}

/// Propagates the write as a SET with an absolute expiry. `word` is the name of the command.
#[cold]
fn propagate_with_expiry(key: &mut KeyWrite<'_>, word: &[u8], name: &[u8], value: &[u8], at_ms: u64) {
    let mut digits = itoa::Buffer::new();
    key.log_instead(&[word, name, value, b"PXAT", digits.format(at_ms).as_bytes()]);
}

/// Sets a key to a client's value. If the expiry is before `passed_ms`, deletes the key instead. With an expiry, the
/// write is logged as a SET with the name `logged_as`, or as it was sent if that is `None`.
fn store_unless_expired(
    mut key: KeyWrite<'_>,
    value: &[u8],
    expiry: ExpiryUpdate,
    passed_ms: u64,
    logged_as: Option<&[u8]>,
) {
    if let ExpiryUpdate::SetTo(at) = expiry
        && is_expired(Some(at), passed_ms)
    {
        if key.delete_with_past_expiry() {
            let name = key.name_for_plan();
            key.effects().log_past_expiry(name);
            key.changed(KeyspaceEvent::EXPIRED);
        }
        return;
    }
    if let ExpiryUpdate::SetTo(at) = expiry
        && let Some(word) = logged_as
        && key.effects().is_logging()
    {
        let name = key.name_for_plan();
        propagate_with_expiry(&mut key, word, name, value, at);
    }
    store_string(key, value, expiry);
}

/// Sets a key to a client's value.
pub(super) fn store_string(mut key: KeyWrite<'_>, value: &[u8], expiry: ExpiryUpdate) {
    if expiry == ExpiryUpdate::Keep {
        key.note_overwritten();
    }
    key.set(encode_string(value), expiry);
    if let ExpiryUpdate::SetTo(_) = expiry {
        key.record_event(KeyspaceEvent::string("set"));
        key.changed(KeyspaceEvent::generic("expire"));
    } else {
        key.changed(KeyspaceEvent::string("set"));
    }
}

fn setnx(ctx: &mut Context<'_, '_>) -> CommandResult {
    let value = ctx.arg(2);
    let mut key = ctx.keys.write(0);
    if key.exists() {
        ctx.reply.integer(0);
    } else {
        key.set(encode_string(value), ExpiryUpdate::Remove);
        key.changed(KeyspaceEvent::string("set"));
        ctx.reply.integer(1);
    }
    Ok(())
}

fn setex(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_with_expiry(ctx, ExpiryUnit::Seconds)
}

fn psetex(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_with_expiry(ctx, ExpiryUnit::Milliseconds)
}

fn set_with_expiry(ctx: &mut Context<'_, '_>, unit: ExpiryUnit) -> CommandResult {
    let at = parse_positive_expiry_ms(ctx.arg(2), unit, ctx.now_ms, ctx.command.full_name)?;
    let value = ctx.arg(3);
    let passed_ms = deletion_threshold_ms(ctx, ExpiryUpdate::SetTo(at));
    let expiry = ExpiryUpdate::SetTo(at);
    store_unless_expired(ctx.keys.write(0), value, expiry, passed_ms, Some(b"SET"));
    ctx.reply.ok();
    Ok(())
}

fn getex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = parse_options(ctx, 2..ctx.argc(), SetOptionsGrammar::GetEx)?;
    let expiry = resolve_expiry(ctx, &options)?;
    let passed_ms = deletion_threshold_ms(ctx, expiry);
    let keeps_expired = ctx.keeps_expired();
    if ctx.keys.misses_kept_key(0, keeps_expired) {
        ctx.reply.null();
        return Ok(());
    }
    let mut key = ctx.keys.write(0).counted();
    let Some(entry) = key.entry() else {
        ctx.reply.null();
        return Ok(());
    };
    let has_expiry = entry.expire_at_ms().is_some();
    reply_bulk(&mut ctx.reply, &mut ctx.shared, entry)?;
    match expiry {
        ExpiryUpdate::SetTo(at) if is_expired(Some(at), passed_ms) => {
            key.delete_with_past_expiry();
            key.effects().log_past_expiry(ctx.args.argument(1));
            key.changed(KeyspaceEvent::EXPIRED);
        }
        ExpiryUpdate::SetTo(at) => {
            key.set_expiry(Some(at));
            if key.effects().is_logging() {
                let mut digits = itoa::Buffer::new();
                key.log_instead(&[b"PEXPIREAT", ctx.args.argument(1), digits.format(at).as_bytes()]);
            }
            key.changed(KeyspaceEvent::generic("expire"));
        }
        ExpiryUpdate::Remove if options.should_persist && has_expiry => {
            key.set_expiry(None);
            key.log_instead(&[b"PERSIST", ctx.args.argument(1)]);
            key.changed(KeyspaceEvent::generic("persist"));
        }
        ExpiryUpdate::Remove | ExpiryUpdate::Keep => {}
    }
    Ok(())
}

fn delifeq(ctx: &mut Context<'_, '_>) -> CommandResult {
    let wanted = ctx.arg(2);
    let mut key = ctx.keys.write(0);
    let equal = match key.entry() {
        Some(entry) => with_bytes(entry.value(), |bytes| bytes == wanted),
        None => Ok(false),
    };
    match equal {
        Ok(true) => {
            key.delete();
            key.log_instead(&[b"DEL", ctx.args.argument(1)]);
            key.changed(KeyspaceEvent::generic("del"));
            ctx.reply.integer(1);
        }
        Ok(false) => {
            ctx.reply.integer(0);
        }
        Err(error) => {
            return Err(error);
        }
    }
    Ok(())
}
