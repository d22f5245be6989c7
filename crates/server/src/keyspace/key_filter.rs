//! A filter that rules out most keys without interested clients by one word.
//!
//! With thousands of clients that wait for keys, every second slot has some of theirs. A write of another key of such a
//! slot would look up a name in cold memory; a word with one bit per hash saves that lookup.

use super::hash::SLOT_BITS;

/// A Bloom filter with one bit per key: it may take a key for one that was added, and never the other way round.
#[derive(Default)]
pub struct KeyFilter {
    bits: u64,
    /// Changes since the bits were last made from the keys.
    changes: usize,
}

impl KeyFilter {
    /// Returns `true` if a key with this hash may have been added; `false` is certain.
    #[inline]
    pub fn may_hold(&self, hash: u64) -> bool {
        self.bits & bit(hash) != 0
    }

    /// A key of this hash was perhaps added, or removed; whether it is time for [`Self::renew`], for the bits of keys
    /// that were removed stay. `keys` is how many there are. A renewal costs as much as the changes before it.
    #[must_use]
    pub fn note(&mut self, hash: u64, keys: usize) -> bool {
        self.bits |= bit(hash);
        self.changes += 1;
        self.changes > keys + 16
    }

    /// Resets the filter to the hashes of all keys.
    pub fn renew(&mut self, hashes: impl Iterator<Item = u64>) {
        self.changes = 0;
        self.bits = hashes.fold(0, |bits, hash| bits | bit(hash));
    }
}

/// The uppermost bits of a hash make the slot, so they do not distinguish keys of a slot.
#[inline]
fn bit(hash: u64) -> u64 {
    1 << (hash >> (u64::BITS - SLOT_BITS - 6) & 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that are in the filter are always found; keys that left are forgotten in time, however many come and go.
    #[test]
    fn keys_that_left_are_forgotten() {
        let mut filter = KeyFilter::default();
        let mut keys = Vec::new();
        let mut random = fastrand::Rng::with_seed(5);
        let mut renewals = 0;
        for round in 0..10_000 {
            let hash = random.u64(..);
            keys.push(hash);
            if filter.note(hash, keys.len()) {
                filter.renew(keys.iter().copied());
                renewals += 1;
            }
            if round % 100 == 50 {
                assert!(keys.iter().all(|hash| filter.may_hold(*hash)));
            }
            if keys.len() > 3 {
                let left = keys.remove(random.usize(..keys.len()));
                if filter.note(left, keys.len()) {
                    filter.renew(keys.iter().copied());
                    renewals += 1;
                }
            }
        }
        // Twenty changes lie between two renewals, each of which sets at most one bit.
        assert!(filter.bits.count_ones() <= 24, "{:064b}", filter.bits);
        assert!((900..1100).contains(&renewals), "{renewals}");
    }

    /// The filter of a slot once looked at the bits that make the slot, and held all of its keys or none.
    #[test]
    fn keys_of_one_slot_are_told_apart() {
        let mut random = fastrand::Rng::with_seed(6);
        let mut of_one_slot = || random.u64(..) >> SLOT_BITS | 77 << (u64::BITS - SLOT_BITS);
        let mut filter = KeyFilter::default();
        assert!(!filter.note(of_one_slot(), 1));
        let held = (0..6400).filter(|_| filter.may_hold(of_one_slot())).count();
        assert!((50..200).contains(&held), "{held}");
    }

    /// Nobody is interested in anything.
    #[test]
    fn an_empty_filter_holds_nothing() {
        let filter = KeyFilter::default();
        assert!((0..64).all(|bit| !filter.may_hold(1 << bit)));
    }
}
