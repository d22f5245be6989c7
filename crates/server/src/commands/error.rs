//! The error reply of a command: its text, code first. The connection lives on.

use std::borrow::Cow;

use weft_resp::{Protocol, Reply};

/// An error reply. The text begins with its code (`ERR`, `WRONGTYPE`, …), as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError(pub Cow<'static, [u8]>);

impl CommandError {
    /// An operation against a key of another type.
    pub const WRONG_TYPE: CommandError =
        CommandError::constant("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// Arguments that do not fit the grammar.
    pub const SYNTAX: CommandError = CommandError::constant("ERR syntax error");
    /// A number that is none.
    pub const NOT_AN_INTEGER: CommandError = CommandError::constant("ERR value is not an integer or out of range");
    /// A float that is none.
    pub const NOT_A_FLOAT: CommandError = CommandError::constant("ERR value is not a valid float");
    /// A key that must exist.
    pub const NO_SUCH_KEY: CommandError = CommandError::constant("ERR no such key");
    /// A value that would grow beyond `proto-max-bulk-len`.
    pub const STRING_TOO_LONG: CommandError =
        CommandError::constant("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

    /// An error whose text is known at compile time.
    pub const fn constant(text: &'static str) -> Self {
        CommandError(Cow::Borrowed(text.as_bytes()))
    }

    /// Returns an error with a text of its own.
    pub fn text(text: impl Into<String>) -> Self {
        CommandError(Cow::Owned(text.into().into_bytes()))
    }

    /// An error whose text contains bytes that a client sent.
    pub fn bytes(text: Vec<u8>) -> Self {
        CommandError(Cow::Owned(text))
    }

    /// An error that shows a word a client sent; of the word what `shown` leaves.
    pub fn about(before: &str, word: &[u8], after: &str) -> Self {
        CommandError::bytes([before.as_bytes(), shown(word), after.as_bytes()].concat())
    }

    /// The error's code: the text up to the first space.
    pub fn code(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == b' ').unwrap_or(self.0.len());
        &self.0[..end]
    }

    /// Appends the error reply; line breaks become spaces, but those at the end go.
    pub fn write(&self, out: &mut Vec<u8>) {
        // The protocol of the client makes no difference to an error.
        Reply::new(out, Protocol::Resp2).error_bytes(&self.0);
    }
}

/// Returns the part of a client's word that an error shows: it ends at the first zero byte, as in Valkey.
pub fn shown(word: &[u8]) -> &[u8] {
    word.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns the part of an unknown subcommand's name that errors of containers show.
pub fn shown_name(word: &[u8]) -> &[u8] {
    let shown = shown(word);
    &shown[..shown.len().min(128)]
}
