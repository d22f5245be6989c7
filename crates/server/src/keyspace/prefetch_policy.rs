//! Prefetch policy: how much of an entry lookups prefetch, learned from samples.
//!
//! A lookup reads an entry's head, and often that is all: a small value lies in the same two cache lines. Then a
//! separate prefetch of the value, which has to find the entry again under a lease of its own, has no benefit. The need
//! for it is not known before the head is loaded, but the entries of one workload are much alike. The same holds for
//! the data behind the values of large collections: small collections have none.

use weft_table::{Head, PrefetchTarget};

use super::SlotTable;

/// The number of lookups in a sample.
const SAMPLE: u16 = 16;

/// The results of sampled lookups; at first, everything is prefetched.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchPolicy {
    head: Head,
    values: bool,
    /// `true` while a sample is being taken.
    learning: bool,
    seen: u16,
    in_short: u16,
    in_wide: u16,
    behind: IndirectionStatistics,
}

/// The result of sampling for data behind values.
#[derive(Clone, Copy, Debug)]
struct IndirectionStatistics {
    needed: bool,
    learning: bool,
    seen: u16,
    found: u16,
}

impl Default for PrefetchPolicy {
    fn default() -> Self {
        PrefetchPolicy {
            head: Head::Short,
            values: true,
            learning: true,
            seen: 0,
            in_short: 0,
            in_wide: 0,
            behind: IndirectionStatistics {
                needed: true,
                learning: true,
                seen: 0,
                found: 0,
            },
        }
    }
}

impl PrefetchPolicy {
    /// The part of an entry to prefetch first.
    #[inline]
    pub fn head(&self) -> Head {
        self.head
    }

    /// Returns `true` if values should be prefetched after the heads of their entries.
    #[inline]
    pub fn needs_values(&self) -> bool {
        self.values || self.learning
    }

    /// Starts a new sample, since the keys in use may have changed.
    pub fn learn_anew(&mut self) {
        self.learning = true;
        self.behind.learning = true;
    }

    /// Returns `true` if the memory behind values must be fetched.
    #[inline]
    pub fn needs_behind(&self) -> bool {
        self.behind.needed || self.behind.learning
    }

    /// Records if there was data behind a value. One in eight makes the prefetch worthwhile.
    #[inline]
    pub fn note_behind(&mut self, found: bool) {
        let behind = &mut self.behind;
        if !behind.learning {
            return;
        }
        behind.seen += 1;
        behind.found += u16::from(found);
        if behind.seen == SAMPLE {
            *behind = IndirectionStatistics {
                needed: behind.found >= SAMPLE / 8,
                learning: false,
                seen: 0,
                found: 0,
            };
        }
    }

    /// The location of a key's value.
    #[inline]
    pub fn value_place(&mut self, table: &SlotTable, hash: u64) -> PrefetchTarget {
        let value = table.value_place(hash);
        if self.learning {
            self.note(table, hash, value);
        }
        value
    }

    /// Adds a lookup to the sample. At the end of the sample, a majority of seven in eight decides.
    #[cold]
    fn note(&mut self, table: &SlotTable, hash: u64, value: PrefetchTarget) {
        self.seen += 1;
        self.in_short += u16::from(value.is_within(table.entry_place(hash, Head::Short)));
        self.in_wide += u16::from(value.is_within(table.entry_place(hash, Head::Wide)));
        if self.seen < SAMPLE {
            return;
        }
        let most = self.seen - self.seen / 8;
        (self.head, self.values) = if self.in_short >= most {
            (Head::Short, false)
        } else if self.in_wide >= most {
            (Head::Wide, false)
        } else {
            (Head::Short, true)
        };
        (self.learning, self.seen, self.in_short, self.in_wide) = (false, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use weft_table::NewValue;

    use super::*;

    fn learned(lens: &[usize]) -> (Head, bool) {
        let mut table = SlotTable::new();
        let mut reach = PrefetchPolicy::default();
        for (number, len) in lens.iter().cycle().take(usize::from(SAMPLE)).enumerate() {
            assert!(reach.needs_values());
            let hash = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let value = vec![b'v'; *len];
            let name = format!("key:{number:012}");
            drop(table.insert(hash, name.as_bytes(), NewValue::Bytes(&value), None, 0));
            reach.value_place(&table, hash);
        }
        (reach.head(), reach.needs_values())
    }

    #[test]
    fn what_most_entries_are_like_decides() {
        assert_eq!(learned(&[8]), (Head::Short, false));
        assert_eq!(learned(&[64]), (Head::Wide, false));
        assert_eq!(learned(&[512]), (Head::Short, true));
        assert_eq!(learned(&[64, 512]), (Head::Short, true), "half of them need more");
        assert_eq!(
            learned(&[8, 8, 8, 8, 8, 8, 8, 512]),
            (Head::Short, false),
            "one of eight does"
        );
    }

    #[test]
    fn what_lies_behind_values_is_fetched_where_there_is_something() {
        for (found, needed) in [(0, false), (1, false), (2, true), (16, true)] {
            let mut reach = PrefetchPolicy::default();
            (0..SAMPLE).for_each(|number| reach.note_behind(number < found));
            assert_eq!(reach.needs_behind(), needed, "{found} of {SAMPLE}");
            reach.learn_anew();
            assert!(reach.needs_behind());
        }
    }

    #[test]
    fn other_keys_are_noticed_in_the_next_sample() {
        let empty = SlotTable::new();
        let mut reach = PrefetchPolicy::default();
        for number in 0..SAMPLE {
            reach.value_place(&empty, number.into()).prefetch();
        }
        assert!(!reach.needs_values(), "what is missing needs nothing");
        reach.learn_anew();
        assert!(reach.needs_values(), "a sample needs values");
    }
}
