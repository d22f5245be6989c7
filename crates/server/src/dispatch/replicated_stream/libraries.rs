//! The libraries of functions that a primary's stream loads ([`crate::net::library_loads`]).

use super::{MAX_WAIT, ReplicatedStream, StreamError};
use crate::commands::scripting::preparing::prepare_for_stream;
use crate::net::library_loads::LibraryLoads;

impl ReplicatedStream {
    /// Returns `true` if the next command, or the next transaction, waits until the code of its libraries has run.
    pub(super) fn awaits_libraries(&mut self) -> bool {
        self.wanted_libraries().is_some()
    }

    fn wanted_libraries(&mut self) -> Option<&mut LibraryLoads> {
        let client = &mut self.connection.connection.client;
        let loads = match &mut client.transaction {
            Some(transaction) => transaction.library_loads.as_deref_mut(),
            None => client.library_loads.as_deref_mut(),
        };
        loads.filter(|loads| loads.next_wanted().is_some())
    }

    /// Runs the code of the libraries that the next command, or the next transaction, loads. The caller is outside of
    /// the gate, so that this server can change its role however long the code takes. Returns `false` if the process is
    /// about to end before the code does: the command does not run then, nor does its offset count as reached.
    ///
    /// # Errors
    /// If the role epoch ends before the code does. The thread soon follows another primary then.
    pub(super) fn prepare_libraries(&mut self) -> Result<bool, StreamError> {
        let (server, role_epoch) = (self.thread.server.clone(), self.connection.role_epoch);
        let Some(loads) = self.wanted_libraries() else {
            return Ok(true);
        };
        prepare_for_stream(&server, loads, role_epoch);
        if loads.next_wanted().is_none() {
            return Ok(true);
        }
        if server.replication.role_epoch() != role_epoch {
            return Err(StreamError::RoleChanged);
        }
        weft_os::thread::sleep(MAX_WAIT);
        Ok(false)
    }
}
