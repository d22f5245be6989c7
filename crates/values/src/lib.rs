//! Value types that do not live inside a table entry, and algorithms on values.
#![forbid(unsafe_code)]

pub mod bitfield;
pub mod bits;
pub mod lcs;

/// A value that is not a string. Strings live in the table's entries; there is no other type yet.
#[derive(Clone, Debug)]
pub enum Value {}
