//! A one-word filter that rules out most keys that no client waits for or watches.
//!
//! With thousands of blocked clients, every second slot holds keys of theirs. Without the filter, each write of another
//! key of such a slot would look up a name in cold memory. One word with a bit per hash avoids that.

use weft_base::slots::SLOT_BITS;

/// A Bloom filter of one bit per key. It may report a key that was not added, but never misses one that was.
#[derive(Default)]
pub struct KeyFilter {
    bits: u64,
    /// The number of changes since the bits were last rebuilt from the keys.
    changes: usize,
}

impl KeyFilter {
    /// Returns `true` if a key of this hash may have been added. `false` is certain.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.bits & bit(hash) != 0
    }

    /// Records that a key of this hash may have been added or removed. Returns `true` if it is time for
    /// [`Self::rebuild`], since the bits of removed keys stay set. `keys` is the current number of keys. A renewal
    /// costs as much as the changes before it.
    #[must_use]
    pub fn record_change(&mut self, hash: u64, keys: usize) -> bool {
        self.bits |= bit(hash);
        self.changes += 1;
        self.changes > keys + 16
    }

    /// Rebuilds the bits from the hashes of all keys.
    pub fn rebuild(&mut self, hashes: impl Iterator<Item = u64>) {
        self.changes = 0;
        self.bits = hashes.fold(0, |bits, hash| bits | bit(hash));
    }
}

/// Selects the bit of a hash. The top bits of the hash are the slot, which all keys of this filter share, so the bits
/// below them are used.
#[inline]
fn bit(hash: u64) -> u64 {
    1 << (hash >> (u64::BITS - SLOT_BITS - 6) & 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Present keys are always found. Removed keys are forgotten eventually, regardless of how many are added and
    /// removed.
    #[test]
    fn removed_keys_are_forgotten() {
        let mut filter = KeyFilter::default();
        let mut keys = Vec::new();
        let mut random = fastrand::Rng::with_seed(5);
        let mut renewals = 0;
        for round in 0..10_000 {
            let hash = random.u64(..);
            keys.push(hash);
            if filter.record_change(hash, keys.len()) {
                filter.rebuild(keys.iter().copied());
                renewals += 1;
            }
            if round % 100 == 50 {
                assert!(keys.iter().all(|hash| filter.may_contain(*hash)));
            }
            if keys.len() > 3 {
                let left = keys.remove(random.usize(..keys.len()));
                if filter.record_change(left, keys.len()) {
                    filter.rebuild(keys.iter().copied());
                    renewals += 1;
                }
            }
        }
        // There are some twenty changes between two renewals, and each sets at most one bit.
        assert!(filter.bits.count_ones() <= 24, "{:064b}", filter.bits);
        assert!((900..1100).contains(&renewals), "{renewals}");
    }

    /// The filter of a slot once used the hash bits that select the slot, so it matched all of the slot's keys or none.
    #[test]
    fn keys_of_one_slot_use_different_bits() {
        let mut random = fastrand::Rng::with_seed(6);
        let mut of_one_slot = || random.u64(..) >> SLOT_BITS | 77 << (u64::BITS - SLOT_BITS);
        let mut filter = KeyFilter::default();
        assert!(!filter.record_change(of_one_slot(), 1));
        let held = (0..6400).filter(|_| filter.may_contain(of_one_slot())).count();
        assert!((50..200).contains(&held), "{held}");
    }

    /// An empty filter matches no key.
    #[test]
    fn an_empty_filter_holds_nothing() {
        let filter = KeyFilter::default();
        assert!((0..64).all(|bit| !filter.may_contain(1 << bit)));
    }
}
