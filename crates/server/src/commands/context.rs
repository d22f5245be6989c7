//! The context of a handler: arguments, keys, the reply, its client and the server.

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

/// The mode in which a command is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Under the leases of its keys (none, if it has no keys).
    Leased,
    /// With the whole keyspace to itself.
    Exclusive,
    /// As a script: under the leases of its keys, and of all further keys that it reaches. The handler only reads the
    /// arguments; the dispatcher runs the script.
    Script,
}

/// A handler and how it is executed.
#[derive(Clone, Copy)]
pub struct Binding {
    /// The handler.
    pub run: Handler,
    /// The mode.
    pub mode: Mode,
    /// `true` if it writes keys that its key specifications call read-only.
    pub writes_all_keys: bool,
    /// The index of the argument that names the member or field to look up; 0 for none. In a large collection, the
    /// memory that leads to it is prefetched. [`ALL_MEMBERS`], [`HEAD_ELEMENTS`] and [`TAIL_ELEMENTS`] stand for such
    /// parts of a collection.
    pub member: u8,
    /// `true` if it reaches keys that no plan knows: a transaction with it needs the whole keyspace.
    pub reaches_further: bool,
    /// `true` if it reports the offset of the replication stream, which must cover every write answered before.
    pub tells_offset: bool,
    /// `true` if it needs the threads that own the clients. In a transaction their answers are collected beforehand.
    pub asks: bool,
}

/// Stands for all members or fields, in the place of an argument's index.
pub const ALL_MEMBERS: u8 = u8::MAX;
/// Stands for the first elements of a list.
pub const HEAD_ELEMENTS: u8 = u8::MAX - 1;
/// Stands for the last elements of a list, or entries of a stream.
pub const TAIL_ELEMENTS: u8 = u8::MAX - 2;

impl Binding {
    /// Returns the binding of a command that reaches keys which no plan knows.
    pub const fn reaching_further(mut self) -> Self {
        self.reaches_further = true;
        self
    }

    /// Returns the binding of a command that reports the offset of the replication stream.
    pub const fn telling_offset(mut self) -> Self {
        self.tells_offset = true;
        self
    }

    /// Returns the binding of a command about all clients.
    pub const fn asking(mut self) -> Self {
        self.asks = true;
        self
    }

    /// Returns the binding of a command that looks up the member or field in argument `index`.
    pub const fn of_member(mut self, index: u8) -> Self {
        self.member = index;
        self
    }

    /// Returns the binding of a command that changes one end of a list, or of a stream.
    pub const fn of_end(self, end: ListEnd) -> Self {
        self.of_member(match end {
            ListEnd::Head => HEAD_ELEMENTS,
            ListEnd::Tail => TAIL_ELEMENTS,
        })
    }

    /// Returns the binding of a command that reads all members or fields.
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

/// The context of a handler.
pub struct Context<'a, 'p> {
    /// Arguments, the command's name first.
    pub args: Args<'a>,
    /// The keys, under leases.
    pub keys: Keys<'a, 'p>,
    /// The reply.
    pub reply: Reply<'a>,
    /// Big values spliced into the reply by reference.
    pub shared: SharedValues<'a>,
    /// The client.
    pub client: &'a mut Client,
    /// The server.
    pub server: &'a Arc<Server>,
    /// The command itself.
    pub command: &'static Command<Binding>,
    /// The passage through the gate; `None` in exclusive mode.
    pub pass: Option<&'a GatePassage<'p>>,
    /// Milliseconds since the epoch, the same for a whole batch.
    pub now_ms: u64,
    /// `true` if the handler may move to a background thread; not if it runs on one already, in exclusive mode, or as a
    /// part of a transaction or script.
    pub may_leave: bool,
    /// `true` if the client may block for keys. Otherwise a blocking command that finds nothing replies as after a
    /// timeout.
    pub may_block: bool,
    /// The next step.
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

    /// Returns the time at which keys are alive, in milliseconds since the Unix epoch. For a primary's commands this is
    /// not the current time, because nothing expires for them.
    #[inline]
    pub fn alive_ms(&self) -> u64 {
        self.keys.context.now_ms
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

    /// Returns the time that this handler may take here, in nanoseconds; longer work leaves the worker if possible.
    #[inline]
    pub fn in_place_ns(&self) -> u64 {
        if self.may_leave { LONG_NS } else { u64::MAX }
    }

    /// Decides if work of `estimated_ns` is too long for this worker's other clients. If so, moves it and returns
    /// `true`.
    #[inline]
    pub fn leaves_worker(&mut self, estimated_ns: u64) -> bool {
        let leaves = estimated_ns > self.in_place_ns();
        if leaves {
            self.leave();
        }
        leaves
    }

    /// Lets a background thread run the handler again from its start: on a snapshot of its keys if possible, otherwise
    /// under the same leases. The handler, which has changed nothing yet, returns at once. Not for handlers that change
    /// their client.
    #[cold]
    pub fn leave(&mut self) {
        debug_assert!(self.may_leave, "only what may leave leaves");
        self.after = match self.keys.snapshot(&self.uses(), &self.server.keyspace) {
            SnapshotAttempt::Taken(snapshot) => NextStep::Leave(Some(snapshot)),
            SnapshotAttempt::NotPossible => NextStep::Leave(None),
            SnapshotAttempt::Deferred => NextStep::Defer,
        };
    }

    /// Lets a background thread run the handler again, under the same leases from start to end, because it reaches keys
    /// that no plan knows.
    #[cold]
    pub fn leave_under_leases(&mut self) {
        debug_assert!(self.may_leave, "only what may leave leaves");
        self.after = NextStep::Leave(None);
    }

    /// Returns the command's use of each of its keys, if a snapshot may stand for them; otherwise nothing.
    fn uses(&self) -> Vec<KeyUse> {
        let spec = self.command.spec;
        let waits = spec.flags.contains(CommandFlags::BLOCKING);
        let mut uses = Vec::new();
        if !waits && !matches!(spec.group, Group::Scripting | Group::Connection | Group::Server) {
            walk(spec, &self.args, &mut |position| uses.push(position.flags));
        }
        let use_of = |(key, flags): (&PlannedKey, KeyFlags)| match (key.is_write, flags.replaces()) {
            (false, _) => KeyUse::Read,
            (true, true) => KeyUse::Replace,
            (true, false) => KeyUse::Change,
        };
        self.keys.planned.iter().zip(uses).map(use_of).collect()
    }

    /// Lets a background thread do work that needs no keys. In a transaction or script the work is done at once,
    /// because other commands follow.
    ///
    /// # Errors
    /// The error of work that was done at once.
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
            // As in Valkey, everything logged by now counts as the client's.
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
