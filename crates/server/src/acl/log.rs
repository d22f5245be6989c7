//! The log of refusals: who was not allowed what. Similar ones within a minute are one entry with a count.

use std::collections::VecDeque;

use super::check::Reason;

/// Refusals at most so far apart are one entry, ms.
const GROUPING_MS: u64 = 60_000;
/// Entries that are looked at for a similar one.
const LOOKED_AT: usize = 10;

/// What the refused command was a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialContext {
    /// Nothing.
    TopLevel,
    /// A transaction.
    Transaction,
    /// A script.
    Script,
}

impl DenialContext {
    /// How ACL LOG names it.
    pub fn name(self) -> &'static str {
        match self {
            DenialContext::TopLevel => "toplevel",
            DenialContext::Transaction => "multi",
            DenialContext::Script => "lua",
        }
    }
}

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Where.
    pub scene: DenialContext,
    /// The command, key, channel or database that was not allowed.
    pub object: Vec<u8>,
    /// To whom.
    pub user: Vec<u8>,
}

/// What ACL LOG shows.
#[derive(Clone, Debug)]
pub struct Entry {
    /// How often it happened.
    pub count: u64,
    /// What happened.
    pub refusal: Refusal,
    /// The client of the last time, as CLIENT LIST shows it.
    pub client: Vec<u8>,
    /// Its number since the start.
    pub id: u64,
    /// When it happened first, ms since the epoch.
    pub created_ms: u64,
    /// When it happened last, ms since the epoch.
    pub updated_ms: u64,
}

/// The log, latest first.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Log {
    /// Adds a refusal. A new entry drives out what goes beyond `max_len` of them.
    pub fn add(&mut self, refusal: Refusal, client: Vec<u8>, now_ms: u64, max_len: usize) {
        if max_len == 0 {
            return self.clear();
        }
        let similar = |entry: &Entry| entry.updated_ms.abs_diff(now_ms) <= GROUPING_MS && entry.refusal == refusal;
        let place = self.entries.iter().take(LOOKED_AT).position(similar);
        match place.and_then(|place| self.entries.remove(place)) {
            Some(mut entry) => {
                entry.count += 1;
                entry.client = client;
                entry.updated_ms = now_ms;
                self.entries.push_front(entry);
            }
            None => {
                self.entries.push_front(Entry {
                    count: 1,
                    refusal,
                    client,
                    id: self.next_id,
                    created_ms: now_ms,
                    updated_ms: now_ms,
                });
                self.next_id += 1;
                self.entries.truncate(max_len);
            }
        }
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// The latest entries, at most `count`.
    pub fn latest(&self, count: usize) -> Vec<Entry> {
        self.entries.iter().take(count).cloned().collect()
    }
}
