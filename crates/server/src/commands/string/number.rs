//! Commands on strings as numbers.

use weft_resp::LongDouble;
use weft_resp::number::parse_i64;
use weft_table::{NewValue, ValueRef};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::string::bytes::with_bytes;
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use crate::notify::keyspace_event::KeyspaceEvent;

/// The commands on strings as numbers, and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("decr", leased(decr)),
    ("decrby", leased(decrby)),
    ("incr", leased(incr)),
    ("incrby", leased(incrby)),
    ("incrbyfloat", leased(incrbyfloat)),
];

fn incr(ctx: &mut Context<'_, '_>) -> CommandResult {
    add_integer(ctx, 1)
}

fn decr(ctx: &mut Context<'_, '_>) -> CommandResult {
    add_integer(ctx, -1)
}

fn incrby(ctx: &mut Context<'_, '_>) -> CommandResult {
    let by = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    add_integer(ctx, by)
}

fn decrby(ctx: &mut Context<'_, '_>) -> CommandResult {
    let by = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let by = by
        .checked_neg()
        .ok_or(CommandError::constant("ERR decrement would overflow"))?;
    add_integer(ctx, by)
}

fn add_integer(ctx: &mut Context<'_, '_>, increment: i64) -> CommandResult {
    let mut key = ctx.keys.write(0);
    let sum = match key.add_to_integer(increment) {
        Some(sum) => sum,
        None => create_or_convert_integer(&mut key, increment)?,
    };
    key.changed(KeyspaceEvent::string("incrby"));
    ctx.reply.integer(sum);
    Ok(())
}

/// Adds to a value that is missing or not stored as an integer. Returns the sum.
///
/// # Errors
/// Those of INCRBY.
#[cold]
fn create_or_convert_integer(key: &mut KeyWrite<'_>, increment: i64) -> Result<i64, CommandError> {
    let before = match key.entry().map(|entry| entry.value()) {
        None => 0,
        Some(ValueRef::Int(number)) => number,
        Some(value) => with_bytes(value, parse_i64)?.ok_or(CommandError::NOT_AN_INTEGER)?,
    };
    let sum = before
        .checked_add(increment)
        .ok_or(CommandError::constant("ERR increment or decrement would overflow"))?;
    key.set(NewValue::Int(sum), ExpiryUpdate::Keep);
    Ok(sum)
}

fn incrbyfloat(ctx: &mut Context<'_, '_>) -> CommandResult {
    let argument = ctx.arg(2);
    let mut key = ctx.keys.write(0);
    let before = match key.entry() {
        None => Ok(LongDouble::from_i64(0)),
        Some(entry) => {
            with_bytes(entry.value(), LongDouble::parse).and_then(|number| number.ok_or(CommandError::NOT_A_FLOAT))
        }
    };
    let sum = before.and_then(|before| {
        let by = LongDouble::parse(argument).ok_or(CommandError::NOT_A_FLOAT)?;
        let sum = before.add(by);
        if sum.is_nan() || sum.is_infinite() {
            return Err(CommandError::constant("ERR increment would produce NaN or Infinity"));
        }
        Ok(sum)
    });
    match sum {
        Ok(sum) => {
            let mut digits = Vec::new();
            sum.append_human_readable(&mut digits);
            key.set(NewValue::Bytes(&digits), ExpiryUpdate::Keep);
            key.log_instead(&[b"SET", ctx.args.argument(1), &digits, b"KEEPTTL"]);
            key.changed(KeyspaceEvent::string("incrbyfloat"));
            ctx.reply.bulk(&digits);
            Ok(())
        }
        Err(error) => Err(error),
    }
}
