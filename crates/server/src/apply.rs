//! What the server does when parameters change while it runs.

use std::sync::Arc;

use crate::config::{Applied, ParameterId, id};
use crate::observe::log::{self, Level};
use crate::state::Server;

/// Acts on the new values of `changed`, which the configuration holds already.
///
/// # Errors
/// The parameter at fault, and the reason for the client.
pub fn apply(server: &Arc<Server>, changed: &[ParameterId]) -> Applied {
    if changed.contains(&id::LOGLEVEL) {
        log::set_level(match server.config.choice(id::LOGLEVEL) {
            "debug" => Level::Debug,
            "verbose" => Level::Verbose,
            "notice" => Level::Notice,
            _ => Level::Warning,
        });
    }
    Ok(())
}
