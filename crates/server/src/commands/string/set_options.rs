//! The options of commands that set values or expiries: SET, GETEX and MSETEX, and HSETEX and HGETEX for hash fields.

use std::ops::Range;

use crate::commands::context::Context;
use crate::commands::error::CommandError;
use crate::commands::generic::expiry_argument::{ExpiryUnit, absolute_ms};
use crate::keyspace::access::ExpiryUpdate;

/// The condition under which a command takes effect.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Condition<'a> {
    #[default]
    None,
    /// NX: the key must not exist.
    Missing,
    /// XX: the key must exist.
    Present,
    /// IFEQ: the key must hold this value.
    Equal(&'a [u8]),
}

/// The options of a command.
#[derive(Default)]
pub(crate) struct SetOptions<'a> {
    /// The condition under which the command takes effect.
    pub(crate) condition: Condition<'a>,
    /// FXX (`true`) or FNX (`false`): all of the fields must exist, or none of them.
    pub(crate) fields_exist: Option<bool>,
    /// `true` if the reply is the old value (GET).
    pub(crate) get: bool,
    /// `true` if the key keeps its expiry (KEEPTTL).
    pub(crate) keep_ttl: bool,
    /// `true` if the expiry is removed (PERSIST).
    pub(crate) persist: bool,
    /// The unit and the amount of EX, PX, EXAT or PXAT.
    pub(crate) expiry: Option<(ExpiryUnit, &'a [u8])>,
}

/// The command whose options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grammar {
    Set,
    GetEx,
    MsetEx,
    HgetEx,
    HsetEx,
}

impl Grammar {
    /// Returns `true` if the command sets values. Such a command may have conditions and KEEPTTL. The other commands
    /// may have PERSIST.
    fn writes(self) -> bool {
        matches!(self, Self::Set | Self::MsetEx | Self::HsetEx)
    }
}

/// Parses the options among the `arguments`.
///
/// # Errors
/// A syntax error if an option is unknown or conflicts with another.
pub(crate) fn parse_options<'a>(
    ctx: &Context<'a, '_>,
    arguments: Range<usize>,
    grammar: Grammar,
) -> Result<SetOptions<'a>, CommandError> {
    let mut options = SetOptions::default();
    let mut index = arguments.start;
    while index < arguments.end {
        let next = (index + 1 < arguments.end).then(|| ctx.arg(index + 1));
        index += options
            .take(ctx.arg(index), next, grammar)
            .ok_or(CommandError::SYNTAX)?;
    }
    Ok(options)
}

impl<'a> SetOptions<'a> {
    /// Parses one option with its argument, if it has one, and returns the number of words that it takes. Returns
    /// `None` if the command has no such option, or if it conflicts with an earlier one. An option may be repeated.
    /// Several expiries must have the same unit, and the last one counts.
    fn take(&mut self, option: &[u8], next: Option<&'a [u8]>, grammar: Grammar) -> Option<usize> {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let writes = grammar.writes();
        let free = |wanted| self.condition == Condition::None || self.condition == wanted;
        let free_fields = |wanted| self.fields_exist.is_none_or(|before| before == wanted);
        let timeless = !self.keep_ttl && !self.persist && self.expiry.is_none();
        let same_unit = |unit| self.expiry.is_some_and(|(before, _)| before == unit);
        if is("NX") && writes && free(Condition::Missing) {
            self.condition = Condition::Missing;
        } else if is("XX") && writes && free(Condition::Present) {
            self.condition = Condition::Present;
        } else if is("IFEQ") && grammar == Grammar::Set && self.condition == Condition::None {
            self.condition = Condition::Equal(next?);
            return Some(2);
        } else if is("FNX") && grammar == Grammar::HsetEx && free_fields(false) {
            self.fields_exist = Some(false);
        } else if is("FXX") && grammar == Grammar::HsetEx && free_fields(true) {
            self.fields_exist = Some(true);
        } else if is("GET") && grammar == Grammar::Set {
            self.get = true;
        } else if is("KEEPTTL") && writes && (timeless || self.keep_ttl) {
            self.keep_ttl = true;
        } else if is("PERSIST") && !writes && (timeless || self.persist) {
            self.persist = true;
        } else {
            let unit = ExpiryUnit::of_option(option).filter(|unit| timeless || same_unit(*unit))?;
            self.expiry = Some((unit, next?));
            return Some(2);
        }
        Some(1)
    }
}

/// Returns the key's new expiry according to the options.
///
/// # Errors
/// If the expiry is not a valid number or out of range.
pub(crate) fn expiry_of(ctx: &Context<'_, '_>, options: &SetOptions<'_>) -> Result<ExpiryUpdate, CommandError> {
    match options.expiry {
        Some((unit, amount)) => Ok(ExpiryUpdate::SetTo(absolute_ms(
            amount,
            unit,
            ctx.now_ms,
            ctx.command.full_name,
        )?)),
        None if options.keep_ttl => Ok(ExpiryUpdate::Keep),
        None => Ok(ExpiryUpdate::Remove),
    }
}
