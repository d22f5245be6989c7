//! A thread's writer for the propagation log: it collects the ops of a unit until the unit gets its sequence number.
//!
//! ```text
//!   call ─▶ also: ops before it (the deletion of an expired key)      ┐
//!        ─▶ instead / nothing: not the command as it was sent         │ ops ─▶ unit ─▶ one number
//!   call ends: the command, if it changed something or is forced      ┘
//! ```

use std::sync::Arc;

use weft_sync::RingWriter;

use super::{CROWDED_BYTES, PropagationLog};

/// The set of consumers that an op is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target(pub(super) u8);

impl Target {
    /// No consumer.
    pub const NOBODY: Target = Target(0);
    /// The append-only file.
    pub const FILE: Target = Target(1);
    /// The replicas.
    pub const REPLICAS: Target = Target(2);
    /// The append-only file and the replicas.
    pub const ALL: Target = Target(3);

    /// Creates a target from bits: bit 0 is the append-only file, bit 1 the replicas.
    pub const fn of_bits(bits: u8) -> Target {
        Target(bits & 3)
    }

    /// Returns the intersection.
    #[inline]
    pub const fn and(self, other: Target) -> Target {
        Target(self.0 & other.0)
    }

    /// Returns the union.
    #[inline]
    pub const fn or(self, other: Target) -> Target {
        Target(self.0 | other.0)
    }

    /// Returns `true` if the set is not empty.
    #[inline]
    pub const fn is_any(self) -> bool {
        self.0 != 0
    }
}

/// Marks the first op of a unit that has several.
pub(super) const OPENS: u8 = 1 << 6;
/// Marks the last op of a unit that has several.
pub(super) const CLOSES: u8 = 1 << 7;
/// The size of the header of an op in bytes: flags and target, database, length.
pub(super) const OP_HEADER_BYTES: usize = 13;

/// Returns the database and the length of an op. The length may be 4 GiB or more.
pub(super) fn db_and_length(header: &[u8]) -> (u32, usize) {
    let (mut db, mut length) = ([0; 4], [0; 8]);
    db.copy_from_slice(&header[1..5]);
    length.copy_from_slice(&header[5..OP_HEADER_BYTES]);
    (u32::from_le_bytes(db), u64::from_le_bytes(length) as usize)
}

/// The command that is propagated for a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Repeat {
    /// The command as it was sent.
    #[default]
    Verbatim,
    /// Another command.
    Instead,
    /// No command.
    Nothing,
}

/// The propagation requested by a call, as detached by [`LogWriter::take_rewritten`].
pub struct RewrittenCommands {
    repeat: Repeat,
    instead: Vec<u8>,
    ops: Vec<u8>,
    unit_ops: u32,
    last_op: usize,
}

/// A thread's writer for the propagation log.
#[derive(Default)]
pub struct LogWriter {
    end: Option<(Arc<PropagationLog>, RingWriter)>,
    /// The ops since the last sequence number, each with header and command.
    ops: Vec<u8>,
    /// The position in `ops` at which the current unit begins.
    unit: usize,
    /// The number of ops of the current unit.
    unit_ops: u32,
    /// The position in `ops` at which the last op begins.
    last_op: usize,
    repeat: Repeat,
    instead: Vec<u8>,
    /// The consumers to which the current call is propagated even if it changes nothing.
    forced: Target,
    /// Set if deletions of expired keys free them in the background. They are then propagated as UNLINK.
    pub lazy_expire: bool,
    /// Set if the size of units has to be measured.
    pub measures: bool,
    measured_bytes: usize,
    last_ticket: u64,
    /// Set after a commit until the log thread has been woken.
    news: bool,
}

impl LogWriter {
    pub(super) fn new(propagation: Arc<PropagationLog>, writer: RingWriter) -> Self {
        let mut log_writer = LogWriter::default();
        log_writer.end = Some((propagation, writer));
        log_writer
    }

    /// Propagates this command in addition to the current call, before it.
    #[cold]
    pub fn propagate_before(&mut self, target: Target, db: usize, words: &[&[u8]]) {
        let start = self.begin_op(target, db);
        write_command(words.iter().copied(), &mut self.ops);
        self.end_op(start);
    }

    /// Propagates this command instead of the current call.
    #[cold]
    pub fn propagate_instead(&mut self, words: &[&[u8]]) {
        self.instead.clear();
        write_command(words.iter().copied(), &mut self.instead);
        self.repeat = Repeat::Instead;
    }

    /// Does not propagate the current call. Additional commands stay.
    #[cold]
    pub fn propagate_nothing(&mut self) {
        self.repeat = Repeat::Nothing;
    }

    /// Propagates the current call even if it changes nothing.
    #[cold]
    pub fn force_propagation(&mut self, target: Target) {
        self.forced = self.forced.or(target);
    }

    /// Returns `true` if the current call is not propagated as it was sent.
    pub fn is_rewritten(&self) -> bool {
        self.repeat != Repeat::Verbatim
    }

    /// Resets the current call, because it runs again from its start or did not happen. Additional commands stay.
    pub fn discard_call(&mut self) {
        self.repeat = Repeat::Verbatim;
        self.forced = Target::NOBODY;
    }

    /// Detaches the propagation requested by a call on copies of its keys. It is attached again when the result is
    /// applied to the keys themselves.
    pub fn take_rewritten(&mut self) -> RewrittenCommands {
        let said = RewrittenCommands {
            repeat: self.repeat,
            instead: std::mem::take(&mut self.instead),
            ops: std::mem::take(&mut self.ops),
            unit_ops: self.unit_ops,
            last_op: self.last_op,
        };
        self.clear();
        said
    }

    /// Attaches what [`Self::take_rewritten`] has returned.
    pub fn restore_rewritten(&mut self, said: RewrittenCommands) {
        if said.unit_ops > 0 {
            self.last_op = self.ops.len() + said.last_op;
            self.unit_ops += said.unit_ops;
            self.ops.extend_from_slice(&said.ops);
        }
        (self.repeat, self.instead) = (said.repeat, said.instead);
    }

    /// Discards everything since the last sequence number, because it was done to a copy.
    pub fn clear(&mut self) {
        self.ops.clear();
        (self.unit, self.unit_ops) = (0, 0);
        self.discard_call();
    }

    /// Ends a call. `on` is the set of existing consumers.
    #[cold]
    pub fn end_call<'w>(
        &mut self,
        on: Target,
        db: usize,
        changed: bool,
        words: impl ExactSizeIterator<Item = &'w [u8]>,
    ) {
        let target = if changed { on } else { self.forced.and(on) };
        match self.repeat {
            _ if !target.is_any() => {}
            Repeat::Nothing => {}
            Repeat::Verbatim => {
                let start = self.begin_op(target, db);
                write_command(words, &mut self.ops);
                self.end_op(start);
            }
            Repeat::Instead => {
                let start = self.begin_op(target, db);
                self.ops.extend_from_slice(&self.instead);
                self.end_op(start);
            }
        }
        self.discard_call();
    }

    fn begin_op(&mut self, target: Target, db: usize) -> usize {
        let start = self.ops.len();
        self.ops.push(target.0);
        self.ops.extend_from_slice(&(db as u32).to_le_bytes());
        self.ops.extend_from_slice(&[0; 8]);
        start
    }

    fn end_op(&mut self, start: usize) {
        let length = self.ops.len() - start - OP_HEADER_BYTES;
        self.ops[start + 5..start + OP_HEADER_BYTES].copy_from_slice(&(length as u64).to_le_bytes());
        self.last_op = start;
        self.unit_ops += 1;
    }

    /// Ends the unit of a command. If `measures` is set, records the number of bytes of the unit that each replica
    /// receives.
    #[inline]
    pub fn end_measured_unit(&mut self) {
        if self.measures {
            self.measured_bytes = self.unit_bytes(Target::REPLICAS);
        }
        self.end_unit();
    }

    /// Returns the recorded number of bytes and resets it to 0.
    pub fn take_measured(&mut self) -> usize {
        std::mem::take(&mut self.measured_bytes)
    }

    /// Returns the number of bytes of the current unit that a consumer with this target receives, without SELECT.
    #[cold]
    fn unit_bytes(&self, target: Target) -> usize {
        let mut rest = &self.ops[self.unit..];
        let mut bytes = match self.unit_ops {
            0 | 1 => 0,
            _ => b"*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n".len(),
        };
        while let Some((header, behind)) = rest.split_at_checked(OP_HEADER_BYTES) {
            let (_, length) = db_and_length(header);
            if header[0] & target.0 != 0 {
                bytes += length;
            }
            rest = behind.get(length..).unwrap_or_default();
        }
        bytes
    }

    /// Ends a unit. If it has several ops, they are propagated as a transaction.
    #[inline]
    pub fn end_unit(&mut self) {
        if self.unit_ops > 1 {
            self.ops[self.unit] |= OPENS;
            self.ops[self.last_op] |= CLOSES;
        }
        self.unit_ops = 0;
        self.unit = self.ops.len();
    }

    /// Returns `true` if there are ops without a sequence number.
    #[inline]
    pub fn has_pending_ops(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Ends the unit, and publishes everything since the last sequence number under the next one. The caller must still
    /// hold the leases under which the changes were made.
    #[cold]
    pub fn commit(&mut self) {
        self.end_unit();
        if self.ops.is_empty() {
            return;
        }
        if let Some((propagation, writer)) = &mut self.end {
            let ticket = propagation.next_sequence();
            writer.push(ticket, &self.ops);
            self.last_ticket = ticket;
            self.news = true;
        }
        self.ops.clear();
        self.unit = 0;
    }

    /// Returns the last sequence number of this thread; 0 before the first.
    #[inline]
    pub fn last_sequence(&self) -> u64 {
        self.last_ticket
    }

    /// Returns `true` if the log thread is so far behind that this thread has to defer writes.
    #[inline]
    pub fn is_backlogged(&self) -> bool {
        self.end
            .as_ref()
            .is_some_and(|(_, writer)| writer.unread() > CROWDED_BYTES)
    }

    /// Wakes the log thread if it sleeps. The caller must not hold a lease, since this may make a system call.
    #[inline]
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.news)
            && let Some((propagation, _)) = &self.end
        {
            propagation.wake();
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        if let Some((propagation, writer)) = self.end.take() {
            propagation.wake();
            propagation.give_back(writer);
        }
    }
}

/// Appends a command in RESP, the form used in files and replication streams.
pub fn write_command<'w>(words: impl ExactSizeIterator<Item = &'w [u8]>, out: &mut Vec<u8>) {
    begin_command(words.len(), out);
    words.for_each(|word| write_word(word, out));
}

/// Appends the header of a command of `words` words. The caller appends the words with [`write_word`].
pub fn begin_command(words: usize, out: &mut Vec<u8>) {
    write_number(b'*', words, out);
}

/// Appends one word of a command.
pub fn write_word(word: &[u8], out: &mut Vec<u8>) {
    write_number(b'$', word.len(), out);
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn write_number(mark: u8, number: usize, out: &mut Vec<u8>) {
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}
