//! The log thread: merges the rings by sequence number, and passes each consumer its stream.

use std::sync::Arc;
use std::time::Duration;

use weft_base::LogSequence;
use weft_sync::RingReader;

use super::writer::{LogTarget, OP_HEADER_BYTES, UNIT_BEGIN, UNIT_END, db_and_length};
use super::{LogMark, PropagationLog, clear_buffer};
use weft_os::atomic::Ordering;
use weft_resp::command::write_command;

/// The number of sequence numbers after which consumers process what they have received, even if there are more.
const MAX_SEQUENCES_PER_ROUND: usize = 4096;
/// The number of bytes after which they do so. It bounds the memory of what consumers have received and not passed on.
const MAX_BYTES_PER_ROUND: usize = 4 << 20;
/// The sleep while a sequence number has been taken whose record is not on a ring yet, since its thread is still
/// copying it.
const RECORD_WAIT: Duration = Duration::from_micros(50);

/// A consumer of the propagation log. It runs on the log thread.
pub trait LogConsumer: Send {
    /// Returns the target whose ops it receives.
    fn target(&self) -> LogTarget;

    /// Receives the next bytes of its stream: whole commands, SELECT included. `offset` is the number of bytes it has
    /// received before.
    fn append(&mut self, offset: u64, bytes: &[u8]);

    /// Processes what it has received: everything up to this sequence number has been appended. Returns the
    /// time after which it wants to be called again even if there is nothing new.
    fn flush(&mut self, sequence: LogSequence) -> Option<Duration>;
}

/// A consumer and the position in its stream.
struct ConsumerStream {
    name: &'static str,
    consumer: Box<dyn LogConsumer>,
    target: u8,
    selected: Option<u32>,
    offset: u64,
    bytes: Vec<u8>,
}

/// The consumers.
#[derive(Default)]
pub struct ConsumerStreams {
    list: Vec<ConsumerStream>,
    /// The sequence number up to which everything has been passed to the consumers.
    passed_sequence: LogSequence,
}

impl ConsumerStreams {
    /// Adds a consumer. Its offsets begin at `offset`. A consumer of the same name is replaced.
    pub fn add(&mut self, name: &'static str, consumer: Box<dyn LogConsumer>, offset: u64) {
        drop(self.remove(name));
        self.list.push(ConsumerStream {
            name,
            target: consumer.target().bits(),
            consumer,
            selected: None,
            offset,
            bytes: Vec::new(),
        });
    }

    /// Removes a consumer.
    pub fn remove(&mut self, name: &'static str) -> Option<Box<dyn LogConsumer>> {
        let at = self.list.iter().position(|feed| feed.name == name)?;
        Some(self.list.remove(at).consumer)
    }

    /// Makes the next op of a consumer's stream begin with SELECT, because it begins a new file or has a new reader.
    pub fn force_select(&mut self, name: &'static str) {
        if let Some(feed) = self.list.iter_mut().find(|feed| feed.name == name) {
            feed.selected = None;
        }
    }

    /// Returns the database that a consumer's stream has selected.
    pub fn selected_database(&self, name: &'static str) -> Option<u32> {
        self.list.iter().find(|feed| feed.name == name)?.selected
    }

    /// Returns the sequence number up to which everything has been passed to the consumers.
    #[cfg_attr(not(test), expect(dead_code, reason = "for consumers that begin at a mark"))]
    pub fn passed_sequence(&self) -> LogSequence {
        self.passed_sequence
    }

    pub(super) fn pass_ops(&mut self, ops: &[u8]) {
        for feed in &mut self.list {
            feed.pass_ops(ops);
        }
    }

    fn flush(&mut self) -> Option<Duration> {
        let passed = self.passed_sequence;
        self.list
            .iter_mut()
            .filter_map(|feed| feed.consumer.flush(passed))
            .min()
    }
}

impl ConsumerStream {
    /// Passes the consumer the ops of one sequence number.
    fn pass_ops(&mut self, mut ops: &[u8]) {
        let mut is_in_unit = false;
        while let Some((header, rest)) = ops.split_at_checked(OP_HEADER_BYTES) {
            let (flags, (db, length)) = (header[0], db_and_length(header));
            assert!(
                length <= rest.len(),
                "the header of an op states {length} bytes, and the record has {}",
                rest.len()
            );
            let (command, behind) = rest.split_at(length);
            ops = behind;
            if flags & UNIT_BEGIN != 0 {
                assert!(!is_in_unit, "a unit of the propagation log begins within another one");
                is_in_unit = true;
                self.append(|bytes| write_command([&b"MULTI"[..]].into_iter(), bytes));
            }
            if flags & self.target != 0 {
                let selects = self.selected != Some(db);
                self.selected = Some(db);
                self.append(|bytes| {
                    if selects {
                        let mut number = itoa::Buffer::new();
                        let db = number.format(db).as_bytes();
                        write_command([&b"SELECT"[..], db].into_iter(), bytes);
                    }
                    bytes.extend_from_slice(command);
                });
            }
            if flags & UNIT_END != 0 {
                assert!(is_in_unit, "a unit of the propagation log ends without its beginning");
                is_in_unit = false;
                self.append(|bytes| write_command([&b"EXEC"[..]].into_iter(), bytes));
            }
        }
        assert!(ops.is_empty(), "a record of the propagation log ends with its last op");
        assert!(!is_in_unit, "a unit of the propagation log ends in its record");
    }

    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.consumer.append(self.offset, &self.bytes);
        self.offset += self.bytes.len() as u64;
        clear_buffer(&mut self.bytes);
    }
}

/// A ring and the sequence number of its first record.
struct RingHead {
    ring: RingReader,
    sequence: Option<LogSequence>,
}

/// The state of the log thread.
struct LogReader {
    propagation: Arc<PropagationLog>,
    heads: Vec<RingHead>,
    /// The ring that had the last sequence number. It often has the next one.
    last: usize,
    marks: Vec<LogMark>,
    consumers: ConsumerStreams,
}

/// Starts the log thread if it is not running. It sleeps while there is nothing to do.
///
/// # Errors
/// When the operating system cannot create the thread.
pub fn start(propagation: &Arc<PropagationLog>) -> std::io::Result<()> {
    // The lock is held until the thread is known, because a writer that finds it asleep must be able to wake it.
    let mut known = propagation.thread.lock();
    if known.is_some() {
        return Ok(());
    }
    let mut merger = LogReader {
        propagation: propagation.clone(),
        heads: Vec::new(),
        last: 0,
        marks: Vec::new(),
        consumers: ConsumerStreams::default(),
    };
    let thread = weft_os::thread::Builder::new()
        .name("weft-log".to_owned())
        .spawn(move || merger.run())?;
    *known = Some(thread.thread().clone());
    Ok(())
}

impl LogReader {
    fn run(&mut self) {
        let memory = self.propagation.memory.clone();
        let mut cell = memory.log_cell();
        loop {
            self.apply_control_messages();
            let taken = self.merge_available();
            let again = self.consumers.flush();
            memory.store_balance(&mut cell);
            if taken == 0 {
                self.sleep(again);
            }
        }
    }

    /// Takes over new rings and marks.
    fn apply_control_messages(&mut self) {
        if !self.propagation.has_new_rings_or_marks.swap(false, Ordering::SeqCst) {
            return;
        }
        let new = std::mem::take(&mut self.propagation.rings.lock().new);
        self.heads
            .extend(new.into_iter().map(|ring| RingHead { ring, sequence: None }));
        self.marks.extend(self.propagation.marks.lock().drain(..));
        debug_assert!(
            self.marks.is_sorted_by_key(|(at, _)| *at),
            "marks of the propagation log are in the order of their positions"
        );
    }

    /// Passes the consumers the available records in order. Returns the number of sequence numbers and marks processed.
    fn merge_available(&mut self) -> usize {
        let (mut taken, mut bytes) = (0, 0);
        while taken < MAX_SEQUENCES_PER_ROUND && bytes < MAX_BYTES_PER_ROUND {
            let is_due = |mark: &LogMark| mark.0 <= self.consumers.passed_sequence;
            if self.marks.first().is_some_and(is_due) {
                let (_, action) = self.marks.remove(0);
                // Everything before the mark is complete for all consumers.
                self.consumers.flush();
                action(&mut self.consumers);
                taken += 1;
                continue;
            }
            let Some(at) = self.next_ring() else {
                break;
            };
            // A mark that was set before this sequence number was taken is visible by now, and comes first.
            if self.propagation.has_new_rings_or_marks.load(Ordering::SeqCst) {
                self.apply_control_messages();
                continue;
            }
            let RingHead { ring, sequence } = &mut self.heads[at];
            let is_taken = ring.take(|ops| {
                bytes += ops.len();
                self.consumers.pass_ops(ops);
            });
            assert!(is_taken, "a ring with a head has a record");
            *sequence = None;
            self.last = at;
            self.consumers.passed_sequence = self.consumers.passed_sequence.next();
            taken += 1;
        }
        assert!(
            self.consumers.passed_sequence <= self.propagation.last_sequence(),
            "consumers receive no sequence number before it was taken"
        );
        taken
    }

    /// Returns the index of the ring that has the next sequence number.
    fn next_ring(&mut self) -> Option<usize> {
        let next = self.consumers.passed_sequence.next();
        let (last, count) = (self.last, self.heads.len());
        (0..count).map(|step| (last + step) % count).find(|at| {
            let head = &mut self.heads[*at];
            if head.sequence.is_none() {
                head.sequence = head.ring.head().map(LogSequence::new);
                assert!(
                    head.sequence.is_none_or(|sequence| sequence >= next),
                    "the record of sequence number {:?} is behind that of {next}",
                    head.sequence
                );
            }
            head.sequence == Some(next)
        })
    }

    fn sleep(&self, again: Option<Duration>) {
        let propagation = &self.propagation;
        propagation.is_asleep.store(true, Ordering::SeqCst);
        let under_way = propagation.last_sequence() != self.consumers.passed_sequence;
        let has_orders = propagation.has_new_rings_or_marks.load(Ordering::SeqCst);
        match again {
            _ if has_orders => {}
            _ if under_way => weft_os::thread::park_timeout(RECORD_WAIT),
            Some(time) => weft_os::thread::park_timeout(time),
            None => weft_os::thread::park(),
        }
        propagation.is_asleep.store(false, Ordering::SeqCst);
    }
}
