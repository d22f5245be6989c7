//! `cargo xtask`: everything CI does, and the comparison runs against Valkey.
#![forbid(unsafe_code)]

fn main() {}
