//! The error type of the program.

use std::fmt;
use std::io;

/// The reason why `weft-top` ended or lost its server.
#[derive(Debug)]
pub enum TopError {
    /// The command line is invalid.
    Usage(String),
    /// An operation of the operating system or of the network failed.
    System {
        /// The operation, such as "connecting to 127.0.0.1:6379".
        operation: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A certificate or key cannot be used, or the handshake failed.
    Tls(String),
    /// The server refused the connection or the password, or sent what is not a reply.
    Server(String),
}

/// A result whose error is [`TopError`].
pub type Result<T> = std::result::Result<T, TopError>;

impl TopError {
    /// The exit code of the process: 2 for wrong arguments, 1 for other failures.
    pub fn exit_code(&self) -> u8 {
        match self {
            TopError::Usage(_) => 2,
            TopError::System { .. } | TopError::Tls(_) | TopError::Server(_) => 1,
        }
    }

    /// Wraps an error of the operating system together with the failed operation.
    pub fn system(operation: impl Into<String>) -> impl FnOnce(io::Error) -> TopError {
        let operation = operation.into();
        |source| TopError::System { operation, source }
    }
}

impl fmt::Display for TopError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopError::Usage(text) => write!(formatter, "{text} (see --help)"),
            TopError::System { operation, source } => write!(formatter, "{operation}: {source}"),
            TopError::Tls(text) => write!(formatter, "TLS: {text}"),
            TopError::Server(text) => write!(formatter, "{text}"),
        }
    }
}

impl std::error::Error for TopError {}
