//! `weft-server`: an in-memory data store that speaks Valkey's protocol and executes on every I/O thread.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports)]
mod config;

fn main() {}
