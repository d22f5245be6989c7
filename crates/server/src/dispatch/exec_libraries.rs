//! The libraries of functions that a transaction loads ([`crate::net::library_loads`]).

use std::collections::VecDeque;

use crate::commands::scripting::preparing::source_of_command;
use crate::net::client::{Client, ClientFlags};
use crate::net::library_loads::{LibraryLoads, LibrarySource};
use crate::net::transaction::{QueuedCommand, Transaction};

use super::thread::ThreadState;
use super::transaction::exec_refusal;

/// Returns `true` if the EXEC of a client has to wait until the code of its libraries has run. The transaction has the
/// list of these libraries then.
pub(super) fn must_prepare(thread: &ThreadState, client: &mut Client) -> bool {
    // The other threads that run transactions neither park a connection nor leave the gate for it.
    let can_wait = thread.may_leave || client.flags.contains(ClientFlags::PRIMARY);
    if !can_wait || exec_refusal(client).is_some() {
        return false;
    }
    let Some(transaction) = client
        .transaction
        .as_deref_mut()
        .filter(|queued| queued.loads_libraries)
    else {
        return false;
    };
    if transaction.library_loads.is_none() {
        let sources = transaction
            .commands
            .iter()
            .filter_map(|queued| source_of(transaction, queued));
        let sources: VecDeque<LibrarySource> = sources.collect();
        // The sources are copies, and so is the code in the libraries.
        transaction.library_bytes = 2 * sources.iter().map(LibrarySource::bytes).sum::<usize>();
        transaction.library_loads = Some(Box::new(LibraryLoads::new(sources)));
    }
    let loads = transaction.library_loads.as_deref();
    loads.is_some_and(|loads| loads.next_wanted().is_some())
}

fn source_of(transaction: &Transaction, queued: &QueuedCommand) -> Option<LibrarySource> {
    let command = crate::commands::registry().commands().get(queued.command)?;
    source_of_command(command.full_name, transaction.args(queued))
}
