//! From a parsed request to its execution.

pub mod keys;
