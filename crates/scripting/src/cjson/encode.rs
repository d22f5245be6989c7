//! Encodes Lua values as JSON.

use mlua::{Table, Value};

use super::{DEPTH_MAX, InvalidNumberPolicy, NativeFailure, Options};
use crate::arguments::{Arguments, ENCODED_BYTES_MAX, message, too_long, type_name};
use crate::number::format_general;
use crate::run_checks::WorkMeter;

pub(super) fn encode(
    options: &Options,
    meter: WorkMeter<'_>,
    arguments: &Arguments<'_>,
) -> Result<Vec<u8>, NativeFailure> {
    if arguments.len() != 1 {
        return Err(arguments.argument_error(0, "expected 1 argument").into());
    }
    let mut encoder = Encoder {
        options,
        meter,
        out: Vec::new(),
    };
    encoder.value(arguments.value(0), 0)?;
    encoder.check()?;
    Ok(encoder.out)
}

/// The bytes of a string that are encoded between two checks.
const CHUNK_BYTES: usize = 64 << 10;

fn lua_failure(error: mlua::Error) -> NativeFailure {
    message(error).into()
}

struct Encoder<'o> {
    options: &'o Options,
    meter: WorkMeter<'o>,
    out: Vec<u8>,
}

fn serialise_error(value: &Value, reason: &str) -> NativeFailure {
    format!("Cannot serialise {}: {reason}", type_name(value))
        .into_bytes()
        .into()
}

impl Encoder<'_> {
    fn value(&mut self, value: &Value, depth: i64) -> Result<(), NativeFailure> {
        self.check()?;
        match value {
            Value::String(text) => self.text(&text.as_bytes())?,
            Value::Integer(number) => self.number(value, *number as f64)?,
            Value::Number(number) => self.number(value, *number)?,
            Value::Boolean(true) => self.out.extend_from_slice(b"true"),
            Value::Boolean(false) => self.out.extend_from_slice(b"false"),
            Value::Table(table) => self.table(table, depth + 1)?,
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(data) if data.0.is_null() => self.out.extend_from_slice(b"null"),
            _ => return Err(serialise_error(value, "type not supported")),
        }
        Ok(())
    }

    /// Fails if the text is too long, or if the script is to stop.
    fn check(&mut self) -> Result<(), NativeFailure> {
        if self.out.len() > ENCODED_BYTES_MAX {
            return Err(too_long());
        }
        self.meter.check(self.out.len()).map_err(NativeFailure::Stop)
    }

    fn text(&mut self, text: &[u8]) -> Result<(), NativeFailure> {
        self.out.reserve(text.len().min(CHUNK_BYTES) + 2);
        self.out.push(b'"');
        for chunk in text.chunks(CHUNK_BYTES) {
            self.check()?;
            self.escaped(chunk);
        }
        self.out.push(b'"');
        Ok(())
    }

    fn escaped(&mut self, text: &[u8]) {
        for byte in text {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' => self.out.extend_from_slice(b"\\/"),
                0x08 => self.out.extend_from_slice(b"\\b"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                0x0c => self.out.extend_from_slice(b"\\f"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                0..0x20 | 0x7f => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                other => self.out.push(*other),
            }
        }
    }

    fn number(&mut self, value: &Value, number: f64) -> Result<(), NativeFailure> {
        if !number.is_finite() {
            match self.options.encode_invalid.get() {
                InvalidNumberPolicy::Error => return Err(serialise_error(value, "must not be NaN or Inf")),
                InvalidNumberPolicy::Null => {
                    self.out.extend_from_slice(b"null");
                    return Ok(());
                }
                InvalidNumberPolicy::Encode if number.is_nan() => {
                    self.out.extend_from_slice(b"nan");
                    return Ok(());
                }
                InvalidNumberPolicy::Encode => {}
            }
        }
        format_general(number, self.options.precision.get() as usize, &mut self.out);
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: i64) -> Result<(), NativeFailure> {
        if depth > self.options.encode_depth.get().min(DEPTH_MAX) {
            return Err(format!("Cannot serialise, excessive nesting ({depth})")
                .into_bytes()
                .into());
        }
        match self.array_length(table)? {
            Some(length) if length > 0 => self.array(table, length, depth),
            _ => self.object(table, depth),
        }
    }

    /// Returns the length of a table that is encoded as an array; `None` if it is encoded as an object. The pairs are
    /// visited one at a time, since the interpreter has no room for handles to all of them.
    fn array_length(&mut self, table: &Table) -> Result<Option<i64>, NativeFailure> {
        let (mut longest, mut items) = (0, 0i64);
        for pair in table.pairs::<Value, Value>() {
            self.check()?;
            match pair.map_err(lua_failure)?.0 {
                Value::Integer(index) if index >= 1 => longest = longest.max(index),
                _ => return Ok(None),
            }
            items += 1;
        }
        let options = self.options;
        let ratio = options.sparse_ratio.get();
        if ratio > 0 && longest > items.saturating_mul(ratio) && longest > options.sparse_safe.get() {
            if !options.sparse_convert.get() {
                return Err(b"Cannot serialise table: excessively sparse array".to_vec().into());
            }
            return Ok(None);
        }
        Ok(Some(longest))
    }

    fn array(&mut self, table: &Table, length: i64, depth: i64) -> Result<(), NativeFailure> {
        self.out.push(b'[');
        for index in 1..=length {
            if index > 1 {
                self.out.push(b',');
            }
            let value: Value = table.raw_get(index).map_err(lua_failure)?;
            self.value(&value, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: i64) -> Result<(), NativeFailure> {
        self.out.push(b'{');
        for (index, pair) in table.pairs::<Value, Value>().enumerate() {
            let (key, value) = pair.map_err(lua_failure)?;
            if index > 0 {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.text(&text.as_bytes())?,
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.value(&key, depth)?;
                    self.out.push(b'"');
                }
                _ => return Err(serialise_error(&key, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }
}
