//! The options of commands that set values or times: SET, GETEX and MSETEX, and HSETEX and HGETEX for fields.

use std::ops::Range;

use crate::commands::context::Context;
use crate::commands::error::CommandError;
use crate::commands::generic::expiry_argument::{ExpiryUnit, absolute_ms};
use crate::keyspace::access::ExpiryUpdate;

/// Which condition a command puts on the key.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Condition<'a> {
    #[default]
    None,
    /// NX.
    Missing,
    /// XX.
    Present,
    /// IFEQ: the value is this.
    Equal(&'a [u8]),
}

/// The options of a command.
#[derive(Default)]
pub(crate) struct SetOptions<'a> {
    /// On what the command depends.
    pub(crate) condition: Condition<'a>,
    /// FXX or FNX: all fields must exist, or none.
    pub(crate) fields_exist: Option<bool>,
    /// GET: the reply is the old value.
    pub(crate) get: bool,
    /// KEEPTTL.
    pub(crate) keep_ttl: bool,
    /// PERSIST.
    pub(crate) persist: bool,
    /// The unit and the amount of EX, PX, EXAT or PXAT.
    pub(crate) expiry: Option<(ExpiryUnit, &'a [u8])>,
}

/// Which command's options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grammar {
    Set,
    GetEx,
    MsetEx,
    HgetEx,
    HsetEx,
}

impl Grammar {
    /// Whether the command sets values, so that it may have conditions and keep times; the others may only take them
    /// away.
    fn writes(self) -> bool {
        matches!(self, Self::Set | Self::MsetEx | Self::HsetEx)
    }
}

/// Reads the options among the `arguments`.
///
/// # Errors
/// A syntax error.
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
    /// Takes one option, and what follows it if that belongs to it: how many arguments these are. `None` if the command
    /// has no such option, or not beside those it has already. One may be given again; of times, which must have the
    /// same unit, the last counts.
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

/// What the options make of the key's expiry.
///
/// # Errors
/// A time that makes no sense.
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
