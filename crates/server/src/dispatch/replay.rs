//! Replays commands from a file or a primary: without a user, in exclusive mode, and without replies.
//!
//! No key expires during a replay, because the commands contain the deletions.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_base::clock::unix_ms;

use crate::commands::context::{Binding, Mode};
use crate::keyspace::Exclusive;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::Connection;
use crate::observability::log;
use crate::persistence::aof_files::reader::{AofReadError, AofReader};
use crate::persistence::rdb_file::delay_load;
use crate::replication::ReplicationState;
use crate::state::{Replayed, Server};
use weft_acl::Login;
use weft_command_table::registry::{Command, Lookup};
use weft_config::id;

use super::effects::release;
use super::leased::run_exclusive;
use super::plan::{Kind, Plan, plan_to_write};
use super::replicated_stream::first_error;
use super::request::Request;
use super::thread::Thread;
use super::transaction::{self, Role};
use super::{script, serve};

/// The number of commands between two reads of the clock.
const COMMANDS_A_TICK: u64 = 1024;

/// Runs all commands of a file. `row` is the thread's row of counters.
pub fn replay(server: &Arc<Server>, all: &mut Exclusive<'_>, row: usize, commands: &mut AofReader<File>) -> Replayed {
    let mut player = ReplayClient::new(server, row);
    let starts = server.replication.state_bits().contains(ReplicationState::LOADING);
    player.lets_in = starts;
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
            Ok(false) if player.connection.client.transaction.is_some() => return Replayed::Unfinished(before_multi),
            Ok(false) => return Replayed::Whole,
            // A write behind half a transaction would become part of it.
            Err(fault) if player.connection.client.transaction.is_some() => {
                return Replayed::Failed(fault, before_multi);
            }
            Err(fault) => return Replayed::Failed(fault, valid_up_to),
        }
        let args = commands.args();
        let Lookup::Found(command) = crate::commands::registry().lookup(&args) else {
            let name = String::from_utf8_lossy(args.argument(0)).into_owned();
            return Replayed::Unknown(name);
        };
        let Some(binding) = command.handler.filter(|_| command.spec.accepts_arg_count(args.len())) else {
            return Replayed::Failed(AofReadError::Format, valid_up_to);
        };
        if command.full_name == "multi" {
            before_multi = valid_up_to;
        }
        player.play(all, (command, binding), commands);
        valid_up_to = commands.offset();
        delay_load(&server.config);
        if starts && player.played.is_multiple_of(COMMANDS_A_TICK) {
            progress.loaded_bytes.store(before + valid_up_to, Ordering::Relaxed);
            if player.connection.client.transaction.is_none() {
                all.pause();
            }
        }
    }
}

/// The client that the commands run as.
struct ReplayClient {
    thread: Thread,
    connection: Connection,
    keys: Vec<PlannedKey>,
    played: u64,
    /// `true` if the gate is opened at intervals.
    lets_in: bool,
}

impl ReplayClient {
    fn new(server: &Arc<Server>, row: usize) -> Self {
        let mut thread = Thread::new(server.clone(), row);
        (thread.may_leave, thread.may_block, thread.replays) = (false, false, true);
        let mut client = Client::new(u64::MAX, unix_ms(), 0);
        client.login = Login::for_replication(&server.acl);
        client.flags.set(ClientFlags::REPLAY, true);
        ReplayClient {
            thread,
            connection: Connection::new(client),
            keys: Vec::new(),
            played: 0,
            lets_in: false,
        }
    }

    fn play(
        &mut self,
        all: &mut Exclusive<'_>,
        (command, binding): (&'static Command<Binding>, Binding),
        commands: &AofReader<File>,
    ) {
        if self.played.is_multiple_of(COMMANDS_A_TICK) {
            self.thread.begin_batch(unix_ms());
        }
        self.played += 1;
        let ReplayClient {
            thread,
            connection,
            keys: planned,
            lets_in,
            ..
        } = self;
        connection.input.clear();
        connection.input.extend_from_slice(commands.bytes());
        planned.clear();
        let args = commands.args();
        plan_to_write(&thread.server.keyspace, command, args, planned);
        let plan = Plan {
            token: 0,
            start: 0,
            end: connection.input.len(),
            args: (0, commands.ranges().len() as u32),
            keys: (0, planned.len() as u32),
            probes_end: 0,
            kind: Kind::Command(command, binding),
        };
        let request = Request {
            plan: &plan,
            command,
            binding,
            ranges: commands.ranges(),
        };
        // The next step of a command concerns only its reply, which nothing receives.
        match Role::of(&connection.client, command) {
            Role::Queued => drop(transaction::queue(thread, &request, planned, connection)),
            Role::Exec { .. } => drop(transaction::run_exclusive(thread, all, &request, connection)),
            Role::Alone if binding.mode == Mode::Script => {
                let Connection { client, output, .. } = &mut *connection;
                let held = HeldLeases::Exclusive(all);
                thread.lets_in = *lets_in;
                script::run_inside(thread, None, command, args, held, client, output);
                thread.lets_in = false;
                release(&mut thread.effects, &thread.server);
                serve::mail(thread);
            }
            Role::Alone => drop(run_exclusive(thread, all, &request, planned, connection)),
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
    }
}

impl Drop for ReplayClient {
    fn drop(&mut self) {
        // The metrics of replayed commands are discarded.
        let effects = &mut self.thread.effects;
        (effects.hits, effects.misses) = (0, 0);
        let server = &self.thread.server;
        effects.add_to_metrics(&server.keyspace, &server.stats.metrics, self.thread.seat);
    }
}
