//! MONITOR: the clients in monitor mode, and the lines that they receive.

use weft_base::{ClientId, DbIndex, ThreadIndex};
use weft_resp::quote::append_quoted;

use crate::observability::commandlog::REDACTED;
use weft_os::sync::Mutex;

/// The clients in monitor mode, with their workers.
#[derive(Default)]
pub struct Monitors(Mutex<Vec<(ClientId, ThreadIndex)>>);

impl Monitors {
    /// Adds a client. Calls `first` if it is the only one.
    pub fn add_monitor(&self, client: ClientId, worker: ThreadIndex, first: impl FnOnce()) {
        let mut monitors = self.0.lock();
        monitors.push((client, worker));
        if monitors.len() == 1 {
            first();
        }
    }

    /// Removes a client. Calls `last` if none is left.
    pub fn remove_monitor(&self, client: ClientId, last: impl FnOnce()) {
        let mut monitors = self.0.lock();
        monitors.retain(|(monitor, _)| *monitor != client);
        if monitors.is_empty() {
            last();
        }
    }

    /// Returns the workers that have monitors, each once.
    pub fn workers(&self) -> Vec<ThreadIndex> {
        let monitors = self.0.lock();
        let mut workers: Vec<ThreadIndex> = monitors.iter().map(|(_, worker)| *worker).collect();
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Returns the monitors of one worker.
    pub fn worker_monitors(&self, worker: ThreadIndex) -> Vec<ClientId> {
        let monitors = self.0.lock();
        let of_worker = monitors.iter().filter(|(_, owner)| *owner == worker);
        of_worker.map(|(client, _)| *client).collect()
    }
}

/// Formats the line of one command. `address` is the client's address. `is_secret` returns `true` for the indexes of
/// arguments that must not be shown.
pub fn monitor_line<'a>(
    unix_us: u128,
    db: DbIndex,
    address: &str,
    arguments: impl Iterator<Item = &'a [u8]>,
    is_secret: impl Fn(usize) -> bool,
) -> Vec<u8> {
    let (seconds, micros) = (unix_us / 1_000_000, unix_us % 1_000_000);
    let mut line = format!("+{seconds}.{micros:06} [{db} {address}]").into_bytes();
    for (index, argument) in arguments.enumerate() {
        line.push(b' ');
        append_quoted(&mut line, if is_secret(index) { REDACTED } else { argument });
    }
    line.extend_from_slice(b"\r\n");
    line
}

#[cfg(test)]
mod tests;
