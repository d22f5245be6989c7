//! The error reply of a command: a text that begins with its code. The connection stays open after it.

use std::borrow::Cow;

use weft_config::Config;
use weft_resp::{Protocol, Reply};

/// An error reply. The text begins with its code (`ERR`, `WRONGTYPE`, …), as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError(pub Cow<'static, [u8]>);

impl CommandError {
    /// Returns the error as EXEC reports it. A redirect stays unchanged.
    pub fn into_exec_error(self) -> Self {
        if self.0.starts_with(b"REDIRECT ") {
            return self;
        }
        let reason = self.0.strip_prefix(b"ERR ").unwrap_or(&self.0);
        CommandError::from_bytes([b"EXECABORT Transaction discarded because of: ", reason].concat())
    }
    /// The value has another type than the command expects.
    pub const WRONG_TYPE: CommandError =
        CommandError::constant("WRONGTYPE Operation against a key holding the wrong kind of value");
    /// The arguments do not match the command's syntax.
    pub const SYNTAX: CommandError = CommandError::constant("ERR syntax error");
    /// An argument or value is not an integer, or is out of range.
    pub const NOT_AN_INTEGER: CommandError = CommandError::constant("ERR value is not an integer or out of range");
    /// An argument or value is not a valid float.
    pub const NOT_A_FLOAT: CommandError = CommandError::constant("ERR value is not a valid float");
    /// The key does not exist, but must.
    pub const NO_SUCH_KEY: CommandError = CommandError::constant("ERR no such key");
    /// The value would grow beyond `proto-max-bulk-len`.
    pub const STRING_TOO_LONG: CommandError =
        CommandError::constant("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

    /// Returns an error whose text is known at compile time.
    pub const fn constant(text: &'static str) -> Self {
        CommandError(Cow::Borrowed(text.as_bytes()))
    }

    /// Returns an error whose text is composed at run time.
    pub fn from_text(text: impl Into<String>) -> Self {
        CommandError(Cow::Owned(text.into().into_bytes()))
    }

    /// Returns an error whose text contains bytes from a client.
    pub fn from_bytes(text: Vec<u8>) -> Self {
        CommandError(Cow::Owned(text))
    }

    /// Returns an error that quotes a word from a client, as shortened by [`shown`].
    pub fn with_word(before: &str, word: &[u8], after: &str) -> Self {
        CommandError::from_bytes([before.as_bytes(), c_string_prefix(word), after.as_bytes()].concat())
    }

    /// Returns the error's code: the text up to the first space.
    pub fn code(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == b' ').unwrap_or(self.0.len());
        &self.0[..end]
    }

    /// Appends the error reply. Line breaks at the end are removed, others become spaces.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        // An error is the same in both protocol versions.
        Reply::new(out, Protocol::Resp2).error_bytes(&self.0);
    }
}

/// Returns the part of a client's word that an error quotes: up to the first zero byte, as in Valkey.
pub fn c_string_prefix(word: &[u8]) -> &[u8] {
    word.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns the part of an unknown subcommand's name that an error quotes: at most 128 bytes.
pub fn printable_name(word: &[u8]) -> &[u8] {
    let shown = c_string_prefix(word);
    &shown[..shown.len().min(128)]
}

/// Returns the error of a command while the data is being loaded.
pub fn loading_error(config: &Config) -> CommandError {
    let name = config.product_name();
    CommandError::from_text(format!("LOADING {name} is loading the dataset in memory"))
}
