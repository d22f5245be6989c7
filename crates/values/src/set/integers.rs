//! Sets of integers: consecutive ascending numbers of one width.
//!
//! ```text
//!   +------+-------+---------+---------+-----
//!   | kind | width | number  | number  | ...      each of 2, 4 or 8 bytes, little-endian
//!   +------+-------+---------+---------+-----
//! ```
//!
//! The width is that of the widest number that the set ever contained: adding a wider number widens all, and removing
//! one does not narrow them again. The payload of DUMP shows this width.

use std::slice::ChunksExact;

use crate::packed::PackedKind;

/// The number of bytes before the numbers.
const HEADER_BYTES: usize = 2;

/// Integers in ascending order without duplicates.
#[derive(Clone, Copy, Debug)]
pub struct PackedIntegers<'a> {
    width: usize,
    numbers: &'a [u8],
}

/// Returns the smallest width in bytes that can hold a number.
#[inline]
pub fn width_of(number: i64) -> usize {
    if i16::try_from(number).is_ok() {
        2
    } else if i32::try_from(number).is_ok() {
        4
    } else {
        8
    }
}

#[inline]
fn read(number: &[u8]) -> i64 {
    match *number {
        [a, b] => i16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("integers are of 2, 4 or 8 bytes, not of {}", number.len()),
    }
}

impl<'a> PackedIntegers<'a> {
    /// Returns the integers of a packed set.
    #[inline]
    pub fn of_packed(packed: &'a [u8]) -> Self {
        debug_assert!(PackedKind::of(packed) == PackedKind::IntegerSet);
        let (header, numbers) = packed.split_at(HEADER_BYTES);
        Self::new(usize::from(header[1]), numbers)
    }

    /// Creates a view of the numbers in these bytes.
    ///
    /// # Panics
    ///
    /// Panics if the width is not 2, 4 or 8 bytes, or if the length of the bytes is not a multiple of it.
    #[inline]
    fn new(width: usize, numbers: &'a [u8]) -> Self {
        assert!(
            matches!(width, 2 | 4 | 8) && numbers.len().is_multiple_of(width),
            "{} bytes are no integers of {width}",
            numbers.len()
        );
        Self { width, numbers }
    }

    /// Creates a view of bytes of external origin. Returns `None` unless the width is valid and the numbers are
    /// ascending without duplicates.
    pub fn validate(width: usize, numbers: &'a [u8]) -> Option<Self> {
        if !matches!(width, 2 | 4 | 8) || !numbers.len().is_multiple_of(width) {
            return None;
        }
        let integers = Self { width, numbers };
        integers.iter().is_sorted_by(|one, next| one < next).then_some(integers)
    }

    /// The width of each number in bytes.
    #[inline]
    pub fn width(self) -> usize {
        self.width
    }

    /// The little-endian bytes of the numbers.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        self.numbers
    }

    /// The number of integers.
    #[inline]
    pub fn len(self) -> usize {
        self.numbers.len() / self.width
    }

    /// Returns `true` if there are no integers.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the number at an index.
    ///
    /// # Panics
    ///
    /// Panics if the index is out of range.
    #[inline]
    pub fn at(self, index: usize) -> i64 {
        read(&self.numbers[index * self.width..][..self.width])
    }

    /// Returns the smallest number.
    pub fn first(self) -> Option<i64> {
        self.numbers.chunks_exact(self.width).next().map(read)
    }

    /// Returns the largest number.
    pub fn last(self) -> Option<i64> {
        self.numbers.rchunks_exact(self.width).next().map(read)
    }

    /// Returns `Ok` with the index of a number, or `Err` with the index at which to insert it.
    #[inline]
    pub fn find(self, number: i64) -> Result<usize, usize> {
        // Numbers are often added in ascending order.
        match self.last() {
            Some(last) if last < number => return Err(self.len()),
            _ => {}
        }
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            let here = self.at(middle);
            if here == number {
                return Ok(middle);
            }
            if here < number {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Err(low)
    }

    /// Returns `true` if a number is present.
    #[inline]
    pub fn contains(self, number: i64) -> bool {
        self.find(number).is_ok()
    }

    /// Iterates over all numbers in ascending order.
    #[inline]
    pub fn iter(self) -> PackedIntegersIter<'a> {
        PackedIntegersIter {
            numbers: self.numbers.chunks_exact(self.width),
        }
    }

    /// Returns the packed set of these integers.
    pub fn to_packed(self) -> Vec<u8> {
        let mut packed = Vec::with_capacity(HEADER_BYTES + self.numbers.len());
        packed.extend_from_slice(&[PackedKind::IntegerSet as u8, self.width as u8]);
        packed.extend_from_slice(self.numbers);
        packed
    }
}

/// An iterator over integers in ascending order.
#[derive(Clone, Debug)]
pub struct PackedIntegersIter<'a> {
    numbers: ChunksExact<'a, u8>,
}

impl Iterator for PackedIntegersIter<'_> {
    type Item = i64;

    #[inline]
    fn next(&mut self) -> Option<i64> {
        self.numbers.next().map(read)
    }
}

/// Returns the packed set of these numbers, which must be ascending without duplicates.
pub fn from_ascending(numbers: &[i64]) -> Vec<u8> {
    let width = numbers.iter().map(|number| width_of(*number)).max().unwrap_or(2);
    let mut packed = Vec::with_capacity(HEADER_BYTES + numbers.len() * width);
    packed.extend_from_slice(&[PackedKind::IntegerSet as u8, width as u8]);
    for number in numbers {
        packed.extend_from_slice(&number.to_le_bytes()[..width]);
    }
    packed
}

/// Returns a packed set without integers that reuses the allocation of `room`.
pub fn empty_in(mut room: Vec<u8>) -> Vec<u8> {
    room.clear();
    room.extend_from_slice(&[PackedKind::IntegerSet as u8, 2]);
    room
}

/// Returns a packed set without integers whose width is `width` bytes.
pub fn empty_with_width(width: usize) -> Vec<u8> {
    vec![PackedKind::IntegerSet as u8, width as u8]
}

/// Adds a number to a packed set. Returns `true` if it was not present.
pub fn insert(packed: &mut Vec<u8>, number: i64) -> bool {
    let integers = PackedIntegers::of_packed(packed);
    let needed = width_of(number);
    if needed > integers.width {
        widen(packed, needed, number);
        return true;
    }
    let Err(index) = integers.find(number) else {
        return false;
    };
    let width = integers.width;
    let (start, end) = (HEADER_BYTES + index * width, packed.len());
    packed.extend_from_slice(&[0; 8][..width]);
    packed.copy_within(start..end, start + width);
    packed[start..start + width].copy_from_slice(&number.to_le_bytes()[..width]);
    true
}

/// Widens all numbers and adds the number that required it, which is smaller or larger than all others.
fn widen(packed: &mut Vec<u8>, width: usize, number: i64) {
    let old = PackedIntegers::of_packed(packed);
    let mut wide = Vec::with_capacity(HEADER_BYTES + (old.len() + 1) * width);
    wide.extend_from_slice(&[PackedKind::IntegerSet as u8, width as u8]);
    let mut push = |number: i64| wide.extend_from_slice(&number.to_le_bytes()[..width]);
    if number < 0 {
        push(number);
    }
    old.iter().for_each(&mut push);
    if number >= 0 {
        push(number);
    }
    *packed = wide;
}

/// Removes a number from a packed set. Returns `true` if it was present.
pub fn remove(packed: &mut Vec<u8>, number: i64) -> bool {
    let integers = PackedIntegers::of_packed(packed);
    let Ok(index) = integers.find(number) else {
        return false;
    };
    let width = integers.width;
    let start = HEADER_BYTES + index * width;
    packed.drain(start..start + width);
    true
}

#[cfg(test)]
mod tests;
