//! The `cmsgpack` library: MessagePack, choosing the encoding of each value as lua-cmsgpack does.

use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use super::arguments::{Arguments, ENCODED_BYTES_MAX, NativeFailure, message, string, too_long};
use super::run_checks::{RunChecks, WorkMeter};

/// The maximum nesting of encoded tables. A deeper table is encoded as nil, so a table that contains itself has a
/// finite encoding.
const NESTING_MAX: usize = 16;

/// Creates the table with the native functions of the library.
///
/// # Errors
/// The interpreter's error if memory is short.
pub(crate) fn library(lua: &Lua, checks: &Rc<RunChecks>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let packing = checks.clone();
    let pack = lua.create_function(move |lua, values: MultiValue| {
        let packed = pack(WorkMeter::new(lua, &packing), &Arguments::new("pack", &values));
        packed
            .and_then(|packed| Ok(string(lua, &packed)?))
            .map_err(|failure| failure.into_error(lua))
    })?;
    table.raw_set("pack", pack)?;
    let add_unpack = |name: &'static str, range: fn(&Arguments<'_>) -> Result<UnpackRange, Vec<u8>>| {
        let unpacking = checks.clone();
        let unpack = lua.create_function(move |lua, values: MultiValue| {
            let arguments = Arguments::new(name, &values);
            let meter = WorkMeter::new(lua, &unpacking);
            let unpacked = range(&arguments).map_err(NativeFailure::Message);
            let unpacked = unpacked.and_then(|range| unpack(lua, meter, &arguments, range));
            let values = unpacked.map_err(|failure| failure.into_error(lua))?;
            Ok(MultiValue::from_vec(values))
        })?;
        table.raw_set(name, unpack)
    };
    add_unpack("unpack", |_| Ok(UnpackRange { limit: 0, offset: 0 }))?;
    add_unpack("unpack_one", |arguments| {
        Ok(UnpackRange {
            limit: 1,
            offset: arguments.integer_or(1, 0)?,
        })
    })?;
    add_unpack("unpack_limit", |arguments| {
        Ok(UnpackRange {
            limit: arguments.integer(1)?,
            offset: arguments.integer_or(2, 0)?,
        })
    })?;
    table.raw_set("_NAME", "cmsgpack")?;
    table.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.raw_set("_COPYRIGHT", "Copyright (C) 2012, Redis Ltd.")?;
    table.raw_set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    Ok(table)
}

fn pack(meter: WorkMeter<'_>, arguments: &Arguments<'_>) -> Result<Vec<u8>, NativeFailure> {
    if arguments.len() == 0 {
        return Err(b"bad argument #0 to 'pack' (MessagePack pack needs input.)"
            .to_vec()
            .into());
    }
    let mut encoder = Encoder { meter, out: Vec::new() };
    for position in 0..arguments.len() {
        encoder.value(arguments.value(position), 0)?;
    }
    encoder.check()?;
    Ok(encoder.out)
}

struct Encoder<'i> {
    meter: WorkMeter<'i>,
    out: Vec<u8>,
}

impl Encoder<'_> {
    /// Fails if the output is too long, or if the script is to stop.
    fn check(&mut self) -> Result<(), NativeFailure> {
        if self.out.len() > ENCODED_BYTES_MAX {
            return Err(too_long());
        }
        self.meter.check(self.out.len()).map_err(NativeFailure::Stop)
    }

    fn value(&mut self, value: &Value, level: usize) -> Result<(), NativeFailure> {
        self.check()?;
        let out = &mut self.out;
        match value {
            Value::Boolean(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
            Value::Integer(number) => encode_integer(*number, out),
            Value::Number(number) => encode_number(*number, out),
            Value::String(text) => encode_bytes(&text.as_bytes(), out),
            Value::Table(table) if level < NESTING_MAX => self.table(table, level)?,
            _ => out.push(0xc0),
        }
        Ok(())
    }

    /// Encodes a table: as an array if its keys are 1 to n, otherwise as a map. The pairs are visited one at a time,
    /// since the interpreter has no room for handles to all of them.
    fn table(&mut self, table: &Table, level: usize) -> Result<(), NativeFailure> {
        let (mut len, mut largest, mut is_array) = (0, 0, true);
        for pair in table.pairs::<Value, Value>() {
            self.check()?;
            len += 1;
            match pair.map_err(lua_failure)?.0 {
                Value::Integer(index) if (1..=i64::from(i32::MAX)).contains(&index) => largest = largest.max(index),
                _ => is_array = false,
            }
        }
        if is_array && largest == len as i64 {
            encode_header(0x90, 0xdc, len, &mut self.out);
            for index in 1..=len {
                self.value(&table.get(index).map_err(lua_failure)?, level + 1)?;
            }
            return Ok(());
        }
        encode_header(0x80, 0xde, len, &mut self.out);
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(lua_failure)?;
            self.value(&key, level + 1)?;
            self.value(&value, level + 1)?;
        }
        Ok(())
    }
}

fn lua_failure(error: mlua::Error) -> NativeFailure {
    message(error).into()
}

fn encode_number(number: f64, out: &mut Vec<u8>) {
    let whole = number as i64;
    if whole as f64 == number && number.is_finite() {
        return encode_integer(whole, out);
    }
    let single = number as f32;
    if f64::from(single) == number {
        out.push(0xca);
        out.extend(single.to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend(number.to_be_bytes());
    }
}

fn encode_integer(number: i64, out: &mut Vec<u8>) {
    match number {
        0..=0x7f => out.push(number as u8),
        0x80..=0xff => out.extend([0xcc, number as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend((number as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend((number as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xcf);
            out.extend(number.to_be_bytes());
        }
        -32..=-1 => out.push(number as u8),
        -128..=-33 => out.extend([0xd0, number as u8]),
        -32768..=-129 => {
            out.push(0xd1);
            out.extend((number as i16).to_be_bytes());
        }
        -0x8000_0000..=-32769 => {
            out.push(0xd2);
            out.extend((number as i32).to_be_bytes());
        }
        _ => {
            out.push(0xd3);
            out.extend(number.to_be_bytes());
        }
    }
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    match bytes.len() {
        len @ 0..32 => out.push(0xa0 | len as u8),
        len @ 32..=0xff => out.extend([0xd9, len as u8]),
        len @ 0x100..=0xffff => {
            out.push(0xda);
            out.extend((len as u16).to_be_bytes());
        }
        len => {
            out.push(0xdb);
            out.extend((len as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// Encodes the header of a collection. `short` marks a collection of at most 15 elements, `long` one with a 16-bit
/// length, and `long + 1` one with a 32-bit length.
fn encode_header(short: u8, long: u8, len: usize, out: &mut Vec<u8>) {
    match len {
        0..=15 => out.push(short | len as u8),
        16..=0xffff => {
            out.push(long);
            out.extend((len as u16).to_be_bytes());
        }
        _ => {
            out.push(long + 1);
            out.extend((len as u32).to_be_bytes());
        }
    }
}

/// The values that a call unpacks: at most `limit` ones from an offset on, or all if both are 0.
struct UnpackRange {
    limit: i64,
    offset: i64,
}

fn unpack(
    lua: &Lua,
    meter: WorkMeter<'_>,
    arguments: &Arguments<'_>,
    range: UnpackRange,
) -> Result<Vec<Value>, NativeFailure> {
    let UnpackRange { limit, offset } = range;
    let all = limit == 0 && offset == 0;
    let data = arguments.text(lua, 0)?;
    let data = data.as_bytes();
    if offset < 0 || limit < 0 {
        let text = format!(
            "Invalid request to unpack with offset of {offset} and limit of {}.",
            data.len()
        );
        return Err(text.into_bytes().into());
    }
    let Some(rest) = usize::try_from(offset).ok().and_then(|offset| data.get(offset..)) else {
        let text = format!("Start offset {offset} greater than input length {}.", data.len());
        return Err(text.into_bytes().into());
    };
    let mut cursor = Cursor {
        lua,
        meter,
        len: data.len(),
        rest,
    };
    let mut values = Vec::new();
    while !cursor.rest.is_empty() && (all || (values.len() as i64) < limit) {
        let value = cursor.value(0)?;
        values.push(value);
        if values.len() > RESULTS_MAX {
            return Err(TOO_MANY.to_vec().into());
        }
    }
    if !all {
        let next = match cursor.rest.len() {
            0 => -1,
            left => (data.len() - left) as i64,
        };
        values.insert(0, Value::Integer(next));
    }
    Ok(values)
}

/// The maximum number of values that one call can return; Lua's stack has room for no more.
const RESULTS_MAX: usize = 7900;

const TOO_MANY: &[u8] = b"stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)";

/// The maximum nesting of decoded values. The decoder refuses deeper input, as Valkey does from 4000 on.
const DECODED_NESTING_MAX: usize = 1000;

struct Cursor<'d> {
    lua: &'d Lua,
    meter: WorkMeter<'d>,
    /// The length of the whole input.
    len: usize,
    rest: &'d [u8],
}

impl<'d> Cursor<'d> {
    fn take(&mut self, count: usize) -> Result<&'d [u8], NativeFailure> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| b"Missing bytes in input.".to_vec())?;
        self.rest = rest;
        Ok(taken)
    }

    fn unsigned(&mut self, bytes: usize) -> Result<u64, NativeFailure> {
        let taken = self.take(bytes)?;
        Ok(taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self, len: usize) -> Result<Value, NativeFailure> {
        let taken = self.take(len)?;
        Ok(string(self.lua, taken)?)
    }

    fn value(&mut self, depth: usize) -> Result<Value, NativeFailure> {
        self.meter
            .check(self.len - self.rest.len())
            .map_err(NativeFailure::Stop)?;
        let mark = self.take(1)?[0];
        let number = |number: f64| Ok(Value::Number(number));
        match mark {
            0x00..=0x7f => Ok(Value::Integer(i64::from(mark))),
            0xe0..=0xff => Ok(Value::Integer(i64::from(mark as i8))),
            0x80..=0x8f => self.map(usize::from(mark & 0xf), depth),
            0x90..=0x9f => self.array(usize::from(mark & 0xf), depth),
            0xa0..=0xbf => self.text(usize::from(mark & 0x1f)),
            0xc0 => Ok(Value::Nil),
            0xc2 => Ok(Value::Boolean(false)),
            0xc3 => Ok(Value::Boolean(true)),
            0xca => number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => number(f64::from_bits(self.unsigned(8)?)),
            0xcc => number(self.unsigned(1)? as f64),
            0xcd => number(self.unsigned(2)? as f64),
            0xce => number(self.unsigned(4)? as f64),
            // Numbers from 2^63 on become negative, as in the original.
            0xcf => number(self.unsigned(8)? as i64 as f64),
            0xd0 => number(f64::from(self.unsigned(1)? as u8 as i8)),
            0xd1 => number(f64::from(self.unsigned(2)? as u16 as i16)),
            0xd2 => number(f64::from(self.unsigned(4)? as u32 as i32)),
            0xd3 => number(self.unsigned(8)? as i64 as f64),
            0xd9..=0xdb => {
                let len = self.unsigned(1 << (mark - 0xd9))?;
                self.text(len as usize)
            }
            0xdc | 0xdd => {
                let len = self.unsigned(2 << (mark - 0xdc))?;
                self.array(len as usize, depth)
            }
            0xde | 0xdf => {
                let len = self.unsigned(2 << (mark - 0xde))?;
                self.map(len as usize, depth)
            }
            _ => Err(b"Bad data format in input.".to_vec().into()),
        }
    }

    /// Returns the depth inside a table; `refusal` if that is too deep.
    fn descend(depth: usize, refusal: &[u8]) -> Result<usize, NativeFailure> {
        match depth < DECODED_NESTING_MAX {
            true => Ok(depth + 1),
            false => Err(refusal.to_vec().into()),
        }
    }

    fn array(&mut self, len: usize, depth: usize) -> Result<Value, NativeFailure> {
        let depth = Self::descend(depth, b"stack overflow (in function mp_decode_to_lua_array)")?;
        let table = self.lua.create_table().map_err(message)?;
        for index in 1..=len {
            let value = self.value(depth)?;
            table.raw_set(index, value).map_err(message)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, len: usize, depth: usize) -> Result<Value, NativeFailure> {
        let depth = Self::descend(depth, TOO_MANY)?;
        let table = self.lua.create_table().map_err(message)?;
        for _ in 0..len {
            let key = self.value(depth)?;
            let value = self.value(depth)?;
            match key {
                Value::Nil => return Err(b"table index is nil".to_vec().into()),
                Value::Number(number) if number.is_nan() => return Err(b"table index is NaN".to_vec().into()),
                key => table.raw_set(key, value).map_err(message)?,
            }
        }
        Ok(Value::Table(table))
    }
}
