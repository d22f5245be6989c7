//! RANDOMKEY: a random key of the database, each almost equally likely, and not an expired one if there are others.
//!
//! A slot is chosen at random and accepted in proportion to its number of keys, relative to a well filled slot at this
//! size of the database. In an accepted slot a key is chosen. Rejections are cheap while a fair share of the slots has
//! keys. In a nearly empty database most attempts would find nothing, so the non-empty slots are listed first, without
//! leases, and the slot is chosen among them.
//!
//! Slots that another thread writes are skipped, and after a few of them the search becomes systematic. If no key was
//! found in the others, the command runs again later, since the skipped slots may have one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use weft_base::{DbIndex, SlotIndex};
use weft_table::EntryRef;
use weft_values::Value;

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::keyspace::access::is_expired;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::walk::{Cursor, WalkAccess, WalkEnd, walk};
use weft_base::slots::SLOTS;

/// The command of this file and its handler.
pub const BINDINGS: &[(&str, Binding)] = &[("randomkey", leased(randomkey).with_undeclared_keys())];

/// The number of random attempts after which the search becomes systematic.
const MAX_DRAWS: usize = 512;
/// The number of refused leases after which the search becomes systematic. Each of them takes about a microsecond, and
/// in a nearly empty database all attempts may choose the same slot.
const MAX_REFUSED_DRAWS: usize = 4;
/// The number of keys below which the occupied slots are listed.
const SPARSE_DATABASE_KEYS: u64 = SLOTS as u64 / 32;
/// The number of keys that the systematic search examines.
const MAX_SEARCHED_KEYS: usize = 1000;

/// The maximum number of expired keys that one search reports.
const MAX_EXPIRED_KEYS: usize = 100;

fn randomkey(ctx: &mut Context<'_, '_>) -> CommandResult {
    let search = RandomKeySearch {
        access: WalkAccess::for_command(&ctx.keys.held, ctx.pass),
        db: ctx.keys.db,
        keys: ctx.server.keyspace.counts.keys(ctx.keys.db),
        alive_at_ms: ctx.expiry_time_ms(),
        expired: RefCell::default(),
        skipped_slot: Cell::default(),
    };
    let found = search.find_random_key();
    let skipped = search.skipped_slot.get().filter(|_| found.is_none());
    let expired = search.expired.into_inner();
    let found = match skipped {
        Some(_) => None,
        None => found.or_else(|| random_undeletable_key(ctx, &expired)),
    };
    let hasher = &ctx.server.keyspace.hasher;
    for name in expired {
        let key = PlannedKey::unnamed(hasher.hash(&name));
        ctx.keys.effects.queue_expired(ctx.keys.db, &key, &name, false);
    }
    match (found, skipped) {
        (Some(name), _) => ctx.reply.bulk(&name),
        (None, Some(slot)) => ctx.defer_until_free(slot),
        (None, None) => ctx.reply.null(),
    }
    Ok(())
}

/// Returns the name of a random key for a caller that holds every slot. `keys` is the number of keys of the database.
pub(crate) fn find_random_key(access: WalkAccess<'_, '_>, db: DbIndex, keys: u64, alive_at_ms: u64) -> Option<Vec<u8>> {
    let search = RandomKeySearch {
        access,
        db,
        keys,
        alive_at_ms,
        expired: RefCell::default(),
        skipped_slot: Cell::default(),
    };
    search.find_random_key()
}

/// Returns one of the expired keys if they are not deleted here at present, and all keys of the database have an
/// expiry. In this case Valkey gives up the search for a live key and returns a key that has expired.
#[cold]
fn random_undeletable_key(ctx: &Context<'_, '_>, expired: &BTreeSet<Vec<u8>>) -> Option<Vec<u8>> {
    let (counts, db) = (&ctx.server.keyspace.counts, ctx.keys.db);
    if expired.is_empty() || counts.keys(db) != counts.with_expiry(db) || ctx.server.may_delete_expired(ctx.now_ms) {
        return None;
    }
    expired.iter().nth(fastrand::usize(..expired.len())).cloned()
}

struct RandomKeySearch<'r, 'p> {
    access: WalkAccess<'r, 'p>,
    db: DbIndex,
    /// The approximate number of keys in the database.
    keys: u64,
    /// The time at which the key must not have expired, in milliseconds since the Unix epoch.
    alive_at_ms: u64,
    /// Expired keys that were found; they are deleted afterwards.
    expired: RefCell<BTreeSet<Vec<u8>>>,
    /// A slot that was skipped because another thread writes it.
    skipped_slot: Cell<Option<SlotIndex>>,
}

impl RandomKeySearch<'_, '_> {
    fn find_random_key(&self) -> Option<Vec<u8>> {
        let drawn = if self.keys < SPARSE_DATABASE_KEYS {
            let occupied: Vec<usize> = (0..SLOTS)
                .filter(|slot| self.access.header(*slot).may_show(self.db))
                .collect();
            if occupied.is_empty() {
                return None;
            }
            self.draw_key(|| occupied[fastrand::usize(..occupied.len())])
        } else {
            self.draw_key(|| fastrand::usize(..SLOTS))
        };
        drawn.or_else(|| self.search_from_random_slot())
    }

    /// Chooses slots until one yields a key, or too many were refused.
    fn draw_key(&self, mut draw_slot: impl FnMut() -> usize) -> Option<Vec<u8>> {
        let full = acceptance_bound(self.keys);
        let mut refused = 0;
        for _ in 0..MAX_DRAWS {
            let slot = draw_slot();
            if !self.access.header(slot).may_show(self.db) {
                continue;
            }
            let picked = self.access.read_slot(slot, |data| {
                let table = data.table(self.db)?;
                let accepted = fastrand::usize(..full) < table.len();
                let entry = accepted.then(|| table.random(fastrand::u64(..)))??;
                self.is_alive(entry).then(|| entry.key().to_vec())
            });
            match picked {
                Some(None) => {}
                Some(name) => return name,
                None => {
                    self.skipped_slot.set(Some(SlotIndex::from_index(slot)));
                    refused += 1;
                    if refused == MAX_REFUSED_DRAWS {
                        break;
                    }
                }
            }
        }
        None
    }

    /// Searches any key from a random position on, for databases where nearly all keys have expired.
    fn search_from_random_slot(&self) -> Option<Vec<u8>> {
        let start = Cursor::at_slot(fastrand::usize(..SLOTS));
        self.first_live_key_from(start)
            .or_else(|| self.first_live_key_from(Cursor::START))
    }

    fn first_live_key_from(&self, start: Cursor) -> Option<Vec<u8>> {
        let mut found = None;
        let mut left = MAX_SEARCHED_KEYS;
        let mut cursor = start;
        while found.is_none() && left > 0 {
            let stop = walk(&self.access, self.db, cursor, 1, &mut |_, entry| {
                left = left.saturating_sub(1);
                if found.is_none() && self.is_alive(entry) {
                    found = Some(entry.key().to_vec());
                }
            });
            match stop {
                WalkEnd::End => break,
                WalkEnd::Paused(next) => cursor = next,
                WalkEnd::Contended(here) => {
                    self.skipped_slot.set(Some(here.slot()));
                    cursor = here.next_slot();
                }
            }
        }
        if found.is_none() && left == 0 {
            // The search has ended at its limit, as it would again.
            self.skipped_slot.set(None);
        }
        found
    }

    fn is_alive(&self, entry: EntryRef<'_, Value>) -> bool {
        let alive = !is_expired(entry.expire_at_ms(), self.alive_at_ms);
        let mut expired = self.expired.borrow_mut();
        if !alive && expired.len() < MAX_EXPIRED_KEYS {
            expired.insert(entry.key().to_vec());
        }
        alive
    }
}

/// Returns a number of keys that few slots exceed: keys are distributed over slots at random, so four standard
/// deviations above the mean.
fn acceptance_bound(keys: u64) -> usize {
    let mean = keys as f64 / SLOTS as f64;
    (mean + 4.0 * mean.sqrt()).ceil() as usize + 1
}

#[cfg(test)]
mod tests;
