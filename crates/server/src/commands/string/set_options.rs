//! The options of commands that set values or expiries: SET, GETEX and MSETEX, and HSETEX and HGETEX for hash fields.

use std::ops::Range;

use crate::commands::context::Context;
use crate::commands::error::CommandError;
use crate::commands::generic::expiry_argument::{ExpiryUnit, parse_positive_expiry_ms};
use crate::keyspace::access::ExpiryUpdate;

/// The condition under which a command takes effect.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SetCondition<'a> {
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
    pub(crate) condition: SetCondition<'a>,
    /// FXX (`true`) or FNX (`false`): all of the fields must exist, or none of them.
    pub(crate) must_fields_exist: Option<bool>,
    /// `true` if the reply is the old value (GET).
    pub(crate) returns_old_value: bool,
    /// `true` if the key keeps its expiry (KEEPTTL).
    pub(crate) should_keep_ttl: bool,
    /// `true` if the expiry is removed (PERSIST).
    pub(crate) should_persist: bool,
    /// The unit and the amount of EX, PX, EXAT or PXAT.
    pub(crate) expiry: Option<(ExpiryUnit, &'a [u8])>,
}

/// The command whose options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetOptionsGrammar {
    Set,
    GetEx,
    MsetEx,
    HgetEx,
    HsetEx,
}

impl SetOptionsGrammar {
    /// Returns `true` if the command sets values. Such a command may have conditions and KEEPTTL. The other commands
    /// may have PERSIST.
    fn sets_values(self) -> bool {
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
    grammar: SetOptionsGrammar,
) -> Result<SetOptions<'a>, CommandError> {
    let mut options = SetOptions::default();
    let mut index = arguments.start;
    while index < arguments.end {
        let next = (index + 1 < arguments.end).then(|| ctx.arg(index + 1));
        index += options
            .parse_option(ctx.arg(index), next, grammar)
            .ok_or(CommandError::SYNTAX)?;
    }
    Ok(options)
}

impl<'a> SetOptions<'a> {
    /// Parses one option with its argument, if it has one, and returns the number of words that it takes. Returns
    /// `None` if the command has no such option, or if it conflicts with an earlier one. An option may be repeated.
    /// Several expiries must have the same unit, and the last one counts.
    fn parse_option(&mut self, option: &[u8], next: Option<&'a [u8]>, grammar: SetOptionsGrammar) -> Option<usize> {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let writes = grammar.sets_values();
        let free = |wanted| self.condition == SetCondition::None || self.condition == wanted;
        let free_fields = |wanted| self.must_fields_exist.is_none_or(|before| before == wanted);
        let timeless = !self.should_keep_ttl && !self.should_persist && self.expiry.is_none();
        let same_unit = |unit| self.expiry.is_some_and(|(before, _)| before == unit);
        if is("NX") && writes && free(SetCondition::Missing) {
            self.condition = SetCondition::Missing;
        } else if is("XX") && writes && free(SetCondition::Present) {
            self.condition = SetCondition::Present;
        } else if is("IFEQ") && grammar == SetOptionsGrammar::Set && self.condition == SetCondition::None {
            self.condition = SetCondition::Equal(next?);
            return Some(2);
        } else if is("FNX") && grammar == SetOptionsGrammar::HsetEx && free_fields(false) {
            self.must_fields_exist = Some(false);
        } else if is("FXX") && grammar == SetOptionsGrammar::HsetEx && free_fields(true) {
            self.must_fields_exist = Some(true);
        } else if is("GET") && grammar == SetOptionsGrammar::Set {
            self.returns_old_value = true;
        } else if is("KEEPTTL") && writes && (timeless || self.should_keep_ttl) {
            self.should_keep_ttl = true;
        } else if is("PERSIST") && !writes && (timeless || self.should_persist) {
            self.should_persist = true;
        } else {
            let unit = ExpiryUnit::from_option(option).filter(|unit| timeless || same_unit(*unit))?;
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
pub(crate) fn resolve_expiry(ctx: &Context<'_, '_>, options: &SetOptions<'_>) -> Result<ExpiryUpdate, CommandError> {
    match options.expiry {
        Some((unit, amount)) => Ok(ExpiryUpdate::SetTo(parse_positive_expiry_ms(
            amount,
            unit,
            ctx.now_ms,
            ctx.command.full_name,
        )?)),
        None if options.should_keep_ttl => Ok(ExpiryUpdate::Keep),
        None => Ok(ExpiryUpdate::Remove),
    }
}
