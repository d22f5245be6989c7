//! Commands that turn out long leave their worker: a background thread runs them on a copy of the request.
//!
//! ```text
//!   worker                                       background thread
//!   ──────                                       ─────────────────
//!   run: leases, handler
//!     handler: ctx.leaves_worker(estimate)
//!   the leases end, reply and counts are undone
//!   Detached = request, keys, client's view ──▶  enter the gate
//!   the connection parks                         the same leases, all or nothing ──▶ refused: leave the
//!   ... other connections go on ...              the same handler, which stays        gate, sleep, again
//!   the connection goes on               ◀─────  reply and counts
//! ```
//!
//! 1. A handler decides before it has changed anything, and it decides from sizes that it looked up.
//! 2. A command of very many keys does not even take its leases on the worker: see [`has_many_keys`].
//! 3. The run on the background thread is the one that counts: replies, errors, calls, time, hits.
//! 4. The background thread has a copy of what handlers read of a client. A handler that changes its
//!    client never leaves.
//! 5. Between two attempts the thread holds nothing, so nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use weft_reactor::Output;
use weft_resp::ArgRange;

use crate::commands::context::{After, Binding};
use crate::commands::registry::Command;
use crate::commands::spec::Flags as CommandFlags;
use crate::commands::spec::Group;
use crate::keyspace::Seat;
use crate::keyspace::access::{Lease, PlannedKey};
use crate::keyspace::expiry;
use crate::net::client::Client;
use crate::net::connection::Connection;
use crate::state::{Asker, Job, Message, Server, WorkerId};
use weft_reactor::unix_ms;

use super::effects::{count, release};
use super::execute::{Outcome, Request, Thread, run_leased};
use super::plan::{Kind, Plan};

/// Commands with more keys than this leave the worker; leasing and looking up a key takes some 40 ns.
const MANY_KEYS: usize = 5000;
/// The first pause after refused leases; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);
/// The longest pause after refused leases.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// A command on its way to a background thread.
pub struct Detached {
    command: &'static Command<Binding>,
    binding: Binding,
    request: Vec<u8>,
    ranges: Vec<ArgRange>,
    keys: Vec<PlannedKey>,
    client: Client,
}

/// Whether a command leaves the worker for its number of keys alone. Only commands on data do: those that
/// wait, and those of the connection and of scripts, have to do with their client.
#[cold]
pub fn has_many_keys(thread: &Thread, command: &Command<Binding>, keys: usize) -> bool {
    let flags = command.spec.flags;
    let on_data = flags.intersects(CommandFlags::WRITE.with(CommandFlags::READONLY))
        && !flags.contains(CommandFlags::BLOCKING)
        && !matches!(command.spec.group, Group::Scripting | Group::Connection | Group::Server);
    thread.may_leave && keys > MANY_KEYS && on_data
}

impl Detached {
    /// Copies what the background thread needs of a request.
    #[cold]
    pub fn new(request: &Request<'_>, keys: &[PlannedKey], connection: &Connection) -> Box<Self> {
        let plan = request.plan;
        Box::new(Detached {
            command: request.command,
            binding: request.binding,
            request: connection.input[plan.start..plan.end].to_vec(),
            ranges: request.ranges[plan.args.0 as usize..plan.args.1 as usize].to_vec(),
            keys: keys.to_vec(),
            client: connection.client.view(),
        })
    }

    /// The job that runs the command and mails its reply to `asker` (worker, client, ticket).
    pub fn into_job(self: Box<Self>, asker: Asker) -> Job {
        Box::new(move |server, seat| {
            let (worker, client, ticket) = asker;
            let (output, after) = self.run(server, seat, worker);
            server.workers[worker].send(Message::Ran {
                client,
                ticket,
                output,
                after,
            });
        })
    }

    fn run(mut self, server: &Arc<Server>, seat: &mut Seat, worker: WorkerId) -> (Output, After) {
        let mut thread = Thread::new(server.clone(), seat.index());
        thread.may_leave = false;
        let plan = Plan {
            token: 0,
            start: 0,
            end: self.request.len(),
            args: (0, self.ranges.len() as u32),
            keys: (0, self.keys.len() as u32),
            probes_end: 0,
            kind: Kind::Command(self.command, self.binding),
        };
        let request = Request {
            plan: &plan,
            command: self.command,
            binding: self.binding,
            ranges: &self.ranges,
        };
        let mut connection = Connection::new(self.client);
        connection.input = self.request;
        let mut pause = FIRST_PAUSE;
        let after = loop {
            match attempt(&mut thread, seat, &request, &mut self.keys, &mut connection) {
                Outcome::Done => break After::Nothing,
                Outcome::After(after) => break after,
                Outcome::Contended => {
                    connection.lease_failures += 1;
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        };
        conclude(&mut thread, seat);
        for unserved in thread.unserved.drain(..) {
            server.workers[worker].send(Message::Serve(unserved));
        }
        (connection.output, after)
    }
}

/// One passage of the gate.
fn attempt(
    thread: &mut Thread,
    seat: &mut Seat,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    thread.begin(unix_ms());
    let pass = seat.enter();
    // Waiting at the gate is no command's time.
    thread.ticks = thread.timer.raw();
    let mut many: Vec<Lease<'_>> = Vec::new();
    run_leased(thread, &pass, request, keys, &mut many, connection)
}

/// Books what the command did, as the end of a batch does.
fn conclude(thread: &mut Thread, seat: &mut Seat) {
    let server = thread.server.clone();
    if !thread.effects.expired.is_empty() {
        expiry::delete_found(&server.keyspace, seat, thread.now_ms, &mut thread.effects);
        release(&mut thread.effects, &server);
        thread.keep_ready();
    }
    count(&mut thread.effects, &server, thread.seat);
}
