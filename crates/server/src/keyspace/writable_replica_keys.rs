//! Keys to which clients of a writable replica gave an expiry. The primary does not know these expiries, so the replica
//! deletes the keys by itself.
//!
//! A key is remembered with the time that was set last. When that time comes, the key is checked again: it may have
//! been deleted, or the primary may have given it a later expiry.
//!
//! On a replica that has become a primary they expire like all other keys. The next expiry cycle forgets them, as in
//! Valkey.

use std::collections::{BTreeSet, HashMap};

use super::access::is_expired;
use super::effects::{Effects, ExpiredKey};
use super::expiry::{OnExpired, delete_keys_found_expired};
use super::key_identity::LocalExpiry;
use super::{Keyspace, Seat};

use weft_base::{DbIndex, SlotIndex};
use weft_os::atomic::{AtomicU64, Ordering};
use weft_os::sync::Mutex;

/// The number of keys checked at once.
const KEYS_PER_RUN: usize = 256;
/// The time after which a key that could not be deleted is checked again, in milliseconds.
const RETRY_AFTER_MS: u64 = 50;

/// The keys that this replica expires by itself.
#[derive(Default)]
pub struct LocalExpiries {
    index: Mutex<LocalExpiryIndex>,
    /// The time at which the first key is due, in ms since the Unix epoch; 0 if there is none.
    next_ms: AtomicU64,
}

/// A database and the name of a key in it.
type DatabaseKey = (DbIndex, Box<[u8]>);
/// A key's expiry, hash and slot.
type ExpiringKey = (u64, u64, SlotIndex);

#[derive(Default)]
struct LocalExpiryIndex {
    by_name: HashMap<DatabaseKey, ExpiringKey>,
    by_time: BTreeSet<(u64, DbIndex, Box<[u8]>)>,
}

impl LocalExpiries {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.index.lock().by_name.len()
    }

    /// Removes all keys.
    pub fn clear(&self) {
        let mut known = self.index.lock();
        *known = LocalExpiryIndex::default();
        self.next_ms.store(0, Ordering::Relaxed);
    }

    /// Removes all keys if `is_primary` returns `true`. No key is added between the check and the removal.
    pub fn clear_if(&self, is_primary: impl FnOnce() -> bool) {
        if self.next_ms.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut known = self.index.lock();
        if is_primary() {
            *known = LocalExpiryIndex::default();
            self.next_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Returns `true` if some key is due.
    pub fn is_due(&self, now_ms: u64) -> bool {
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        next_ms != 0 && next_ms < now_ms
    }

    /// Adds keys, or updates their times.
    pub fn add(&self, keys: impl Iterator<Item = LocalExpiry>) {
        let mut known = self.index.lock();
        for key in keys {
            let name = (key.db, key.name.clone());
            if let Some((before_ms, ..)) = known.by_name.insert(name, (key.at_ms, key.hash, key.slot)) {
                known.by_time.remove(&(before_ms, key.db, key.name.clone()));
            }
            known.by_time.insert((key.at_ms, key.db, key.name));
        }
        self.publish_next_due(&known);
    }

    /// Removes and returns keys that are due.
    fn take_due(&self, now_ms: u64) -> Vec<LocalExpiry> {
        let mut known = self.index.lock();
        let mut due = Vec::new();
        while due.len() < KEYS_PER_RUN {
            let Some((at_ms, db, name)) = known.by_time.pop_first() else {
                break;
            };
            if at_ms >= now_ms {
                known.by_time.insert((at_ms, db, name));
                break;
            }
            let Some(((db, name), (at_ms, hash, slot))) = known.by_name.remove_entry(&(db, name)) else {
                continue;
            };
            due.push(LocalExpiry {
                db,
                slot,
                hash,
                name,
                at_ms,
            });
        }
        self.publish_next_due(&known);
        due
    }

    fn publish_next_due(&self, known: &LocalExpiryIndex) {
        let next_ms = known.by_time.first().map_or(0, |(at_ms, ..)| *at_ms);
        self.next_ms.store(next_ms, Ordering::Relaxed);
    }
}

/// Deletes the keys that have expired.
pub fn expire(keyspace: &Keyspace, seat: &mut Seat, now_ms: u64, effects: &mut Effects, notify: OnExpired<'_>) {
    let mut again = Vec::new();
    for mut key in keyspace.local_expiry.take_due(now_ms) {
        let expiry = {
            let pass = seat.enter();
            let lease = pass.try_read(key.slot.index());
            lease.map(|lease| {
                let entry = lease.table(key.db).and_then(|table| table.find(key.hash, &key.name));
                entry.and_then(|entry| entry.expire_at_ms())
            })
        };
        match expiry {
            // It was deleted, or has no expiry any more.
            Some(None) => continue,
            Some(Some(at_ms)) if !is_expired(Some(at_ms), now_ms) => key.at_ms = at_ms,
            // The check after its deletion forgets it.
            found => {
                key.at_ms = now_ms + RETRY_AFTER_MS;
                if found.is_some() {
                    effects.expired.push(ExpiredKey {
                        db: key.db,
                        slot: key.slot,
                        hash: key.hash,
                        name: key.name.to_vec(),
                        should_publish_miss: false,
                    });
                }
            }
        }
        again.push(key);
    }
    // No other server deletes the keys that clients wrote here, so they are deleted in either role.
    delete_keys_found_expired(keyspace, seat, now_ms, &|| true, effects, notify);
    keyspace.local_expiry.add(again.into_iter());
}

#[cfg(test)]
mod tests;
