//! The error type of the load generator.

use std::fmt;
use std::io;

/// The exit code of a process that SIGINT ended.
pub const INTERRUPTED_EXIT_CODE: u8 = 130;

/// The reason why a command of `weft-bench` failed.
#[derive(Debug)]
pub enum Error {
    /// The command line is invalid.
    Usage(String),
    /// An operation of the operating system failed.
    System {
        /// The operation, such as "reading x".
        operation: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A server sent a reply of the wrong kind, or one that differs from the stored data.
    WrongReply(String),
    /// A server did not start, stopped responding, or refused a set-up command.
    Server(String),
    /// A signal has requested the end of the run.
    Interrupted,
}

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The exit code of the process: 2 for wrong arguments, 130 after an interruption (128 and the number of SIGINT), 1
    /// for other failures.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::System { .. } | Error::WrongReply(_) | Error::Server(_) => 1,
            Error::Interrupted => INTERRUPTED_EXIT_CODE,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) => write!(formatter, "{text} (see --help)"),
            Error::System {
                operation: doing,
                source,
            } => write!(formatter, "{doing}: {source}"),
            Error::WrongReply(text) => write!(formatter, "wrong reply: {text}"),
            Error::Server(text) => write!(formatter, "{text}"),
            Error::Interrupted => write!(formatter, "interrupted"),
        }
    }
}

impl std::error::Error for Error {}

/// Converts a system error into an [`Error`] that names the failed operation.
pub trait ErrorContext<T> {
    /// Adds the operation in `text` ("reading x") to the error, if there is one.
    fn context(self, text: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> ErrorContext<T> for std::result::Result<T, E> {
    fn context(self, text: impl Into<String>) -> Result<T> {
        self.map_err(|error| Error::System {
            operation: text.into(),
            source: error.into(),
        })
    }
}
