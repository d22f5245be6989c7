//! Splitting a line of a configuration into arguments, and quoting an argument so that it survives that.

use weft_resp::quote;

/// Splits a line as [`quote::split_arguments`] does, but for a quote behind a backslash at the end of the line: here
/// it is part of the argument, and in a request it closes the quotes.
/// Nothing comes back when a quote is not closed.
pub fn split_arguments(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    quote::split_arguments(&[line, b"\n"].concat())
}

/// Puts an argument into double quotes, with escapes for everything that is not printable.
pub fn quoted(argument: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::new();
    quote::append_quoted(&mut quoted, argument);
    quoted
}
