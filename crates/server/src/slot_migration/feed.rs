//! The bytes that an export has produced and not sent yet: its snapshot, and the writes since the snapshot's moment.
//!
//! The snapshot's thread appends to the first and waits when it is full. The log thread appends to the second, which
//! has no bound of its own: the export ends when `client-output-buffer-limit` is exceeded. The migration thread takes
//! from both, the whole snapshot first.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_base::SlotIndex;
use weft_cluster::slot_set::SlotSet;
use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_os::sync::Mutex;
use weft_resp::command::write_command;

/// The number of snapshot bytes above which the snapshot's thread waits.
const MAX_SNAPSHOT_BYTES: usize = 4 << 20;
/// The size of a part of the writes. Only a longer command is a longer part.
const WRITES_PART_BYTES: usize = 256 << 10;

/// The progress of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SnapshotProgress {
    /// It is being written.
    #[default]
    Running,
    /// All of it is in the feed.
    Complete,
    /// It has failed.
    Failed,
}

/// The bytes of one export.
#[derive(Debug)]
pub struct ExportFeed {
    slots: Arc<SlotSet>,
    /// Set once nothing more is sent.
    is_closed: AtomicBool,
    snapshot: Mutex<SnapshotChunks>,
    writes: Mutex<Writes>,
    /// The bytes in `writes`.
    unsent_bytes: AtomicU64,
    /// The number of bytes that were taken so far.
    taken_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct SnapshotChunks {
    chunks: VecDeque<Vec<u8>>,
    bytes: usize,
    progress: SnapshotProgress,
    /// Set once the last part has been appended.
    has_end: bool,
}

#[derive(Debug, Default)]
struct Writes {
    parts: VecDeque<Vec<u8>>,
    bytes: u64,
    /// The database that the target has selected at the end of the parts.
    selected: Option<u32>,
}

impl Writes {
    fn append<'w>(&mut self, words: impl ExactSizeIterator<Item = &'w [u8]>) {
        let part = self.last_part();
        let before = part.len();
        write_command(words, part);
        self.bytes += (part.len() - before) as u64;
    }

    /// Returns the part to which the next command belongs.
    fn last_part(&mut self) -> &mut Vec<u8> {
        if self.parts.back().is_none_or(|part| part.len() >= WRITES_PART_BYTES) {
            self.parts.push_back(Vec::new());
        }
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }
}

impl ExportFeed {
    /// Creates the feed of an export of these slots.
    pub fn new(slots: Arc<SlotSet>) -> Self {
        ExportFeed {
            slots,
            is_closed: AtomicBool::new(false),
            snapshot: Mutex::default(),
            writes: Mutex::default(),
            unsent_bytes: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
        }
    }

    /// Returns `true` if writes to the slot belong to the feed.
    pub fn contains(&self, slot: SlotIndex) -> bool {
        !self.is_closed() && self.slots.contains(slot)
    }

    /// Returns the number of bytes of writes that were not taken.
    pub fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that were taken so far, of the snapshot and of writes.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    fn note_taken(&self, bytes: usize) {
        self.taken_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Appends a command to the writes. `db` is the database in which it runs.
    pub fn append_write(&self, db: u32, command: &[u8]) {
        let mut writes = self.writes.lock();
        if self.is_closed() {
            return;
        }
        if writes.selected != Some(db) {
            writes.selected = Some(db);
            let mut number = itoa::Buffer::new();
            let db = number.format(db).as_bytes();
            writes.append([&b"SELECT"[..], db].into_iter());
        }
        writes.last_part().extend_from_slice(command);
        writes.bytes += command.len() as u64;
        self.unsent_bytes.store(writes.bytes, Ordering::Relaxed);
    }

    /// Appends a message of the migration protocol to the writes.
    pub fn append_message(&self, words: &[&[u8]]) {
        let mut writes = self.writes.lock();
        writes.append(words.iter().copied());
        self.unsent_bytes.store(writes.bytes, Ordering::Relaxed);
    }

    /// Removes and returns the next part of the writes.
    pub fn take_writes(&self) -> Option<Vec<u8>> {
        let mut writes = self.writes.lock();
        let part = writes.parts.pop_front()?;
        writes.bytes -= part.len() as u64;
        self.unsent_bytes.store(writes.bytes, Ordering::Relaxed);
        self.note_taken(part.len());
        Some(part)
    }

    /// Appends a part of the snapshot, which consists of whole commands; `is_end` is `true` for the last one. Returns
    /// the part if the thread has to wait.
    pub fn append_snapshot(&self, chunk: Vec<u8>, is_end: bool) -> Option<Vec<u8>> {
        let mut snapshot = self.snapshot.lock();
        if snapshot.bytes >= MAX_SNAPSHOT_BYTES {
            return Some(chunk);
        }
        snapshot.bytes += chunk.len();
        snapshot.chunks.push_back(chunk);
        snapshot.has_end = is_end;
        None
    }

    /// Returns `true` if all parts of the snapshot were appended and taken. Its thread may not have ended yet.
    pub fn is_snapshot_taken(&self) -> bool {
        let snapshot = self.snapshot.lock();
        snapshot.has_end && snapshot.chunks.is_empty()
    }

    /// Removes and returns the next part of the snapshot.
    pub fn take_snapshot(&self) -> Option<Vec<u8>> {
        let mut snapshot = self.snapshot.lock();
        let chunk = snapshot.chunks.pop_front()?;
        snapshot.bytes -= chunk.len();
        self.note_taken(chunk.len());
        Some(chunk)
    }

    /// Records that the snapshot has ended.
    pub fn end_snapshot(&self, progress: SnapshotProgress) {
        self.snapshot.lock().progress = progress;
    }

    /// Returns the progress of the snapshot. `Complete` means that all parts were taken.
    pub fn snapshot_progress(&self) -> SnapshotProgress {
        let snapshot = self.snapshot.lock();
        match snapshot.progress {
            SnapshotProgress::Complete if !snapshot.chunks.is_empty() => SnapshotProgress::Running,
            ref progress => progress.clone(),
        }
    }

    /// Returns `true` once nothing more is sent.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Closes the feed and frees its bytes. The snapshot's thread then stops.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        *self.writes.lock() = Writes::default();
        self.unsent_bytes.store(0, Ordering::Relaxed);
        let mut snapshot = self.snapshot.lock();
        snapshot.chunks.clear();
        snapshot.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the order and the bounds of a feed.

    use super::*;

    fn feed_of(slot: usize) -> ExportFeed {
        let mut slots = SlotSet::default();
        slots.set(SlotIndex::from_index(slot), true);
        ExportFeed::new(Arc::new(slots))
    }

    #[test]
    fn writes_begin_with_their_database() {
        let feed = feed_of(7);
        assert!(feed.contains(SlotIndex::from_index(7)) && !feed.contains(SlotIndex::from_index(8)));
        for (db, command) in [(0, "a"), (0, "b"), (3, "c")] {
            feed.append_write(db, command.as_bytes());
        }
        feed.append_message(&[b"PAUSED"]);
        let expected = "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\nab*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\nc*1\r\n$6\r\nPAUSED\r\n";
        assert_eq!(feed.unsent_bytes(), expected.len() as u64);
        assert_eq!(feed.take_writes().as_deref(), Some(expected.as_bytes()));
        assert_eq!((feed.unsent_bytes(), feed.take_writes()), (0, None));
    }

    #[test]
    fn writes_are_taken_in_parts() {
        let feed = feed_of(7);
        let command = vec![b'c'; WRITES_PART_BYTES / 4];
        for _ in 0..41 {
            feed.append_write(0, &command);
        }
        let bytes = feed.unsent_bytes();
        let mut parts = Vec::new();
        while let Some(part) = feed.take_writes() {
            assert!(part.len() <= 2 * WRITES_PART_BYTES);
            parts.push(part);
            let taken: usize = parts.iter().map(Vec::len).sum();
            assert_eq!(feed.unsent_bytes() + taken as u64, bytes);
            assert_eq!(feed.taken_bytes(), taken as u64);
        }
        assert!(parts.len() > 5 && parts.concat().ends_with(&command.repeat(41)));
        feed.append_write(0, b"last");
        assert_eq!(
            feed.take_writes().as_deref(),
            Some(&b"last"[..]),
            "the database is selected"
        );
    }

    #[test]
    fn a_snapshot_is_bounded_and_complete_when_it_was_taken() {
        let feed = feed_of(7);
        assert!(feed.append_snapshot(vec![1; MAX_SNAPSHOT_BYTES], false).is_none());
        let refused = feed.append_snapshot(vec![2], true);
        assert_eq!(refused, Some(vec![2]), "the thread has to wait");
        assert_eq!(feed.take_snapshot().map(|chunk| chunk.len()), Some(MAX_SNAPSHOT_BYTES));
        assert!(!feed.is_snapshot_taken(), "its end was refused");
        assert!(feed.append_snapshot(vec![2], true).is_none() && !feed.is_snapshot_taken());
        feed.end_snapshot(SnapshotProgress::Complete);
        assert_eq!(feed.snapshot_progress(), SnapshotProgress::Running, "a chunk is left");
        assert_eq!(feed.take_snapshot(), Some(vec![2]));
        assert!(feed.is_snapshot_taken());
        assert_eq!(feed.snapshot_progress(), SnapshotProgress::Complete);
    }

    #[test]
    fn a_closed_feed_takes_nothing() {
        let feed = feed_of(7);
        feed.append_write(0, b"a");
        feed.close();
        feed.append_write(0, b"b");
        assert!(!feed.contains(SlotIndex::from_index(7)));
        assert_eq!((feed.unsent_bytes(), feed.take_writes()), (0, None));
    }
}
