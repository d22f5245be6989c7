//! The commands between MULTI and EXEC: queued, refused, or discarded.
//!
//! A command is admitted as if it ran. A refusal makes EXEC fail. What EXEC has to know about the commands is collected
//! while they are queued ([`Transaction`]).

use weft_resp::{Args, Reply};

use crate::commands::context::{Binding, HandlerMode};
use crate::commands::error::CommandError;
use crate::commands::permission;
use crate::commands::scripting::preparing;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::Connection;
use crate::net::transaction::Transaction;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;

use super::accounting::write_error;
use super::admit::WRITE_FLAGS;
use super::exec_databases;
use super::execute::reply_redirection;
use super::redirect;
use super::request::{Outcome, Request};
use super::script_flags;
use super::slot_stats;
use super::thread::ThreadState;

/// The role of a command in its client's transaction.
pub enum TransactionRole {
    /// The command runs: there is no transaction, or the command is one that is never queued.
    RunNow,
    /// The command is queued for EXEC.
    Queued,
    /// The command is EXEC.
    Exec {
        /// `true` if EXEC needs exclusive mode.
        needs_exclusive_mode: bool,
    },
}

impl TransactionRole {
    /// The role of a client's next command.
    #[inline]
    pub fn for_command(client: &Client, command: &Command<Binding>) -> Self {
        match &client.transaction {
            None => TransactionRole::RunNow,
            Some(transaction) => TransactionRole::within_transaction(transaction, command),
        }
    }

    fn within_transaction(transaction: &Transaction, command: &Command<Binding>) -> Self {
        match command.full_name {
            "exec" => TransactionRole::Exec {
                needs_exclusive_mode: transaction.needs_exclusive
                    && !transaction.is_refused
                    && !transaction.runs_on_script_thread(),
            },
            "discard" | "multi" | "watch" | "quit" | "reset" => TransactionRole::RunNow,
            _ => TransactionRole::Queued,
        }
    }
}

/// Records the refusal of a command in its client's transaction. Returns the error as the client sees it.
pub fn note_refusal(
    thread: &mut ThreadState,
    client: &mut Client,
    command: Option<&Command<Binding>>,
    error: CommandError,
) -> CommandError {
    if command.is_some_and(|command| command.full_name == "exec") {
        end_transaction(thread, client);
        return error.into_exec_error();
    }
    if let Some(transaction) = &mut client.transaction {
        transaction.is_refused = true;
    }
    error
}

/// Records in the client's transaction that a command belongs to another node.
pub fn note_redirection(thread: &mut ThreadState, client: &mut Client, command: &Command<Binding>) {
    if command.full_name == "exec" {
        end_transaction(thread, client);
    } else if let Some(transaction) = &mut client.transaction {
        transaction.is_refused = true;
    }
}

/// Queues an admitted command for EXEC, unless it belongs on the primary of its slot, which is migrating.
pub fn queue_unless_redirected(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    if thread.moving.is_some()
        && let Err(error) = redirect::check_queued_command(thread, &connection.client)
    {
        note_redirection(thread, &mut connection.client, request.command);
        return reply_redirection(thread, request, keys, connection, error);
    }
    queue_command(thread, request, keys, connection)
}

/// Ends a client's transaction and its watches.
pub(super) fn end_transaction(thread: &mut ThreadState, client: &mut Client) -> Option<Box<Transaction>> {
    if let Some(watches) = client.watches.take() {
        thread.effects.removed_watches.extend(watches.keys);
    }
    client.flags.set(ClientFlags::MULTI, false);
    let ended = client.transaction.take();
    debug_assert!(
        !client.is_dirty(),
        "a client without watches has no watched key that changed"
    );
    ended
}

/// Queues an admitted command for EXEC.
pub fn queue_command(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    slot_stats::book_refused(thread, request, keys, connection);
    let Connection {
        client, input, output, ..
    } = connection;
    client.last_command = request.command.full_name;
    let before = output.mark();
    let dirty = client.is_dirty();
    if let Some(transaction) = &mut client.transaction
        && !transaction.is_refused
        && !dirty
    {
        let (plan, flags) = (request.plan, request.command.spec.flags);
        let ranges = plan.ranges_of(request.ranges);
        transaction.push(request.command.id as usize, &input[plan.start..plan.end], ranges, keys);
        transaction.may_write |= flags.intersects(WRITE_FLAGS);
        transaction.is_denied_out_of_memory |= flags.contains(CommandFlags::DENYOOM);
        let databases = permission::database_count(&thread.server);
        let args = Args::new(&input[plan.start..plan.end], ranges);
        let selected = exec_databases::selected_database(request.command, args, databases);
        exec_databases::note_queued_command(transaction, request.command, selected.is_some(), databases);
        transaction.db = selected.unwrap_or(transaction.db);
        let binding = request.binding;
        transaction.reports_clients |= binding.queries_workers;
        transaction.changes_config |= binding.changes_config;
        transaction.pauses_clients |= binding.pauses_clients;
        transaction.loads_libraries |= preparing::loads_libraries(request.command.full_name);
        transaction.changes_libraries |=
            request.command.full_name.starts_with("function|") && flags.contains(CommandFlags::WRITE);
        // Commands that are replayed are run by the thread that replays them.
        transaction.must_stay_on_worker |= must_stay_on_worker(request.command, binding)
            || client.flags.intersects(ClientFlags::PRIMARY.union(ClientFlags::REPLAY));
        transaction.needs_exclusive |= binding.mode == HandlerMode::Exclusive
            || binding.has_undeclared_keys
            || binding.queries_workers
            || transaction.has_uncertain_databases;
        if binding.needs_modules() {
            (transaction.runs_modules, transaction.needs_exclusive) = (true, true);
            transaction.must_stay_on_worker = true;
        }
        if binding.mode == HandlerMode::Script {
            transaction.runs_script = true;
            if script_flags::may_call_modules(&thread.server, request.command, args) {
                (transaction.runs_modules, transaction.needs_exclusive) = (true, true);
                transaction.must_stay_on_worker = true;
            }
            if script_flags::may_query_workers(&thread.server, request.command, args) {
                (transaction.reports_clients, transaction.needs_exclusive) = (true, true);
            }
            transaction.may_run_forever |= script_flags::may_run_forever(&thread.server, request.command, args);
            transaction.is_denied_out_of_memory |=
                script_flags::is_denied_by_oom(&thread.server, request.command, args);
            transaction.script_may_write |= script_flags::may_write(&thread.server, request.command, args);
        }
    }
    Reply::new(&mut output.bytes, client.protocol).simple("QUEUED");
    connection.apply_reply_mode(before);
    thread.ticks = thread.timer.raw();
    Outcome::Done
}

/// Returns `true` if a command cannot run outside its client's worker: it changes its client, needs the exclusive mode
/// of a worker, or has steps after the leases.
fn must_stay_on_worker(command: &Command<Binding>, binding: Binding) -> bool {
    const MAY_LEAVE: [&str; 17] = [
        "client|getname",
        "client|id",
        "client|list",
        "echo",
        "function|dump",
        "function|list",
        "function|stats",
        "info",
        "lastsave",
        "ping",
        "publish",
        "pubsub|channels",
        "pubsub|numsub",
        "script|exists",
        "select",
        "spublish",
        "time",
    ];
    let accesses_data = command
        .spec
        .flags
        .intersects(CommandFlags::WRITE.union(CommandFlags::READONLY));
    let is_on_leases = accesses_data && command.full_name != "migrate";
    let may_leave = binding.mode == HandlerMode::Script || MAY_LEAVE.contains(&command.full_name) || is_on_leases;
    !may_leave
}

/// Replies to a command, EXEC for example, with an error that ends the client's transaction.
pub(super) fn refuse_command(
    thread: &mut ThreadState,
    request: &Request<'_>,
    connection: &mut Connection,
    error: CommandError,
) -> Outcome {
    let metrics = &thread.server.stats.metrics;
    metrics.record_rejection(thread.thread_index, request.command.id as usize);
    let error = note_refusal(thread, &mut connection.client, Some(request.command), error);
    let before = connection.output.mark();
    write_error(thread, &error, &mut connection.output.bytes);
    connection.apply_reply_mode(before);
    Outcome::Done
}
