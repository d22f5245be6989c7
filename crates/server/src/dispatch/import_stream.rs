//! Runs the stream of the source of a slot migration: its commands, in order, without replies.
//!
//! One thread runs the streams of all imports of this node. As for the stream of a primary
//! ([`super::replicated_stream`]), nothing leaves the thread, a command that is refused a slot is tried again, and
//! nothing has expired. The differences:
//!
//! 1. Only commands that may write, all of whose keys are in the job's slots, are executed, and SELECT. Any other
//!    command ends the migration, except for the messages of the migration protocol, which are returned to the caller.
//!    Nothing in the stream waits for another server, and the client watches no keys.
//! 2. Any error reply ends the migration. Permissions and the memory limit apply to the source as to any other client.
//!    The messages of the migration protocol are admitted as commands, too: they need the permission, and a pause of
//!    writes holds them back.
//! 3. Nothing runs once the job has ended or the role epoch is over, which is checked before each command within the
//!    passage of the gate in which it runs.
//! 4. The executed commands are propagated like those of clients.
//! 5. The limits on the length of a request are those of clients, but at least the default ones: an element that the
//!    source has must fit even if this node has lower limits, and a snapshot has several elements in a command.

use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{ParkId, RoleEpoch, ThreadIndex};
use weft_cluster::slot_set::SlotSet;
use weft_command_table::registry::Command;

use crate::commands::context::{Binding, HandlerMode, NextStep};
use crate::keyspace::Seat;
use crate::net::client::ClientFlags;
use crate::net::connection::{Connection, ConnectionState};
use crate::notify::messages::{MAX_FULL_MAILBOX_WAIT, NotificationSender, wait_for_full_mailbox, wake_workers};
use crate::slot_migration::job::JobProgress;
use crate::state::{Message, Server};

use super::accounting::{record_denial, write_error};
use super::admit::{Admission, WRITE_FLAGS, admit, must_authenticate};
use super::batch::{self, BatchConnections};
use super::plan::{InputRest, Planner, Plans, RequestKind};
use super::protocol_error::log_protocol_error;
use super::replies::first_error;
use super::thread::ThreadState;

/// The least limits on a bulk string and on a request, in bytes: the defaults of `proto-max-bulk-len` and
/// `client-query-buffer-limit`.
const MIN_BULK_LIMIT: u64 = 512 << 20;
const MIN_REQUEST_LIMIT: usize = 1 << 30;

/// The parts of a job that decide what is executed for it.
pub struct ImportScope<'a> {
    /// The slots that are imported.
    pub slots: &'a SlotSet,
    /// The progress of the job.
    pub progress: &'a JobProgress,
    /// The role epoch in which the job was created.
    pub role_epoch: RoleEpoch,
}

/// The state of a stream after its complete commands were executed.
#[derive(Debug, PartialEq, Eq)]
pub enum ImportStep {
    /// More input is needed.
    Idle,
    /// A slot is leased by another thread, or clients are paused: the stream continues later.
    Delayed,
    /// The next request is a message of the migration protocol, with these words.
    Message(Vec<Vec<u8>>),
    /// The migration has failed.
    Failed(ImportFailure),
    /// The role of this server has changed since the import began. Nothing more is executed.
    Over,
}

/// The reason for which a stream cannot continue.
#[derive(Debug, PartialEq, Eq)]
pub enum ImportFailure {
    /// A command was refused because memory is above its limit.
    OutOfMemory,
    /// The input is not a request. That was logged.
    Malformed,
    /// A request is longer than any that a migration has.
    TooLongRequest,
    /// A command was refused, or is not allowed in the stream. Contains the error.
    Refused {
        /// The error.
        error: String,
        /// The command.
        command: &'static str,
    },
}

/// A message of the migration protocol among the requests of a source.
struct ProtocolMessage {
    words: Vec<Vec<u8>>,
    /// The end of the request in the input.
    end: usize,
}

/// Executes the streams of imports.
pub struct ImportExecutor {
    thread: ThreadState,
    plans: Plans,
}

/// The only connection of a batch.
struct SourceConnection<'a> {
    connection: &'a mut Connection,
    scope: &'a ImportScope<'a>,
    server: &'a Arc<Server>,
    next_step: Option<NextStep>,
}

impl BatchConnections for SourceConnection<'_> {
    fn connection(&mut self, _: usize) -> Option<&mut Connection> {
        let is_over = self.scope.progress.has_ended() || self.server.replication.role_epoch() != self.scope.role_epoch;
        (!is_over).then_some(&mut *self.connection)
    }

    fn start_next_step(&mut self, _: usize, after: NextStep) {
        // Later commands wait until that is done.
        self.connection.state = ConnectionState::Parked(ParkId::NONE);
        self.next_step = Some(after);
    }

    fn notify(&mut self, thread: &mut ThreadState) {
        // This thread has no clients of its own, so everything is sent by mail.
        wake_workers(&thread.server, &mut thread.effects);
    }
}

impl ImportExecutor {
    /// Creates the executor of a thread.
    pub fn new(server: &Arc<Server>, seat: &Seat) -> Self {
        let mut thread = ThreadState::new(server.clone(), ThreadIndex::new(seat.index()));
        (thread.may_leave, thread.may_block, thread.replays) = (false, false, true);
        ImportExecutor {
            thread,
            plans: Plans::default(),
        }
    }

    /// Returns the bytes that evictions have added to the cell of threads without one of their own since the last call.
    pub fn take_shared_balance(&mut self) -> i64 {
        std::mem::take(&mut self.thread.memory_limit.shared_balance)
    }

    /// Executes the complete commands in a connection's input, up to the next message of the migration protocol.
    pub fn run(&mut self, seat: &mut Seat, connection: &mut Connection, scope: &ImportScope<'_>) -> ImportStep {
        let server = self.thread.server.clone();
        let is_over = || server.replication.role_epoch() != scope.role_epoch;
        loop {
            if is_over() {
                return ImportStep::Over;
            }
            self.thread.begin_batch(unix_ms());
            let rest = self.plan_commands(connection);
            let (runnable, message) = match self.check_plans(connection, scope) {
                Ok(checked) => checked,
                Err(failure) => {
                    self.plans.clear();
                    return ImportStep::Failed(failure);
                }
            };
            if runnable == 0 {
                let delay_or_refusal = message.as_ref().and_then(|_| self.admit_message(seat, connection));
                self.plans.clear();
                connection.is_in_batch = false;
                if let Some(step) = delay_or_refusal {
                    connection.discard_consumed();
                    return step;
                }
                if message.is_none() && self.is_too_long(connection.unexecuted_bytes()) {
                    return ImportStep::Failed(ImportFailure::TooLongRequest);
                }
                return self.take_message(connection, message);
            }
            self.plans.plans.truncate(runnable);
            let next_step = self.run_batch(seat, connection, scope);
            let mut refusal = None;
            if let Some(next_step) = next_step {
                refusal = self.run_next_step(seat, connection, next_step);
                connection.state = ConnectionState::Ready;
            }
            server.stats.activities.end(self.thread.thread_index);
            if let Some(failure) = self.finish_batch(connection).or(refusal) {
                return ImportStep::Failed(failure);
            }
            connection.discard_consumed_if_cheap();
            if connection.state != ConnectionState::Ready {
                connection.state = ConnectionState::Ready;
                connection.client.flags.set(ClientFlags::BLOCKED, false);
                return ImportStep::Delayed;
            }
            if is_over() {
                // Commands of the batch may be left, and would not be executed in the next one either.
                return ImportStep::Over;
            }
            let is_done = rest != InputRest::More && message.is_none();
            if is_done || scope.progress.has_ended() {
                return ImportStep::Idle;
            }
        }
    }

    /// Returns `true` if so many bytes of a request that is not complete may not be kept.
    fn is_too_long(&self, partial_bytes: usize) -> bool {
        partial_bytes > self.thread.tunables.query_buffer_limit.max(MIN_REQUEST_LIMIT)
    }

    fn plan_commands(&mut self, connection: &mut Connection) -> InputRest {
        let planner = Planner {
            keyspace: &self.thread.server.keyspace,
            max_bulk_len: self.thread.tunables.max_bulk_len.max(MIN_BULK_LIMIT),
            must_authenticate: must_authenticate(&self.thread.server, &connection.client),
            is_prefetch_enabled: self.thread.tunables.prefetch_depth > 1,
            commands: crate::commands::registry(),
        };
        planner.plan(0, connection, &mut self.plans)
    }

    /// Checks the planned commands. Returns the number of commands before the first message of the protocol, and that
    /// message.
    fn check_plans(
        &self,
        connection: &Connection,
        scope: &ImportScope<'_>,
    ) -> Result<(usize, Option<ProtocolMessage>), ImportFailure> {
        for (index, plan) in self.plans.plans.iter().enumerate() {
            let (command, binding) = match plan.kind {
                RequestKind::Command(command, binding) => (command, binding),
                RequestKind::Malformed(error) => {
                    log_protocol_error(&self.thread, connection, plan.start..plan.end, error);
                    return Err(ImportFailure::Malformed);
                }
                RequestKind::Unknown => return Err(not_allowed("an unknown command")),
            };
            if command.full_name == "cluster|syncslots" {
                let args = plan.args_of(&self.plans.ranges, &connection.input);
                let words = args.iter().map(<[u8]>::to_vec).collect();
                return Ok((index, Some(ProtocolMessage { words, end: plan.end })));
            }
            let is_select = command.full_name == "select";
            let keys = self.plans.keys.get(plan.key_range()).unwrap_or_default();
            let is_of_job = !keys.is_empty() && keys.iter().all(|key| scope.slots.contains(key.slot));
            if !is_select && (!is_of_job || !may_import(command, binding)) {
                return Err(not_allowed(command.full_name));
            }
        }
        Ok((self.plans.plans.len(), None))
    }

    /// Admits the message that the first plan contains: the rules of the source's user may have changed since the
    /// source has connected. Returns the step that follows if the message is not processed now.
    fn admit_message(&mut self, seat: &mut Seat, connection: &mut Connection) -> Option<ImportStep> {
        let ImportExecutor { thread, plans } = self;
        let plan = plans.plans.first()?;
        let RequestKind::Command(command, _) = plan.kind else {
            return None;
        };
        let _pass = seat.enter();
        thread.begin_passage();
        let Connection { client, input, .. } = &mut *connection;
        let admission = admit(thread, client, command, || plan.args_of(&plans.ranges, input), &[]);
        let error = match admission {
            Admission::Run => return None,
            Admission::Paused | Admission::PutOff => return Some(ImportStep::Delayed),
            Admission::ClientClosing => return Some(ImportStep::Failed(not_allowed(command.full_name))),
            Admission::Refused(error) | Admission::Redirected(error) => error,
            Admission::Denied(denial) => {
                let args = plan.args_of(&plans.ranges, &connection.input);
                record_denial(thread, connection, command, args, denial)
            }
        };
        let metrics = &thread.server.stats.metrics;
        metrics.record_rejection(thread.thread_index, command.id as usize);
        // The source gets no reply.
        write_error(thread, &error, &mut Vec::new());
        Some(ImportStep::Failed(ImportFailure::Refused {
            error: String::from_utf8_lossy(&error.0).into_owned(),
            command: command.full_name,
        }))
    }

    /// Consumes the message at the start of the input, if there is one.
    fn take_message(&self, connection: &mut Connection, message: Option<ProtocolMessage>) -> ImportStep {
        let Some(ProtocolMessage { words, end }) = message else {
            connection.discard_consumed();
            return ImportStep::Idle;
        };
        connection.client.last_command = "cluster|syncslots";
        connection.end_request(end, || false);
        connection.discard_consumed();
        ImportStep::Message(words)
    }

    fn run_batch(&mut self, seat: &mut Seat, connection: &mut Connection, scope: &ImportScope<'_>) -> Option<NextStep> {
        let server = self.thread.server.clone();
        connection.client.login.refresh(&server.acl);
        let mut only = SourceConnection {
            connection,
            scope,
            server: &server,
            next_step: None,
        };
        batch::run_plans(&mut self.thread, seat, &mut self.plans, &mut only);
        let next_step = only.next_step.take();
        self.plans.clear();
        connection.is_in_batch = false;
        next_step
    }

    /// Executes the next step of a command. Returns the failure if it would wait for another server.
    fn run_next_step(&self, seat: &mut Seat, connection: &Connection, next_step: NextStep) -> Option<ImportFailure> {
        let server = &self.thread.server;
        match next_step {
            // All migrations of this node would wait with it.
            NextStep::Background(work) if work.waits_for_server => {
                return Some(not_allowed(connection.client.last_command));
            }
            NextStep::Background(work) => drop(work.run_to_end(server, seat)),
            NextStep::AwaitServing(withheld) => server
                .worker(ThreadIndex::FIRST)
                .send(Message::ServeWaiters(withheld.0)),
            // Replies that no client receives, and waits that the stream must not make.
            _ => {}
        }
        None
    }

    /// Completes a batch after its leases have ended. Returns the failure if a command replied with an error.
    fn finish_batch(&mut self, connection: &mut Connection) -> Option<ImportFailure> {
        let thread = &mut self.thread;
        let server = thread.server.clone();
        thread.collect_ready_keys();
        for unserved in thread.unserved.drain(..) {
            server.worker(ThreadIndex::FIRST).send(Message::ServeWaiters(unserved));
        }
        NotificationSender::new(&server, &mut thread.effects, thread.thread_index).send_broadcasts();
        wake_workers(&server, &mut thread.effects);
        wait_for_full_mailbox(&server, &mut thread.effects, MAX_FULL_MAILBOX_WAIT);
        thread.effects.outbox.clear();
        thread.effects.expired.clear();
        let failed = thread.failed_command.take().unwrap_or(connection.client.last_command);
        let failure = first_error(&connection.output.bytes).map(|error| match error.starts_with(b"OOM ") {
            true => ImportFailure::OutOfMemory,
            false => ImportFailure::Refused {
                error: String::from_utf8_lossy(error).into_owned(),
                command: failed,
            },
        });
        connection.output.clear();
        if connection.client.flags.intersects(ClientFlags::CLOSING) {
            return failure.or_else(|| Some(not_allowed(connection.client.last_command)));
        }
        failure
    }
}

/// Returns `true` if the source of a migration may send the command, provided that its keys are in the job's slots.
/// MIGRATE writes to another server as well, and waits for it.
fn may_import(command: &Command<Binding>, binding: Binding) -> bool {
    command.spec.flags.intersects(WRITE_FLAGS) && binding.mode != HandlerMode::Script && command.full_name != "migrate"
}

fn not_allowed(command: &'static str) -> ImportFailure {
    ImportFailure::Refused {
        error: "ERR The command does not belong to the slots of the migration".to_owned(),
        command,
    }
}
