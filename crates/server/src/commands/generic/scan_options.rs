//! The options of HSCAN, SSCAN and ZSCAN.

use weft_resp::glob;
use weft_resp::number::parse_i64;

use crate::commands::context::Context;
use crate::commands::error::CommandError;

/// The default COUNT: the number of elements that a call visits.
const DEFAULT_COUNT: usize = 10;

/// The elements of a collection to return, and the parts of each.
#[derive(Clone, Copy, Debug)]
pub struct CollectionScanOptions<'a> {
    /// COUNT: the approximate number of elements that a call visits.
    pub count: usize,
    /// MATCH; without a pattern all elements match.
    pattern: Option<&'a [u8]>,
    /// NOVALUES or NOSCORES: only the names.
    pub names_only: bool,
}

impl<'a> CollectionScanOptions<'a> {
    /// Parses the options from argument `first` on. `names_only` is the option of this command that requests only the
    /// names.
    ///
    /// # Errors
    /// If the syntax is invalid, COUNT is not a positive integer, or an option belongs to another command.
    pub fn parse(ctx: &Context<'a, '_>, first: usize, names_only: Option<&str>) -> Result<Self, CommandError> {
        let mut options = CollectionScanOptions {
            count: DEFAULT_COUNT,
            pattern: None,
            names_only: false,
        };
        let mut index = first;
        while index < ctx.argc() {
            let option = ctx.arg(index);
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            let next = (index + 1 < ctx.argc()).then(|| ctx.arg(index + 1));
            match next {
                Some(next) if is("COUNT") => {
                    options.count = parse_count(next)?;
                    index += 1;
                }
                Some(next) if is("MATCH") => {
                    // A single star matches even the empty string, unlike any other pattern with a star.
                    options.pattern = (next != b"*").then_some(next);
                    index += 1;
                }
                _ if names_only.is_some_and(is) => options.names_only = true,
                _ if is("NOVALUES") => {
                    return Err(CommandError::constant("ERR NOVALUES option can only be used in HSCAN"));
                }
                _ if is("NOSCORES") => {
                    return Err(CommandError::constant("ERR NOSCORES option can only be used in ZSCAN"));
                }
                _ => return Err(CommandError::SYNTAX),
            }
            index += 1;
        }
        Ok(options)
    }

    /// Returns `true` if an element of this name matches.
    #[inline]
    pub fn matches(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name, false))
    }
}

fn parse_count(word: &[u8]) -> Result<usize, CommandError> {
    let count = parse_i64(word).ok_or(CommandError::NOT_AN_INTEGER)?;
    let count = usize::try_from(count).map_err(|_| CommandError::SYNTAX)?;
    if count == 0 {
        return Err(CommandError::SYNTAX);
    }
    Ok(count)
}
