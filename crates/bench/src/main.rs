//! `weft-bench`: the load generator and the comparison tables.
#![forbid(unsafe_code)]

fn main() {}
