//! Strings as arrays of bits: reading a bit, counting bits, finding the first bit, and combining whole strings.
//!
//! Bit 0 is the most significant bit of byte 0. All loops work on blocks that the compiler vectorizes. The remaining
//! bytes at the ends are processed one by one.
/// Returns the bit at `offset`. Bits beyond the end of the string are 0.
#[inline]
pub fn bit_at(bytes: &[u8], offset: u64) -> bool {
    usize::try_from(offset >> 3)
        .ok()
        .and_then(|index| bytes.get(index))
        .is_some_and(|byte| byte & bit_mask(offset) != 0)
}

/// Returns the mask of the bit at `offset` within its byte.
#[inline]
pub fn bit_mask(offset: u64) -> u8 {
    0x80 >> (offset & 7)
}

// ---- counting ---------------------------------------------------------------------------------------
/// The number of words that are added in parallel.
const LANES: usize = 4;
type Lanes = [u64; LANES];
/// The number of rows of lanes in one step of the counting loop.
const ROWS: usize = 16;
const ROW_BYTES: usize = LANES * 8;
const STEP_BYTES: usize = ROWS * ROW_BYTES;

/// Returns the number of set bits.
///
/// Counting the bits of a word takes a dozen operations if the popcount instruction of the processor cannot be assumed.
/// Therefore sixteen rows are first added bitwise by carry-save adders, and each step counts only the column of carries
/// that are worth sixteen. The columns of lower worth are counted once, at the end.
pub fn count_ones(bytes: &[u8]) -> u64 {
    let (steps, rest) = bytes.as_chunks::<STEP_BYTES>();
    let mut columns = Columns::default();
    let mut sixteens = 0;
    for step in steps {
        sixteens += count_ones_in_lanes(columns.add(step));
    }
    let [ones, twos, fours, eights] =
        [columns.ones, columns.twos, columns.fours, columns.eights].map(count_ones_in_lanes);
    16 * sixteens + 8 * eights + 4 * fours + 2 * twos + ones + count_ones_in_short(rest)
}

/// The sums of all rows so far, in binary, for each bit position.
#[derive(Default)]
struct Columns {
    ones: Lanes,
    twos: Lanes,
    fours: Lanes,
    eights: Lanes,
}

impl Columns {
    /// Adds sixteen rows. Returns the carries that are worth sixteen.
    #[inline(always)]
    fn add(&mut self, step: &[u8; STEP_BYTES]) -> Lanes {
        let first = self.add_eight(step, 0);
        let second = self.add_eight(step, ROWS / 2);
        carry_save(&mut self.eights, first, second)
    }

    /// Adds eight rows from `row` on. Returns the carries that are worth eight.
    #[inline(always)]
    fn add_eight(&mut self, step: &[u8; STEP_BYTES], row: usize) -> Lanes {
        let first = self.add_four(step, row);
        let second = self.add_four(step, row + 4);
        carry_save(&mut self.fours, first, second)
    }

    #[inline(always)]
    fn add_four(&mut self, step: &[u8; STEP_BYTES], row: usize) -> Lanes {
        let first = carry_save(&mut self.ones, load_lanes(step, row), load_lanes(step, row + 1));
        let second = carry_save(&mut self.ones, load_lanes(step, row + 2), load_lanes(step, row + 3));
        carry_save(&mut self.twos, first, second)
    }
}

/// Adds two rows to a column. Returns the carries.
#[inline(always)]
fn carry_save(column: &mut Lanes, first: Lanes, second: Lanes) -> Lanes {
    let mut carries = Lanes::default();
    for lane in 0..LANES {
        let partial = column[lane] ^ first[lane];
        carries[lane] = (column[lane] & first[lane]) | (partial & second[lane]);
        column[lane] = partial ^ second[lane];
    }
    carries
}

#[inline(always)]
fn load_lanes(step: &[u8; STEP_BYTES], row: usize) -> Lanes {
    let (words, _) = step.as_chunks::<8>();
    std::array::from_fn(|lane| u64::from_ne_bytes(words[row * LANES + lane]))
}

#[inline]
fn count_ones_in_lanes(lanes: Lanes) -> u64 {
    lanes.iter().map(|lane| u64::from(lane.count_ones())).sum()
}

fn count_ones_in_short(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let in_words: u64 = words
        .iter()
        .map(|word| u64::from(u64::from_ne_bytes(*word).count_ones()))
        .sum();
    in_words + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// Returns the number of set bits from bit `first` to bit `last`, both inclusive and within the string.
pub fn count_ones_between(bytes: &[u8], first: u64, last: u64) -> u64 {
    let Some(range) = bit_range(bytes, first, last) else {
        return 0;
    };
    let outside = range.bytes[0] & range.before;
    let behind = range.bytes[range.bytes.len() - 1] & range.after;
    count_ones(range.bytes) - u64::from(outside.count_ones()) - u64::from(behind.count_ones())
}

/// The bytes that a range of bits touches, and masks of the bits outside the range in the first and the last byte.
struct BitRange<'a> {
    bytes: &'a [u8],
    before: u8,
    after: u8,
}

fn bit_range(bytes: &[u8], first: u64, last: u64) -> Option<BitRange<'_>> {
    if first > last {
        return None;
    }
    let touched = bytes.get((first >> 3) as usize..=(last >> 3) as usize)?;
    Some(BitRange {
        bytes: touched,
        before: !(0xff >> (first & 7)),
        after: 0x7f >> (last & 7),
    })
}

// ---- finding ----------------------------------------------------------------------------------------
/// The number of bytes that are skipped at once while they contain only the opposite bit.
const SKIP_BYTES: usize = 64;

/// Returns the offset of the first bit that equals `bit`.
pub fn find_bit(bytes: &[u8], bit: bool) -> Option<u64> {
    let flip = if bit { 0 } else { 0xff };
    let uniform = |block: &&[u8]| block.iter().fold(0, |any, byte| any | (byte ^ flip)) == 0;
    let skipped = bytes.chunks_exact(SKIP_BYTES).take_while(uniform).count() * SKIP_BYTES;
    let at = bytes[skipped..].iter().position(|byte| byte ^ flip != 0)? + skipped;
    Some(at as u64 * 8 + u64::from((bytes[at] ^ flip).leading_zeros()))
}

/// Returns the offset of the first bit that equals `bit` from bit `first` to bit `last`, both inclusive and within the
/// string.
pub fn find_bit_between(bytes: &[u8], bit: bool, first: u64, last: u64) -> Option<u64> {
    let range = bit_range(bytes, first, last)?;
    let base = first & !7;
    let flip = if bit { 0 } else { 0xff };
    let begin = (range.bytes[0] ^ flip) & !range.before;
    if begin != 0 {
        let at = base + u64::from(begin.leading_zeros());
        return (at <= last).then_some(at);
    }
    let at = find_bit(&range.bytes[1..], bit)? + base + 8;
    (at <= last).then_some(at)
}

// ---- combining --------------------------------------------------------------------------------------
/// The operation of BITOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOperation {
    /// Sets the bits that are set in all sources.
    And,
    /// Sets the bits that are set in any source.
    Or,
    /// Sets the bits that are set in an odd number of sources.
    Xor,
    /// Inverts the bits of the only source.
    Not,
}

/// The number of bytes of the result that are completed before the next ones. A block of this size stays in the cache
/// regardless of the number of sources.
const BLOCK_BYTES: usize = 16 * 1024;

/// Combines `sources`. The result is as long as the longest source; shorter ones are padded with zero bytes.
///
/// [`BitOperation::Not`] uses only the first source.
pub fn combine(operation: BitOperation, sources: &[&[u8]]) -> Vec<u8> {
    let length = sources.iter().map(|source| source.len()).max().unwrap_or(0);
    let Some((first, others)) = sources.split_first() else {
        return Vec::new();
    };
    let mut result = Vec::with_capacity(length);
    while result.len() < length {
        let start = result.len();
        let end = (start + BLOCK_BYTES).min(length);
        result.extend_from_slice(clamped_slice(first, start, end));
        result.resize(end, 0);
        let block = &mut result[start..end];
        if operation == BitOperation::Not {
            block.iter_mut().for_each(|byte| *byte = !*byte);
            continue;
        }
        for other in others {
            combine_block(operation, block, clamped_slice(other, start, end));
        }
    }
    result
}

/// Returns the bytes of `source` from `start` to `end`, or as many of them as exist.
fn clamped_slice(source: &[u8], start: usize, end: usize) -> &[u8] {
    &source[start.min(source.len())..end.min(source.len())]
}

fn combine_block(operation: BitOperation, block: &mut [u8], source: &[u8]) {
    let (both, alone) = block.split_at_mut(source.len());
    let pairs = both.iter_mut().zip(source);
    match operation {
        BitOperation::And => {
            pairs.for_each(|(byte, other)| *byte &= other);
            alone.fill(0);
        }
        BitOperation::Or => pairs.for_each(|(byte, other)| *byte |= other),
        BitOperation::Xor => pairs.for_each(|(byte, other)| *byte ^= other),
        // NOT has no second source.
        BitOperation::Not => {}
    }
}

#[cfg(test)]
mod tests;
