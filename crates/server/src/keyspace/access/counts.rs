//! The number of keys, with a separate counter for each thread.

use weft_base::{DbIndex, ThreadIndex};
use weft_os::atomic::{AtomicBool, Ordering};
use weft_sync::StripedCounters;

use super::seen_expiry::SeenExpiry;

use crate::keyspace::SlotTable;
use crate::keyspace::module_values::ModuleSlots;

/// The number of counters per database.
const COUNTERS_PER_DATABASE: usize = 3;

/// The number of keys in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableCounts {
    /// All keys.
    pub keys: usize,
    /// The keys with an expiry.
    pub with_expiry: usize,
}

impl TableCounts {
    /// Returns the counts of a table.
    #[inline]
    pub fn of_table(table: &SlotTable) -> TableCounts {
        TableCounts {
            keys: table.len(),
            with_expiry: table.with_expiry(),
        }
    }
}

/// The numbers of keys, keys with an expiry and volatile values per database. Each thread writes its own row. Readers
/// sum the rows.
pub struct KeyCounts {
    rows: StripedCounters,
    /// For each database, `true` once it was used.
    was_used: Box<[AtomicBool]>,
    databases: usize,
    /// `true` if a slot may have an empty table of a database above 0.
    has_empty_tables: AtomicBool,
    /// The slots that may have values of modules.
    pub module_slots: ModuleSlots,
    /// The latest time at which an expired key was found.
    pub seen_expiry: SeenExpiry,
}

impl KeyCounts {
    /// Creates zeroed counters for `databases` databases and `threads` threads.
    pub fn new(threads: usize, databases: usize) -> Self {
        KeyCounts {
            rows: StripedCounters::new(threads, databases * COUNTERS_PER_DATABASE),
            was_used: DbIndex::all(databases)
                .map(|db| AtomicBool::new(db == DbIndex::FIRST))
                .collect(),
            databases,
            has_empty_tables: AtomicBool::new(false),
            module_slots: ModuleSlots::default(),
            seen_expiry: SeenExpiry::default(),
        }
    }

    /// Adds to the counts of database `db` in the row of a thread.
    #[inline]
    pub fn add(&self, thread_index: ThreadIndex, db: DbIndex, keys: i64, with_expiry: i64) {
        if keys != 0 {
            self.rows
                .add_as_only_writer(thread_index.get(), db.get() * COUNTERS_PER_DATABASE, keys);
            if keys < 0 {
                self.note_empty_table(db);
            }
        }
        if with_expiry != 0 {
            self.rows
                .add_as_only_writer(thread_index.get(), db.get() * COUNTERS_PER_DATABASE + 1, with_expiry);
        }
    }

    /// Adds the difference that a change has made in a table of database `db`.
    pub fn add_difference(&self, thread_index: ThreadIndex, db: DbIndex, before: TableCounts, after: TableCounts) {
        let keys = after.keys as i64 - before.keys as i64;
        let with_expiry = after.with_expiry as i64 - before.with_expiry as i64;
        self.add(thread_index, db, keys, with_expiry);
    }

    /// Adds to the count of volatile values in database `db` in the row of a thread.
    #[inline]
    pub fn add_volatile(&self, thread_index: ThreadIndex, db: DbIndex, values: i64) {
        if values != 0 {
            self.rows
                .add_as_only_writer(thread_index.get(), db.get() * COUNTERS_PER_DATABASE + 2, values);
        }
    }

    /// Records that a slot may have an empty table of database `db`. Empty tables of databases above 0 take more memory
    /// than a small key, and are freed from time to time.
    #[inline]
    pub fn note_empty_table(&self, db: DbIndex) {
        if db != DbIndex::FIRST && !self.has_empty_tables.load(Ordering::Relaxed) {
            self.has_empty_tables.store(true, Ordering::Relaxed);
        }
    }

    /// Returns `true` if [`Self::note_empty_table`] was called since the last call of this function.
    pub fn take_has_empty_tables(&self) -> bool {
        self.has_empty_tables.load(Ordering::Relaxed) && self.has_empty_tables.swap(false, Ordering::Relaxed)
    }

    /// Marks database `db` as used. MEMORY STATS lists it from then on.
    pub fn mark_used(&self, db: DbIndex) {
        if let Some(opened) = self
            .was_used
            .get(db.get())
            .filter(|opened| !opened.load(Ordering::Relaxed))
        {
            opened.store(true, Ordering::Relaxed);
        }
    }

    /// Returns `true` if database `db` was ever used.
    pub fn was_used(&self, db: DbIndex) -> bool {
        self.was_used
            .get(db.get())
            .is_some_and(|opened| opened.load(Ordering::Relaxed))
    }

    /// The number of keys in database `db`.
    pub fn keys(&self, db: DbIndex) -> u64 {
        self.rows.sum(db.get() * COUNTERS_PER_DATABASE).max(0) as u64
    }

    /// The number of keys with an expiry in database `db`.
    pub fn with_expiry(&self, db: DbIndex) -> u64 {
        self.rows.sum(db.get() * COUNTERS_PER_DATABASE + 1).max(0) as u64
    }

    /// The number of keys in database `db` with a volatile value, of which parts expire (fields of a hash).
    pub fn volatile_values(&self, db: DbIndex) -> u64 {
        self.rows.sum(db.get() * COUNTERS_PER_DATABASE + 2).max(0) as u64
    }

    /// The number of databases counted.
    pub fn databases(&self) -> usize {
        self.databases
    }

    /// Returns `true` if any key in any database, or a part of its value, has an expiry.
    pub fn has_any_expiry(&self) -> bool {
        DbIndex::all(self.databases).any(|db| self.with_expiry(db) > 0 || self.volatile_values(db) > 0)
    }
}
