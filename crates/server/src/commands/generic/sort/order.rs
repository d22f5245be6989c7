//! The elements of a window of a sorted order.

use std::cmp::Ordering;
use std::ops::Range;

/// An element to be sorted.
#[derive(Clone, Copy)]
struct Candidate {
    /// Orders most pairs without a look at the elements: an element with a smaller prefix comes first, if ascending.
    prefix: u64,
    index: usize,
}

/// Returns the prefix of a text: its first bytes.
pub fn prefix_of_text(text: &[u8]) -> u64 {
    let mut first = [0; 8];
    let count = text.len().min(first.len());
    first[..count].copy_from_slice(&text[..count]);
    u64::from_be_bytes(first)
}

/// Returns the indices of those of `count` elements that lie in `window` of their order, sorted. `compare` compares two
/// elements whose prefixes are equal. Equal elements stay in the order of their indices. Only the window is sorted.
pub fn sorted_window(
    count: usize,
    window: Range<usize>,
    is_descending: bool,
    prefix: impl Fn(usize) -> u64,
    compare: impl Fn(usize, usize) -> Ordering,
) -> Vec<usize> {
    let order = |one: &Candidate, other: &Candidate| {
        let ascending = one
            .prefix
            .cmp(&other.prefix)
            .then_with(|| compare(one.index, other.index));
        let wanted = match is_descending {
            true => ascending.reverse(),
            false => ascending,
        };
        wanted.then(one.index.cmp(&other.index))
    };
    let candidate = |index| Candidate {
        prefix: prefix(index),
        index,
    };
    let mut candidates: Vec<Candidate> = (0..count).map(candidate).collect();
    if window.end > 0 && window.end < count {
        candidates.select_nth_unstable_by(window.end - 1, order);
    }
    candidates.truncate(window.end);
    let skipped = window.start.min(candidates.len());
    if skipped > 0 && skipped < candidates.len() {
        candidates.select_nth_unstable_by(skipped, order);
    }
    let chosen = &mut candidates[skipped..];
    chosen.sort_unstable_by(order);
    chosen.iter().map(|candidate| candidate.index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_that_of_a_stable_sort() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..2000 {
            let count = random.usize(..40);
            // Few different texts, some of which differ behind their prefixes only.
            let texts: Vec<Vec<u8>> = (0..count)
                .map(|_| match random.bool() {
                    true => vec![b'a'; random.usize(..12)],
                    false => vec![random.u8(..3); random.usize(..3)],
                })
                .collect();
            let is_descending = random.bool();
            let mut expected: Vec<usize> = (0..count).collect();
            expected.sort_by(|one, other| match is_descending {
                true => texts[*other].cmp(&texts[*one]),
                false => texts[*one].cmp(&texts[*other]),
            });
            let start = random.usize(..=count);
            let window = start..random.usize(start..=count);
            let prefix = |index: usize| prefix_of_text(&texts[index]);
            let compare = |one: usize, other: usize| texts[one].cmp(&texts[other]);
            let found = sorted_window(count, window.clone(), is_descending, prefix, compare);
            assert_eq!(found, expected[window]);
        }
    }
}
