//! The longest common subsequence of two strings, and its position in them.
//!
//! # Rows of differences
//!
//! Let `L(i, j)` be the length of the longest common subsequence of the first `i` bytes of `a` and the first `j` bytes
//! of `b`. Along a row, `L` grows by 0 or 1 from column to column. Only those differences are stored, one bit each:
//!
//! ```text
//!   h(i, j) = L(i, j) - L(i, j-1)
//! ```
//!
//! So 64 columns of a row take one word, and a whole row follows from the row above it in a few operations per word.
//! Let `s` be the complement of the row (`s` is set where `h` is 0; all bits are set in the top row), and let `m` be
//! the columns whose byte equals `a[i-1]`:
//!
//! ```text
//!   t = s & m
//!   s' = (s + t) | (s & !m)          the carry of the sum goes on to the next word
//! ```
//!
//! In every run of set bits, the addition finds the lowest one that matches. That is where `L` grows by one in the row.
//!
//! # Reconstruction
//!
//! The reconstruction starts at the corner `(i, j)` and goes diagonally where the bytes match. Otherwise it goes up if
//! `L(i-1, j) > L(i, j-1)`, and left if not. Valkey does the same, and the choice decides which one of several longest
//! subsequences is found. The bit of the row answers the question: if the bytes do not match, `h(i, j)` is 1 exactly if
//! the row above has a difference at this column that the column to the left does not already have, which is that
//! condition.

use std::collections::TryReserveError;
use std::ops::Range;

/// A stretch of both strings that is equal and part of the subsequence. It is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LcsMatch {
    /// The indexes in the first string.
    pub first: Range<usize>,
    /// The indexes in the second string.
    pub second: Range<usize>,
}

impl LcsMatch {
    /// The length in bytes.
    pub fn length(&self) -> usize {
        self.first.len()
    }
}

/// The number of steps that comparing strings of these lengths takes. A step is a few operations on a word (about 1
/// ns).
pub fn estimate_steps(first: usize, second: usize) -> u64 {
    (first as u64).saturating_mul(second.div_ceil(64) as u64)
}

/// Returns the length of the longest common subsequence.
///
/// # Errors
///
/// Returns an error if memory cannot be allocated.
pub fn length(first: &[u8], second: &[u8]) -> Result<usize, TryReserveError> {
    let columns = Columns::of(first, second)?;
    let mut row = columns.top_row()?;
    for byte in first {
        columns.advance(&mut row, *byte);
    }
    Ok(columns.length(&row))
}

/// Two strings and all their rows of differences.
pub struct Comparison<'a> {
    first: &'a [u8],
    second: &'a [u8],
    words: usize,
    rows: Vec<u64>,
    length: usize,
}

impl<'a> Comparison<'a> {
    /// Compares two strings.
    ///
    /// # Errors
    ///
    /// Returns an error if memory cannot be allocated. The comparison takes one bit for each pair of bytes.
    pub fn new(first: &'a [u8], second: &'a [u8]) -> Result<Self, TryReserveError> {
        let columns = Columns::of(first, second)?;
        let mut rows = Vec::new();
        rows.try_reserve_exact(first.len().saturating_mul(columns.words))?;
        let mut row = columns.top_row()?;
        for byte in first {
            columns.advance(&mut row, *byte);
            rows.extend_from_slice(&row);
        }
        Ok(Comparison {
            first,
            second,
            words: columns.words,
            rows,
            length: columns.length(&row),
        })
    }

    /// The length of the longest common subsequence.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the longest common subsequence.
    pub fn subsequence(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        self.backtrack(|index, _| bytes.push(self.first[index]));
        bytes.reverse();
        bytes
    }

    /// Returns the matches that form the subsequence, from the last to the first.
    pub fn matches(&self) -> Vec<LcsMatch> {
        let mut matches: Vec<LcsMatch> = Vec::new();
        self.backtrack(|one, other| match matches.last_mut() {
            Some(last) if last.first.start == one + 1 && last.second.start == other + 1 => {
                last.first.start = one;
                last.second.start = other;
            }
            _ => matches.push(LcsMatch {
                first: one..one + 1,
                second: other..other + 1,
            }),
        });
        matches
    }

    /// Calls `visit` with the pairs of indexes that form the subsequence, from the last to the first.
    fn backtrack(&self, mut visit: impl FnMut(usize, usize)) {
        let (mut row, mut column) = (self.first.len(), self.second.len());
        while row > 0 && column > 0 {
            if self.first[row - 1] == self.second[column - 1] {
                row -= 1;
                column -= 1;
                visit(row, column);
            } else if self.has_difference(row, column) {
                row -= 1;
            } else {
                column -= 1;
            }
        }
    }

    /// Returns `true` if `h(row, column)` is 1. Both are counted from 1.
    fn has_difference(&self, row: usize, column: usize) -> bool {
        let word = self.rows[(row - 1) * self.words + (column - 1) / 64];
        word >> ((column - 1) % 64) & 1 == 0
    }
}

/// For each byte of the first string, the columns of the second string that contain it.
struct Columns {
    words: usize,
    count: usize,
    /// The index in `matching` of each byte's columns, in words.
    start: [usize; 256],
    matching: Vec<u64>,
}

impl Columns {
    fn of(first: &[u8], second: &[u8]) -> Result<Self, TryReserveError> {
        let words = second.len().div_ceil(64);
        // All bytes that do not occur in the first string share one entry that is never read.
        let mut start = [0; 256];
        let mut used = 0;
        for byte in first {
            let place = &mut start[usize::from(*byte)];
            if *place == 0 {
                used += 1;
                *place = used;
            }
        }
        let mut matching = Vec::new();
        matching.try_reserve_exact((used + 1) * words)?;
        matching.resize((used + 1) * words, 0);
        start.iter_mut().for_each(|place| *place *= words);
        for (column, byte) in second.iter().enumerate() {
            matching[start[usize::from(*byte)] + column / 64] |= 1 << (column % 64);
        }
        Ok(Columns {
            words,
            count: second.len(),
            start,
            matching,
        })
    }

    /// Returns the complement of the row above the first byte, which has no differences.
    fn top_row(&self) -> Result<Vec<u64>, TryReserveError> {
        let mut row = Vec::new();
        row.try_reserve_exact(self.words)?;
        row.resize(self.words, u64::MAX);
        Ok(row)
    }

    /// Computes the complement of the next row, which belongs to `byte`, in place.
    fn advance(&self, row: &mut [u64], byte: u8) {
        let start = self.start[usize::from(byte)];
        let mut carry = false;
        for (word, matching) in row.iter_mut().zip(&self.matching[start..start + self.words]) {
            let (sum, first) = word.overflowing_add(*word & matching);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            carry = first | second;
            *word = sum | (*word & !matching);
        }
    }

    /// Returns the number of differences in a row, given its complement.
    fn length(&self, row: &[u64]) -> usize {
        let clear: u32 = row.iter().map(|word| word.count_zeros()).sum();
        debug_assert!(clear as usize <= self.count, "differences beyond the last column");
        clear as usize
    }
}

#[cfg(test)]
mod tests;
