//! Splits a line of a configuration into arguments, and quotes an argument for such a line.

use weft_resp::quote;

/// Splits a line like [`quote::split_arguments`], with one difference: a quote after a backslash at the end of the line
/// is part of the argument here, whereas in a request it closes the quotes. Returns `None` if a quote is not closed.
pub fn split_arguments(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    quote::split_arguments(&[line, b"\n"].concat())
}

/// Puts an argument into double quotes, with escapes for all bytes that are not printable.
pub fn quote_argument(argument: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::new();
    quote::append_quoted(&mut quoted, argument);
    quoted
}

/// Returns an argument in the form in which a line contains it: as it is if [`split_arguments`] returns it unchanged,
/// otherwise in quotes.
pub fn quote_if_needed(argument: &[u8]) -> Vec<u8> {
    match split_arguments(argument).as_deref() {
        Some([read]) if read == argument => argument.to_vec(),
        _ => quote_argument(argument),
    }
}
