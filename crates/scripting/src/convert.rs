//! Converts replies to Lua values and Lua values to replies.
//!
//! ```text
//!   reply                      value                                 reply
//!   integer                    number                                integer, the fraction cut off
//!   bulk string                string                                bulk string
//!   simple string              {ok = text}                           simple string
//!   error                      {err = text}                          error
//!   array                      table from 1 on                       array up to the first nil
//!   null of RESP2, array too   false                                 null (RESP3: a boolean)
//!   null                       nil                                   null
//!   boolean                    boolean                               1 or null (RESP3: a boolean)
//!   map, set, double           {map = }, {set = }, {double = }       the same
//!   big number, verbatim       {big_number = }, {verbatim_string = } the same
//! ```

use mlua::{Lua, Table, Value};
use weft_lua::calls::ScriptResult;
use weft_resp::{NestedLengths, Protocol, Reply, number};

use super::errors;
use super::run_checks::WorkMeter;

/// The maximum nesting of a reply. In Valkey the size of Lua's stack sets the limit.
const DEPTH_MAX: usize = 1000;

/// The maximum length of an integer reply, in bytes, for which [`is_reply_of_its_value`] returns `true`: a
/// floating-point number represents all integers of up to 15 digits.
const MAX_EXACT_INTEGER_BYTES: usize = b":-99999999999999\r\n".len();

/// Returns `true` if a script that returns the value of this reply has the same reply, in both protocols. The reply is
/// one that this server has written.
pub fn is_reply_of_its_value(reply: &[u8]) -> bool {
    match reply {
        [b'$', length, ..] => *length != b'-',
        [b':', ..] => reply.len() <= MAX_EXACT_INTEGER_BYTES,
        [b'+', text @ .., b'\r', b'\n'] => !text.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')),
        _ => false,
    }
}

/// Converts a reply that this server has written to a Lua value.
///
/// # Errors
/// The interpreter's error if memory is short.
pub fn value_of(lua: &Lua, reply: &[u8]) -> mlua::Result<Value> {
    ReplyReader { lua, rest: reply }.value()
}

struct ReplyReader<'r> {
    lua: &'r Lua,
    rest: &'r [u8],
}

impl<'r> ReplyReader<'r> {
    /// Reads the rest of the current line and skips its CRLF.
    fn line(&mut self) -> &'r [u8] {
        let end = memchr::memchr(b'\r', self.rest).unwrap_or(self.rest.len());
        let line = &self.rest[..end];
        self.rest = self.rest.get(end + 2..).unwrap_or_default();
        line
    }

    fn count(&mut self) -> Option<usize> {
        number::parse_i64(self.line()).and_then(|count| usize::try_from(count).ok())
    }

    fn bytes(&mut self, len: usize) -> &'r [u8] {
        let bytes = &self.rest[..len.min(self.rest.len())];
        self.rest = self.rest.get(len + 2..).unwrap_or_default();
        bytes
    }

    fn string(&self, bytes: &[u8]) -> mlua::Result<Value> {
        self.lua.create_string(bytes).map(Value::String)
    }

    fn tagged(&self, tag: &str, value: Value) -> mlua::Result<Value> {
        let table = self.lua.create_table_with_capacity(0, 1)?;
        table.raw_set(tag, value)?;
        Ok(Value::Table(table))
    }

    fn value(&mut self) -> mlua::Result<Value> {
        let Some((mark, rest)) = self.rest.split_first() else {
            return Ok(Value::Nil);
        };
        self.rest = rest;
        match mark {
            b':' => Ok(Value::Number(number::parse_i64(self.line()).unwrap_or(0) as f64)),
            b'$' => match self.count() {
                Some(len) => {
                    let bytes = self.bytes(len);
                    self.string(bytes)
                }
                None => Ok(Value::Boolean(false)),
            },
            b'+' => {
                let text = self.line();
                self.tagged("ok", self.string(text)?)
            }
            b'-' => {
                let text = self.line();
                errors::reply_value(self.lua, &with_code(text), true)
            }
            b'*' => self.array(),
            b'_' => {
                self.line();
                Ok(Value::Nil)
            }
            b'#' => Ok(Value::Boolean(self.line() == b"t")),
            b',' => {
                let text = self.line();
                self.tagged("double", Value::Number(double(text)))
            }
            b'(' => {
                let digits = self.line();
                self.tagged("big_number", self.string(digits)?)
            }
            b'=' => self.verbatim(),
            b'%' => self.map(),
            b'~' => self.set(),
            b'|' => {
                // Scripts do not see attributes.
                for _ in 0..self.count().unwrap_or(0) * 2 {
                    self.value()?;
                }
                self.value()
            }
            _ => {
                self.line();
                Ok(Value::Nil)
            }
        }
    }

    fn array(&mut self) -> mlua::Result<Value> {
        let Some(len) = self.count() else {
            return Ok(Value::Boolean(false));
        };
        let table = self.lua.create_table_with_capacity(len, 0)?;
        for index in 1..=len {
            let value = self.value()?;
            table.raw_set(index, value)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self) -> mlua::Result<Value> {
        let len = self.count().unwrap_or(0);
        let table = self.lua.create_table_with_capacity(0, len)?;
        for _ in 0..len {
            let key = self.value()?;
            let value = self.value()?;
            table.raw_set(key, value)?;
        }
        self.tagged("map", Value::Table(table))
    }

    fn set(&mut self) -> mlua::Result<Value> {
        let len = self.count().unwrap_or(0);
        let table = self.lua.create_table_with_capacity(0, len)?;
        for _ in 0..len {
            let member = self.value()?;
            table.raw_set(member, true)?;
        }
        self.tagged("set", Value::Table(table))
    }

    fn verbatim(&mut self) -> mlua::Result<Value> {
        let len = self.count().unwrap_or(0);
        let bytes = self.bytes(len);
        let (format, text) = bytes.split_at(bytes.len().min(3));
        let table = self.lua.create_table_with_capacity(0, 2)?;
        table.raw_set("string", self.string(text.strip_prefix(b":").unwrap_or(text))?)?;
        table.raw_set("format", self.string(format)?)?;
        self.tagged("verbatim_string", Value::Table(table))
    }
}

/// Returns the error code under which an error is counted: the bytes before its first space. The code is `ERR` if there
/// is no space among the first 31 bytes.
pub fn code_of(text: &[u8]) -> Vec<u8> {
    let line = one_line_bytes(&text[..text.len().min(CODE_MAX)]);
    match line.iter().position(|byte| *byte == b' ') {
        Some(end) => line[..end].to_vec(),
        None => b"ERR".to_vec(),
    }
}

/// The number of bytes that are searched for the end of an error code.
const CODE_MAX: usize = 31;

/// Returns the text of an error. A text without a space has no code and gets the code `ERR`.
pub fn with_code(text: &[u8]) -> Vec<u8> {
    match text.contains(&b' ') {
        true => text.to_vec(),
        false => [b"ERR ", text].concat(),
    }
}

fn double(text: &[u8]) -> f64 {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.parse().unwrap_or(f64::NAN)
}

/// Writes a Lua value as a reply. Returns the codes of the errors that are still to be counted. `script_protocol` is
/// the protocol that the script has selected; it decides how booleans are written.
///
/// A table may contain itself many times, so a small value can make an endless reply. Writing stops once the reply has
/// `most_bytes` bytes. `meter` ends it if the run is to stop.
///
/// # Errors
/// The interpreter's error if memory is short, and the error that stops a script.
pub fn write_reply(
    value: &Value,
    script_protocol: Protocol,
    most_bytes: usize,
    meter: WorkMeter<'_>,
    reply: &mut Reply<'_>,
) -> mlua::Result<Vec<Vec<u8>>> {
    let mut writer = ReplyWriter {
        script_protocol,
        most_bytes,
        meter,
        lengths: NestedLengths::default(),
        errors: Vec::new(),
    };
    writer.value(value, reply, 0)?;
    writer.lengths.insert(reply);
    Ok(writer.errors)
}

/// Writes a simple value that a script returned as a reply.
pub fn write_result(result: ScriptResult<'_>, script_protocol: Protocol, reply: &mut Reply<'_>) {
    match result {
        ScriptResult::Text(text) => reply.bulk(text),
        ScriptResult::Number(number) => reply.integer(truncated(number)),
        ScriptResult::Boolean(value) if script_protocol == Protocol::Resp3 => reply.boolean(value),
        ScriptResult::Boolean(true) => reply.integer(1),
        ScriptResult::Boolean(false) | ScriptResult::Nil => reply.null(),
        ScriptResult::Status(text) => write_status(text, reply),
    }
}

fn write_status(text: &[u8], reply: &mut Reply<'_>) {
    reply.raw(b"+");
    let line = c_string(text);
    match line.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        true => reply.raw(&one_line_bytes(line)),
        false => reply.raw(line),
    }
    reply.raw(b"\r\n");
}

struct ReplyWriter<'m> {
    script_protocol: Protocol,
    most_bytes: usize,
    meter: WorkMeter<'m>,
    lengths: NestedLengths,
    /// The codes of the errors that are still to be counted.
    errors: Vec<Vec<u8>>,
}

/// Returns the bytes before the first zero byte.
fn c_string(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn one_line(text: &[u8]) -> String {
    let text: Vec<u8> = text
        .iter()
        .map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte })
        .collect();
    String::from_utf8_lossy(&text).into_owned()
}

impl ReplyWriter<'_> {
    fn value(&mut self, value: &Value, reply: &mut Reply<'_>, depth: usize) -> mlua::Result<()> {
        if depth > DEPTH_MAX {
            reply.error("ERR reached lua stack limit");
            return Ok(());
        }
        self.meter.check(reply.out.len())?;
        match value {
            Value::Integer(number) => reply.integer(*number),
            Value::Table(table) => self.table(table, reply, depth + 1)?,
            Value::String(text) => self.simple(ScriptResult::Text(&text.as_bytes()), reply),
            Value::Number(number) => self.simple(ScriptResult::Number(*number), reply),
            Value::Boolean(value) => self.simple(ScriptResult::Boolean(*value), reply),
            _ => self.simple(ScriptResult::Nil, reply),
        }
        Ok(())
    }

    fn simple(&self, result: ScriptResult<'_>, reply: &mut Reply<'_>) {
        write_result(result, self.script_protocol, reply);
    }

    fn table(&mut self, table: &Table, reply: &mut Reply<'_>, depth: usize) -> mlua::Result<()> {
        if let Value::String(text) = table.raw_get("err")? {
            return self.error(table, c_string(&text.as_bytes()), reply);
        }
        if let Value::String(text) = table.raw_get("ok")? {
            self.simple(ScriptResult::Status(&text.as_bytes()), reply);
            return Ok(());
        }
        match table.raw_get("double")? {
            Value::Number(number) => {
                reply.double(number);
                return Ok(());
            }
            Value::Integer(number) => {
                reply.double(number as f64);
                return Ok(());
            }
            _ => {}
        }
        if let Value::String(digits) = table.raw_get("big_number")? {
            reply.big_number(&one_line(&digits.as_bytes()));
            return Ok(());
        }
        if let Value::Table(verbatim) = table.raw_get("verbatim_string")?
            && let (Value::String(format), Value::String(text)) =
                (verbatim.raw_get("format")?, verbatim.raw_get("string")?)
        {
            reply.verbatim(&format.to_string_lossy(), &text.as_bytes());
            return Ok(());
        }
        if let Value::Table(map) = table.raw_get("map")? {
            let begun = self.lengths.begin_map(reply);
            let mut len = 0;
            for pair in map.pairs::<Value, Value>() {
                let (key, value) = pair?;
                if reply.out.len() > self.most_bytes {
                    break;
                }
                self.value(&key, reply, depth)?;
                self.value(&value, reply, depth)?;
                len += 1;
            }
            self.lengths.end_map(begun, len, reply);
            return Ok(());
        }
        if let Value::Table(set) = table.raw_get("set")? {
            let begun = self.lengths.begin_set(reply);
            let mut len = 0;
            for pair in set.pairs::<Value, Value>() {
                if reply.out.len() > self.most_bytes {
                    break;
                }
                self.value(&pair?.0, reply, depth)?;
                len += 1;
            }
            self.lengths.end_set(begun, len, reply);
            return Ok(());
        }
        let begun = self.lengths.begin_array(reply);
        let mut len = 0;
        loop {
            let element: Value = table.raw_get(len + 1)?;
            if element.is_nil() || reply.out.len() > self.most_bytes {
                break;
            }
            self.value(&element, reply, depth)?;
            len += 1;
        }
        self.lengths.end_array(begun, len, reply);
        Ok(())
    }

    fn error(&mut self, table: &Table, text: &[u8], reply: &mut Reply<'_>) -> mlua::Result<()> {
        let counted = matches!(table.raw_get("ignore_error_stats_update")?, Value::Boolean(true));
        if !counted {
            self.errors.push(code_of(text));
        }
        let line = [b"-", &one_line_bytes(text)[..], b"\r\n"].concat();
        reply.raw(&line);
        Ok(())
    }
}

fn one_line_bytes(text: &[u8]) -> Vec<u8> {
    text.iter()
        .map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte })
        .collect()
}

/// Truncates a number to an integer as the processor does; a number that does not fit becomes the smallest integer.
fn truncated(number: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    match (-LIMIT..LIMIT).contains(&number) {
        true => number as i64,
        false => i64::MIN,
    }
}

#[cfg(test)]
mod tests;
