//! Threads that run the commands of an append-only file, while the caller reads them.
//!
//! ```text
//!               ┌─ commands on slots 0, n, 2n, … ─▶ replay thread 0 ─▶ leases ─▶ handlers
//!   reader ─────┤
//!     │         └─ commands on slots 1, n+1, … ───▶ replay thread 1 ─▶ leases ─▶ handlers
//!     └─ any other command: waits until all earlier ones have run, and runs alone
//! ```
//!
//! 1. A command goes to a thread if it writes, runs no script, accesses no keys except those it names, is not part of a
//!    transaction, and all its keys lie in one slot ([`is_local`]). Nothing else that it does depends on other slots. A
//!    slot belongs to one thread, whose queue is in the order of the file. So the commands of a slot run in the order
//!    of the file.
//! 2. Every other command is a barrier: the reader runs it in exclusive mode, after all earlier commands and before all
//!    later ones. SELECT only changes the database of the commands that follow, so it is no barrier.
//! 3. Commands are sent in full batches only. What is left of them at a barrier, the reader runs itself. So a file that
//!    consists of barriers costs no wake-ups.
//! 4. The reader waits for memory in flight, for the end of all batches, and for pauses; a thread waits for batches and
//!    for the end of a pause, never for another thread.
//! 5. A batch that is dropped is no longer in flight, also if its thread panics. The reader then finds the queue
//!    closed, and passes the panic on when it joins the thread.

use std::panic::resume_unwind;
use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, ThreadIndex};
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;
use weft_modules::module::home_commands;
use weft_os::sync::mpsc::{Receiver, Sender, channel};
use weft_os::thread::{Builder, Scope, ScopedJoinHandle};
use weft_resp::ArgRange;

use crate::commands::context::{Binding, HandlerMode};
use crate::keyspace::access::{HeldLeases, Lease};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Seat, Slot, SlotHeader};
use crate::observability::memory;
use crate::persistence::rdb_file::{InFlightBytes, InFlightShare};
use crate::state::Server;

use super::execute::{apply_effects, run_handler};
use super::home_events::HomeEvents;
use super::plan::{CommandPlan, Plans, RequestKind};
use super::replay::ReplayClient;
use super::request::Request;

/// The number of bytes of requests after which a batch is full.
const BATCH_BYTES: usize = if cfg!(feature = "simulated") { 128 } else { 64 * 1024 };
/// The number of commands that a thread runs without letting a pause begin.
const COMMANDS_PER_PASSAGE: usize = 64;
/// The number of commands between the one whose slot is prefetched and the one that runs.
const SLOT_PREFETCH_COMMANDS: usize = 16;
/// The number of commands between the one whose bucket is prefetched and the one that runs.
const BUCKET_PREFETCH_COMMANDS: usize = 8;

/// The keyspace, shared by the threads.
pub(super) type SharedSlots<'a> = weft_sync::SharedExclusive<'a, SlotHeader, Slot>;

/// Returns `true` if a command outside transactions affects only the slot of its keys, which is the same for all.
pub(super) fn is_local(command: &Command<Binding>, binding: Binding, keys: &[PlannedKey]) -> bool {
    let flags = command.spec.flags;
    let Some((first, rest)) = keys.split_first() else {
        return false;
    };
    binding.mode == HandlerMode::Leased
        && !binding.needs_modules()
        && !HomeEvents::current().concern(flags)
        && !home_commands::are_required()
        && !binding.has_undeclared_keys
        && flags.contains(CommandFlags::WRITE)
        && !flags.intersects(CommandFlags::BLOCKING.union(CommandFlags::ADMIN))
        && rest.iter().all(|key| key.slot == first.slot)
}

/// Commands of one thread.
#[derive(Default)]
pub(super) struct CommandBatch {
    /// The requests.
    bytes: Vec<u8>,
    plans: Plans,
    /// The database of each command.
    databases: Vec<DbIndex>,
}

impl CommandBatch {
    /// Adds a command.
    pub fn push(
        &mut self,
        (command, binding): (&'static Command<Binding>, Binding),
        db: DbIndex,
        request: &[u8],
        ranges: &[ArgRange],
        keys: &[PlannedKey],
    ) {
        let (start, plans) = (self.bytes.len(), &mut self.plans);
        self.bytes.extend_from_slice(request);
        let (first_range, first_key) = (plans.ranges.len() as u32, plans.keys.len() as u32);
        plans.ranges.extend_from_slice(ranges);
        plans.keys.extend_from_slice(keys);
        plans.plans.push(CommandPlan {
            token: 0,
            start,
            end: self.bytes.len(),
            args: first_range..plans.ranges.len() as u32,
            keys: first_key..plans.keys.len() as u32,
            probes_end: 0,
            kind: RequestKind::Command(command, binding),
        });
        self.databases.push(db);
    }

    /// Returns `true` if the batch is to be sent.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES
    }

    /// Runs the commands and empties the batch.
    pub fn run(&mut self, client: &mut ReplayClient, shared: &SharedSlots<'_>) {
        client.thread.begin_batch(unix_ms());
        let db_before = client.connection.client.db;
        client.connection.input.clear();
        std::mem::swap(&mut client.connection.input, &mut self.bytes);
        let count = self.plans.plans.len();
        for first in (0..count).step_by(COMMANDS_PER_PASSAGE) {
            let passage = shared.enter();
            for index in first..count.min(first + COMMANDS_PER_PASSAGE) {
                self.prefetch(index, shared);
                let plan = &self.plans.plans[index];
                let RequestKind::Command(command, binding) = plan.kind else {
                    unreachable!("a batch consists of commands");
                };
                let keys = &self.plans.keys[plan.key_range()];
                let mut lease = Lease::Write(passage.write(keys[0].slot.index()));
                client.connection.client.db = self.databases[index];
                let request = Request {
                    plan,
                    command,
                    binding,
                    ranges: &self.plans.ranges,
                };
                let (thread, connection) = (&mut client.thread, &mut client.connection);
                // The next step of a command concerns only its reply, which nothing receives.
                drop(run_handler(
                    thread,
                    None,
                    &request,
                    keys,
                    HeldLeases::One(&mut lease),
                    connection,
                ));
                drop(lease);
                apply_effects(thread);
                client.finish_command(command);
            }
        }
        client.connection.client.db = db_before;
        std::mem::swap(&mut client.connection.input, &mut self.bytes);
        self.bytes.clear();
        self.plans.clear();
        self.databases.clear();
    }

    fn prefetch(&self, index: usize, shared: &SharedSlots<'_>) {
        let key_of = |index: usize| {
            let plan = self.plans.plans.get(index)?;
            self.plans.keys.get(plan.keys.start as usize)
        };
        if let Some(key) = key_of(index + SLOT_PREFETCH_COMMANDS) {
            shared.domain().prefetch(key.slot.index());
        }
        if let Some(key) = key_of(index + BUCKET_PREFETCH_COMMANDS) {
            shared.domain().header(key.slot.index()).hint.prefetch_bucket(key.hash);
        }
    }
}

/// A batch on its way to a thread.
struct SentBatch<'b> {
    commands: CommandBatch,
    _in_flight: InFlightShare<'b>,
}

/// The threads that were started.
pub(super) struct ReplayThreads<'scope, 'b> {
    threads: Vec<ReplayThread<'scope, 'b>>,
    in_flight: &'b InFlightBytes,
}

struct ReplayThread<'scope, 'b> {
    thread: ScopedJoinHandle<'scope, ()>,
    batches: Sender<SentBatch<'b>>,
}

impl<'scope, 'b: 'scope> ReplayThreads<'scope, 'b> {
    /// Starts up to `count` threads, or none if that is below two. There are fewer if the system refuses a thread, or
    /// no seat is left at the keyspace.
    pub fn start(
        scope: &'scope Scope<'scope, '_>,
        count: usize,
        server: &'b Arc<Server>,
        shared: &'b SharedSlots<'b>,
        in_flight: &'b InFlightBytes,
    ) -> Self {
        let start = |index: usize| {
            let seat = server.keyspace.slots.join()?;
            let (batches, received) = channel();
            let thread = Builder::new()
                .name(format!("weft-load-{index}"))
                .spawn_scoped(scope, move || run_thread(server, &seat, shared, &received))
                .ok()?;
            Some(ReplayThread { thread, batches })
        };
        let wanted = if count > 1 { count } else { 0 };
        ReplayThreads {
            threads: (0..wanted).map_while(start).collect(),
            in_flight,
        }
    }
}

impl<'b> ReplayThreads<'_, 'b> {
    /// The number of threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Sends the commands of a batch to a thread. The reader is at `offset` in the file. Returns `false` if the thread
    /// has panicked.
    pub fn send(&self, thread: usize, batch: &mut CommandBatch, offset: u64) -> bool {
        let commands = std::mem::take(batch);
        let sent = SentBatch {
            _in_flight: self.in_flight.add(commands.bytes.len()),
            commands,
        };
        let is_sent = self.threads[thread].batches.send(sent).is_ok();
        self.in_flight.wait_for_reader(offset);
        is_sent
    }

    /// Waits until all commands that were sent have run.
    pub fn wait_until_idle(&self) {
        self.in_flight.wait_until_empty();
    }

    /// Waits for the threads to end.
    ///
    /// # Panics
    /// With the panic of a thread, if there was one.
    pub fn finish(self) {
        let end = |thread: ReplayThread<'_, '_>| {
            drop(thread.batches);
            thread.thread.join()
        };
        // All threads end before a panic is passed on.
        let ends: Vec<_> = self.threads.into_iter().map(end).collect();
        for end in ends {
            end.unwrap_or_else(|panic| resume_unwind(panic));
        }
    }
}

/// Runs the commands that the reader sends, until it sends no more.
fn run_thread(server: &Arc<Server>, seat: &Seat, shared: &SharedSlots<'_>, batches: &Receiver<SentBatch<'_>>) {
    let mut client = ReplayClient::new(server, ThreadIndex::new(seat.index()));
    while let Ok(mut batch) = batches.recv() {
        memory::use_own_arena();
        batch.commands.run(&mut client, shared);
        server.stats.activities.end(client.thread.thread_index);
    }
}
