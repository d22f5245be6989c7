//! End-to-end tests of workers and their connections: the active workers, connections that move, half-close or
//! disconnect, and concurrent access of workers to the same keys.

mod active_expiry;
mod activity;
mod announcements;
mod configuration;
mod endings;
mod expired_fields;
mod expired_keys;
mod expiry_load;
mod frozen_keys;
mod limits;
mod long_commands;
mod moving;
mod random_moves;
mod scripts;

use crate::harness::client::Client;
use crate::harness::server::{MOVES, PATIENCE, Server};
