//! The longest common subsequence of two strings, and where it lies in them.
//!
//! # Rows of differences
//!
//! Let `L(i, j)` be the length of the longest common subsequence of the first `i` bytes of `a` and the
//! first `j` of `b`. Along a row, `L` grows by 0 or 1 from column to column. Those differences,
//!
//! ```text
//!   h(i, j) = L(i, j) - L(i, j-1)
//! ```
//!
//! are all that is kept, one bit each, so a row of 64 columns is a word, and a whole row follows from
//! the one above it in a few operations per word. With `s` for the complement of the row (`s` is set
//! where `h` is 0, all ones at the top) and `m` for the columns whose byte equals `a[i-1]`:
//!
//! ```text
//!   t = s & m
//!   s' = (s + t) | (s & !m)          the sum's carry goes on to the next word
//! ```
//!
//! An addition finds, in every run of set bits, the lowest that matches: that is where the row gains one.
//!
//! # The way back
//!
//! From the corner `(i, j)` one goes diagonally where the bytes match. Otherwise one goes up when
//! `L(i-1, j) > L(i, j-1)` and left when not, as Valkey does, for which of several subsequences is found
//! depends on it. The row's own bit answers that: without a match `h(i, j)` is 1 exactly if the row above
//! has a difference there that the column to the left did not have already, and that is the condition.

use std::collections::TryReserveError;

/// A stretch of both strings that is the same and part of the subsequence; ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// First and last index in the first string.
    pub first: (usize, usize),
    /// First and last index in the second string.
    pub second: (usize, usize),
}

impl Match {
    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.first.1 - self.first.0 + 1
    }
}

/// Steps that comparing strings of these lengths takes, each a few operations on a word (about 1 ns).
pub fn steps(first: usize, second: usize) -> u64 {
    (first as u64).saturating_mul(second.div_ceil(64) as u64)
}

/// Length of the longest common subsequence.
///
/// # Errors
/// When there is not enough memory.
pub fn length(first: &[u8], second: &[u8]) -> Result<usize, TryReserveError> {
    let columns = Columns::of(first, second)?;
    let mut row = columns.top()?;
    for byte in first {
        columns.advance(&mut row, *byte);
    }
    Ok(columns.length(&row))
}

/// Two strings with all rows of differences.
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
    /// When there is not enough memory: a bit for each pair of bytes.
    pub fn new(first: &'a [u8], second: &'a [u8]) -> Result<Self, TryReserveError> {
        let columns = Columns::of(first, second)?;
        let mut rows = Vec::new();
        rows.try_reserve_exact(first.len().saturating_mul(columns.words))?;
        let mut row = columns.top()?;
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

    /// Length of the longest common subsequence.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The subsequence.
    pub fn subsequence(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        self.walk_back(|index, _| bytes.push(self.first[index]));
        bytes.reverse();
        bytes
    }

    /// The matches it consists of, from the last to the first.
    pub fn matches(&self) -> Vec<Match> {
        let mut matches: Vec<Match> = Vec::new();
        self.walk_back(|one, other| match matches.last_mut() {
            Some(last) if last.first.0 == one + 1 && last.second.0 == other + 1 => {
                last.first.0 = one;
                last.second.0 = other;
            }
            _ => matches.push(Match {
                first: (one, one),
                second: (other, other),
            }),
        });
        matches
    }

    /// Visits the pairs of indexes that make up the subsequence, last to first.
    fn walk_back(&self, mut visit: impl FnMut(usize, usize)) {
        let (mut row, mut column) = (self.first.len(), self.second.len());
        while row > 0 && column > 0 {
            if self.first[row - 1] == self.second[column - 1] {
                row -= 1;
                column -= 1;
                visit(row, column);
            } else if self.differs(row, column) {
                row -= 1;
            } else {
                column -= 1;
            }
        }
    }

    /// h(row, column), both counted from 1.
    fn differs(&self, row: usize, column: usize) -> bool {
        let word = self.rows[(row - 1) * self.words + (column - 1) / 64];
        word >> ((column - 1) % 64) & 1 == 0
    }
}

/// For each byte of the first string, the columns of the second that hold it.
struct Columns {
    words: usize,
    count: usize,
    /// Index of a byte's columns in `matching`, in words.
    start: [usize; 256],
    matching: Vec<u64>,
}

impl Columns {
    fn of(first: &[u8], second: &[u8]) -> Result<Self, TryReserveError> {
        let words = second.len().div_ceil(64);
        // All bytes that the first string lacks share one set that is never read.
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

    /// The complement of the row above the first byte: no differences.
    fn top(&self) -> Result<Vec<u64>, TryReserveError> {
        let mut row = Vec::new();
        row.try_reserve_exact(self.words)?;
        row.resize(self.words, u64::MAX);
        Ok(row)
    }

    /// Turns the complement of a row into that of the next, which belongs to `byte`.
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

    /// The number of differences in a row, given its complement.
    fn length(&self, row: &[u64]) -> usize {
        let clear: u32 = row.iter().map(|word| word.count_zeros()).sum();
        debug_assert!(clear as usize <= self.count, "differences beyond the last column");
        clear as usize
    }
}

#[cfg(test)]
mod tests;
