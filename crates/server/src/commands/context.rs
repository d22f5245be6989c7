//! What a handler gets: arguments, keys, the reply, its client and the server.

use weft_reactor::SharedValues;
use weft_resp::{Args, Protocol, Reply};
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::list::ListEnd;

use std::sync::Arc;

use super::error::CommandError;
use super::keys::walk;
use super::registry::Command;
use super::spec::{Flags as CommandFlags, Group, KeyFlags};
use crate::keyspace::GatePassage;
use crate::keyspace::access::{KeyUse, Keys, PlannedKey, SnapshotAttempt};
use crate::net::client::Client;
use crate::state::{Job, Server};

pub use crate::state::{BackgroundReply, NextStep};

/// The end of a handler: the reply is written, or an error is.
pub type CommandResult = Result<(), CommandError>;

/// A handler.
pub type Handler = for<'a, 'p> fn(&mut Context<'a, 'p>) -> CommandResult;

/// How a command is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Under the leases of its keys (none, if it has no keys).
    Leased,
    /// With the whole keyspace to itself.
    Exclusive,
    /// As a script: under the leases of its keys, and of what else it turns out to need. The handler only reads the
    /// arguments; the dispatcher runs the script.
    Script,
}

/// A handler and how it is executed.
#[derive(Clone, Copy)]
pub struct Binding {
    /// The handler.
    pub run: Handler,
    /// Its mode.
    pub mode: Mode,
    /// Whether it writes keys that its key specifications call read-only.
    pub writes_all_keys: bool,
    /// Which argument names the member or field that it looks for; 0 for none. In a large collection the memory that
    /// leads to it is fetched beforehand. [`ALL_MEMBERS`], [`HEAD_ELEMENTS`] and [`TAIL_ELEMENTS`] stand for what they
    /// say.
    pub member: u8,
    /// Whether it reaches keys that no plan knows: a transaction with it needs the whole keyspace.
    pub reaches_further: bool,
    /// Whether it tells the offset of the replication stream, which must cover whatever was replied to before.
    pub tells_offset: bool,
    /// Whether it tells or does what only the threads that own the clients can: in a transaction that is found out
    /// beforehand.
    pub asks: bool,
}

/// Stands for all members or fields, where the argument that names one could stand.
pub const ALL_MEMBERS: u8 = u8::MAX;
/// Stands for the first elements of a list.
pub const HEAD_ELEMENTS: u8 = u8::MAX - 1;
/// Stands for the last elements of a list, or entries of a stream.
pub const TAIL_ELEMENTS: u8 = u8::MAX - 2;

impl Binding {
    /// The same, for a command that reaches keys which no plan knows.
    pub const fn reaching_further(mut self) -> Self {
        self.reaches_further = true;
        self
    }

    /// The same, for a command that tells the offset of the replication stream.
    pub const fn telling_offset(mut self) -> Self {
        self.tells_offset = true;
        self
    }

    /// The same, for a command about all clients.
    pub const fn asking(mut self) -> Self {
        self.asks = true;
        self
    }

    /// The same, for a command that looks for the member or field that argument `index` names.
    pub const fn of_member(mut self, index: u8) -> Self {
        self.member = index;
        self
    }

    /// The same, for a command that changes one end of a list, or of a stream.
    pub const fn of_end(self, end: ListEnd) -> Self {
        self.of_member(match end {
            ListEnd::Head => HEAD_ELEMENTS,
            ListEnd::Tail => TAIL_ELEMENTS,
        })
    }

    /// The same, for a command that reads all members or fields.
    pub const fn of_all_members(self) -> Self {
        self.of_member(ALL_MEMBERS)
    }
}

/// Binds a handler that runs under the leases of its keys.
pub const fn leased(run: Handler) -> Binding {
    Binding {
        run,
        mode: Mode::Leased,
        writes_all_keys: false,
        member: 0,
        reaches_further: false,
        tells_offset: false,
        asks: false,
    }
}

/// Binds a handler that runs under the leases of its keys and writes them all, whatever the key specifications say.
pub const fn leased_to_write(run: Handler) -> Binding {
    Binding {
        run,
        mode: Mode::Leased,
        writes_all_keys: true,
        member: 0,
        reaches_further: false,
        tells_offset: false,
        asks: false,
    }
}

/// Binds a command that runs a script. There is no handler to call: the dispatcher sees to it.
pub const fn script() -> Binding {
    Binding {
        run: |_| unreachable!("the dispatcher runs scripts"),
        mode: Mode::Script,
        writes_all_keys: false,
        member: 0,
        reaches_further: false,
        tells_offset: false,
        asks: false,
    }
}

/// Binds a handler that needs the whole keyspace.
pub const fn exclusive(run: Handler) -> Binding {
    Binding {
        run,
        mode: Mode::Exclusive,
        writes_all_keys: true,
        member: 0,
        reaches_further: false,
        tells_offset: false,
        asks: false,
    }
}

/// Work above this estimate leaves the worker, ns: what its other clients may be made to wait.
const LONG_NS: u64 = 200_000;

/// What a handler works with.
pub struct Context<'a, 'p> {
    /// Arguments, the command's name first.
    pub args: Args<'a>,
    /// Its keys, under leases.
    pub keys: Keys<'a, 'p>,
    /// The reply.
    pub reply: Reply<'a>,
    /// Big values spliced into the reply by reference.
    pub shared: SharedValues<'a>,
    /// Who asks.
    pub client: &'a mut Client,
    /// The server.
    pub server: &'a Arc<Server>,
    /// The command itself.
    pub command: &'static Command<Binding>,
    /// The passage through the gate; `None` in exclusive mode.
    pub pass: Option<&'a GatePassage<'p>>,
    /// Milliseconds since the epoch, the same for a whole batch.
    pub now_ms: u64,
    /// Whether the handler may hand itself to a background thread; not when it runs on one already, in
    /// exclusive mode, or as a part of something larger.
    pub may_leave: bool,
    /// Whether the client may be made to wait for keys; if not, a blocking command that finds nothing answers as if
    /// its time were over.
    pub may_block: bool,
    /// What follows.
    pub after: NextStep,
}

impl<'a> Context<'a, '_> {
    /// The n-th argument; empty when there is none.
    #[inline]
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.args.argument(index)
    }

    /// Number of arguments, the command's name included.
    #[inline]
    pub fn argc(&self) -> usize {
        self.args.len()
    }

    /// What expires before has expired, ms since the epoch. Not the time for a primary's commands: nothing expires for
    /// them by itself.
    #[inline]
    pub fn alive_ms(&self) -> u64 {
        self.keys.access.now_ms
    }

    /// Replies with these lines, as the HELP subcommands do.
    pub fn reply_with_lines(&mut self, lines: &[&str]) -> CommandResult {
        self.reply.array(lines.len());
        for line in lines {
            self.reply.simple(line);
        }
        Ok(())
    }

    /// Replies with the string value of the n-th key, or null; an error for another type.
    #[inline]
    pub fn reply_with_string(&mut self, index: usize) -> CommandResult {
        match self.keys.read(index) {
            None => {
                self.reply.null();
                Ok(())
            }
            Some(entry) => bulk_of(&mut self.reply, &mut self.shared, entry),
        }
    }

    /// How long this handler may take here, ns: longer work leaves the worker, if it can.
    #[inline]
    pub fn in_place_ns(&self) -> u64 {
        if self.may_leave { LONG_NS } else { u64::MAX }
    }

    /// Whether work of `estimated_ns` is too long for this worker's other clients. If so, it leaves.
    #[inline]
    pub fn leaves_worker(&mut self, estimated_ns: u64) -> bool {
        let leaves = estimated_ns > self.in_place_ns();
        if leaves {
            self.leave();
        }
        leaves
    }

    /// Has a background thread run the handler again from its start: on a snapshot of its keys if that can be, else
    /// under the same leases. The handler, which has changed nothing yet, returns at once. Not for handlers that change
    /// their client.
    #[cold]
    pub fn leave(&mut self) {
        debug_assert!(self.may_leave, "only what may leave leaves");
        self.after = match self.keys.snapshot(&self.uses(), &self.server.keyspace) {
            SnapshotAttempt::Taken(snapshot) => NextStep::Leave(Some(snapshot)),
            SnapshotAttempt::Unfit => NextStep::Leave(None),
            SnapshotAttempt::Wanted => NextStep::Defer,
        };
    }

    /// Has a background thread run the handler again, under the same leases from its start to its end: it reaches keys
    /// that no plan knows.
    #[cold]
    pub fn leave_under_leases(&mut self) {
        debug_assert!(self.may_leave, "only what may leave leaves");
        self.after = NextStep::Leave(None);
    }

    /// What the command does with each of its keys, if a snapshot of them may stand for them; else nothing.
    fn uses(&self) -> Vec<KeyUse> {
        let spec = self.command.spec;
        let waits = spec.flags.contains(CommandFlags::BLOCKING);
        let mut uses = Vec::new();
        if !waits && !matches!(spec.group, Group::Scripting | Group::Connection | Group::Server) {
            walk(spec, &self.args, &mut |position| uses.push(position.flags));
        }
        let use_of = |(key, flags): (&PlannedKey, KeyFlags)| match (key.write, flags.replaces()) {
            (false, _) => KeyUse::Read,
            (true, true) => KeyUse::Replace,
            (true, false) => KeyUse::Change,
        };
        self.keys.planned.iter().zip(uses).map(use_of).collect()
    }

    /// Has work that needs no keys done where it makes nobody wait; as a part of something larger it is done at once,
    /// for other commands come behind it.
    ///
    /// # Errors
    /// That of work that was done at once.
    pub fn off_worker(&mut self, work: impl FnOnce(&Arc<Server>) -> Vec<u8> + Send + 'static) -> CommandResult {
        if self.may_block {
            self.in_background(move |server, _| work(server));
            return Ok(());
        }
        let bytes = work(self.server);
        match bytes.strip_prefix(b"-") {
            Some(error) => Err(CommandError::bytes(error.trim_ascii_end().to_vec())),
            None => {
                self.reply.out.extend_from_slice(&bytes);
                Ok(())
            }
        }
    }

    /// Parks the connection and lets a background thread produce the reply.
    pub fn in_background(
        &mut self,
        work: impl FnOnce(&Arc<Server>, &mut crate::keyspace::Seat) -> Vec<u8> + Send + 'static,
    ) {
        self.after = NextStep::Background(Box::new(Box::new(work)));
    }
}

/// Writes an entry's string as a bulk reply; a refcounted value is spliced in without copying.
///
/// # Errors
/// `WRONGTYPE` when the entry is not a string.
#[inline]
pub fn bulk_of(reply: &mut Reply<'_>, shared: &mut SharedValues<'_>, entry: EntryRef<'_, Value>) -> CommandResult {
    match entry.value() {
        ValueRef::Bytes(bytes) => reply.bulk(bytes),
        ValueRef::Int(number) => reply.bulk_integer(number),
        ValueRef::Blob(blob) => {
            if blob.len() > SPLICE_BYTES {
                reply.bulk_header(blob.len());
                shared.push(reply.out.len(), Box::new(blob.clone()));
                reply.crlf();
            } else {
                reply.bulk(blob);
            }
        }
        ValueRef::Packed(_) | ValueRef::Object(_) => return Err(CommandError::WRONG_TYPE),
    }
    Ok(())
}

/// Values above this size are sent by reference.
pub const SPLICE_BYTES: usize = 16 * 1024;

/// Runs a job on a background thread and mails its reply.
pub fn background_job(work: BackgroundReply, origin: (usize, u64, u64)) -> Job {
    Box::new(move |server, seat| {
        let bytes = work(server, seat);
        let (worker, client, ticket) = origin;
        server.workers[worker].send(crate::state::Message::Reply {
            client,
            ticket,
            bytes,
            // As in Valkey, whatever was logged by now counts as the client's.
            log_ticket: server.propagation.last_sequence(),
        });
    })
}

/// The protocol of a client, for replies that are produced elsewhere.
pub fn reply_bytes(protocol: Protocol, write: impl FnOnce(&mut Reply<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = Reply {
        out: &mut out,
        protocol,
    };
    write(&mut reply);
    out
}
