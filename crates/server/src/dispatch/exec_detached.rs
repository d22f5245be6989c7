//! Transactions that leave their worker because one of their scripts may never end.
//!
//! On the worker such a script would keep all clients of the worker waiting, and in exclusive mode all clients of the
//! server, SCRIPT KILL included.
//!
//! 1. The queued commands and the watches move with EXEC. The client itself stays. So a transaction leaves only if none
//!    of its commands changes the client ([`Transaction::runs_on_script_thread`]). SELECT may: the selected database is
//!    part of the result.
//! 2. A script thread never closes the gate. A transaction that needs the whole keyspace takes the leases of all slots
//!    instead, as a script does, under the token.
//! 3. From the moment on at which it has its leases the transaction cannot be stopped, and its scripts may lease
//!    further slots. So the reply to CLIENT KILL waits for its end ([`crate::net::kill_mark`]).
//! 4. Commands that report on all clients query the workers, which answer: a worker waits neither for a lease nor at
//!    the gate while a script thread runs a script.
//!
//! [`Transaction::runs_on_script_thread`]: crate::net::transaction::Transaction::runs_on_script_thread

use std::time::Duration;

use crate::commands::context::NextStep;
use crate::keyspace::GatePassage;
use crate::keyspace::access::{HeldLeases, Lease, ScriptLeases};
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ScriptRefusal};
use crate::net::connection::Connection;
use crate::net::kill_mark::KillMark;
use weft_base::SlotIndex;
use weft_base::slots::SLOTS;

use super::background::DetachedCommand;
use super::execute::apply_effects;
use super::memory_limit;
use super::queueing;
use super::request::{Outcome, Request};
use super::script;
use super::thread::ThreadState;
use super::transaction::{self, abort_transaction, exec_commands, exec_refusal};

/// Pause between two attempts to lease a slot.
const RETRY_PAUSE: Duration = Duration::from_micros(20);

/// Runs EXEC under the leases of all keys that it needs, or lets a script thread do so.
pub fn exec_leased<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    lease_buffer: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    match thread.may_leave && must_leave_worker(&connection.client) {
        true => move_to_script_thread(thread, request, connection),
        false => transaction::exec_leased(thread, pass, request, lease_buffer, connection),
    }
}

fn must_leave_worker(client: &Client) -> bool {
    let transaction = client.transaction.as_deref();
    transaction.is_some_and(|transaction| transaction.runs_on_script_thread()) && exec_refusal(client).is_none()
}

/// Lets a script thread run EXEC.
#[cold]
fn move_to_script_thread(thread: &mut ThreadState, request: &Request<'_>, connection: &mut Connection) -> Outcome {
    if let Some(error) = script::busy_error_without_thread(thread) {
        return queueing::refuse_command(thread, request, connection, error);
    }
    connection.client.last_command = request.command.full_name;
    thread.ticks = thread.timer.raw();
    let mut command = DetachedCommand::new(request, &[], None, connection, exec_on_script_thread);
    command.take_transaction(&mut connection.client);
    Outcome::After(NextStep::AwaitScript(Box::new(Box::new(|requester| {
        command.into_script_job(requester)
    }))))
}

fn exec_on_script_thread<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    _: &mut [PlannedKey],
    lease_buffer: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    if thread.tunables.max_memory != 0 {
        // The worker ensured this before it admitted EXEC; this may be much later.
        memory_limit::evict_to_limit(thread, pass);
    }
    let transaction = connection.client.transaction.as_deref();
    let outcome = match transaction.is_some_and(|transaction| transaction.needs_exclusive) {
        true => exec_with_all_slots(thread, pass, request, connection),
        false => transaction::exec_leased(thread, pass, request, lease_buffer, connection),
    };
    // It began under the leases, if they were not refused.
    if let Some(mark) = connection.client.kill_mark.as_deref() {
        mark.end_lasting();
    }
    outcome
}

/// Records under the leases of a transaction that it cannot be stopped any more. Returns `false` if its client was
/// killed: then it must not run.
pub(super) fn try_begin_lasting(thread: &ThreadState, client: &Client) -> bool {
    let mark = client.kill_mark.as_deref();
    !thread.server.clients.directory.was_killed(client) && mark.is_none_or(KillMark::try_begin_lasting)
}

fn exec_with_all_slots<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    connection: &mut Connection,
) -> Outcome {
    let start = thread.ticks;
    if let Some(refusal) = exec_refusal(&connection.client) {
        return abort_transaction(thread, request, connection, start, refusal);
    }
    // Checked again under the leases. Repeated attempts should not take them.
    connection.awaited_thaw = transaction::awaited_thaw(&thread.server, &connection.client, request.command);
    connection.client.script_refusal = None;
    if connection.awaited_thaw.is_some() {
        return Outcome::Contended;
    }
    if !thread.server.scripting.try_take_token() {
        connection.client.script_refusal = Some(ScriptRefusal::Token);
        return Outcome::Contended;
    }
    let leases = match lease_all_slots(thread, pass, &connection.client) {
        Ok(leases) => leases,
        Err(refused) => {
            connection.client.script_refusal = Some(ScriptRefusal::Slot(refused));
            thread.server.scripting.release_token();
            return Outcome::Contended;
        }
    };
    if let Some(transaction) = &mut connection.client.transaction {
        // The leases are in the order of the slots.
        transaction
            .keys
            .iter_mut()
            .for_each(|key| key.lease = key.slot.get().into());
    }
    connection.awaited_thaw = transaction::awaited_thaw(&thread.server, &connection.client, request.command);
    if connection.awaited_thaw.is_some() {
        drop(leases);
        thread.server.scripting.release_token();
        return Outcome::Contended;
    }
    let mut leases = ScriptLeases::new(leases);
    let held = HeldLeases::Script(&mut leases);
    let outcome = exec_commands(thread, Some(pass), request, held, connection, start);
    if thread.is_unit_unfinished {
        // Rule 9 of scripts: no command may see a part of this transaction.
        std::mem::forget(leases);
        return outcome;
    }
    drop(leases);
    thread.server.scripting.release_token();
    apply_effects(thread);
    outcome
}

/// Leases all slots for writing. The holder of the token may wait for them. Returns the refused slot if EXEC has to
/// release them again: the process is about to end, the client was killed, or a busy script holds the slot. Then the
/// client gets a BUSY error, and so do others that need a slot which the busy script holds.
fn lease_all_slots<'p>(
    thread: &ThreadState,
    pass: &'p GatePassage<'p>,
    client: &Client,
) -> Result<Vec<Lease<'p>>, SlotIndex> {
    let (running, directory) = (&thread.server.scripting.running, &thread.server.clients.directory);
    let mut leases = Vec::with_capacity(SLOTS);
    for slot in 0..SLOTS {
        let lease = loop {
            if let Some(lease) = pass.write_spinning(slot) {
                break lease;
            }
            let refused = SlotIndex::from_index(slot);
            let is_held_by_busy_script = || running.overdue_holder(Some(refused.get())).is_some();
            let is_killed = directory.was_killed(client);
            if running.is_shutting_down() || is_killed || (running.has_overdue() && is_held_by_busy_script()) {
                return Err(refused);
            }
            pass.announce_writer(slot);
            weft_os::thread::sleep(RETRY_PAUSE);
        };
        leases.push(Lease::Write(lease));
    }
    Ok(leases)
}
