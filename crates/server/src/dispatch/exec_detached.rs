//! Transactions that leave their worker because one of their scripts may never end, or because they call functions of
//! libraries whose code takes long.
//!
//! On the worker such a script would keep all clients of the worker waiting, and in exclusive mode all clients of the
//! server, SCRIPT KILL included.
//!
//! 1. The queued commands and the watches move with EXEC. The client itself stays. So a transaction leaves only if none
//!    of its commands changes the client ([`Transaction::runs_on_script_thread`]). SELECT may: the selected database is
//!    part of the result.
//! 2. A script thread does not close the gate for a script that may never end. A transaction that needs the whole
//!    keyspace takes the leases of all slots instead, as a script does, under the token.
//! 3. From the moment on at which it has its leases the transaction cannot be stopped, and its scripts may lease
//!    further slots. So the reply to CLIENT KILL waits for its end ([`crate::net::kill_mark`]).
//! 4. Commands that report on all clients query the workers, which answer: a worker waits neither for a lease nor at
//!    the gate while a script thread runs a script.
//! 5. A transaction that changes libraries of functions is an exception to rule 2: under leases, clients could call its
//!    functions before it has ended. It runs in exclusive mode, usually on its worker, and its scripts end when they
//!    are overdue. But each thread runs the code of a library itself before it calls a function. If that takes long
//!    ([`super::exec_libraries`]), a script thread runs the code first, outside of the gate and without leases, where
//!    FUNCTION KILL ends it. Then it takes exclusive mode for the transaction. FUNCTION FLUSH in the transaction keeps
//!    what the code has registered on this thread.
//!
//! [`Transaction::runs_on_script_thread`]: crate::net::transaction::Transaction::runs_on_script_thread

use std::time::Duration;

use crate::commands::context::NextStep;
use crate::commands::error::CommandError;
use crate::keyspace::access::{HeldLeases, Lease, ScriptLeases};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{GatePassage, Seat};
use crate::net::client::{Client, ScriptRefusal};
use crate::net::connection::Connection;
use crate::net::kill_mark::KillMark;
use weft_base::SlotIndex;
use weft_base::clock::unix_ms;
use weft_base::slots::SLOTS;
use weft_scripting::Requester;

use super::background::{DetachedCommand, RunExclusive, run_if_admitted};
use super::exec_libraries;
use super::execute::apply_effects;
use super::memory_limit;
use super::queueing;
use super::request::{Outcome, Request};
use super::script;
use super::script_flags;
use super::thread::ThreadState;
use super::transaction::{self, abort_transaction, exec_commands, exec_refusal};

/// Pause between two attempts to lease a slot.
const RETRY_PAUSE: Duration = Duration::from_micros(20);
/// Pause between two attempts to take exclusive mode.
const EXCLUSION_PAUSE: Duration = Duration::from_millis(1);

/// Runs EXEC under the leases of all keys that it needs, or lets a script thread do so.
pub fn exec_leased<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    lease_buffer: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    match thread.may_leave && must_leave_worker(&connection.client) {
        true => move_to_script_thread(thread, request, connection, None),
        false => transaction::exec_leased(thread, pass, request, lease_buffer, connection),
    }
}

/// Lets a script thread run EXEC in exclusive mode, after the code of the libraries whose functions it calls.
pub fn exec_after_libraries(thread: &mut ThreadState, request: &Request<'_>, connection: &mut Connection) -> Outcome {
    move_to_script_thread(thread, request, connection, Some(exec_after_called_libraries))
}

fn must_leave_worker(client: &Client) -> bool {
    let transaction = client.transaction.as_deref();
    transaction.is_some_and(|transaction| transaction.runs_on_script_thread()) && exec_refusal(client).is_none()
}

/// Lets a script thread run EXEC: under leases, or in exclusive mode by a function that takes it.
#[cold]
fn move_to_script_thread(
    thread: &mut ThreadState,
    request: &Request<'_>,
    connection: &mut Connection,
    run_exclusive: Option<RunExclusive>,
) -> Outcome {
    if let Some(error) = script::busy_error_without_thread(thread) {
        return queueing::refuse_command(thread, request, connection, error);
    }
    connection.client.last_command = request.command.full_name;
    thread.ticks = thread.timer.raw();
    let mut command = DetachedCommand::new(request, &[], None, connection, exec_on_script_thread);
    command.take_transaction(&mut connection.client);
    if let Some(run) = run_exclusive {
        command.set_exclusive_run(run);
    }
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
        thread.server.end_lasting(mark);
    }
    outcome
}

/// Runs the code of the libraries whose functions EXEC calls, and then EXEC in exclusive mode (rule 5).
fn exec_after_called_libraries(
    thread: &mut ThreadState,
    seat: &mut Seat,
    request: &Request<'_>,
    connection: &mut Connection,
) -> Outcome {
    let client = &connection.client;
    let transaction = client.transaction.as_deref();
    let libraries = transaction.map(|transaction| exec_libraries::called_libraries(thread, transaction));
    let args = request.args(&connection.input);
    if let Err(error) = script::prepare_libraries(thread, client, &libraries.unwrap_or_default(), args) {
        return queueing::refuse_command(thread, request, connection, error);
    }
    thread.begin_batch(unix_ms());
    if thread.tunables.max_memory != 0 {
        // The worker ensured this before it admitted EXEC; this may be much later.
        let pass = seat.enter();
        thread.begin_passage();
        memory_limit::evict_to_limit(thread, &pass);
    }
    // No client can kill its scripts any more. They end when they are overdue, as on a worker.
    thread.for_script = false;
    let outcome = exec_when_excluded(thread, seat, request, connection);
    thread.for_script = true;
    outcome
}

/// Runs EXEC once no script runs on a script thread. Returns a BUSY error if one is overdue.
fn exec_when_excluded(
    thread: &mut ThreadState,
    seat: &mut Seat,
    request: &Request<'_>,
    connection: &mut Connection,
) -> Outcome {
    let server = thread.server.clone();
    let running = &server.scripting.running;
    let requester = Requester::Client(connection.client.id.get());
    loop {
        let refusal = if running.is_shutting_down() || server.clients.directory.was_killed(&connection.client) {
            Some(CommandError::constant("ERR The server is about to end"))
        } else if running.try_exclude_runs(requester) {
            let outcome = exec_exclusive(thread, seat, request, connection);
            running.end_exclusion();
            let waits = connection.awaited_thaw.is_some() || thread.awaited_resumption.is_some();
            if !matches!(outcome, Outcome::Contended) || waits {
                return outcome;
            }
            None
        } else {
            script_flags::busy_error(&server)
        };
        if let Some(error) = refusal {
            // A client that was killed does not read it.
            running.withdraw(requester);
            return queueing::refuse_command(thread, request, connection, error);
        }
        weft_os::thread::sleep(EXCLUSION_PAUSE);
    }
}

/// Runs EXEC in exclusive mode, unless its client was killed. The caller has excluded scripts.
fn exec_exclusive(
    thread: &mut ThreadState,
    seat: &mut Seat,
    request: &Request<'_>,
    connection: &mut Connection,
) -> Outcome {
    let mut all = seat.exclusive();
    if thread.server.scripting.running.has_unfinished_unit() {
        return Outcome::Contended;
    }
    run_if_admitted(thread, request, &mut [], connection, |thread, _, connection| {
        if !try_begin_lasting(thread, &connection.client) {
            queueing::end_transaction(thread, &mut connection.client);
            return Outcome::Done;
        }
        let outcome = transaction::exec_exclusive(thread, &mut all, request, connection);
        if let Some(mark) = connection.client.kill_mark.as_deref() {
            thread.server.end_lasting(mark);
        }
        outcome
    })
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
