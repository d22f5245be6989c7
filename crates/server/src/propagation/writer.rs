//! A thread's hand in the log: what the commands of one unit want to be repeated, until it gets its ticket.
//!
//! ```text
//!   call ─▶ also: ops before it (the deletion of an expired key)      ┐
//!        ─▶ instead / nothing: not the command as it was sent         │ ops ─▶ unit ─▶ … ─▶ one ticket
//!   call ends: the command, if it changed something or is forced      ┘
//! ```

use std::sync::Arc;

use weft_sync::RingWriter;

use super::{CROWDED_BYTES, PropagationLog};

/// For whom an op is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target(pub(super) u8);

impl Target {
    /// Nobody.
    pub const NOBODY: Target = Target(0);
    /// The append-only file.
    pub const FILE: Target = Target(1);
    /// Replicas.
    pub const REPLICAS: Target = Target(2);
    /// Both.
    pub const ALL: Target = Target(3);

    /// The file for bit 0, replicas for bit 1.
    pub const fn of_bits(bits: u8) -> Target {
        Target(bits & 3)
    }

    /// What is in both.
    #[inline]
    pub const fn and(self, other: Target) -> Target {
        Target(self.0 & other.0)
    }

    /// What is in either.
    #[inline]
    pub const fn or(self, other: Target) -> Target {
        Target(self.0 | other.0)
    }

    /// Whether it is somebody.
    #[inline]
    pub const fn is_any(self) -> bool {
        self.0 != 0
    }
}

/// The first op of a unit that has several.
pub(super) const OPENS: u8 = 1 << 6;
/// The last op of such a unit.
pub(super) const CLOSES: u8 = 1 << 7;
/// What stands before each op: flags and target, database, length.
pub(super) const OP_HEADER_BYTES: usize = 13;

/// The database and the length of an op, which may be 4 GiB or more.
pub(super) fn db_and_length(header: &[u8]) -> (u32, usize) {
    let (mut db, mut length) = ([0; 4], [0; 8]);
    db.copy_from_slice(&header[1..5]);
    length.copy_from_slice(&header[5..OP_HEADER_BYTES]);
    (u32::from_le_bytes(db), u64::from_le_bytes(length) as usize)
}

/// What is repeated of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Repeat {
    /// The command, as it was sent.
    #[default]
    Verbatim,
    /// Another command.
    Instead,
    /// Nothing.
    Nothing,
}

/// What a call said about itself.
pub struct RewrittenCommands {
    repeat: Repeat,
    instead: Vec<u8>,
    ops: Vec<u8>,
    unit_ops: u32,
    last_op: usize,
}

/// A thread's end of the log.
#[derive(Default)]
pub struct LogWriter {
    end: Option<(Arc<PropagationLog>, RingWriter)>,
    /// Ops since the last ticket: header and command each.
    ops: Vec<u8>,
    /// Where the unit under way begins in them.
    unit: usize,
    /// How many it has.
    unit_ops: u32,
    /// Where the last of them begins.
    last_op: usize,
    repeat: Repeat,
    instead: Vec<u8>,
    /// For whom the call under way is repeated even if it changes nothing.
    forced: Target,
    /// Whether deletions of expired keys free them in the background, which the log says.
    pub lazy_expire: bool,
    /// Whether the bytes of units are to be noted.
    pub measures: bool,
    measured_bytes: usize,
    last_ticket: u64,
    /// Whether the log thread may sleep though there is something for it.
    news: bool,
}

impl LogWriter {
    pub(super) fn new(propagation: Arc<PropagationLog>, writer: RingWriter) -> Self {
        let mut log_writer = LogWriter::default();
        log_writer.end = Some((propagation, writer));
        log_writer
    }

    /// Repeats this command beside that of the call under way, before it.
    #[cold]
    pub fn propagate_before(&mut self, target: Target, db: usize, words: &[&[u8]]) {
        let start = self.begin_op(target, db);
        write_command(words.iter().copied(), &mut self.ops);
        self.end_op(start);
    }

    /// Repeats this command instead of the one that was sent.
    #[cold]
    pub fn propagate_instead(&mut self, words: &[&[u8]]) {
        self.instead.clear();
        write_command(words.iter().copied(), &mut self.instead);
        self.repeat = Repeat::Instead;
    }

    /// Repeats nothing for the call under way but what was said beside it.
    #[cold]
    pub fn propagate_nothing(&mut self) {
        self.repeat = Repeat::Nothing;
    }

    /// Repeats the call under way even if it changes nothing.
    #[cold]
    pub fn force_propagation(&mut self, target: Target) {
        self.forced = self.forced.or(target);
    }

    /// Whether the call under way is not repeated as it was sent.
    pub fn is_rewritten(&self) -> bool {
        self.repeat != Repeat::Verbatim
    }

    /// The call under way runs again from its start, or did not happen: only what was said beside it stays.
    pub fn discard_call(&mut self) {
        self.repeat = Repeat::Verbatim;
        self.forced = Target::NOBODY;
    }

    /// Takes out what a call on copies of its keys said, to be said again when its work is done to the keys themselves.
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

    /// Says what [`Self::take_said`] has returned.
    pub fn restore_rewritten(&mut self, said: RewrittenCommands) {
        if said.unit_ops > 0 {
            self.last_op = self.ops.len() + said.last_op;
            self.unit_ops += said.unit_ops;
            self.ops.extend_from_slice(&said.ops);
        }
        (self.repeat, self.instead) = (said.repeat, said.instead);
    }

    /// Forgets everything since the last ticket: it was done to a copy.
    pub fn clear(&mut self) {
        self.ops.clear();
        (self.unit, self.unit_ops) = (0, 0);
        self.discard_call();
    }

    /// Ends a call. `on` is who listens.
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

    /// Ends the unit of a command, and notes how many bytes each replica gets of it if somebody wants to know.
    #[inline]
    pub fn end_measured_unit(&mut self) {
        if self.measures {
            self.measured_bytes = self.unit_bytes(Target::REPLICAS);
        }
        self.end_unit();
    }

    /// The bytes that were noted last; they are told once.
    pub fn take_measured(&mut self) -> usize {
        std::mem::take(&mut self.measured_bytes)
    }

    /// How many bytes a consumer with this target gets of the unit under way, not counting SELECT.
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

    /// Ends a unit: if it has several ops they are repeated as a transaction.
    #[inline]
    pub fn end_unit(&mut self) {
        if self.unit_ops > 1 {
            self.ops[self.unit] |= OPENS;
            self.ops[self.last_op] |= CLOSES;
        }
        self.unit_ops = 0;
        self.unit = self.ops.len();
    }

    /// Whether anything waits for a ticket.
    #[inline]
    pub fn has_pending_ops(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Ends the unit, and gives everything since the last ticket the next one. The leases under which it happened are
    /// still held.
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

    /// The last ticket of this thread; 0 before the first.
    #[inline]
    pub fn last_sequence(&self) -> u64 {
        self.last_ticket
    }

    /// Whether the log thread is so far behind that this thread should write nothing for a moment.
    #[inline]
    pub fn is_backlogged(&self) -> bool {
        self.end
            .as_ref()
            .is_some_and(|(_, writer)| writer.unread() > CROWDED_BYTES)
    }

    /// Wakes the log thread if it sleeps. For who holds no lease: this may call the kernel.
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

/// Appends a command in the form in which files and replicas get it.
pub fn write_command<'w>(words: impl ExactSizeIterator<Item = &'w [u8]>, out: &mut Vec<u8>) {
    begin_command(words.len(), out);
    words.for_each(|word| write_word(word, out));
}

/// Appends the head of a command of so many words, which the caller appends with [`write_word`].
pub fn begin_command(words: usize, out: &mut Vec<u8>) {
    write_number(b'*', words, out);
}

/// Appends a word of a command.
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
