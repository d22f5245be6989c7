//! Value types that do not live inside a table entry.
#![forbid(unsafe_code)]
