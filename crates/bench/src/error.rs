//! The one error type of the load generator: what went wrong, ready to print.

use std::fmt;
use std::io;

/// Why a command of `weft-bench` gave up.
#[derive(Debug)]
pub enum Error {
    /// The command line cannot be understood.
    Usage(String),
    /// The operating system refused something; the text says what was being done.
    System {
        /// What was being done.
        doing: String,
        /// What the system answered.
        source: io::Error,
    },
    /// A server sent a reply that the request cannot have, or that differs from what was stored.
    WrongReply(String),
    /// A server did not start, stopped answering, or refused a set-up command.
    Server(String),
}

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The process exit code that tells scripts which kind of failure it was.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::System { .. } | Error::WrongReply(_) | Error::Server(_) => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) => write!(formatter, "{text} (see --help)"),
            Error::System { doing, source } => write!(formatter, "{doing}: {source}"),
            Error::WrongReply(text) => write!(formatter, "wrong reply: {text}"),
            Error::Server(text) => write!(formatter, "{text}"),
        }
    }
}

impl std::error::Error for Error {}

/// Turns a system error into an [`Error`] that says what was being done.
pub trait ErrorContext<T> {
    /// Attaches `text` ("reading x") to the error, if there is one.
    fn doing(self, text: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> ErrorContext<T> for std::result::Result<T, E> {
    fn doing(self, text: impl Into<String>) -> Result<T> {
        self.map_err(|error| Error::System {
            doing: text.into(),
            source: error.into(),
        })
    }
}
