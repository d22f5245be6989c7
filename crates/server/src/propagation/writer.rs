//! A thread's writer for the propagation log: it collects the ops of a unit until the unit gets its sequence number.
//!
//! ```text
//!   call ─▶ also: ops before it (the deletion of an expired key)      ┐
//!        ─▶ instead / nothing: not the command as it was sent         │ ops ─▶ unit ─▶ one number
//!   call ends: the command, if it changed something or is forced      ┘
//! ```

use std::sync::Arc;

use weft_base::{DbIndex, LogSequence};
use weft_resp::command::write_command;
use weft_sync::{RingWriter, note_unlogged_changes};

use super::{MAX_UNREAD_BYTES, PropagationLog, clear_buffer};

bitflags::bitflags! {
    /// The set of consumers that an op is for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct LogTarget: u8 {
        /// The append-only file.
        const FILE = 1;
        /// The replicas.
        const REPLICAS = 2;
    }
}

/// Marks the first op of a unit that has several.
pub(super) const UNIT_BEGIN: u8 = 1 << 6;
/// Marks the last op of a unit that has several.
pub(super) const UNIT_END: u8 = 1 << 7;
/// The size of the header of an op in bytes: flags and target, database, length.
pub(super) const OP_HEADER_BYTES: usize = 13;

/// Returns the database and the length of an op. The length may be 4 GiB or more.
pub(super) fn db_and_length(header: &[u8]) -> (u32, usize) {
    let (mut db, mut length) = ([0; 4], [0; 8]);
    db.copy_from_slice(&header[1..5]);
    length.copy_from_slice(&header[5..OP_HEADER_BYTES]);
    (u32::from_le_bytes(db), u64::from_le_bytes(length) as usize)
}

/// Sets the consumers of ops that belong to no ended unit.
fn set_target(ops: &mut [u8], target: LogTarget) {
    let mut start = 0;
    while let Some(header) = ops.get(start..start + OP_HEADER_BYTES) {
        let (_, length) = db_and_length(header);
        ops[start] = target.bits();
        start += OP_HEADER_BYTES + length;
    }
}

/// The command that is propagated for a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Propagation {
    /// The command as it was sent.
    #[default]
    Verbatim,
    /// Another command.
    Replaced,
    /// No command.
    Suppressed,
}

/// The propagation requested by a call, as detached by [`LogWriter::take_rewritten`].
pub struct RewrittenCommands {
    repeat: Propagation,
    instead: Vec<u8>,
    ops: Vec<u8>,
    unit_ops: u32,
    last_op: usize,
}

/// The state of a call that is interrupted by others, as detached by [`LogWriter::suspend_call`].
pub struct SuspendedCall {
    repeat: Propagation,
    instead: Vec<u8>,
    forced: LogTarget,
}

/// A thread's writer for the propagation log.
#[derive(Default)]
pub struct LogWriter {
    log_and_ring: Option<(Arc<PropagationLog>, RingWriter)>,
    /// The ops since the last sequence number, each with header and command.
    ops: Vec<u8>,
    /// The position in `ops` at which the current unit begins.
    unit_start: usize,
    /// The number of ops of the current unit.
    unit_ops: u32,
    /// The position in `ops` at which the last op begins.
    last_op: usize,
    repeat: Propagation,
    instead: Vec<u8>,
    /// The consumers to which the current call is propagated even if it changes nothing.
    forced: LogTarget,
    /// Set while a command runs that a module has called without propagating it: nothing is propagated then but
    /// deletions of expired keys.
    pub is_muted: bool,
    /// Set if deletions of expired keys free them in the background. They are then propagated as UNLINK.
    pub lazy_expire: bool,
    /// Set if the size of units has to be measured.
    pub measures_units: bool,
    measured_bytes: usize,
    last_sequence: LogSequence,
    /// Set after a commit until the log thread has been woken.
    needs_wake: bool,
}

impl LogWriter {
    pub(super) fn new(propagation: Arc<PropagationLog>, writer: RingWriter) -> Self {
        let mut log_writer = LogWriter::default();
        log_writer.log_and_ring = Some((propagation, writer));
        log_writer
    }

    /// Propagates this command in addition to the current call, before it.
    #[cold]
    pub fn propagate_before(&mut self, target: LogTarget, db: DbIndex, words: &[&[u8]]) {
        if !self.is_muted {
            self.propagate_expiry(target, db, words);
        }
    }

    /// Propagates the deletion of an expired key, even while nothing else is propagated.
    #[cold]
    pub fn propagate_expiry(&mut self, target: LogTarget, db: DbIndex, words: &[&[u8]]) {
        let start = self.begin_op(target, db);
        write_command(words.iter().copied(), &mut self.ops);
        self.end_op(start);
    }

    /// Propagates this command instead of the current call.
    #[cold]
    pub fn propagate_instead(&mut self, words: &[&[u8]]) {
        clear_buffer(&mut self.instead);
        write_command(words.iter().copied(), &mut self.instead);
        self.repeat = Propagation::Replaced;
    }

    /// Does not propagate the current call. Additional commands stay.
    #[cold]
    pub fn propagate_nothing(&mut self) {
        self.repeat = Propagation::Suppressed;
    }

    /// Propagates the current call even if it changes nothing.
    #[cold]
    pub fn force_propagation(&mut self, target: LogTarget) {
        self.forced = self.forced.union(target);
    }

    /// Returns `true` if the current call is not propagated as it was sent.
    pub fn is_rewritten(&self) -> bool {
        self.repeat != Propagation::Verbatim
    }

    /// Resets the current call, because it runs again from its start or did not happen. Additional commands stay.
    pub fn discard_call(&mut self) {
        self.repeat = Propagation::Verbatim;
        self.forced = LogTarget::empty();
    }

    /// Detaches the state of the current call, because others run within it. Its additional commands stay, and those of
    /// the other calls follow them.
    pub fn suspend_call(&mut self) -> SuspendedCall {
        let suspended = SuspendedCall {
            repeat: self.repeat,
            instead: std::mem::take(&mut self.instead),
            forced: self.forced,
        };
        self.discard_call();
        suspended
    }

    /// Attaches what [`Self::suspend_call`] has returned.
    pub fn resume_call(&mut self, suspended: SuspendedCall) {
        self.repeat = suspended.repeat;
        self.instead = suspended.instead;
        self.forced = suspended.forced;
    }

    /// Detaches the propagation requested by a call on copies of its keys. It is attached again when the result is
    /// applied to the keys themselves.
    pub fn take_rewritten(&mut self) -> RewrittenCommands {
        assert_eq!(
            self.unit_ops == 0,
            self.ops.is_empty(),
            "the detached ops are those of the current unit"
        );
        let rewritten = RewrittenCommands {
            repeat: self.repeat,
            instead: std::mem::take(&mut self.instead),
            ops: std::mem::take(&mut self.ops),
            unit_ops: self.unit_ops,
            last_op: self.last_op,
        };
        self.clear();
        rewritten
    }

    /// Attaches what [`Self::take_rewritten`] has returned, for these consumers. They may be others than those at the
    /// time of the detached call.
    pub fn restore_rewritten(&mut self, mut rewritten: RewrittenCommands, target: LogTarget) {
        assert!(
            self.repeat == Propagation::Verbatim,
            "the call whose propagation is attached has requested none itself"
        );
        if rewritten.unit_ops > 0 {
            set_target(&mut rewritten.ops, target);
            self.last_op = self.ops.len() + rewritten.last_op;
            self.unit_ops += rewritten.unit_ops;
            self.ops.extend_from_slice(&rewritten.ops);
            note_unlogged_changes(true);
        }
        (self.repeat, self.instead) = (rewritten.repeat, rewritten.instead);
    }

    /// Discards everything since the last sequence number, because it was done to a copy.
    pub fn clear(&mut self) {
        self.ops.clear();
        note_unlogged_changes(false);
        (self.unit_start, self.unit_ops) = (0, 0);
        self.discard_call();
    }

    /// Ends a call. `consumers` is the set of existing consumers.
    #[cold]
    pub fn end_call<'w>(
        &mut self,
        consumers: LogTarget,
        db: DbIndex,
        changed: bool,
        words: impl ExactSizeIterator<Item = &'w [u8]>,
    ) {
        let target = if changed {
            consumers
        } else {
            self.forced.intersection(consumers)
        };
        match self.repeat {
            _ if target.is_empty() || self.is_muted => {}
            Propagation::Suppressed => {}
            Propagation::Verbatim => {
                let start = self.begin_op(target, db);
                write_command(words, &mut self.ops);
                self.end_op(start);
            }
            Propagation::Replaced => {
                let start = self.begin_op(target, db);
                self.ops.extend_from_slice(&self.instead);
                self.end_op(start);
            }
        }
        self.discard_call();
    }

    fn begin_op(&mut self, target: LogTarget, db: DbIndex) -> usize {
        let start = self.ops.len();
        self.ops.push(target.bits());
        self.ops.extend_from_slice(&(db.get() as u32).to_le_bytes());
        self.ops.extend_from_slice(&[0; 8]);
        start
    }

    fn end_op(&mut self, start: usize) {
        assert!(
            start >= self.unit_start && start + OP_HEADER_BYTES < self.ops.len(),
            "an op lies in the current unit and has a command"
        );
        let length = self.ops.len() - start - OP_HEADER_BYTES;
        self.ops[start + 5..start + OP_HEADER_BYTES].copy_from_slice(&(length as u64).to_le_bytes());
        self.last_op = start;
        self.unit_ops += 1;
        note_unlogged_changes(true);
    }

    /// Ends the unit of a command. If `measures_units` is set, records the number of bytes of the unit that each
    /// replica receives.
    #[inline]
    pub fn end_measured_unit(&mut self) {
        // Another unit than the first one before a commit is that of a served client.
        if self.measures_units && self.unit_start == 0 {
            self.measured_bytes = self.unit_bytes(LogTarget::REPLICAS);
        }
        self.end_unit();
    }

    /// Returns the recorded number of bytes and resets it to 0.
    pub fn take_measured(&mut self) -> usize {
        std::mem::take(&mut self.measured_bytes)
    }

    /// Returns the number of bytes of the current unit that a consumer with this target receives, without SELECT.
    #[cold]
    fn unit_bytes(&self, target: LogTarget) -> usize {
        let mut rest = &self.ops[self.unit_start..];
        let mut bytes = match self.unit_ops {
            0 | 1 => 0,
            _ => b"*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n".len(),
        };
        while let Some((header, behind)) = rest.split_at_checked(OP_HEADER_BYTES) {
            let (_, length) = db_and_length(header);
            if header[0] & target.bits() != 0 {
                bytes += length;
            }
            rest = behind.get(length..).unwrap_or_default();
        }
        bytes
    }

    /// Ends a unit. If it has several ops, they are propagated as a transaction.
    #[inline]
    pub fn end_unit(&mut self) {
        debug_assert_eq!(
            self.unit_ops == 0,
            self.unit_start == self.ops.len(),
            "a unit without ops has no bytes"
        );
        if self.unit_ops > 1 {
            self.ops[self.unit_start] |= UNIT_BEGIN;
            self.ops[self.last_op] |= UNIT_END;
        }
        self.unit_ops = 0;
        self.unit_start = self.ops.len();
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
        if let Some((propagation, writer)) = &mut self.log_and_ring {
            let sequence = propagation.next_sequence();
            assert!(
                sequence > self.last_sequence,
                "the sequence numbers of a thread ascend: {sequence} follows {}",
                self.last_sequence
            );
            writer.push(sequence.get(), &self.ops);
            self.last_sequence = sequence;
            self.needs_wake = true;
        }
        clear_buffer(&mut self.ops);
        self.unit_start = 0;
        note_unlogged_changes(false);
    }

    /// Returns the last sequence number of this thread.
    #[inline]
    pub fn last_sequence(&self) -> LogSequence {
        self.last_sequence
    }

    /// Returns `true` if the log thread is so far behind that this thread has to defer writes.
    #[inline]
    pub fn is_backlogged(&self) -> bool {
        self.log_and_ring
            .as_ref()
            .is_some_and(|(_, writer)| writer.unread() > MAX_UNREAD_BYTES)
    }

    /// Wakes the log thread if it sleeps. The caller must not hold a lease, since this may make a system call.
    #[inline]
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.needs_wake)
            && let Some((propagation, _)) = &self.log_and_ring
        {
            propagation.wake();
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        if let Some((propagation, writer)) = self.log_and_ring.take() {
            propagation.wake();
            propagation.return_writer(writer);
        }
    }
}
