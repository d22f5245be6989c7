//! Replays commands from a file or a primary: without a user, in exclusive mode, and without replies.
//!
//! No key expires during a replay, because the commands contain the deletions.

use std::io::Read;
use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, ThreadIndex};

use crate::commands::context::{Binding, HandlerMode};
use crate::keyspace::Exclusive;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::Connection;
use crate::observability::log;
use crate::persistence::aof_files::reader::{AofReadError, AofReader};
use crate::persistence::rdb_file::delay_load;
use crate::replication::ReplicationState;
use crate::state::{ReplayOutcome, Server};
use weft_acl::Login;
use weft_command_table::registry::{Command, Lookup};
use weft_config::id;
use weft_os::atomic::Ordering;

use super::effects::free_removed_values;
use super::leased::run_exclusive;
use super::plan::{CommandPlan, RequestKind, plan_write_keys};
use super::queueing::{self, TransactionRole};
use super::replicated_stream::first_error;
use super::request::Request;
use super::thread::ThreadState;
use super::transaction;
use super::{script, serve};

/// The number of commands between two reads of the clock.
const COMMANDS_PER_CLOCK_READ: u64 = 1024;

/// Runs all commands of a file. `row` is the thread's row of counters.
pub fn replay_commands<Input: Read>(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    commands: &mut AofReader<Input>,
) -> ReplayOutcome {
    let mut player = ReplayClient::new(server, thread_index);
    let starts = server.replication.state_bits().contains(ReplicationState::LOADING);
    player.admits_clients_while_loading = starts;
    let mut valid_up_to = commands.offset();
    let mut before_multi = valid_up_to;
    let progress = &server.replication.loading;
    let before = progress
        .loaded_bytes
        .load(Ordering::Relaxed)
        .saturating_sub(valid_up_to);
    loop {
        match commands.read() {
            Ok(true) => {}
            Ok(false) if player.connection.client.transaction.is_some() => {
                return ReplayOutcome::UnfinishedTransaction(before_multi);
            }
            Ok(false) => return ReplayOutcome::Complete,
            // A write after half a transaction would become part of it.
            Err(fault) if player.connection.client.transaction.is_some() => {
                return ReplayOutcome::Failed(fault, before_multi);
            }
            Err(fault) => return ReplayOutcome::Failed(fault, valid_up_to),
        }
        let args = commands.args();
        let Lookup::Found(command) = crate::commands::registry().lookup(&args) else {
            let name = String::from_utf8_lossy(args.argument(0)).into_owned();
            return ReplayOutcome::UnknownCommand(name);
        };
        let Some(binding) = command.handler.filter(|_| command.spec.accepts_arg_count(args.len())) else {
            return ReplayOutcome::Failed(AofReadError::Format, valid_up_to);
        };
        if command.full_name == "multi" {
            before_multi = valid_up_to;
        }
        player.run_command(all, command, binding, commands);
        assert!(
            before_multi <= valid_up_to && valid_up_to < commands.offset(),
            "a command lies in the file behind the one before it"
        );
        valid_up_to = commands.offset();
        delay_load(&server.config);
        if starts && player.command_count.is_multiple_of(COMMANDS_PER_CLOCK_READ) {
            progress.loaded_bytes.store(before + valid_up_to, Ordering::Relaxed);
            if player.connection.client.transaction.is_none() {
                all.pause();
            }
        }
    }
}

/// The client on whose behalf the commands run.
struct ReplayClient {
    thread: ThreadState,
    connection: Connection,
    keys: Vec<PlannedKey>,
    command_count: u64,
    /// `true` if the gate is opened at intervals.
    admits_clients_while_loading: bool,
}

impl ReplayClient {
    fn new(server: &Arc<Server>, thread_index: ThreadIndex) -> Self {
        let mut thread = ThreadState::new(server.clone(), thread_index);
        (thread.may_leave, thread.may_block, thread.replays) = (false, false, true);
        // No list shows this client, so the number of its thread has no effect.
        let mut client = Client::new(ClientId::new(u64::MAX), unix_ms(), ThreadIndex::FIRST);
        client.login = Login::for_replication(&server.acl);
        client.flags.set(ClientFlags::REPLAY, true);
        ReplayClient {
            thread,
            connection: Connection::new(client),
            keys: Vec::new(),
            command_count: 0,
            admits_clients_while_loading: false,
        }
    }

    fn run_command<Input: Read>(
        &mut self,
        all: &mut Exclusive<'_>,
        command: &'static Command<Binding>,
        binding: Binding,
        commands: &AofReader<Input>,
    ) {
        if self.command_count.is_multiple_of(COMMANDS_PER_CLOCK_READ) {
            self.thread.begin_batch(unix_ms());
        }
        self.command_count += 1;
        let ReplayClient {
            thread,
            connection,
            keys: planned,
            admits_clients_while_loading,
            ..
        } = self;
        connection.input.clear();
        connection.input.extend_from_slice(commands.bytes());
        planned.clear();
        let args = commands.args();
        plan_write_keys(&thread.server.keyspace, command, args, planned);
        let plan = CommandPlan {
            token: 0,
            start: 0,
            end: connection.input.len(),
            args: 0..commands.ranges().len() as u32,
            keys: 0..planned.len() as u32,
            probes_end: 0,
            kind: RequestKind::Command(command, binding),
        };
        let request = Request {
            plan: &plan,
            command,
            binding,
            ranges: commands.ranges(),
        };
        // The next step of a command concerns only its reply, which nothing receives.
        match TransactionRole::for_command(&connection.client, command) {
            TransactionRole::Queued => drop(queueing::queue_command(thread, &request, planned, connection)),
            TransactionRole::Exec { .. } => drop(transaction::exec_exclusive(thread, all, &request, connection)),
            TransactionRole::RunNow if binding.mode == HandlerMode::Script => {
                let Connection { client, output, .. } = &mut *connection;
                let held = HeldLeases::Exclusive(all);
                thread.opens_gate_in_scripts = *admits_clients_while_loading;
                script::run_in_transaction(thread, None, command, args, held, client, output);
                thread.opens_gate_in_scripts = false;
                free_removed_values(&mut thread.effects, &thread.server);
                serve::notify_served_clients(thread);
            }
            TransactionRole::RunNow => drop(run_exclusive(thread, all, &request, planned, connection)),
        }
        if let Some(error) = first_error(&connection.output.bytes) {
            let server = &thread.server;
            server.replication.unexpected_errors.fetch_add(1, Ordering::Relaxed);
            log::warning!(
                "== CRITICAL == This server is sending an error to its AOF-loading-client: '{}' after processing the command \
                 '{}'",
                String::from_utf8_lossy(error),
                command.full_name
            );
            assert!(
                server.config.choice(id::PROPAGATION_ERROR_BEHAVIOR) != "panic",
                "This server panicked sending an error to its AOF-loading-client after processing the command '{}'",
                command.full_name
            );
        }
        connection.output.clear();
        thread.effects.expired.clear();
        debug_assert!(
            thread.effects.removed.is_empty() && thread.served.is_empty(),
            "the effects of a replayed command are applied before the next one"
        );
    }
}

impl Drop for ReplayClient {
    fn drop(&mut self) {
        // The metrics of replayed commands are discarded.
        let effects = &mut self.thread.effects;
        (effects.hits, effects.misses) = (0, 0);
        let server = &self.thread.server;
        effects.add_to_metrics(&server.keyspace, &server.stats.metrics, self.thread.thread_index);
    }
}
