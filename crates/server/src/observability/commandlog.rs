//! The command log: commands that took long, were large, or had large replies.
//!
//! A worker compares three numbers at the end of each command; only what exceeds a threshold comes here, and
//! only then are arguments copied. Each of the three logs is a bounded queue behind its own mutex.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::observability::lock;

#[cfg(test)]
mod tests;

/// Arguments kept of a command; the last of them tells how many more there were.
const ARGUMENTS: usize = 32;
/// Bytes kept of an argument.
const ARGUMENT_BYTES: usize = 128;
/// What a secret is replaced with.
pub const REDACTED: &[u8] = b"(redacted)";

/// Why a command is in a log; also the logs' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It took long; sizes are microseconds.
    Slow,
    /// Its request was large; sizes are bytes.
    LargeRequest,
    /// Its reply was large; sizes are bytes.
    LargeReply,
}

impl Kind {
    /// The kind that a client names.
    pub fn named(name: &[u8]) -> Option<Kind> {
        match () {
            () if name.eq_ignore_ascii_case(b"slow") => Some(Kind::Slow),
            () if name.eq_ignore_ascii_case(b"large-request") => Some(Kind::LargeRequest),
            () if name.eq_ignore_ascii_case(b"large-reply") => Some(Kind::LargeReply),
            () => None,
        }
    }
}

/// A command as the log shows it: taken before it is known how long it takes, if it runs elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Its arguments, cut to a bearable size, secrets left out.
    pub arguments: Vec<Vec<u8>>,
    /// The client's address.
    pub address: String,
    /// The client's name.
    pub name: Vec<u8>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Ascending in its log.
    pub id: u64,
    /// When the command ended, seconds since the epoch.
    pub unix_s: u64,
    /// Microseconds or bytes.
    pub size: u64,
    /// The command and its client.
    pub subject: Subject,
}

#[derive(Default)]
struct Log {
    entries: VecDeque<Entry>,
    next_id: u64,
}

/// The three logs.
#[derive(Default)]
pub struct CommandLog {
    logs: [Mutex<Log>; 3],
}

impl CommandLog {
    /// Adds an entry and drops the oldest ones beyond `max_len`. A log of length 0 is off and gives no ids.
    pub fn push(&self, kind: Kind, max_len: usize, unix_s: u64, size: u64, subject: Subject) {
        if max_len == 0 {
            return;
        }
        let mut log = lock(&self.logs[kind as usize]);
        let id = log.next_id;
        log.next_id += 1;
        log.entries.push_front(Entry {
            id,
            unix_s,
            size,
            subject,
        });
        log.entries.truncate(max_len);
    }

    /// The newest `count` entries, newest first.
    pub fn newest(&self, kind: Kind, count: usize) -> Vec<Entry> {
        let log = lock(&self.logs[kind as usize]);
        log.entries.iter().take(count).cloned().collect()
    }

    /// Number of entries.
    pub fn len(&self, kind: Kind) -> usize {
        lock(&self.logs[kind as usize]).entries.len()
    }

    /// Drops all entries; ids go on.
    pub fn reset(&self, kind: Kind) {
        lock(&self.logs[kind as usize]).entries.clear();
    }
}

/// The arguments as they are logged. `is_secret` names those that must not be shown, by index.
pub fn shown<'a>(
    arguments: impl ExactSizeIterator<Item = &'a [u8]>,
    is_secret: impl Fn(usize) -> bool,
) -> Vec<Vec<u8>> {
    let count = arguments.len();
    let whole = if count > ARGUMENTS { ARGUMENTS - 1 } else { count };
    let mut shown: Vec<Vec<u8>> = arguments
        .take(whole)
        .enumerate()
        .map(|(index, argument)| match is_secret(index) {
            true => REDACTED.to_vec(),
            false => cut(argument),
        })
        .collect();
    if whole < count {
        shown.push(format!("... ({} more arguments)", count - whole).into_bytes());
    }
    shown
}

fn cut(argument: &[u8]) -> Vec<u8> {
    let mut kept = argument[..argument.len().min(ARGUMENT_BYTES)].to_vec();
    if argument.len() > ARGUMENT_BYTES {
        kept.extend_from_slice(format!("... ({} more bytes)", argument.len() - ARGUMENT_BYTES).as_bytes());
    }
    kept
}
