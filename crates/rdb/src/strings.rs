//! Lengths and strings in the encoding of RDB files.
//!
//! ```text
//! 00LLLLLL                     length below 64
//! 01LLLLLL LLLLLLLL            length below 16384
//! 10000000 LLLLLLLL x 4        length below 2^32, big-endian
//! 10000001 LLLLLLLL x 8        any length, big-endian
//! 11000000 00000001 00000010   a number of 1, 2 or 4 bytes, little-endian, instead of its digits
//! 11000011 length length       compressed length, length, and the string in LZF
//! ```

use weft_resp::number::{format_i64, parse_i64};

use super::lzf;

const LENGTH_14_BITS: u8 = 0x40;
const LENGTH_32_BITS: u8 = 0x80;
const LENGTH_64_BITS: u8 = 0x81;
const INT_8: u8 = 0xc0;
const INT_16: u8 = 0xc1;
const INT_32: u8 = 0xc2;
const LZF: u8 = 0xc3;

/// The length above which a string is not checked for being a number: no 32-bit number has more digits.
const MAX_NUMBER_BYTES: usize = 11;
/// The minimum length of strings to compress. Shorter strings do not get smaller.
const MIN_COMPRESSED_BYTES: usize = 21;
/// The minimum number of bytes that compression must save.
const MIN_SAVED_BYTES: usize = 4;

/// Appends a length.
pub fn write_length(out: &mut Vec<u8>, length: usize) {
    match length {
        ..64 => out.push(length as u8),
        64..16384 => out.extend([LENGTH_14_BITS | (length >> 8) as u8, length as u8]),
        _ => match u32::try_from(length) {
            Ok(length) => {
                out.push(LENGTH_32_BITS);
                out.extend(length.to_be_bytes());
            }
            Err(_) => {
                out.push(LENGTH_64_BITS);
                out.extend((length as u64).to_be_bytes());
            }
        },
    }
}

/// Appends a string in its shortest form. It is compressed only if `compress` is set (`rdbcompression`).
pub fn write_string(out: &mut Vec<u8>, bytes: &[u8], compress: bool) {
    if bytes.len() <= MAX_NUMBER_BYTES
        && let Some(number) = parse_i64(bytes)
        && write_small_integer(out, number)
    {
        return;
    }
    if compress
        && bytes.len() >= MIN_COMPRESSED_BYTES
        && let Some(packed) = lzf::compress(bytes, bytes.len() - MIN_SAVED_BYTES)
    {
        write_compressed(out, &packed, bytes.len());
        return;
    }
    write_plain(out, bytes);
}

/// Appends a string that is already compressed with LZF. `length` is its uncompressed length in bytes.
pub fn write_compressed(out: &mut Vec<u8>, packed: &[u8], length: usize) {
    out.push(LZF);
    write_length(out, packed.len());
    write_length(out, length);
    out.extend_from_slice(packed);
}

/// Appends a string that is the decimal form of a number.
pub fn write_integer(out: &mut Vec<u8>, number: i64) {
    if !write_small_integer(out, number) {
        let mut digits = [0; 20];
        write_plain(out, format_i64(number, &mut digits).as_bytes());
    }
}

fn write_plain(out: &mut Vec<u8>, bytes: &[u8]) {
    write_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a number if it fits in 32 bits. Returns `true` if it does.
fn write_small_integer(out: &mut Vec<u8>, number: i64) -> bool {
    if let Ok(number) = i8::try_from(number) {
        out.push(INT_8);
        out.extend(number.to_le_bytes());
    } else if let Ok(number) = i16::try_from(number) {
        out.push(INT_16);
        out.extend(number.to_le_bytes());
    } else if let Ok(number) = i32::try_from(number) {
        out.push(INT_32);
        out.extend(number.to_le_bytes());
    } else {
        return false;
    }
    true
}

/// A string that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedString<'a> {
    /// The string was stored as a number.
    Int(i64),
    /// The string was stored uncompressed.
    Bytes(&'a [u8]),
    /// The string was stored compressed.
    Decompressed(Vec<u8>),
}

/// A reader of untrusted bytes.
#[derive(Clone, Copy, Debug)]
pub struct RdbReader<'a> {
    remaining: &'a [u8],
}

impl<'a> RdbReader<'a> {
    /// Creates a reader at the start of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        RdbReader { remaining: bytes }
    }

    /// The next byte; `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// The next `count` bytes; `None` if there are fewer.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.remaining.split_at_checked(count)?;
        self.remaining = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.remaining.split_first_chunk::<N>()?;
        self.remaining = rest;
        Some(*taken)
    }

    /// The next string; `None` if the bytes are not a valid string.
    pub fn string(&mut self) -> Option<ParsedString<'a>> {
        let mark = *self.remaining.first()?;
        let int = match mark {
            INT_8 => i8::from_le_bytes(self.array_after_mark()?).into(),
            INT_16 => i16::from_le_bytes(self.array_after_mark()?).into(),
            INT_32 => i32::from_le_bytes(self.array_after_mark()?).into(),
            LZF => return self.compressed(),
            _ if is_encoding(mark) => return None,
            _ => {
                let length = self.length()?;
                return self.bytes(length).map(ParsedString::Bytes);
            }
        };
        Some(ParsedString::Int(int))
    }

    /// Skips the next string without decoding it. Returns its uncompressed length in bytes as its header claims it; for
    /// a number, the length of its encoding. Returns `None` if the header is invalid or bytes are missing.
    pub fn skip_string(&mut self) -> Option<usize> {
        let mark = *self.remaining.first()?;
        let encoded = match mark {
            INT_8 => 2,
            INT_16 => 3,
            INT_32 => 5,
            LZF => {
                self.byte()?;
                let (packed, length) = (self.length()?, self.length()?);
                self.bytes(packed)?;
                return Some(length);
            }
            _ if is_encoding(mark) => return None,
            _ => self.length()?,
        };
        self.bytes(encoded).map(<[u8]>::len)
    }

    /// The number of bytes that have not been read.
    pub const fn remaining_bytes(&self) -> usize {
        self.remaining.len()
    }

    /// The bytes after an encoding mark.
    fn array_after_mark<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.byte()?;
        self.array()
    }

    fn compressed(&mut self) -> Option<ParsedString<'a>> {
        self.byte()?;
        let (packed, length) = (self.length()?, self.length()?);
        let packed = self.bytes(packed)?;
        lzf::decompress(packed, length).map(ParsedString::Decompressed)
    }

    /// The next length. Where only a length is allowed, an encoding mark is read as one.
    pub fn length(&mut self) -> Option<usize> {
        let mark = self.byte()?;
        let low = usize::from(mark & 0x3f);
        match mark {
            LENGTH_32_BITS => Some(u32::from_be_bytes(self.array()?) as usize),
            LENGTH_64_BITS => usize::try_from(u64::from_be_bytes(self.array()?)).ok(),
            _ if is_encoding(mark) || mark < LENGTH_14_BITS => Some(low),
            _ if mark < LENGTH_32_BITS => Some(low << 8 | usize::from(self.byte()?)),
            _ => None,
        }
    }
}

const fn is_encoding(mark: u8) -> bool {
    mark >= INT_8
}

#[cfg(test)]
mod tests;
