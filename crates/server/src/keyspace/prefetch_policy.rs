//! Prefetch policy: how much of an entry lookups prefetch, learned from samples.
//!
//! A lookup reads an entry's head, and often that is all: a small value lies in the same two cache lines. Then a
//! separate prefetch of the value, which has to find the entry again under a lease of its own, has no benefit. The need
//! for it is not known before the head is loaded, but the entries of one workload are much alike. The same holds for
//! the data behind the values of large collections: small collections have none.

use weft_table::{Head, PrefetchTarget};

use super::SlotTable;

/// The number of lookups in a sample.
const SAMPLE_SIZE: u16 = 16;

/// The results of sampled lookups; at first, everything is prefetched.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchPolicy {
    head: Head,
    needs_values: bool,
    /// `true` while a sample is being taken.
    is_learning: bool,
    seen: u16,
    in_short_head: u16,
    in_wide_head: u16,
    indirect: IndirectionStatistics,
}

/// The result of sampling for data behind values.
#[derive(Clone, Copy, Debug)]
struct IndirectionStatistics {
    is_needed: bool,
    learning: bool,
    seen: u16,
    found: u16,
}

impl Default for PrefetchPolicy {
    fn default() -> Self {
        PrefetchPolicy {
            head: Head::Short,
            needs_values: true,
            is_learning: true,
            seen: 0,
            in_short_head: 0,
            in_wide_head: 0,
            indirect: IndirectionStatistics {
                is_needed: true,
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
        self.needs_values || self.is_learning
    }

    /// Starts a new sample, since the keys in use may have changed.
    pub fn start_sample(&mut self) {
        self.is_learning = true;
        self.indirect.learning = true;
    }

    /// Returns `true` if the memory behind values must be fetched.
    #[inline]
    pub fn needs_indirect_data(&self) -> bool {
        self.indirect.is_needed || self.indirect.learning
    }

    /// Records if there was data behind a value. One in eight makes the prefetch worthwhile.
    #[inline]
    pub fn record_indirect_data(&mut self, found: bool) {
        let behind = &mut self.indirect;
        if !behind.learning {
            return;
        }
        behind.seen += 1;
        behind.found += u16::from(found);
        if behind.seen == SAMPLE_SIZE {
            *behind = IndirectionStatistics {
                is_needed: behind.found >= SAMPLE_SIZE / 8,
                learning: false,
                seen: 0,
                found: 0,
            };
        }
    }

    /// The location of a key's value.
    #[inline]
    pub fn value_location(&mut self, table: &SlotTable, hash: u64) -> PrefetchTarget {
        let value = table.value_place(hash);
        if self.is_learning {
            self.record_lookup(table, hash, value);
        }
        value
    }

    /// Adds a lookup to the sample. At the end of the sample, a majority of seven in eight decides.
    #[cold]
    fn record_lookup(&mut self, table: &SlotTable, hash: u64, value: PrefetchTarget) {
        self.seen += 1;
        self.in_short_head += u16::from(value.is_within(table.entry_place(hash, Head::Short)));
        self.in_wide_head += u16::from(value.is_within(table.entry_place(hash, Head::Wide)));
        if self.seen < SAMPLE_SIZE {
            return;
        }
        let most = self.seen - self.seen / 8;
        (self.head, self.needs_values) = if self.in_short_head >= most {
            (Head::Short, false)
        } else if self.in_wide_head >= most {
            (Head::Wide, false)
        } else {
            (Head::Short, true)
        };
        (self.is_learning, self.seen, self.in_short_head, self.in_wide_head) = (false, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use weft_table::NewValue;

    use super::*;

    fn learned(lens: &[usize]) -> (Head, bool) {
        let mut table = SlotTable::new();
        let mut reach = PrefetchPolicy::default();
        for (number, len) in lens.iter().cycle().take(usize::from(SAMPLE_SIZE)).enumerate() {
            assert!(reach.needs_values());
            let hash = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let value = vec![b'v'; *len];
            let name = format!("key:{number:012}");
            drop(table.insert(hash, name.as_bytes(), NewValue::Bytes(&value), None, 0));
            reach.value_location(&table, hash);
        }
        (reach.head(), reach.needs_values())
    }

    #[test]
    fn most_entries_decide_the_policy() {
        assert_eq!(learned(&[8]), (Head::Short, false));
        assert_eq!(learned(&[64]), (Head::Wide, false));
        assert_eq!(learned(&[512]), (Head::Short, true));
        assert_eq!(
            learned(&[64, 512]),
            (Head::Short, true),
            "half of the entries need more"
        );
        assert_eq!(
            learned(&[8, 8, 8, 8, 8, 8, 8, 512]),
            (Head::Short, false),
            "only one entry in eight needs more"
        );
    }

    #[test]
    fn indirect_data_is_prefetched_where_it_exists() {
        for (found, needed) in [(0, false), (1, false), (2, true), (16, true)] {
            let mut reach = PrefetchPolicy::default();
            (0..SAMPLE_SIZE).for_each(|number| reach.record_indirect_data(number < found));
            assert_eq!(reach.needs_indirect_data(), needed, "{found} of {SAMPLE_SIZE}");
            reach.start_sample();
            assert!(reach.needs_indirect_data());
        }
    }

    #[test]
    fn the_next_sample_adapts_to_other_keys() {
        let empty = SlotTable::new();
        let mut reach = PrefetchPolicy::default();
        for number in 0..SAMPLE_SIZE {
            reach.value_location(&empty, number.into()).prefetch();
        }
        assert!(!reach.needs_values(), "missing entries need no values");
        reach.start_sample();
        assert!(reach.needs_values(), "values are fetched while a sample is taken");
    }
}
