//! Encodes Lua values as JSON.

use mlua::{Table, Value};

use super::{DEPTH_MAX, Failure, InvalidNumberPolicy, Options};
use crate::arguments::{Arguments, message, type_name};
use crate::number::format_general;

pub(super) fn encode(options: &Options, arguments: &Arguments<'_>) -> Result<Vec<u8>, Failure> {
    if arguments.len() != 1 {
        return Err(arguments.argument_error(0, "expected 1 argument"));
    }
    let mut encoder = Encoder {
        options,
        out: Vec::new(),
    };
    encoder.value(arguments.value(0), 0)?;
    Ok(encoder.out)
}

struct Encoder<'o> {
    options: &'o Options,
    out: Vec<u8>,
}

fn serialise_error(value: &Value, reason: &str) -> Failure {
    format!("Cannot serialise {}: {reason}", type_name(value)).into_bytes()
}

impl Encoder<'_> {
    fn value(&mut self, value: &Value, depth: i64) -> Result<(), Failure> {
        match value {
            Value::String(text) => self.text(&text.as_bytes()),
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

    fn text(&mut self, text: &[u8]) {
        self.out.reserve(text.len() + 2);
        self.out.push(b'"');
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
        self.out.push(b'"');
    }

    fn number(&mut self, value: &Value, number: f64) -> Result<(), Failure> {
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

    fn table(&mut self, table: &Table, depth: i64) -> Result<(), Failure> {
        if depth > self.options.encode_depth.get().min(DEPTH_MAX) {
            return Err(format!("Cannot serialise, excessive nesting ({depth})").into_bytes());
        }
        match self.array_length(table)? {
            Some(length) if length > 0 => self.array(table, length, depth),
            _ => self.object(table, depth),
        }
    }

    /// Returns the length of a table that is encoded as an array; `None` if it is encoded as an object. The pairs are
    /// visited one at a time, since the interpreter has no room for handles to all of them.
    fn array_length(&self, table: &Table) -> Result<Option<i64>, Failure> {
        let (mut longest, mut items) = (0, 0i64);
        for pair in table.pairs::<Value, Value>() {
            match pair.map_err(message)?.0 {
                Value::Integer(index) if index >= 1 => longest = longest.max(index),
                _ => return Ok(None),
            }
            items += 1;
        }
        let options = self.options;
        let ratio = options.sparse_ratio.get();
        if ratio > 0 && longest > items.saturating_mul(ratio) && longest > options.sparse_safe.get() {
            if !options.sparse_convert.get() {
                return Err(b"Cannot serialise table: excessively sparse array".to_vec());
            }
            return Ok(None);
        }
        Ok(Some(longest))
    }

    fn array(&mut self, table: &Table, length: i64, depth: i64) -> Result<(), Failure> {
        self.out.push(b'[');
        for index in 1..=length {
            if index > 1 {
                self.out.push(b',');
            }
            let value: Value = table.raw_get(index).map_err(message)?;
            self.value(&value, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: i64) -> Result<(), Failure> {
        self.out.push(b'{');
        for (index, pair) in table.pairs::<Value, Value>().enumerate() {
            let (key, value) = pair.map_err(message)?;
            if index > 0 {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.text(&text.as_bytes()),
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
