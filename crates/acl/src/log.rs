//! The ACL log: denied accesses. Similar denials within a minute form one entry with a count.

use std::collections::VecDeque;

use super::check::DenialReason;

/// The maximum interval between denials of one entry, in milliseconds.
const MAX_GROUPING_INTERVAL_MS: u64 = 60_000;
/// The number of entries that are searched for a similar one.
const MAX_SEARCHED_ENTRIES: usize = 10;

/// The context in which a command was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialContext {
    /// None.
    TopLevel,
    /// A transaction.
    Transaction,
    /// A script in Lua.
    Script,
    /// A script that the engine of a module runs.
    EngineScript,
    /// A module.
    Module,
}

impl DenialContext {
    /// Returns its name in ACL LOG.
    pub fn name(self) -> &'static str {
        match self {
            DenialContext::TopLevel => "toplevel",
            DenialContext::Transaction => "multi",
            DenialContext::Script => "lua",
            DenialContext::EngineScript => "script",
            DenialContext::Module => "module",
        }
    }
}

/// A denied access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedAccess {
    /// The reason.
    pub reason: DenialReason,
    /// The context.
    pub context: DenialContext,
    /// The command, key, channel or database that was not allowed.
    pub object: Vec<u8>,
    /// The name of the user.
    pub user: Vec<u8>,
}

/// An entry of ACL LOG.
#[derive(Clone, Debug)]
pub struct AclLogEntry {
    /// The number of denials.
    pub count: u64,
    /// The denied access.
    pub refusal: DeniedAccess,
    /// The client of the last denial, as CLIENT LIST shows it.
    pub client: Vec<u8>,
    /// The number of the entry since the start.
    pub id: u64,
    /// The time of the first denial, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The time of the last denial, in milliseconds since the Unix epoch.
    pub updated_ms: u64,
}

/// The ACL log, latest entry first.
#[derive(Debug, Default)]
pub struct AclLog {
    entries: VecDeque<AclLogEntry>,
    next_id: u64,
}

impl AclLog {
    /// Adds a denial. A new entry removes the oldest ones beyond `max_len`.
    pub fn add(&mut self, refusal: DeniedAccess, client: Vec<u8>, now_ms: u64, max_len: usize) {
        if max_len == 0 {
            return self.clear();
        }
        let similar = |entry: &AclLogEntry| {
            entry.updated_ms.abs_diff(now_ms) <= MAX_GROUPING_INTERVAL_MS && entry.refusal == refusal
        };
        let place = self.entries.iter().take(MAX_SEARCHED_ENTRIES).position(similar);
        match place.and_then(|place| self.entries.remove(place)) {
            Some(mut entry) => {
                entry.count += 1;
                entry.client = client;
                entry.updated_ms = now_ms;
                self.entries.push_front(entry);
            }
            None => {
                self.entries.push_front(AclLogEntry {
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

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the latest entries, at most `count`.
    pub fn latest(&self, count: usize) -> Vec<AclLogEntry> {
        self.entries.iter().take(count).cloned().collect()
    }
}
