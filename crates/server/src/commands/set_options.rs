//! The options that SET, GETEX and MSETEX share.

use super::context::Context;
use super::error::CommandError;
use super::expiry_argument::{ExpiryUnit, absolute_ms};
use crate::keyspace::access::Expiry;

/// Which condition SET and MSETEX put on the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition<'a> {
    None,
    /// NX.
    Missing,
    /// XX.
    Present,
    /// IFEQ: the value is this.
    Equal(&'a [u8]),
}

/// Options that SET, GETEX and MSETEX share.
pub(super) struct SetOptions<'a> {
    /// On what the command depends.
    pub(super) condition: Condition<'a>,
    /// GET: the reply is the old value.
    pub(super) get: bool,
    /// KEEPTTL.
    pub(super) keep_ttl: bool,
    /// PERSIST.
    pub(super) persist: bool,
    /// The unit and the amount of EX, PX, EXAT or PXAT.
    pub(super) expiry: Option<(ExpiryUnit, &'a [u8])>,
}

/// Which command's options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Grammar {
    Set,
    GetEx,
    MsetEx,
}

/// Reads the options from argument `first` on.
///
/// # Errors
/// A syntax error.
pub(super) fn parse_options<'a>(
    ctx: &Context<'a, '_>,
    first: usize,
    grammar: Grammar,
) -> Result<SetOptions<'a>, CommandError> {
    let mut options = SetOptions {
        condition: Condition::None,
        get: false,
        keep_ttl: false,
        persist: false,
        expiry: None,
    };
    let writes = grammar != Grammar::GetEx;
    let mut index = first;
    while index < ctx.argc() {
        let option = ctx.arg(index);
        let next = (index + 1 < ctx.argc()).then(|| ctx.arg(index + 1));
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let free = options.condition == Condition::None;
        let timeless = !options.keep_ttl && !options.persist && options.expiry.is_none();
        // A time may be given again, in the same unit; the last one counts.
        let same_unit = |unit| options.expiry.is_some_and(|(before, _)| before == unit);
        if is("NX") && writes && (free || options.condition == Condition::Missing) {
            options.condition = Condition::Missing;
        } else if is("XX") && writes && (free || options.condition == Condition::Present) {
            options.condition = Condition::Present;
        } else if is("IFEQ") && grammar == Grammar::Set && free && next.is_some() {
            options.condition = Condition::Equal(next.unwrap_or_default());
            index += 1;
        } else if is("GET") && grammar == Grammar::Set {
            options.get = true;
        } else if is("KEEPTTL") && writes && (timeless || options.keep_ttl) {
            options.keep_ttl = true;
        } else if is("PERSIST") && !writes && (timeless || options.persist) {
            options.persist = true;
        } else if let (Some(unit), Some(amount)) = (ExpiryUnit::of_option(option), next)
            && (timeless || same_unit(unit))
        {
            options.expiry = Some((unit, amount));
            index += 1;
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 1;
    }
    Ok(options)
}

/// What the options make of the key's expiry.
///
/// # Errors
/// A time that makes no sense.
pub(super) fn expiry_of(ctx: &Context<'_, '_>, options: &SetOptions<'_>) -> Result<Expiry, CommandError> {
    match options.expiry {
        Some((unit, amount)) => Ok(Expiry::At(absolute_ms(
            amount,
            unit,
            ctx.now_ms,
            ctx.command.full_name,
        )?)),
        None if options.keep_ttl => Ok(Expiry::Keep),
        None => Ok(Expiry::Never),
    }
}
