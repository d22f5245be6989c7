//! The command log: commands that took long, had a large request, or had a large reply.
//!
//! A worker compares three numbers at the end of each command. Only a command that exceeds a threshold is passed to
//! this module, and only then are its arguments copied. Each of the three logs is a bounded queue behind its own mutex.

use std::collections::VecDeque;

use weft_os::sync::Mutex;

#[cfg(test)]
mod tests;

/// The maximum number of logged arguments. If there are more, the last logged one states the number of the rest.
const LOGGED_ARGUMENTS_MAX: usize = 32;
/// The maximum logged bytes of an argument.
const LOGGED_ARGUMENT_BYTES_MAX: usize = 128;
/// The text that replaces a secret argument.
pub const REDACTED: &[u8] = b"(redacted)";

/// The logs, by the reason for which commands are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandLogKind {
    /// Commands that took long; sizes are in microseconds.
    Slow,
    /// Commands with a large request; sizes are in bytes.
    LargeRequest,
    /// Commands with a large reply; sizes are in bytes.
    LargeReply,
}

impl CommandLogKind {
    /// Returns the log with that name, in any case.
    pub fn named(name: &[u8]) -> Option<CommandLogKind> {
        match () {
            () if name.eq_ignore_ascii_case(b"slow") => Some(CommandLogKind::Slow),
            () if name.eq_ignore_ascii_case(b"large-request") => Some(CommandLogKind::LargeRequest),
            () if name.eq_ignore_ascii_case(b"large-reply") => Some(CommandLogKind::LargeReply),
            () => None,
        }
    }
}

/// A command as the log shows it. It is created before the duration is known if the command runs outside the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedCommand {
    /// The arguments, truncated and with secrets replaced.
    pub arguments: Vec<Vec<u8>>,
    /// The client's address.
    pub address: String,
    /// The client's name.
    pub name: Vec<u8>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLogEntry {
    /// The id; ids ascend within a log.
    pub id: u64,
    /// The time at which the command ended, in seconds since the Unix epoch.
    pub unix_s: u64,
    /// The duration in microseconds, or the size in bytes.
    pub size: u64,
    /// The command and its client.
    pub subject: LoggedCommand,
}

#[derive(Default)]
struct Log {
    entries: VecDeque<CommandLogEntry>,
    next_id: u64,
}

/// The three logs.
#[derive(Default)]
pub struct CommandLog {
    logs: [Mutex<Log>; 3],
}

impl CommandLog {
    /// Adds an entry and drops the oldest ones beyond `max_len`. A log with a maximum length of 0 is disabled and
    /// assigns no ids.
    pub fn push(&self, kind: CommandLogKind, max_len: usize, unix_s: u64, size: u64, subject: LoggedCommand) {
        if max_len == 0 {
            return;
        }
        let mut log = self.logs[kind as usize].lock();
        let id = log.next_id;
        log.next_id += 1;
        log.entries.push_front(CommandLogEntry {
            id,
            unix_s,
            size,
            subject,
        });
        log.entries.truncate(max_len);
    }

    /// Returns the newest `count` entries, newest first.
    pub fn newest(&self, kind: CommandLogKind, count: usize) -> Vec<CommandLogEntry> {
        let log = self.logs[kind as usize].lock();
        log.entries.iter().take(count).cloned().collect()
    }

    /// Returns the number of entries.
    pub fn len(&self, kind: CommandLogKind) -> usize {
        self.logs[kind as usize].lock().entries.len()
    }

    /// Drops all entries; the ids continue.
    pub fn reset(&self, kind: CommandLogKind) {
        self.logs[kind as usize].lock().entries.clear();
    }
}

/// Returns the arguments as they are logged. `is_secret` returns `true` for the indices of arguments that must not be
/// shown.
pub fn loggable_arguments<'a>(
    arguments: impl ExactSizeIterator<Item = &'a [u8]>,
    is_secret: impl Fn(usize) -> bool,
) -> Vec<Vec<u8>> {
    let count = arguments.len();
    let whole = if count > LOGGED_ARGUMENTS_MAX {
        LOGGED_ARGUMENTS_MAX - 1
    } else {
        count
    };
    let mut shown: Vec<Vec<u8>> = arguments
        .take(whole)
        .enumerate()
        .map(|(index, argument)| match is_secret(index) {
            true => REDACTED.to_vec(),
            false => truncate(argument),
        })
        .collect();
    if whole < count {
        shown.push(format!("... ({} more arguments)", count - whole).into_bytes());
    }
    shown
}

fn truncate(argument: &[u8]) -> Vec<u8> {
    let mut kept = argument[..argument.len().min(LOGGED_ARGUMENT_BYTES_MAX)].to_vec();
    if argument.len() > LOGGED_ARGUMENT_BYTES_MAX {
        kept.extend_from_slice(format!("... ({} more bytes)", argument.len() - LOGGED_ARGUMENT_BYTES_MAX).as_bytes());
    }
    kept
}
