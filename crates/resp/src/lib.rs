//! The RESP wire protocol: a resumable request parser, the RESP2/RESP3 reply writer, and number formats.
#![forbid(unsafe_code)]
