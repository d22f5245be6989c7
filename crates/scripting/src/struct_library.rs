//! The `struct` library: packs values into bytes by a format string, as Roberto Ierusalimschy's library of that name
//! does.
//!
//! ```text
//!   >  <          big-endian, little-endian      !n            alignment of at most n bytes
//!   b B h H l L T signed and unsigned integers   i n  I n      of n bytes
//!   f d           floats                         x             a padding byte
//!   s             text up to a zero byte         c n           n bytes; c0: as many as the preceding number says
//! ```

use mlua::{Lua, Table, Value};

use super::arguments::{Arguments, add_native, number_of, string};

/// The maximum size of an integer, in bytes.
const INTEGER_BYTES_MAX: usize = 32;
/// The alignment, in bytes, that `!` without a number selects.
const LARGEST_ALIGNMENT: usize = 8;

type Failure = Vec<u8>;

/// Creates the table with the native functions of the library.
///
/// # Errors
/// The interpreter's error if memory is short.
pub fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    add_native(lua, &table, "pack", |lua, arguments| {
        Ok(vec![string(lua, &pack(lua, &arguments.with_trailing_nil())?)?])
    })?;
    add_native(lua, &table, "unpack", |lua, arguments| unpack(lua, &arguments))?;
    add_native(lua, &table, "size", |lua, arguments| {
        Ok(vec![Value::Integer(size(lua, &arguments)? as i64)])
    })?;
    Ok(table)
}

/// A format string that is being read.
struct Format<'f> {
    rest: &'f [u8],
    big_endian: bool,
    alignment: usize,
}

/// One element of a format.
struct Element {
    option: u8,
    size: usize,
}

impl<'f> Format<'f> {
    fn new(text: &'f [u8]) -> Self {
        // A format ends at its first zero byte, as a C string does.
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Format {
            rest: &text[..end],
            big_endian: cfg!(target_endian = "big"),
            alignment: 1,
        }
    }

    fn take_number(&mut self, default: usize) -> Result<usize, Failure> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let parsed = std::str::from_utf8(number)
            .ok()
            .and_then(|text| text.parse::<i32>().ok());
        parsed
            .map(|number| number as usize)
            .ok_or(b"integral size overflow".to_vec())
    }

    fn next(&mut self) -> Result<Option<Element>, Failure> {
        let Some((option, rest)) = self.rest.split_first() else {
            return Ok(None);
        };
        self.rest = rest;
        let size = match option {
            b'B' | b'b' | b'x' => 1,
            b'H' | b'h' => 2,
            b'L' | b'l' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.take_number(1)?,
            b'i' | b'I' => {
                let size = self.take_number(4)?;
                if size > INTEGER_BYTES_MAX {
                    let text = format!("integral size {size} is larger than limit of {INTEGER_BYTES_MAX}");
                    return Err(text.into_bytes());
                }
                size
            }
            _ => 0,
        };
        Ok(Some(Element { option: *option, size }))
    }

    /// Returns the number of padding bytes before an element at `position`.
    fn padding(&self, position: usize, element: &Element) -> usize {
        if element.size == 0 || element.option == b'c' {
            return 0;
        }
        let size = element.size.min(self.alignment);
        size.wrapping_sub(position & size.wrapping_sub(1)) & size.wrapping_sub(1)
    }

    /// Applies an option that changes the format itself: byte order or alignment.
    fn apply_modifier(&mut self, option: u8, arguments: &Arguments<'_>) -> Result<(), Failure> {
        match option {
            b' ' => {}
            b'>' => self.big_endian = true,
            b'<' => self.big_endian = false,
            b'!' => {
                let alignment = self.take_number(LARGEST_ALIGNMENT)?;
                if !alignment.is_power_of_two() {
                    return Err(format!("alignment {alignment} is not a power of 2").into_bytes());
                }
                self.alignment = alignment;
            }
            _ => {
                let mut text = b"invalid format option '".to_vec();
                text.push(option);
                text.push(b'\'');
                let error = arguments.argument_error(0, "\u{1}");
                return Err(replace_mark(&error, &text));
            }
        }
        Ok(())
    }
}

/// Replaces the mark (byte 1) in `text` by bytes that may not be UTF-8.
fn replace_mark(text: &[u8], by: &[u8]) -> Vec<u8> {
    let mut parts = text.splitn(2, |byte| *byte == 1);
    let (before, after) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    [before, by, after].concat()
}

fn to_byte_order(mut bytes: Vec<u8>, big_endian: bool) -> Vec<u8> {
    if big_endian {
        bytes.reverse();
    }
    bytes
}

fn pack(lua: &Lua, arguments: &Arguments<'_>) -> Result<Vec<u8>, Failure> {
    let format = arguments.text(lua, 0)?;
    let format = format.as_bytes();
    let mut format = Format::new(&format);
    let mut out = Vec::new();
    // The position is counted independently of the output, as in the original: the size of `c0` counts as it was given.
    let mut position = 0;
    let mut next = 1;
    while let Some(mut element) = format.next()? {
        let padding = format.padding(position, &element);
        position += padding;
        out.resize(out.len() + padding, 0);
        match element.option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let number = arguments.number(next)?;
                next += 1;
                out.extend(to_byte_order(integer_bytes(number, element.size), format.big_endian));
            }
            b'x' => out.push(0),
            b'f' => {
                let number = arguments.number(next)? as f32;
                next += 1;
                out.extend(to_byte_order(number.to_le_bytes().to_vec(), format.big_endian));
            }
            b'd' => {
                let number = arguments.number(next)?;
                next += 1;
                out.extend(to_byte_order(number.to_le_bytes().to_vec(), format.big_endian));
            }
            b'c' | b's' => {
                let text = arguments.text(lua, next)?;
                let text = text.as_bytes();
                next += 1;
                if element.size == 0 {
                    element.size = text.len();
                }
                let Some(taken) = text.get(..element.size) else {
                    return Err(arguments.argument_error(next, "string too short"));
                };
                out.extend_from_slice(taken);
                if element.option == b's' {
                    out.push(0);
                    element.size += 1;
                }
            }
            option => format.apply_modifier(option, arguments)?,
        }
        position += element.size;
    }
    Ok(out)
}

/// Returns the low `size` bytes of a number, little-endian.
fn integer_bytes(number: f64, size: usize) -> Vec<u8> {
    let bits = if number < 0.0 {
        number as i64 as u64
    } else {
        number as u64
    };
    let mut bytes = bits.to_le_bytes().to_vec();
    bytes.resize(size, 0);
    bytes
}

fn integer_of(bytes: &[u8], big_endian: bool, signed: bool) -> f64 {
    let mut ordered = bytes.to_vec();
    if big_endian {
        ordered.reverse();
    }
    let mut low = [0; 8];
    for (to, from) in low.iter_mut().zip(&ordered) {
        *to = *from;
    }
    let bits = u64::from_le_bytes(low);
    if !signed {
        return bits as f64;
    }
    let shift = 64usize.saturating_sub(ordered.len() * 8) as u32;
    if shift >= 64 {
        return 0.0;
    }
    ((bits << shift) as i64 >> shift) as f64
}

fn unpack(lua: &Lua, arguments: &Arguments<'_>) -> Result<Vec<Value>, Failure> {
    let format = arguments.text(lua, 0)?;
    let format = format.as_bytes();
    let mut format = Format::new(&format);
    let data = arguments.text(lua, 1)?;
    let data = data.as_bytes();
    let too_short = || arguments.argument_error(1, "data string too short");
    let start = arguments.integer_or(2, 1)?;
    if start == 0 {
        return Err(arguments.argument_error(2, "offset must be 1 or greater"));
    }
    // A negative offset is beyond the end of every text.
    let mut position = usize::try_from(start).map_or(usize::MAX / 2, |start| start - 1);
    let mut values: Vec<Value> = Vec::new();
    while let Some(mut element) = format.next()? {
        position += format.padding(position, &element);
        let piece = |size: usize| data.get(position..position.saturating_add(size)).ok_or_else(too_short);
        let bytes = piece(element.size)?;
        match element.option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let signed = element.option.is_ascii_lowercase();
                values.push(Value::Number(integer_of(bytes, format.big_endian, signed)));
            }
            b'x' => {}
            b'f' | b'd' => {
                let ordered = to_byte_order(bytes.to_vec(), format.big_endian);
                values.push(Value::Number(float_of(&ordered)));
            }
            b'c' => {
                if element.size == 0 {
                    let size = values.last().and_then(number_of);
                    let size = size.ok_or(b"format 'c0' needs a previous size".to_vec())?;
                    values.pop();
                    element.size = if size < 0.0 { usize::MAX / 2 } else { size as usize };
                }
                values.push(string(lua, piece(element.size)?)?);
            }
            b's' => {
                let rest = data.get(position..).ok_or_else(too_short)?;
                let end = rest.iter().position(|byte| *byte == 0);
                let end = end.ok_or(b"unfinished string in data".to_vec())?;
                values.push(string(lua, &rest[..end])?);
                element.size = end + 1;
            }
            option => format.apply_modifier(option, arguments)?,
        }
        position += element.size;
    }
    values.push(Value::Integer(position as i64 + 1));
    Ok(values)
}

fn float_of(bytes: &[u8]) -> f64 {
    match (<[u8; 4]>::try_from(bytes), <[u8; 8]>::try_from(bytes)) {
        (Ok(bytes), _) => f64::from(f32::from_le_bytes(bytes)),
        (_, Ok(bytes)) => f64::from_le_bytes(bytes),
        _ => 0.0,
    }
}

fn size(lua: &Lua, arguments: &Arguments<'_>) -> Result<usize, Failure> {
    let format = arguments.text(lua, 0)?;
    let format = format.as_bytes();
    let mut format = Format::new(&format);
    let mut position = 0usize;
    while let Some(element) = format.next()? {
        position += format.padding(position, &element);
        match element.option {
            b's' => return Err(arguments.argument_error(0, "option 's' has no fixed size")),
            b'c' if element.size == 0 => return Err(arguments.argument_error(0, "option 'c0' has no fixed size")),
            option if !option.is_ascii_alphanumeric() => format.apply_modifier(option, arguments)?,
            _ => {}
        }
        position += element.size;
    }
    Ok(position)
}
