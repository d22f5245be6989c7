//! `weft-server`: an in-memory data store that speaks Valkey's protocol and executes on every I/O thread.
#![forbid(unsafe_code)]

#[allow(dead_code)]
mod commands;
#[allow(dead_code)]
mod dispatch;

fn main() {}
