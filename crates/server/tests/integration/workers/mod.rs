//! End-to-end tests of workers and their connections: the active workers, connections that move, half-close or
//! disconnect, and concurrent access of workers to the same keys.

mod active_expiry;
mod activity;
mod announcements;
mod configuration;
mod endings;
mod endless_transactions;
mod expired_fields;
mod expired_keys;
mod expiry_load;
mod frozen_keys;
mod limits;
mod long_commands;
mod moving;
mod order;
mod random_moves;
mod replaced_data;
mod scripts;
mod shutdown;

use std::io::ErrorKind;

use crate::harness::client::Client;
use crate::harness::server::{MOVES, PATIENCE, Server};

/// Returns `true` if nothing has arrived for the client yet.
fn is_waiting(client: &mut Client) -> bool {
    let stream = client.0.get_ref();
    stream.set_nonblocking(true).expect("sets the mode");
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("sets the mode");
    matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}
