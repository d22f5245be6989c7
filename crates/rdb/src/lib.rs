//! Serialized values: the encodings of RDB files, which DUMP and RESTORE use as well.
#![forbid(unsafe_code)]

pub use weft_values::lzf;

pub mod dump_payload;
pub mod functions;
pub mod hashes;
mod limits;
pub mod lists;
pub mod rewrite_commands;
pub mod sets;
pub mod sorted_sets;
pub mod streams;
pub mod strings;
pub mod ziplist;
pub mod zipmap;

pub use limits::EncodingLimits;
