//! Workers and their connections, seen from outside: which workers take part, and what becomes of connections that move,
//! half-close or go away.

#[path = "../harness/client.rs"]
mod client;
#[path = "../harness/server.rs"]
mod server;

mod activity;
mod endings;
mod limits;
mod moving;
mod scripts;

use client::Client;
use server::{PATIENCE, Server};
