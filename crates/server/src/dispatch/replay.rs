//! Replays commands from a file or a primary: without a user, in exclusive mode, and without replies.
//!
//! No key expires during a replay, because the commands contain the deletions.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, ThreadIndex};

use crate::commands::context::{Binding, HandlerMode};
use crate::commands::error::CommandError;
use crate::keyspace::Exclusive;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::Connection;
use crate::observability::log;
use crate::persistence::aof_files::reader::{AofReadError, AofReader};
use crate::persistence::rdb_file::{InFlightBytes, LoadThreads, delay_load};
use crate::replication::ReplicationState;
use crate::state::{ReplayOutcome, Server};
use weft_acl::Login;
use weft_command_table::registry::{Command, Lookup};
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_resp::{ArgRange, Args};

use super::admit::unknown_command_error;
use super::effects::free_removed_values;
use super::leased::run_exclusive;
use super::plan::{CommandPlan, RequestKind, plan_write_keys};
use super::queueing::{self, TransactionRole};
use super::replay_threads::{CommandBatch, ReplayThreads, SharedSlots, is_local};
use super::replies::first_error;
use super::request::Request;
use super::thread::ThreadState;
use super::transaction;
use super::{script, serve};

/// The number of commands between two events about the progress of a load.
const COMMANDS_PER_PROGRESS_EVENT: u64 = 1000;
/// The number of commands between two reads of the clock.
const COMMANDS_PER_CLOCK_READ: u64 = 1024;

/// The minimum time between two openings of the gate. Each of them stops the threads that run commands.
const PAUSE_INTERVAL: Duration = Duration::from_millis(5);

/// Runs all commands of a file. `thread_index` is the thread's row of counters.
pub fn replay_commands<Input: Read>(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    commands: &mut AofReader<Input>,
) -> ReplayOutcome {
    let threads = LoadThreads::for_workers(server.workers.len()).count;
    replay_on_threads(server, all, thread_index, commands, threads)
}

/// Runs all commands of a file, on this many threads if there are several.
pub fn replay_on_threads<Input: Read>(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    commands: &mut AofReader<Input>,
    threads: usize,
) -> ReplayOutcome {
    let opens_gate = server.replication.state_bits().contains(ReplicationState::LOADING);
    let shared = all.share();
    let in_flight = InFlightBytes::default();
    weft_os::thread::scope(|scope| {
        let threads = ReplayThreads::start(scope, threads, server, &shared, &in_flight);
        let mut client = ReplayClient::new(server, thread_index);
        client.admits_clients_while_loading = opens_gate;
        let mut replay = Replay {
            server,
            client,
            shared: &shared,
            batches: (0..threads.count().max(1)).map(|_| CommandBatch::default()).collect(),
            threads,
            // Serving a blocked client may need further slots.
            runs_in_batches: server.clients.blocked.keys() == 0,
            keys: Vec::new(),
            command_count: 0,
            paused_at: Instant::now(),
        };
        let outcome = replay.run(commands);
        replay.finish();
        outcome
    })
}

/// The state of a replay, which the reader of the file keeps.
struct Replay<'r, 'scope, 'b> {
    server: &'r Arc<Server>,
    /// Runs the commands that the reader does not send.
    client: ReplayClient,
    shared: &'r SharedSlots<'r>,
    threads: ReplayThreads<'scope, 'b>,
    /// The commands to send to each thread, or those that the reader runs together.
    batches: Vec<CommandBatch>,
    runs_in_batches: bool,
    keys: Vec<PlannedKey>,
    command_count: u64,
    paused_at: Instant,
}

impl Replay<'_, '_, '_> {
    fn run<Input: Read>(&mut self, commands: &mut AofReader<Input>) -> ReplayOutcome {
        let mut valid_up_to = commands.offset();
        let mut before_multi = valid_up_to;
        let mut commands_read: u64 = 0;
        let progress = &self.server.replication.loading;
        let before = progress
            .loaded_bytes
            .load(Ordering::Relaxed)
            .saturating_sub(valid_up_to);
        loop {
            match commands.read() {
                Ok(true) => {}
                Ok(false) if self.client.is_in_transaction() => {
                    return ReplayOutcome::UnfinishedTransaction(before_multi);
                }
                Ok(false) => return ReplayOutcome::Complete,
                // A write after half a transaction would become part of it.
                Err(fault) if self.client.is_in_transaction() => return ReplayOutcome::Failed(fault, before_multi),
                Err(fault) => return ReplayOutcome::Failed(fault, valid_up_to),
            }
            let args = commands.args();
            let registry = crate::commands::registry();
            let command = match registry.lookup(&args) {
                Lookup::Found(command) if command.spec.accepts_arg_count(args.len()) => command,
                _ => {
                    let CommandError(error) = unknown_command_error(registry, args);
                    let text = String::from_utf8_lossy(error.strip_prefix(b"ERR ").unwrap_or(&error));
                    // A reply has no line breaks either.
                    return ReplayOutcome::InvalidCommand(text.replace(['\r', '\n'], " "));
                }
            };
            let Some(binding) = command.handler else {
                return ReplayOutcome::Failed(AofReadError::Format, valid_up_to);
            };
            if command.full_name == "multi" {
                before_multi = valid_up_to;
            }
            if !self.run_or_queue(command, binding, commands) {
                // The panic of a thread is passed on at the end.
                return ReplayOutcome::Complete;
            }
            assert!(
                before_multi <= valid_up_to && valid_up_to < commands.offset(),
                "a command lies in the file behind the one before it"
            );
            valid_up_to = commands.offset();
            commands_read += 1;
            if commands_read.is_multiple_of(COMMANDS_PER_PROGRESS_EVENT) {
                progress.loaded_bytes.store(before + valid_up_to, Ordering::Relaxed);
                self.server.send_loading_progress(false);
            }
            delay_load(&self.server.config);
            if self.client.admits_clients_while_loading && self.command_count.is_multiple_of(COMMANDS_PER_CLOCK_READ) {
                progress.loaded_bytes.store(before + valid_up_to, Ordering::Relaxed);
                self.pause_if_due();
            }
        }
    }

    /// Lets other threads in, if it is time.
    fn pause_if_due(&mut self) {
        if !self.client.is_in_transaction() && self.paused_at.elapsed() >= PAUSE_INTERVAL {
            self.shared.pause();
            self.paused_at = Instant::now();
        }
    }

    /// Runs a command, or adds it to a batch. Returns `false` if a thread has panicked.
    fn run_or_queue<Input: Read>(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        commands: &AofReader<Input>,
    ) -> bool {
        if self.command_count.is_multiple_of(COMMANDS_PER_CLOCK_READ) {
            self.client.thread.begin_batch(unix_ms());
        }
        self.command_count += 1;
        self.keys.clear();
        plan_write_keys(&self.server.keyspace, command, &commands.args(), &mut self.keys);
        let runs_now = !self.client.is_in_transaction();
        if runs_now && self.runs_in_batches && is_local(command, binding, &self.keys) {
            let part = self.keys[0].slot.index() % self.batches.len();
            let db = self.client.connection.client.db;
            let batch = &mut self.batches[part];
            batch.push((command, binding), db, commands.bytes(), commands.ranges(), &self.keys);
            return !batch.is_full() || self.end_batch(part, commands.offset());
        }
        // SELECT changes no data, and the batches have the databases of their commands.
        if !(runs_now && command.full_name == "select") {
            self.run_remaining_batches();
        }
        let (client, keys) = (&mut self.client, &self.keys);
        self.shared.with_exclusive(|all| {
            client.run_command(all, (command, binding), commands.bytes(), commands.ranges(), keys)
        });
        true
    }

    /// Sends a full batch to its thread, or runs it.
    fn end_batch(&mut self, part: usize, offset: u64) -> bool {
        if self.threads.count() > 0 {
            return self.threads.send(part, &mut self.batches[part], offset);
        }
        self.batches[part].run(&mut self.client, self.shared);
        true
    }

    /// Waits until all batches that were sent have run, and runs the others.
    fn run_remaining_batches(&mut self) {
        self.threads.wait_until_idle();
        for batch in &mut self.batches {
            batch.run(&mut self.client, self.shared);
        }
    }

    /// Waits until all commands have run, and ends the threads.
    fn finish(mut self) {
        self.run_remaining_batches();
        self.server.stats.activities.end(self.client.thread.thread_index);
        self.threads.finish();
    }
}

/// The client on whose behalf the commands run.
pub(super) struct ReplayClient {
    /// The state of the thread.
    pub thread: ThreadState,
    /// The connection, whose input is the commands that run.
    pub connection: Connection,
    /// `true` if the gate is opened at intervals.
    admits_clients_while_loading: bool,
}

impl ReplayClient {
    /// Creates the client of a thread that counts in this row.
    pub fn new(server: &Arc<Server>, thread_index: ThreadIndex) -> Self {
        let mut thread = ThreadState::new(server.clone(), thread_index);
        (thread.may_leave, thread.may_block, thread.replays) = (false, false, true);
        thread.counts_commands = false;
        // No list shows this client, so the number of its thread has no effect.
        let mut client = Client::new(ClientId::new(u64::MAX), unix_ms(), ThreadIndex::FIRST);
        client.login = Login::for_replication(&server.acl);
        client.flags.set(ClientFlags::REPLAY, true);
        ReplayClient {
            thread,
            connection: Connection::new(client),
            admits_clients_while_loading: false,
        }
    }

    fn is_in_transaction(&self) -> bool {
        self.connection.client.transaction.is_some()
    }

    /// Runs a command in exclusive mode.
    fn run_command(
        &mut self,
        all: &mut Exclusive<'_>,
        (command, binding): (&'static Command<Binding>, Binding),
        bytes: &[u8],
        ranges: &[ArgRange],
        planned: &[PlannedKey],
    ) {
        let ReplayClient {
            thread,
            connection,
            admits_clients_while_loading,
        } = self;
        connection.input.clear();
        connection.input.extend_from_slice(bytes);
        let args = Args::new(bytes, ranges);
        let plan = CommandPlan {
            token: 0,
            start: 0,
            end: connection.input.len(),
            args: 0..ranges.len() as u32,
            keys: 0..planned.len() as u32,
            probes_end: 0,
            kind: RequestKind::Command(command, binding),
        };
        let request = Request {
            plan: &plan,
            command,
            binding,
            ranges,
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
        self.finish_command(command);
    }

    /// Reports an error of a command that has run.
    pub fn finish_command(&mut self, command: &Command<Binding>) {
        let ReplayClient { thread, connection, .. } = self;
        // The end of the process stops the code of libraries and functions.
        if let Some(error) = first_error(&connection.output.bytes)
            && !thread.server.scripting.running.is_shutting_down()
        {
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

#[cfg(test)]
mod tests;
