//! The RESP wire protocol: a resumable request parser, the RESP2/RESP3 reply writer, the writer of
//! commands, and number formats.
#![forbid(unsafe_code)]

pub mod args;
pub mod command;
pub mod glob;
pub mod number;
pub mod quote;
pub mod reply;
pub mod request;

pub use args::Args;
pub use number::LongDouble;
pub use reply::{DeferredLength, NestedCollection, NestedLengths, Protocol, Reply};
pub use request::{ArgRange, ParseOutcome, Parser, ProtocolError, RequestLimits};
