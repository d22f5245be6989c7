//! End-to-end tests of workers and their connections: the active workers, connections that move, half-close or
//! disconnect, and concurrent access of workers to the same keys.

mod active_expiry;
mod activity;
mod announcements;
mod configuration;
mod endings;
mod endless_transactions;
mod exclusive_turns;
mod expired_fields;
mod expired_keys;
mod expiry_load;
mod field_expiry;
mod flushes;
mod frozen_keys;
mod full_mailboxes;
mod io_threads;
mod key_reports;
mod kills;
mod late_replies;
mod libraries;
mod limits;
mod long_commands;
mod moving;
mod order;
mod paused_background;
mod random_moves;
mod replaced_data;
mod role_changes;
mod script_writes;
mod scripts;
mod seen_expiry;
mod shutdown;
mod undeclared_keys;
mod watchdog;

use crate::harness::client::Client;
use crate::harness::server::{MOVES, PATIENCE, Server};

/// Returns `true` if nothing has arrived for the client yet.
fn is_waiting(client: &mut Client) -> bool {
    client.is_waiting()
}

/// Calls `attempt` with growing numbers of rounds of a Lua loop, until it returns `true`. The first loop takes some
/// tenths of a second. A busy machine may delay a test for longer than that, and then the script ends too early.
fn lengthen_until(what: &str, attempt: impl FnMut(u64) -> bool) {
    let mut rounds = [1, 4, 16, 64].map(|factor| factor * 50_000_000).into_iter();
    assert!(rounds.any(attempt), "{what}");
}
