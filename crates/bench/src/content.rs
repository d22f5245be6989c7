//! The content of keys, values and elements: all are pure functions of numbers.

use crate::draw::{Draw, scramble};

#[cfg(test)]
mod tests;

/// The number of decimal digits of a key's number inside its name.
pub const ID_DIGITS: usize = 12;

/// The length of a key's name in bytes.
const KEY_BYTES: usize = ID_DIGITS + 4;

/// The number of decimal digits of an element's number.
pub const NUMBER_DIGITS: usize = 6;

/// The length of the shortest name of an element, in bytes.
pub const NAME_BYTES: usize = NUMBER_DIGITS + 2;

/// The number of different positions in the pool at which a value may start (a power of two).
const POOL_OFFSETS: usize = 16 * 1024;

/// The length of the longest value that [`ValuePool::prefix`] returns, in bytes.
pub const LONGEST_PREFIX: usize = 64 * 1024;

/// The characters of which values consist: no digits, so that no value is a valid integer.
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.,:;!?/+#@";

/// "00" to "99", for writing two digits at a time.
const DIGIT_PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Returns `number` as `WIDTH` decimal digits with leading zeros; `WIDTH` must be even.
#[inline]
pub fn digits<const WIDTH: usize>(mut number: u64) -> [u8; WIDTH] {
    const { assert!(WIDTH.is_multiple_of(2)) };
    let mut text = [b'0'; WIDTH];
    for pair in text.chunks_exact_mut(2).rev() {
        pair.copy_from_slice(&DIGIT_PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    text
}

/// Returns the name of the key with number `id`, as the placeholder `{key}` writes it.
pub fn key_name(id: u64) -> [u8; KEY_BYTES] {
    let mut name = *b"key:000000000000";
    name[KEY_BYTES - ID_DIGITS..].copy_from_slice(&digits::<ID_DIGITS>(id));
    name
}

/// The values of one size. A value is a slice of a fixed random pool that stays in the CPU's cache. Creating and
/// comparing values therefore costs little more than a copy.
#[derive(Debug)]
pub struct ValuePool {
    pool: Vec<u8>,
    size: usize,
}

impl ValuePool {
    /// Creates values of `size` bytes. A longer value of the same key starts with the shorter one.
    pub fn new(size: usize) -> ValuePool {
        let mut draw = Draw::new(0x7765_6674, 0);
        let pool = (0..POOL_OFFSETS + size.max(LONGEST_PREFIX))
            .map(|_| LETTERS[(draw.bits() >> 58) as usize])
            .collect();
        ValuePool { pool, size }
    }

    /// The length of each value in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the value of the key with number `id`.
    #[inline]
    pub fn value(&self, id: u64) -> &[u8] {
        let start = start_of_value(id);
        &self.pool[start..start + self.size]
    }

    /// Returns the value of the key with number `id` in another length: at most [`LONGEST_PREFIX`] bytes, or the size
    /// of the values if that is more.
    #[inline]
    pub fn prefix(&self, id: u64, length: usize) -> &[u8] {
        let start = start_of_value(id);
        &self.pool[start..start + length]
    }

    /// Returns element `number` of the collection with number `id`: a value that depends on both.
    #[inline]
    pub fn item(&self, id: u64, number: u64) -> &[u8] {
        self.value(id.wrapping_mul(1_000_003).wrapping_add(number).wrapping_add(1 << 40))
    }

    /// Appends the name of element `number` in the collection with number `id`: its digits and then letters, so that
    /// the name identifies the element. Only sizes of [`NAME_BYTES`] and more have names.
    #[inline]
    pub fn append_name(&self, id: u64, number: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&digits::<NUMBER_DIGITS>(number));
        out.extend_from_slice(&self.item(id, number)[NUMBER_DIGITS..]);
    }

    /// Returns the number of the element that has this name, if it is one of the collection with number `id`.
    pub fn parse_name(&self, id: u64, name: &[u8]) -> Option<u64> {
        let digits = name
            .get(..NUMBER_DIGITS)
            .filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
        let number = digits
            .iter()
            .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        (name.get(NUMBER_DIGITS..) == self.item(id, number).get(NUMBER_DIGITS..)).then_some(number)
    }
}

/// Returns the position in the pool at which the value of the key with number `id` starts.
#[inline]
fn start_of_value(id: u64) -> usize {
    scramble(id ^ 0x5bd1_e995) as usize % POOL_OFFSETS
}
