//! Commands on several strings at once.

use weft_resp::number::parse_i64;

use super::set_options::{SetCondition, SetOptionsGrammar, parse_options, resolve_expiry};
use crate::commands::context::{Binding, CommandResult, Context, leased, reply_bulk};
use crate::commands::error::CommandError;
use crate::commands::generic::expiry_argument::ExpiryUnit;
use crate::commands::string::store_string;
use crate::keyspace::access::ExpiryUpdate;
use crate::keyspace::string_encoding::encode_string;
use crate::notify::keyspace_event::KeyspaceEvent;

/// The commands on several strings and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("mget", leased(mget)),
    ("mset", leased(mset)),
    ("msetex", leased(msetex)),
    ("msetnx", leased(msetnx)),
];

fn mget(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.array(ctx.keys.len());
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        match ctx.keys.read(index) {
            None => ctx.reply.null(),
            Some(entry) => {
                if reply_bulk(&mut ctx.reply, &mut ctx.shared, entry).is_err() {
                    ctx.reply.null();
                }
            }
        }
    }
    Ok(())
}

fn mset(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc().is_multiple_of(2) {
        return Err(CommandError::constant(
            "ERR wrong number of arguments for 'mset' command",
        ));
    }
    set_argument_pairs(ctx);
    ctx.reply.ok();
    Ok(())
}

fn set_argument_pairs(ctx: &mut Context<'_, '_>) {
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        let value = ctx.arg(index * 2 + 2);
        let mut key = ctx.keys.write(index);
        key.set(encode_string(value), ExpiryUpdate::Remove);
        key.changed(KeyspaceEvent::string("set"));
    }
}

fn msetnx(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc().is_multiple_of(2) {
        return Err(CommandError::constant(
            "ERR wrong number of arguments for 'msetnx' command",
        ));
    }
    if has_key_in_state(ctx, true) {
        ctx.reply.integer(0);
        return Ok(());
    }
    set_argument_pairs(ctx);
    ctx.reply.integer(1);
    Ok(())
}

/// Returns `true` if any key exists (with `should_exist`) or is missing (without it).
fn has_key_in_state(ctx: &mut Context<'_, '_>, should_exist: bool) -> bool {
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        let key = ctx.keys.write(index);
        let exists = key.exists();
        if exists == should_exist {
            return true;
        }
    }
    false
}

fn msetex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let pairs = parse_i64(ctx.arg(1))
        .filter(|count| (1..=i64::from(i32::MAX)).contains(count))
        .ok_or(CommandError::constant("ERR invalid numkeys value or out of range"))? as usize;
    let first_option = 2 + pairs * 2;
    if first_option > ctx.argc() {
        return Err(CommandError::SYNTAX);
    }
    let options = parse_options(ctx, first_option..ctx.argc(), SetOptionsGrammar::MsetEx)?;
    let expiry = resolve_expiry(ctx, &options)?;
    let refused = match options.condition {
        SetCondition::Missing => has_key_in_state(ctx, true),
        SetCondition::Present => has_key_in_state(ctx, false),
        SetCondition::None | SetCondition::Equal(_) => false,
    };
    if refused {
        ctx.reply.integer(0);
        return Ok(());
    }
    for index in 0..pairs {
        ctx.keys.prefetch_ahead(index);
        let value = ctx.arg(3 + index * 2);
        // Unlike with SET, an expiry that has passed does not delete the key at once. The key expires as any other.
        store_string(ctx.keys.write(index), value, expiry);
    }
    // An absolute time in milliseconds is logged as it was sent.
    if let ExpiryUpdate::SetTo(at) = expiry
        && !matches!(options.expiry, Some((ExpiryUnit::UnixMilliseconds, _)))
        && ctx.keys.effects.is_logging()
    {
        propagate_msetex(ctx, first_option, at);
    }
    ctx.reply.integer(1);
    Ok(())
}

/// Propagates MSETEX with its last expiry as an absolute time.
#[cold]
fn propagate_msetex(ctx: &mut Context<'_, '_>, first_option: usize, at_ms: u64) {
    let mut digits = itoa::Buffer::new();
    let mut words: Vec<&[u8]> = ctx.args.iter().collect();
    let is_time = |index: &usize| ExpiryUnit::from_option(ctx.arg(*index)).is_some();
    let times: Vec<usize> = (first_option..ctx.argc().saturating_sub(1)).filter(is_time).collect();
    if let Some(last) = times.last() {
        words[*last] = b"PXAT";
        words[*last + 1] = digits.format(at_ms).as_bytes();
        // Earlier expiry options have the old unit, which would now conflict with PXAT.
        for earlier in times.iter().rev().skip(1) {
            words.drain(*earlier..*earlier + 2);
        }
    }
    ctx.keys.effects.log_instead(&words);
}
