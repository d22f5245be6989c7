//! Expiry of keys: setting it under conditions, querying it, removing it.

use weft_resp::number::parse_i64;

use super::expiry_argument::{ExpiryUnit, to_unix_ms};
use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::keyspace::access::{ExpiryUpdate, LookupStatistics};
use crate::notify::keyspace_event::KeyspaceEvent;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("expire", leased(expire)),
    ("expireat", leased(expireat)),
    ("expiretime", leased(expiretime)),
    ("persist", leased(persist)),
    ("pexpire", leased(pexpire)),
    ("pexpireat", leased(pexpireat)),
    ("pexpiretime", leased(pexpiretime)),
    ("pttl", leased(pttl)),
    ("ttl", leased(ttl)),
];

/// The conditions under which an expiry is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpiryConditions {
    /// `NX`: the key has no expiry.
    if_persistent: bool,
    /// `XX`: the key has an expiry.
    if_volatile: bool,
    /// `GT`: the new expiry is later.
    if_later: bool,
    /// `LT`: the new expiry is earlier.
    if_earlier: bool,
}

impl ExpiryConditions {
    /// Parses the conditions among the options.
    ///
    /// # Errors
    /// If an option is unknown, or two options exclude each other.
    pub fn parse<'a>(options: impl Iterator<Item = &'a [u8]>) -> Result<Self, CommandError> {
        let mut conditions = ExpiryConditions::default();
        for option in options {
            let named = [
                ("NX", &mut conditions.if_persistent),
                ("XX", &mut conditions.if_volatile),
                ("GT", &mut conditions.if_later),
                ("LT", &mut conditions.if_earlier),
            ];
            match named
                .into_iter()
                .find(|(name, _)| option.eq_ignore_ascii_case(name.as_bytes()))
            {
                Some((_, condition)) => *condition = true,
                None => {
                    return Err(CommandError::with_word("ERR Unsupported option ", option, ""));
                }
            }
        }
        let ExpiryConditions {
            if_persistent: unset,
            if_volatile: set,
            if_later: later,
            if_earlier: earlier,
        } = conditions;
        if unset && (set || later || earlier) {
            return Err(CommandError::constant(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if later && earlier {
            return Err(CommandError::constant(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        Ok(conditions)
    }

    /// Returns `true` if a key that expires at `current` (`None`: never) may expire at `new` instead.
    pub fn allow(self, current: Option<i64>, new: i64) -> bool {
        match current {
            // A missing expiry counts as later than any time.
            None => !self.if_volatile && !self.if_later,
            Some(current) => {
                !self.if_persistent && (!self.if_later || new > current) && (!self.if_earlier || new < current)
            }
        }
    }
}

fn expire(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiry(ctx, ExpiryUnit::Seconds)
}

fn pexpire(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiry(ctx, ExpiryUnit::Milliseconds)
}

fn expireat(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiry(ctx, ExpiryUnit::UnixSeconds)
}

fn pexpireat(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiry(ctx, ExpiryUnit::UnixMilliseconds)
}

/// Returns `true` if a key that gets this expiry is deleted instead.
pub fn is_already_expired(ctx: &Context<'_, '_>, at_ms: i64) -> bool {
    let past_ms = ctx.past_expiry_ms();
    past_ms > 0 && at_ms <= past_ms as i64
}

/// Returns the time before which an expiry is in the past, if it is so up to `past_ms` ([`Context::past_expiry_ms`]).
/// A value of 0 stays 0, because no expiry is in the past then.
#[inline]
pub fn first_future_ms(past_ms: u64) -> u64 {
    match past_ms {
        0 => 0,
        past_ms => past_ms + 1,
    }
}

/// Returns the time before which a key that is given this expiry is deleted instead, in milliseconds since the Unix
/// epoch.
#[inline]
pub fn deletion_threshold_ms(ctx: &Context<'_, '_>, expiry: ExpiryUpdate) -> u64 {
    match expiry {
        ExpiryUpdate::SetTo(_) => first_future_ms(ctx.past_expiry_ms()),
        ExpiryUpdate::Keep | ExpiryUpdate::Remove => 0,
    }
}

fn set_expiry(ctx: &mut Context<'_, '_>, unit: ExpiryUnit) -> CommandResult {
    let conditions = ExpiryConditions::parse(ctx.args.iter().skip(3))?;
    let amount = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let at_ms = to_unix_ms(amount, unit, ctx.now_ms, ctx.command.full_name)?;
    let delete = is_already_expired(ctx, at_ms);
    let mut key = ctx.keys.write(0);
    let allowed = key
        .entry()
        .is_some_and(|entry| conditions.allow(entry.expire_at_ms().map(|at| at as i64), at_ms));
    if !allowed {
    } else if delete {
        key.delete_with_past_expiry();
        key.effects().log_past_expiry(ctx.args.argument(1));
        key.changed(KeyspaceEvent::EXPIRED);
    } else {
        key.set_expiry(Some(at_ms.max(0) as u64));
        if key.effects().is_logging() {
            let mut digits = itoa::Buffer::new();
            let mut words: Vec<&[u8]> = vec![b"PEXPIREAT", ctx.args.argument(1), digits.format(at_ms).as_bytes()];
            words.extend(ctx.args.iter().skip(3));
            key.log_instead(&words);
        }
        key.changed(KeyspaceEvent::generic("expire"));
    }
    ctx.reply.integer(i64::from(allowed));
    Ok(())
}

fn persist(ctx: &mut Context<'_, '_>) -> CommandResult {
    let mut key = ctx.keys.write(0);
    let expires = key.entry().is_some_and(|entry| entry.expire_at_ms().is_some());
    if expires {
        key.set_expiry(None);
        key.changed(KeyspaceEvent::generic("persist"));
    }
    ctx.reply.integer(i64::from(expires));
    Ok(())
}

fn ttl(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.now_ms as i64;
    reply_with_expiry(ctx, |at_ms| round_to_seconds(at_ms.saturating_sub(now_ms).max(0)))
}

fn pttl(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.now_ms as i64;
    reply_with_expiry(ctx, |at_ms| at_ms.saturating_sub(now_ms).max(0))
}

fn expiretime(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_expiry(ctx, round_to_seconds)
}

fn pexpiretime(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_expiry(ctx, |at_ms| at_ms)
}

/// Rounds milliseconds to seconds.
pub fn round_to_seconds(ms: i64) -> i64 {
    ms / 1000 + i64::from(ms % 1000 >= 500)
}

/// Replies with the result of `convert` for the key's expiry, -1 without an expiry, -2 without the key.
fn reply_with_expiry(ctx: &mut Context<'_, '_>, convert: impl FnOnce(i64) -> i64) -> CommandResult {
    let db = ctx.keys.db;
    let answer = match ctx.keys.read_with(0, db, LookupStatistics::No) {
        None => -2,
        Some(entry) => entry.expire_at_ms().map_or(-1, |at_ms| convert(at_ms as i64)),
    };
    ctx.reply.integer(answer);
    Ok(())
}

#[cfg(test)]
mod tests;
