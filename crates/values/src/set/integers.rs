//! Sets of integers: ascending, of one width, one behind the other.
//!
//! ```text
//!   +------+-------+---------+---------+-----
//!   | kind | width | number  | number  | ...      each of 2, 4 or 8 bytes, little-endian
//!   +------+-------+---------+---------+-----
//! ```
//!
//! The width is that of the widest number the set ever had: a wider one widens all, and none narrows them again. In DUMP's
//! payload that shows.

use std::slice::ChunksExact;

use crate::packed::PackedKind;

/// Bytes in front of the numbers.
const HEADER_BYTES: usize = 2;

/// Integers, ascending and distinct.
#[derive(Clone, Copy, Debug)]
pub struct Integers<'a> {
    width: usize,
    numbers: &'a [u8],
}

/// The least of the widths that has room for a number, in bytes.
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

impl<'a> Integers<'a> {
    /// The integers of a packed set.
    #[inline]
    pub fn of_packed(packed: &'a [u8]) -> Self {
        debug_assert!(PackedKind::of(packed) == PackedKind::IntegerSet);
        let (header, numbers) = packed.split_at(HEADER_BYTES);
        Self::new(usize::from(header[1]), numbers)
    }

    /// The integers that these bytes are.
    ///
    /// # Panics
    /// Unless the width is 2, 4 or 8 bytes, and the bytes are a multiple of it.
    #[inline]
    fn new(width: usize, numbers: &'a [u8]) -> Self {
        assert!(
            matches!(width, 2 | 4 | 8) && numbers.len().is_multiple_of(width),
            "{} bytes are no integers of {width}",
            numbers.len()
        );
        Self { width, numbers }
    }

    /// The integers of bytes from outside; `None` unless they are ascending, distinct and of a known width.
    pub fn validate(width: usize, numbers: &'a [u8]) -> Option<Self> {
        if !matches!(width, 2 | 4 | 8) || !numbers.len().is_multiple_of(width) {
            return None;
        }
        let integers = Self { width, numbers };
        integers.iter().is_sorted_by(|one, next| one < next).then_some(integers)
    }

    /// Bytes of each number.
    #[inline]
    pub fn width(self) -> usize {
        self.width
    }

    /// The numbers, little-endian.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        self.numbers
    }

    /// How many there are.
    #[inline]
    pub fn len(self) -> usize {
        self.numbers.len() / self.width
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.numbers.is_empty()
    }

    /// The number at a place.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn at(self, index: usize) -> i64 {
        read(&self.numbers[index * self.width..][..self.width])
    }

    /// The least number.
    pub fn first(self) -> Option<i64> {
        self.numbers.chunks_exact(self.width).next().map(read)
    }

    /// The greatest number.
    pub fn last(self) -> Option<i64> {
        self.numbers.rchunks_exact(self.width).next().map(read)
    }

    /// The place of a number, or else the place where it belongs.
    #[inline]
    pub fn find(self, number: i64) -> Result<usize, usize> {
        // Numbers often come in ascending order.
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

    /// Whether a number is among them.
    #[inline]
    pub fn contains(self, number: i64) -> bool {
        self.find(number).is_ok()
    }

    /// All numbers, ascending.
    #[inline]
    pub fn iter(self) -> Iter<'a> {
        Iter {
            numbers: self.numbers.chunks_exact(self.width),
        }
    }

    /// The packed set that holds these integers.
    pub fn to_packed(self) -> Vec<u8> {
        let mut packed = Vec::with_capacity(HEADER_BYTES + self.numbers.len());
        packed.extend_from_slice(&[PackedKind::IntegerSet as u8, self.width as u8]);
        packed.extend_from_slice(self.numbers);
        packed
    }
}

/// Integers, ascending.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    numbers: ChunksExact<'a, u8>,
}

impl Iterator for Iter<'_> {
    type Item = i64;

    #[inline]
    fn next(&mut self) -> Option<i64> {
        self.numbers.next().map(read)
    }
}

/// The packed set of these numbers, which are ascending and distinct.
pub fn of_ascending(numbers: &[i64]) -> Vec<u8> {
    let width = numbers.iter().map(|number| width_of(*number)).max().unwrap_or(2);
    let mut packed = Vec::with_capacity(HEADER_BYTES + numbers.len() * width);
    packed.extend_from_slice(&[PackedKind::IntegerSet as u8, width as u8]);
    for number in numbers {
        packed.extend_from_slice(&number.to_le_bytes()[..width]);
    }
    packed
}

/// A packed set without any integer, in the room that these bytes have.
pub fn empty(mut room: Vec<u8>) -> Vec<u8> {
    room.clear();
    room.extend_from_slice(&[PackedKind::IntegerSet as u8, 2]);
    room
}

/// A packed set without any integer, for integers of this width.
pub fn empty_of(width: usize) -> Vec<u8> {
    vec![PackedKind::IntegerSet as u8, width as u8]
}

/// Puts a number into a packed set. Whether it was missing.
pub fn insert(packed: &mut Vec<u8>, number: i64) -> bool {
    let integers = Integers::of_packed(packed);
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

/// Widens all numbers and adds one that needed it: it is less than all others or greater.
fn widen(packed: &mut Vec<u8>, width: usize, number: i64) {
    let old = Integers::of_packed(packed);
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

/// Takes a number out of a packed set. Whether it was there.
pub fn remove(packed: &mut Vec<u8>, number: i64) -> bool {
    let integers = Integers::of_packed(packed);
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
