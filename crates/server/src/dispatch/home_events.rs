//! Decides what runs on the home worker because modules get its keyspace events there.
//!
//! A module gets an event within the unit of the command that has caused it, on the home worker, in exclusive mode. So
//! the commands that may cause events run there, as those of modules do. Subscriptions change in exclusive mode only,
//! so what a thread has read at its passage of the gate holds until it leaves.

use weft_command_table::spec::CommandFlags;
use weft_modules::module::keyspace_events::{classes, subscribed_classes};

use crate::net::transaction::Transaction;

/// The classes of events of changes: of writes, expiry and eviction.
const CHANGES: i32 = classes::GENERIC
    | classes::STRING
    | classes::LIST
    | classes::SET
    | classes::HASH
    | classes::SORTED_SET
    | classes::EXPIRED
    | classes::EVICTED
    | classes::STREAM
    | classes::NEW;

/// The classes of events that modules have subscribed to, as of the last passage of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomeEvents {
    subscribed: i32,
}

impl HomeEvents {
    /// Returns the present subscriptions.
    #[inline]
    pub fn current() -> Self {
        HomeEvents {
            subscribed: subscribed_classes(),
        }
    }

    /// Returns `true` if modules have subscribed to some events.
    #[inline]
    pub fn include_some(self) -> bool {
        self.subscribed != 0
    }

    /// Returns `true` if modules have subscribed to events of changes.
    #[inline]
    pub fn include_changes(self) -> bool {
        self.subscribed & CHANGES != 0
    }

    /// Returns `true` if modules get the events of readers that miss a key.
    fn include_misses(self) -> bool {
        self.subscribed & classes::MISSED != 0
    }

    /// Returns `true` if modules get events that a command with these flags may cause.
    #[inline]
    pub fn concern(self, flags: CommandFlags) -> bool {
        self.subscribed != 0 && self.may_come_from(flags)
    }

    #[cold]
    fn may_come_from(self, flags: CommandFlags) -> bool {
        let writes = flags.contains(CommandFlags::WRITE);
        let reads = writes || flags.contains(CommandFlags::READONLY);
        (writes && self.include_changes()) || (reads && self.include_misses())
    }

    /// Returns `true` if modules get events that a script may cause.
    #[inline]
    pub fn concern_script(self, is_read_only: bool) -> bool {
        self.subscribed != 0 && (self.include_misses() || (!is_read_only && self.include_changes()))
    }

    /// Makes a transaction run on the home worker if modules get events that it may cause.
    #[inline]
    pub fn mark_transaction(self, transaction: Option<&mut Transaction>) {
        if self.subscribed != 0
            && let Some(transaction) = transaction
            && (self.include_misses() || (self.include_changes() && (transaction.may_write || transaction.runs_script)))
        {
            (transaction.runs_modules, transaction.needs_exclusive) = (true, true);
            transaction.must_stay_on_worker = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_concerned_by_changes_and_reads_by_misses() {
        let none = HomeEvents::default();
        assert!(!none.concern(CommandFlags::WRITE) && !none.concern_script(false));
        let strings = HomeEvents {
            subscribed: classes::STRING,
        };
        assert!(strings.concern(CommandFlags::WRITE));
        assert!(!strings.concern(CommandFlags::READONLY));
        assert!(strings.concern_script(false) && !strings.concern_script(true));
        let misses = HomeEvents {
            subscribed: classes::MISSED,
        };
        assert!(misses.concern(CommandFlags::READONLY) && misses.concern(CommandFlags::WRITE));
        assert!(!misses.concern(CommandFlags::ADMIN) && misses.concern_script(true));
        let loads = HomeEvents {
            subscribed: classes::LOADED | classes::MODULE,
        };
        assert!(!loads.concern(CommandFlags::WRITE) && !loads.include_changes());
    }
}
