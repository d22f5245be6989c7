//! What keys and values look like: both are pure functions of a key's number.

use crate::draw::{Draw, scramble};

#[cfg(test)]
mod tests;

/// Decimal digits of a key's number inside its name.
pub const ID_DIGITS: usize = 12;

/// Number of different places in the pool at which a value may start (a power of two).
const WINDOWS: usize = 16 * 1024;

/// The letters values consist of: no digits, so that no value passes for an integer.
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.,:;!?/+#@";

/// "00" to "99", to write two digits at a time.
const DIGIT_PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// `number` as `WIDTH` decimal digits with leading zeros; `WIDTH` must be even.
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

/// The values of one size. A value is a window into a fixed random pool that stays in the
/// processor's cache, so that making and comparing values costs little more than a copy.
#[derive(Debug)]
pub struct Values {
    pool: Vec<u8>,
    size: usize,
}

impl Values {
    /// Values of `size` bytes. A longer value of the same key starts with the shorter one.
    pub fn new(size: usize) -> Values {
        let mut draw = Draw::new(0x7765_6674, 0);
        let pool = (0..WINDOWS + size)
            .map(|_| LETTERS[(draw.bits() >> 58) as usize])
            .collect();
        Values { pool, size }
    }

    /// Length of each value in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The value that belongs to the key with number `id`.
    #[inline]
    pub fn of(&self, id: u64) -> &[u8] {
        let start = scramble(id ^ 0x5bd1_e995) as usize % WINDOWS;
        &self.pool[start..start + self.size]
    }
}
