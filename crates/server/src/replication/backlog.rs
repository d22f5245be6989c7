//! The backlog: the last bytes of the history's stream, which all replicas read, each from its own place.
//!
//! ```text
//!        start                      a replica's place                end
//!   ───────┼──────────┼──────────────────┼───────────┼────────────────┼──▶ bytes of the history
//!      ◀ trimmed   blocks of 16 KiB              appended by one thread
//! ```
//!
//! It keeps as many bytes as `repl-backlog-size` says, and whatever a connected replica has not been sent. One thread
//! appends: the log's on a primary, the link's on a replica. The milestones say up to where the ticket of a write went.

use std::collections::{BTreeMap, VecDeque};

/// Bytes of a block.
const BLOCK_BYTES: usize = 16 * 1024;
/// Milestones that are kept.
const MILESTONES: usize = 4096;

/// The backlog and who reads it.
#[derive(Default)]
pub struct ReplicationBacklog {
    backlog: Option<Backlog>,
    /// The places of connected replicas, by their ids.
    places: BTreeMap<u64, i64>,
    /// Tickets of the log and how many bytes the history had behind them, ascending.
    milestones: VecDeque<(u64, i64)>,
    /// Bytes that are kept though nobody needs them.
    most_bytes: i64,
}

struct Backlog {
    blocks: VecDeque<Vec<u8>>,
    /// Bytes of the history before the first block.
    start: i64,
    end: i64,
}

/// What INFO tells of a backlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of the history before its first.
    pub start: i64,
    /// Bytes of the history up to its last.
    pub end: i64,
}

impl ReplicationBacklog {
    /// Begins a backlog at an offset of the history; an old one is dropped, with the places of its readers.
    pub fn open(&mut self, offset: i64) {
        self.backlog = Some(Backlog {
            blocks: VecDeque::new(),
            start: offset,
            end: offset,
        });
        self.places.clear();
        self.milestones.clear();
    }

    /// What was appended from 0 on belongs behind the first `offset` bytes of the history; the new end.
    pub fn rebase(&mut self, offset: i64) -> i64 {
        let Some(backlog) = &mut self.backlog else {
            return offset;
        };
        backlog.start += offset;
        backlog.end += offset;
        backlog.end
    }

    /// Drops the backlog.
    pub fn close(&mut self) {
        self.backlog = None;
        self.places.clear();
        self.milestones.clear();
    }

    /// What there is; `None` without a backlog.
    pub fn extent(&self) -> Option<Extent> {
        self.backlog.as_ref().map(|backlog| Extent {
            start: backlog.start,
            end: backlog.end,
        })
    }

    /// Bytes that it takes.
    pub fn held_bytes(&self) -> u64 {
        let blocks = self.backlog.as_ref().map_or(0, |backlog| backlog.blocks.len());
        (blocks * BLOCK_BYTES) as u64
    }

    /// Whether a reader can go on behind the first `offset` bytes of the history.
    pub fn has(&self, offset: i64) -> bool {
        let within = |backlog: &Backlog| (backlog.start..=backlog.end).contains(&offset);
        self.backlog.as_ref().is_some_and(within)
    }

    /// Appends bytes of the history, and forgets what is more than `most_bytes` and needed by nobody; the new end.
    pub fn append(&mut self, mut bytes: &[u8], most_bytes: i64) -> Option<i64> {
        self.most_bytes = most_bytes;
        let backlog = self.backlog.as_mut()?;
        backlog.end += bytes.len() as i64;
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
        let end = backlog.end;
        self.trim();
        Some(end)
    }

    /// Keeps so many bytes from now on.
    pub fn resize(&mut self, most_bytes: i64) {
        self.most_bytes = most_bytes;
        self.trim();
    }

    fn trim(&mut self) {
        let needed = self.places.values().copied().min().unwrap_or(i64::MAX);
        if let Some(backlog) = &mut self.backlog {
            backlog.trim(self.most_bytes, needed);
        }
    }

    /// Copies what is behind the first `offset` bytes of the history, at most about `most` bytes of it.
    pub fn read(&self, offset: i64, most: usize, into: &mut Vec<u8>) {
        let Some(backlog) = self.backlog.as_ref().filter(|_| self.has(offset)) else {
            return;
        };
        let mut skip = (offset - backlog.start) as usize;
        let first = skip / BLOCK_BYTES;
        skip -= first * BLOCK_BYTES;
        for block in backlog.blocks.iter().skip(first) {
            into.extend_from_slice(&block[skip..]);
            skip = 0;
            if into.len() >= most {
                return;
            }
        }
    }

    /// A reader is behind the first `offset` bytes: what follows is kept for it.
    pub fn pin(&mut self, reader: u64, offset: i64) {
        self.places.insert(reader, offset);
    }

    /// A reader is gone.
    pub fn unpin(&mut self, reader: u64) {
        self.places.remove(&reader);
        self.trim();
    }

    /// Where all readers are.
    pub fn places(&self) -> impl Iterator<Item = (u64, i64)> {
        self.places.iter().map(|(reader, offset)| (*reader, *offset))
    }

    /// Where a reader is.
    pub fn place(&self, reader: u64) -> Option<i64> {
        self.places.get(&reader).copied()
    }

    /// Everything up to a ticket of the log has been appended.
    pub fn note_ticket(&mut self, ticket: u64) {
        let Some(end) = self.backlog.as_ref().map(|backlog| backlog.end) else {
            return;
        };
        if self.milestones.back().is_some_and(|(last, _)| *last >= ticket) {
            return;
        }
        if self.milestones.len() == MILESTONES {
            self.milestones.pop_front();
        }
        self.milestones.push_back((ticket, end));
    }

    /// How many bytes of the history are enough to have what has this ticket; `None` if that has not been appended yet.
    pub fn offset_of(&self, ticket: u64) -> Option<i64> {
        if ticket == 0 {
            return Some(0);
        }
        let at = self.milestones.partition_point(|(milestone, _)| *milestone < ticket);
        self.milestones.get(at).map(|(_, offset)| *offset)
    }
}

impl Backlog {
    fn trim(&mut self, most_bytes: i64, needed: i64) {
        while let Some(block) = self.blocks.front() {
            let next = self.start + block.len() as i64;
            if self.blocks.len() < 2 || self.end - next < most_bytes || next > needed {
                return;
            }
            self.blocks.pop_front();
            self.start = next;
        }
    }
}

#[cfg(test)]
mod tests;
