//! The error reply of a command: its text, code first. The connection lives on.

use std::borrow::Cow;

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

    /// An error with a text of its own.
    pub fn text(text: impl Into<String>) -> Self {
        CommandError(Cow::Owned(text.into().into_bytes()))
    }

    /// An error whose text contains bytes that a client sent.
    pub fn bytes(text: Vec<u8>) -> Self {
        CommandError(Cow::Owned(text))
    }

    /// The error's code: the text up to the first space.
    pub fn code(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == b' ').unwrap_or(self.0.len());
        &self.0[..end]
    }

    /// Appends the error reply; line breaks become spaces.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(b'-');
        out.extend(self.0.iter().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            other => *other,
        }));
        out.extend_from_slice(b"\r\n");
    }
}
