//! The libraries of functions that a transaction loads ([`crate::net::library_loads`]), and those whose functions it
//! calls.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::commands::scripting::preparing::source_of_command;
use crate::net::client::{Client, ClientFlags};
use crate::net::library_loads::{LibraryLoads, LibrarySource};
use crate::net::transaction::{QueuedCommand, Transaction};
use weft_scripting::Library;

use super::script;
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

/// Returns `true` if the EXEC of a client, which needs exclusive mode, has to take it on a script thread: it calls
/// functions, and the code of their libraries is too long for a worker ([`super::exec_detached`]). The code of the
/// libraries that it loads has run.
pub(super) fn must_leave_worker(thread: &ThreadState, client: &mut Client) -> bool {
    if !thread.may_leave || exec_refusal(client).is_some() {
        return false;
    }
    let Some(transaction) = client
        .transaction
        .as_deref_mut()
        .filter(|queued| may_leave_worker(queued))
    else {
        return false;
    };
    if transaction.calls_long_libraries.is_none() {
        let called = called_libraries(thread, transaction);
        let load_time: Duration = called.iter().map(|library| library.load_time()).sum();
        transaction.calls_long_libraries = Some(script::is_too_long_to_load(load_time));
    }
    transaction.calls_long_libraries == Some(true)
}

fn may_leave_worker(transaction: &Transaction) -> bool {
    // The snapshots of clients would be outdated.
    let must_stay = transaction.must_stay_on_worker || transaction.reports_clients;
    transaction.changes_libraries && transaction.runs_script && !must_stay
}

/// Returns the libraries whose functions a transaction calls, of those that it loads and those that are loaded.
pub(super) fn called_libraries(thread: &ThreadState, transaction: &Transaction) -> Vec<Arc<Library>> {
    let called: HashSet<Vec<u8>> = transaction
        .commands
        .iter()
        .filter_map(|queued| called_function(transaction, queued))
        .collect();
    let is_called = |library: &&Arc<Library>| {
        let mut functions = library.functions.iter();
        functions.any(|function| called.contains(&function.name.to_ascii_lowercase()))
    };
    let loaded = thread.server.scripting.libraries.current();
    let to_load = transaction.library_loads.as_deref().into_iter();
    to_load
        .flat_map(LibraryLoads::libraries)
        .chain(loaded.libraries())
        .filter(is_called)
        .cloned()
        .collect()
}

/// Returns the name of the function that a command calls, in lower case.
fn called_function(transaction: &Transaction, queued: &QueuedCommand) -> Option<Vec<u8>> {
    let command = crate::commands::registry().commands().get(queued.command)?;
    let calls = matches!(command.full_name, "fcall" | "fcall_ro");
    calls.then(|| transaction.args(queued).argument(1).to_ascii_lowercase())
}
