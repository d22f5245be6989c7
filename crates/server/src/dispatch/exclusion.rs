//! The exclusion of scripts while a command of a worker waits for exclusive mode and has it.

use weft_scripting::{Requester, RunRegistry};

use super::request::Request;
use super::thread::ThreadState;
use crate::net::connection::Connection;

/// Excludes scripts for a command. Returns `None` if the command must try again.
pub(super) fn try_exclude_runs<'r>(
    running: &'r RunRegistry,
    request: &Request<'_>,
    connection: &Connection,
    runs_module: bool,
) -> Option<Exclusion<'r>> {
    let requester = requester_for(connection);
    let transaction = connection.client.transaction.as_deref();
    let pauses_in_transaction = || transaction.is_some_and(|transaction| transaction.pauses_clients);
    // No other command may come between the collection of the clients and the transaction. The code of a module may run
    // for long.
    let has_snapshots = transaction.is_some_and(|transaction| transaction.client_snapshots.is_some());
    let (is_excluded, is_shared) = if request.binding.pauses_clients || pauses_in_transaction() {
        (running.try_exclude_runs_last(requester), false)
    } else if has_snapshots || runs_module {
        (running.try_exclude_runs(requester), false)
    } else {
        (running.try_share_exclusion(requester), true)
    };
    is_excluded.then(|| Exclusion { running, is_shared })
}

/// The exclusion of scripts for a command, which ends when this is dropped.
pub(super) struct Exclusion<'r> {
    running: &'r RunRegistry,
    /// `true` if commands of other workers may wait at the gate for their turn meanwhile.
    is_shared: bool,
}

impl Drop for Exclusion<'_> {
    fn drop(&mut self) {
        match self.is_shared {
            true => self.running.end_shared_exclusion(),
            false => self.running.end_exclusion(),
        }
    }
}

/// The name of a connection whose command needs exclusive mode.
pub(super) fn requester_for(connection: &Connection) -> Requester {
    Requester::Client(connection.client.id.get())
}

/// Records that a connection does not wait for exclusive mode any longer, if it did: its request has ended, or it is
/// closed or paused.
#[inline]
pub fn withdraw_from_exclusive_mode(thread: &ThreadState, connection: &Connection) {
    if connection.lease_failures > 0 {
        thread.server.scripting.running.withdraw(requester_for(connection));
    }
}
