//! The replication backlog: the most recent bytes of the replication stream. All replicas read it, each from its own
//! offset.
//!
//! ```text
//!        start                  a replica's offset                  end
//!   ───────┼──────────┼──────────────────┼───────────┼────────────────┼──▶ bytes of the replication stream
//!      ◀ trimmed   blocks of 16 KiB              appended by one thread
//! ```
//!
//! The backlog keeps at least `replication-backlog-size` bytes, and every byte that a connected replica has not been
//! sent yet. One thread appends: the log writer thread on a primary, the thread of the primary link on a replica. The
//! milestones map log sequence numbers to replication offsets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use weft_base::{ClientId, LogSequence, ReplicationOffset};
use weft_os::atomic::{AtomicU64, Ordering};

/// The size of a block in bytes.
const BLOCK_BYTES: usize = 16 * 1024;
/// The maximum number of milestones kept.
const MILESTONES: usize = 4096;

/// The replication backlog and the offsets of its readers.
#[derive(Default)]
pub struct ReplicationBacklog {
    backlog: Option<BacklogBlocks>,
    /// The replication offsets of the connected replicas, by reader id.
    reader_offsets: BTreeMap<ClientId, ReplicationOffset>,
    /// Pairs of a log sequence number and the replication offset after it, in ascending order.
    milestones_by_sequence: VecDeque<(LogSequence, ReplicationOffset)>,
    /// The number of bytes kept even if no replica needs them (`replication-backlog-size`).
    kept_bytes: i64,
    memory: Arc<BacklogMemory>,
}

/// The memory of the blocks of a backlog, for threads that do not lock it.
#[derive(Default)]
pub struct BacklogMemory {
    /// The present memory, in bytes.
    present: AtomicU64,
    /// What readers no longer needed and was freed since [`BacklogMemory::settle`], in bytes.
    freed: AtomicU64,
}

impl BacklogMemory {
    /// Returns the present memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.present.load(Ordering::Acquire)
    }

    /// Returns the memory that may count as used: the present one, and what was freed since [`BacklogMemory::settle`].
    pub fn unsettled_bytes(&self) -> u64 {
        // In this order: what leaves the first number is in the second one before.
        let present = self.bytes();
        present + self.freed.load(Ordering::Relaxed)
    }

    /// Forgets what was freed: it does not count as used any more.
    pub fn settle(&self) {
        self.freed.store(0, Ordering::Relaxed);
    }
}

struct BacklogBlocks {
    blocks: VecDeque<Vec<u8>>,
    /// The replication offset before the first block.
    start: ReplicationOffset,
    end: ReplicationOffset,
}

/// The range of the backlog as INFO reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogRange {
    /// The replication offset before the first byte kept.
    pub start: ReplicationOffset,
    /// The replication offset after the last byte kept.
    pub end: ReplicationOffset,
}

impl BacklogRange {
    /// Returns the number of bytes kept.
    pub const fn bytes(self) -> u64 {
        self.end.bytes_since(self.start)
    }
}

impl ReplicationBacklog {
    /// Creates a backlog that starts at `offset`. An existing backlog is dropped, together with the offsets of its
    /// readers and the milestones.
    pub fn open(&mut self, offset: ReplicationOffset) {
        self.close();
        self.backlog = Some(BacklogBlocks {
            blocks: VecDeque::new(),
            start: offset,
            end: offset,
        });
        // It fills up soon. Its growth would count as used memory, and evict keys.
        self.milestones_by_sequence.reserve_exact(MILESTONES);
    }

    /// Shifts the backlog by `offset`, because the bytes that were appended from 0 on follow the first `offset` bytes
    /// of the history. Returns the new end offset.
    pub fn rebase(&mut self, offset: ReplicationOffset) -> ReplicationOffset {
        assert!(
            self.reader_offsets.is_empty() && self.milestones_by_sequence.is_empty(),
            "a backlog is shifted before it has readers"
        );
        let Some(backlog) = &mut self.backlog else {
            return offset;
        };
        let shifted = |place: ReplicationOffset| offset.advanced_by(place.bytes_since(ReplicationOffset::ZERO));
        (backlog.start, backlog.end) = (shifted(backlog.start), shifted(backlog.end));
        backlog.assert_range_is_kept();
        backlog.end
    }

    /// Drops the backlog.
    pub fn close(&mut self) {
        self.memory.freed.fetch_add(self.memory_bytes(), Ordering::Relaxed);
        self.backlog = None;
        self.publish_memory();
        self.reader_offsets.clear();
        self.milestones_by_sequence = VecDeque::new();
    }

    /// Returns the range of the backlog, or `None` if there is no backlog.
    pub fn range(&self) -> Option<BacklogRange> {
        self.backlog.as_ref().map(|backlog| BacklogRange {
            start: backlog.start,
            end: backlog.end,
        })
    }

    /// Returns the memory that the blocks occupy, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let blocks = self.backlog.as_ref().map_or(0, |backlog| backlog.blocks.len());
        (blocks * BLOCK_BYTES) as u64
    }

    /// Returns that memory as other threads may read it at any time.
    pub fn shared_memory(&self) -> Arc<BacklogMemory> {
        self.memory.clone()
    }

    fn publish_memory(&self) {
        self.memory.present.store(self.memory_bytes(), Ordering::Release);
    }

    /// Returns `true` if a reader at `offset` can continue from the backlog.
    pub fn contains(&self, offset: ReplicationOffset) -> bool {
        let within = |backlog: &BacklogBlocks| (backlog.start..=backlog.end).contains(&offset);
        self.backlog.as_ref().is_some_and(within)
    }

    /// Appends bytes of the replication stream and drops the blocks beyond `most_bytes` that no replica needs. Returns
    /// the new end offset, or `None` if there is no backlog.
    pub fn append(&mut self, mut bytes: &[u8], most_bytes: i64) -> Option<ReplicationOffset> {
        self.kept_bytes = most_bytes;
        let backlog = self.backlog.as_mut()?;
        backlog.end = backlog.end.advanced_by(bytes.len() as u64);
        while !bytes.is_empty() {
            if backlog.blocks.back().is_none_or(|block| block.len() == BLOCK_BYTES) {
                backlog.blocks.push_back(Vec::with_capacity(BLOCK_BYTES));
            }
            if let Some(block) = backlog.blocks.back_mut() {
                let (part, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - block.len()));
                block.extend_from_slice(part);
                bytes = rest;
            }
        }
        backlog.assert_range_is_kept();
        let end = backlog.end;
        // As much was allocated before, by the same thread, which counts both at once.
        self.drop_blocks();
        self.publish_memory();
        Some(end)
    }

    /// Changes the number of bytes to keep (`replication-backlog-size`) and trims the backlog to it.
    pub fn resize(&mut self, most_bytes: i64) {
        self.kept_bytes = most_bytes;
        self.trim();
    }

    fn trim(&mut self) {
        let freed = self.drop_blocks();
        self.memory.freed.fetch_add(freed, Ordering::Relaxed);
        self.publish_memory();
    }

    /// Drops the blocks that are not needed any more. Returns their memory, in bytes.
    fn drop_blocks(&mut self) -> u64 {
        let before = self.memory_bytes();
        let needed = self.reader_offsets.values().copied().min();
        if let Some(backlog) = &mut self.backlog {
            backlog.trim(self.kept_bytes, needed);
            debug_assert!(
                self.reader_offsets.values().all(|offset| *offset <= backlog.end),
                "no reader is ahead of the backlog"
            );
        }
        before - self.memory_bytes()
    }

    /// Appends the bytes after `offset` to `into`. Stops at the end of the block in which `into` reaches `most` bytes.
    pub fn read(&self, offset: ReplicationOffset, most: usize, into: &mut Vec<u8>) {
        let Some(backlog) = self.backlog.as_ref().filter(|_| self.contains(offset)) else {
            return;
        };
        let mut skip = offset.bytes_since(backlog.start) as usize;
        let first = skip / BLOCK_BYTES;
        skip -= first * BLOCK_BYTES;
        assert!(
            first < backlog.blocks.len() || offset == backlog.end,
            "an offset before the end of the backlog lies in one of its blocks"
        );
        // At most the rest of a block is beyond `most`.
        let available = backlog.end.bytes_since(offset) as usize;
        into.reserve_exact(available.min(most.saturating_add(BLOCK_BYTES)));
        for block in backlog.blocks.iter().skip(first) {
            into.extend_from_slice(&block[skip..]);
            skip = 0;
            if into.len() >= most {
                return;
            }
        }
    }

    /// Sets the offset of a reader. The bytes after it are kept until the reader advances, and those before it only if
    /// they belong to the `replication-backlog-size` bytes that are kept in any case.
    ///
    /// # Panics
    /// If the reader would go back, or ahead of the backlog.
    pub fn pin(&mut self, reader: ClientId, offset: ReplicationOffset) {
        let before = self.reader_offsets.insert(reader, offset);
        assert!(
            before.is_none_or(|before| before <= offset),
            "reader {reader} of the backlog goes back from {before:?} to {offset}"
        );
        assert!(
            self.backlog.as_ref().is_none_or(|backlog| offset <= backlog.end),
            "reader {reader} of the backlog is ahead of it"
        );
        self.trim();
    }

    /// Removes a reader.
    pub fn unpin(&mut self, reader: ClientId) {
        self.reader_offsets.remove(&reader);
        self.trim();
    }

    /// Returns the id and the offset of every reader.
    pub fn reader_offsets(&self) -> impl Iterator<Item = (ClientId, ReplicationOffset)> {
        self.reader_offsets.iter().map(|(reader, offset)| (*reader, *offset))
    }

    /// Returns the offset of a reader.
    pub fn reader_offset(&self, reader: ClientId) -> Option<ReplicationOffset> {
        self.reader_offsets.get(&reader).copied()
    }

    /// Records that everything up to the log sequence number `sequence` has been appended.
    pub fn record_sequence(&mut self, sequence: LogSequence) {
        let Some(end) = self.backlog.as_ref().map(|backlog| backlog.end) else {
            return;
        };
        if self
            .milestones_by_sequence
            .back()
            .is_some_and(|(last, _)| *last >= sequence)
        {
            return;
        }
        assert!(
            self.milestones_by_sequence
                .back()
                .is_none_or(|(_, offset)| *offset <= end),
            "the replication offset of a later log sequence number is not smaller"
        );
        if self.milestones_by_sequence.len() == MILESTONES {
            self.milestones_by_sequence.pop_front();
        }
        self.milestones_by_sequence.push_back((sequence, end));
    }

    /// Returns the replication offset that covers the log sequence number `sequence`, or `None` if that write has not
    /// been appended yet.
    pub fn offset_of_sequence(&self, sequence: LogSequence) -> Option<ReplicationOffset> {
        if sequence.is_none() {
            return Some(ReplicationOffset::ZERO);
        }
        let at = self
            .milestones_by_sequence
            .partition_point(|(milestone, _)| *milestone < sequence);
        self.milestones_by_sequence.get(at).map(|(_, offset)| *offset)
    }
}

impl BacklogBlocks {
    /// Checks that the blocks hold exactly the bytes from `start` to `end`. All blocks but the last one are full.
    fn assert_range_is_kept(&self) {
        let bytes = match self.blocks.back() {
            None => 0,
            Some(last) => (self.blocks.len() - 1) * BLOCK_BYTES + last.len(),
        };
        assert_eq!(
            self.end.bytes_since(self.start),
            bytes as u64,
            "the backlog holds the bytes between its start and its end"
        );
    }

    /// Drops the blocks beyond `most_bytes`, except those behind the offset that a reader needs.
    fn trim(&mut self, most_bytes: i64, needed: Option<ReplicationOffset>) {
        while let Some(block) = self.blocks.front() {
            let next = self.start.advanced_by(block.len() as u64);
            let is_needed = needed.is_some_and(|needed| next > needed);
            // A negative number keeps nothing, as 0 does.
            let kept_bytes = u64::try_from(most_bytes).unwrap_or(0);
            if self.blocks.len() < 2 || self.end.bytes_since(next) < kept_bytes || is_needed {
                return;
            }
            self.blocks.pop_front();
            self.start = next;
            self.assert_range_is_kept();
        }
    }
}

#[cfg(test)]
mod tests;
