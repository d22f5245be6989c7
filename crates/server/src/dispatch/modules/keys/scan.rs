//! Walks of modules over keys and elements, and their functions on whole databases.

use weft_base::DbIndex;
use weft_modules::session::keys::{ElementVisitor, ScanSession, SessionKey, ValueScan};
use weft_table::EntryRef;
use weft_values::Value;
use weft_values::hash::HashRef;
use weft_values::listpack::DECIMAL_MAX_BYTES;
use weft_values::set::SetView;
use weft_values::sorted_set::{SortedSetEncoding, SortedSetView};

use super::ModuleSession;
use crate::commands::generic::database::reset_databases;
use crate::commands::generic::randomkey::find_random_key;
use crate::commands::hash::fields::value_as_hash;
use crate::commands::set::value_as_set;
use crate::commands::sorted_set::{append_score, value_as_sorted_set};
use crate::keyspace::walk::{Cursor, WalkAccess, WalkEnd, count_hidden_keys, walk};

/// The number of keys or elements that a step of a walk visits.
const STEP: usize = 10;

fn scan_hash(hash: HashRef<'_>, cursor: u64, now_ms: u64, visit: ElementVisitor<'_>) -> ValueScan {
    match hash {
        HashRef::Large(hash) if hash.encoding_name() == "hashtable" => {
            ValueScan::Next(hash.scan(cursor, STEP, now_ms, &mut |record| {
                visit(record.key, Some(record.value));
            }))
        }
        compact => {
            compact.for_each(now_ms, |field| {
                let (mut digits, mut more_digits) = ([0; DECIMAL_MAX_BYTES], [0; DECIMAL_MAX_BYTES]);
                visit(field.name.text(&mut digits), Some(field.value.text(&mut more_digits)));
            });
            ValueScan::Whole
        }
    }
}

fn scan_set(set: SetView<'_>, cursor: u64, visit: ElementVisitor<'_>) -> ValueScan {
    let next = set.scan(cursor, STEP, |member| {
        visit(member.text(&mut [0; DECIMAL_MAX_BYTES]), None)
    });
    match set {
        SetView::Table(_) => ValueScan::Next(next),
        SetView::Integers(_) | SetView::Run { .. } => ValueScan::Whole,
    }
}

fn scan_sorted_set(set: SortedSetView<'_>, cursor: u64, visit: ElementVisitor<'_>) -> ValueScan {
    let is_skiplist = matches!(set, SortedSetView::Large(set) if set.encoding() == SortedSetEncoding::Skiplist);
    let mut text = Vec::with_capacity(32);
    let next = set.scan(cursor, STEP, |member, score| {
        text.clear();
        append_score(score, is_skiplist, &mut text);
        visit(member.text(&mut [0; DECIMAL_MAX_BYTES]), Some(&text));
    });
    match is_skiplist {
        true => ValueScan::Next(next),
        false => ValueScan::Whole,
    }
}

fn scan_entry(entry: EntryRef<'_, Value>, cursor: u64, now_ms: u64, visit: ElementVisitor<'_>) -> ValueScan {
    let value = entry.value();
    if let Ok(hash) = value_as_hash(value) {
        scan_hash(hash, cursor, now_ms, visit)
    } else if let Ok(set) = value_as_set(value) {
        scan_set(set, cursor, visit)
    } else if let Ok(set) = value_as_sorted_set(value) {
        scan_sorted_set(set, cursor, visit)
    } else {
        ValueScan::WrongType
    }
}

impl ScanSession for ModuleSession<'_, '_> {
    fn database_size(&mut self, db: u32) -> u64 {
        let Some(db) = self.database(db) else {
            return 0;
        };
        let server = self.thread.server.clone();
        let keys = server.keyspace.counts.keys(db);
        if !server.slot_migrations.has_imports() {
            return keys;
        }
        let held = self.access.as_held_leases();
        let hidden = WalkAccess::for_whole_keyspace(&held).map(|access| count_hidden_keys(&access, db));
        match hidden {
            Some(Ok(hidden)) => keys.saturating_sub(hidden.keys as u64),
            Some(Err(_)) | None => keys,
        }
    }

    fn random_key(&mut self, db: u32, visit: &mut dyn FnMut(&[u8])) -> bool {
        let Some(db) = self.database(db) else {
            return false;
        };
        let alive_at_ms = self.access_context().now_ms;
        let keys = self.thread.server.keyspace.counts.keys(db);
        let held = self.access.as_held_leases();
        let Some(access) = WalkAccess::for_whole_keyspace(&held) else {
            return false;
        };
        let found = find_random_key(access, db, keys, alive_at_ms);
        found.inspect(|name| visit(name)).is_some()
    }

    fn scan_database(&mut self, db: u32, cursor: u64, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        let db: DbIndex = self.database(db)?;
        let held = self.access.as_held_leases();
        let access = WalkAccess::for_whole_keyspace(&held)?;
        let end = walk(&access, db, Cursor::from_number(cursor), STEP, &mut |_, entry| {
            visit(entry.key())
        });
        Some(match end {
            WalkEnd::End => 0,
            WalkEnd::Paused(next) | WalkEnd::Contended(next) => next.to_number(),
        })
    }

    fn scan_value(&mut self, key: SessionKey<'_>, cursor: u64, visit: ElementVisitor<'_>) -> ValueScan {
        let now_ms = self.access_context().now_ms;
        self.with_stored(key, |entry| scan_entry(entry, cursor, now_ms, visit))
            .unwrap_or(ValueScan::WrongType)
    }

    fn reset_dataset(&mut self, restarts_log: bool, is_lazy: bool) {
        if !self.access.is_exclusive() {
            return;
        }
        let server = self.thread.server.clone();
        self.with_keys(DbIndex::FIRST, &[], |keys| {
            reset_databases(keys, &server, restarts_log, is_lazy)
        });
    }
}
