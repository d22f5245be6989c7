//! LZF, the compression of strings in RDB files. The output is identical to that of liblzf with its "very fast"
//! setting.
//!
//! ```text
//! 000LLLLL  bytes              L+1 literal bytes (1 to 32)
//! LLLOOOOO  OOOOOOOO           L+2 bytes from O+1 bytes back, L from 1 to 6
//! 111OOOOO  LLLLLLLL OOOOOOOO  L+9 bytes from O+1 bytes back
//! ```
//!
//! The compressor stores in a hash table where it last saw each group of three bytes. The hash function is part of the
//! format because RDB files must equal those of other servers byte for byte: another table would find other matches.
//! The table is reused for the next string without clearing it. Positions continue to count up from one string to the
//! next, so an entry of an earlier string is recognized by its lower position.

use std::cell::RefCell;

const HASH_BITS: u32 = 16;
const LITERALS_MAX: usize = 1 << 5;
const OFFSET_MAX: usize = 1 << 13;
const MATCH_MAX: usize = (1 << 8) + (1 << 3);
/// The number of bytes that are compared without a check of the maximum length, if the maximum is larger. Such a match
/// can get longer than one near the end of the input.
const UNCHECKED_BYTES: usize = 16;
/// The maximum number of bytes that one byte of compressed data can expand to.
const EXPANSION_MAX: usize = MATCH_MAX / 3 + 1;

/// The maximum number of bytes that are reserved for the output.
const MAX_RESERVED_BYTES: usize = 4096;

thread_local! {
    static COMPRESSOR: RefCell<Compressor> = const { RefCell::new(Compressor { last_positions: Vec::new(), base: 1 }) };
}

/// Compresses `input`. Returns `None` if the result would exceed `limit` bytes.
pub fn compress(input: &[u8], limit: usize) -> Option<Vec<u8>> {
    if input.is_empty() || limit == 0 || u32::try_from(input.len()).is_err() {
        return None;
    }
    COMPRESSOR.with_borrow_mut(|compressor| compressor.compress(input, limit))
}

/// Decompresses `input`, which must expand to exactly `len` bytes. Returns `None` if it is damaged.
pub fn decompress(input: &[u8], len: usize) -> Option<Vec<u8>> {
    // Other servers check nothing but the length in this case.
    if len == 0 {
        return Some(Vec::new());
    }
    if len / EXPANSION_MAX > input.len() {
        return None;
    }
    let mut out = Vec::with_capacity(len);
    let mut rest = input;
    while let [control, after @ ..] = rest {
        let control = usize::from(*control);
        rest = if control < LITERALS_MAX {
            let (literals, after) = after.split_at_checked(control + 1)?;
            out.extend_from_slice(literals);
            after
        } else {
            copy_reference(&mut out, control, after)?
        };
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

/// Performs one back reference. Returns the input after it.
fn copy_reference<'a>(out: &mut Vec<u8>, control: usize, after: &'a [u8]) -> Option<&'a [u8]> {
    let (longer, after) = match control >> 5 {
        7 => {
            let (longer, after) = after.split_first()?;
            (usize::from(*longer), after)
        }
        _ => (0, after),
    };
    let (low, after) = after.split_first()?;
    let count = (control >> 5) + longer + 2;
    let distance = ((control & 0x1f) << 8 | usize::from(*low)) + 1;
    let start = out.len().checked_sub(distance)?;
    if distance >= count {
        out.extend_from_within(start..start + count);
    } else {
        // The source and the target overlap, so the copy must read the bytes that it writes.
        for index in start..start + count {
            out.push(out[index]);
        }
    }
    Some(after)
}

struct Compressor {
    /// The last position of the bytes with each hash, offset by `base`.
    last_positions: Vec<u32>,
    /// The number that stands for the first position of the current string.
    base: u32,
}

impl Compressor {
    fn compress(&mut self, input: &[u8], limit: usize) -> Option<Vec<u8>> {
        let len = input.len() as u32;
        if self.last_positions.is_empty() || self.base.checked_add(len).is_none() {
            self.last_positions.clear();
            self.last_positions.resize(1 << HASH_BITS, 0);
            self.base = 1;
        }
        let mut output = Output::new(limit);
        let packed = self.compress_into(input, &mut output);
        // If a string uses up all position numbers, the next string starts with a new table.
        self.base = self.base.saturating_add(len);
        packed?;
        Some(output.finish())
    }

    fn compress_into(&mut self, input: &[u8], output: &mut Output) -> Option<()> {
        let last = input.len().saturating_sub(2);
        let mut at = 0;
        while at < last {
            let Some(from) = self
                .record_position(input, at)
                .filter(|from| is_match(input, *from, at))
            else {
                output.append_literal(input[at])?;
                at += 1;
                continue;
            };
            let count = match_len(input, from, at);
            output.append_reference(at - from - 1, count)?;
            at += count;
            if at >= last {
                break;
            }
            self.record_position(input, at - 2);
            self.record_position(input, at - 1);
        }
        output.append_rest(&input[at..])
    }

    /// Records the three bytes at `at`. Returns the previous position of bytes with the same hash.
    fn record_position(&mut self, input: &[u8], at: usize) -> Option<usize> {
        let value = u32::from(input[at]) << 16 | u32::from(input[at + 1]) << 8 | u32::from(input[at + 2]);
        let hash = (value >> (24 - HASH_BITS)).wrapping_sub(value.wrapping_mul(5)) & ((1 << HASH_BITS) - 1);
        let before = std::mem::replace(&mut self.last_positions[hash as usize], self.base + at as u32);
        before.checked_sub(self.base).map(|position| position as usize)
    }
}

/// Returns `true` if three bytes are equal and within the maximum offset. The first byte of the input is never
/// referenced.
fn is_match(input: &[u8], from: usize, at: usize) -> bool {
    from > 0 && from < at && at - from <= OFFSET_MAX && input[from..from + 3] == input[at..at + 3]
}

/// Returns the number of equal bytes, which is at least three.
fn match_len(input: &[u8], from: usize, at: usize) -> usize {
    let room = (input.len() - at - 2).min(MATCH_MAX);
    let mut index = 2;
    if room > UNCHECKED_BYTES {
        for _ in 0..UNCHECKED_BYTES {
            index += 1;
            if input[from + index] != input[at + index] {
                return index;
            }
        }
    }
    loop {
        index += 1;
        if index >= room || input[from + index] != input[at + index] {
            return index;
        }
    }
}

/// The compressed output. The run of literals at its end is still open.
struct Output {
    bytes: Vec<u8>,
    limit: usize,
    literals: usize,
}

impl Output {
    fn new(limit: usize) -> Self {
        // Long strings mostly become much shorter.
        let mut bytes = Vec::with_capacity(limit.min(MAX_RESERVED_BYTES));
        bytes.push(0);
        Output {
            bytes,
            limit,
            literals: 0,
        }
    }

    /// Appends a literal. Returns `None` if the limit is reached.
    fn append_literal(&mut self, byte: u8) -> Option<()> {
        if self.bytes.len() >= self.limit {
            return None;
        }
        self.push_literal(byte);
        Some(())
    }

    fn push_literal(&mut self, byte: u8) {
        self.bytes.push(byte);
        self.literals += 1;
        if self.literals == LITERALS_MAX {
            self.close_run();
            self.bytes.push(0);
        }
    }

    /// Writes the length of the literal run before it. An empty run is removed.
    fn close_run(&mut self) {
        if self.literals == 0 {
            self.bytes.pop();
        } else {
            let start = self.bytes.len() - self.literals - 1;
            self.bytes[start] = (self.literals - 1) as u8;
        }
        self.literals = 0;
    }

    /// Appends a reference to the `count` bytes that begin `offset + 1` bytes back. Returns `None` if the output could
    /// exceed the limit.
    fn append_reference(&mut self, offset: usize, count: usize) -> Option<()> {
        let closed = self.bytes.len() - usize::from(self.literals == 0);
        if closed + 4 >= self.limit {
            return None;
        }
        self.close_run();
        let (high, low) = ((offset >> 8) as u8, offset as u8);
        match count - 2 {
            len @ ..7 => self.bytes.extend([high | (len as u8) << 5, low]),
            len => self.bytes.extend([high | 7 << 5, (len - 7) as u8, low]),
        }
        self.bytes.push(0);
        Some(())
    }

    /// Appends the last bytes, of which there are at most two.
    fn append_rest(&mut self, bytes: &[u8]) -> Option<()> {
        if self.bytes.len() + 3 > self.limit {
            return None;
        }
        for byte in bytes {
            self.push_literal(*byte);
        }
        Some(())
    }

    fn finish(mut self) -> Vec<u8> {
        self.close_run();
        self.bytes
    }
}

#[cfg(test)]
mod tests;
