//! Integers of 1 to 64 bits at any bit offset of a string: reading, writing and overflow handling.
//!
//! Bit 0 is the most significant bit of byte 0. The most significant bit of an integer comes first.
/// The type of an integer: `i1` to `i64`, `u1` to `u63`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerType {
    signed: bool,
    bits: u32,
}

/// The overflow behavior of BITFIELD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverflowBehavior {
    /// Keeps the lowest bits of the result (WRAP).
    Wrap,
    /// Clamps the result to the nearest number that fits (SAT).
    Saturate,
    /// Does not write the result (FAIL).
    Fail,
}

impl IntegerType {
    /// Returns the type with this width, or `None` if the width is not supported.
    pub fn new(signed: bool, bits: i64) -> Option<Self> {
        let widest = if signed { 64 } else { 63 };
        (1..=widest).contains(&bits).then_some(IntegerType {
            signed,
            bits: bits as u32,
        })
    }

    /// The width in bits.
    pub fn bits(self) -> u32 {
        self.bits
    }

    fn min_value(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn max_value(self) -> i128 {
        let value_bits = if self.signed { self.bits - 1 } else { self.bits };
        (1 << value_bits) - 1
    }

    /// Interprets the lowest bits of `raw` as a number of this type.
    fn sign_extend(self, raw: u64) -> i64 {
        let unused = 64 - self.bits;
        if self.signed {
            ((raw << unused) as i64) >> unused
        } else {
            ((raw << unused) >> unused) as i64
        }
    }

    /// Reads the integer at bit `offset`. Bits beyond the end of the string are 0.
    pub fn read(self, bytes: &[u8], offset: u64) -> i64 {
        let start = usize::try_from(offset >> 3).unwrap_or(usize::MAX);
        let mut window = [0; 16];
        let available = bytes.get(start..).unwrap_or_default();
        let count = available.len().min(9);
        window[..count].copy_from_slice(&available[..count]);
        let shifted = u128::from_be_bytes(window) << (offset & 7);
        self.sign_extend((shifted >> (128 - self.bits)) as u64)
    }

    /// Writes the lowest bits of `number` at bit `offset`. Bits beyond the end of the string are dropped.
    pub fn write(self, bytes: &mut [u8], offset: u64, number: i64) {
        let start = usize::try_from(offset >> 3).unwrap_or(usize::MAX);
        let available = bytes.get_mut(start..).unwrap_or_default();
        let count = available.len().min(9);
        let place = 128 - self.bits - (offset & 7) as u32;
        let mask = (u128::from(u64::MAX) >> (64 - self.bits)) << place;
        let mut window = [0; 16];
        window[..count].copy_from_slice(&available[..count]);
        let cleared = u128::from_be_bytes(window) & !mask;
        let filled = cleared | ((u128::from(number as u64) << place) & mask);
        available[..count].copy_from_slice(&filled.to_be_bytes()[..count]);
    }

    /// Returns the number to store for SET with `value`. Returns `None` on overflow with [`OverflowBehavior::Fail`].
    pub fn value_to_set(self, value: i64, overflow: OverflowBehavior) -> Option<i64> {
        // For an unsigned type, a negative value means the large number with the same bits.
        let wide = if self.signed {
            i128::from(value)
        } else {
            i128::from(value as u64)
        };
        if self.signed && self.bits < 64 && overflow == OverflowBehavior::Saturate {
            // Valkey computes the distance from `value` to the maximum in 64 bits. If `value` is so far below the range
            // that this overflows, Valkey treats it as above the range.
            let room = (self.max_value() as i64).wrapping_sub(value);
            if room < 0 {
                return Some(self.max_value() as i64);
            }
        }
        self.apply_overflow(wide, overflow)
    }

    /// Returns the number to store for INCRBY, which adds `increment` to `value`. Returns `None` on overflow with
    /// [`OverflowBehavior::Fail`].
    pub fn value_to_increment(self, value: i64, increment: i64, overflow: OverflowBehavior) -> Option<i64> {
        self.apply_overflow(i128::from(value) + i128::from(increment), overflow)
    }

    fn apply_overflow(self, result: i128, overflow: OverflowBehavior) -> Option<i64> {
        let (smallest, largest) = (self.min_value(), self.max_value());
        if (smallest..=largest).contains(&result) {
            return Some(result as i64);
        }
        match overflow {
            OverflowBehavior::Wrap => Some(self.sign_extend(result as u64)),
            OverflowBehavior::Saturate => Some(result.clamp(smallest, largest) as i64),
            OverflowBehavior::Fail => None,
        }
    }
}

#[cfg(test)]
mod tests;
