//! The arguments of natives, checked as Lua's own library checks them; and how natives answer.

use mlua::{Lua, LuaString, MultiValue, Table, Value};

use super::errors;

/// The arguments of a call.
pub struct Arguments<'a> {
    function: &'static str,
    /// Whether a nil follows the last one.
    padded: bool,
    values: &'a MultiValue,
}

impl<'a> Arguments<'a> {
    /// Those of a call of `function`.
    pub fn new(function: &'static str, values: &'a MultiValue) -> Self {
        Arguments {
            function,
            padded: false,
            values,
        }
    }

    /// The same with a nil behind the last one, which errors show.
    pub fn padded(mut self) -> Self {
        self.padded = true;
        self
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The argument at `position`, from 0; nil if there are fewer.
    pub fn value(&self, position: usize) -> &'a Value {
        self.values.get(position).unwrap_or(&Value::Nil)
    }

    /// The error about an argument.
    pub fn bad(&self, position: usize, text: &str) -> Vec<u8> {
        format!("bad argument #{} to '{}' ({text})", position + 1, self.function).into_bytes()
    }

    fn unexpected(&self, position: usize, wanted: &str) -> Vec<u8> {
        let got = match self.values.get(position) {
            None if self.padded && position > 0 && position == self.values.len() => "nil",
            None => "no value",
            Some(value) => type_name(value),
        };
        self.bad(position, &format!("{wanted} expected, got {got}"))
    }

    /// A number, or a text that is one.
    ///
    /// # Errors
    /// The message about anything else.
    pub fn number(&self, position: usize) -> Result<f64, Vec<u8>> {
        number_of(self.value(position)).ok_or_else(|| self.unexpected(position, "number"))
    }

    /// A number without its fraction.
    ///
    /// # Errors
    /// The message about anything else.
    pub fn integer(&self, position: usize) -> Result<i64, Vec<u8>> {
        self.number(position).map(|number| number as i64)
    }

    /// The same, or another if there is none.
    ///
    /// # Errors
    /// The message about anything else.
    pub fn integer_or(&self, position: usize, other: i64) -> Result<i64, Vec<u8>> {
        match self.value(position) {
            Value::Nil => Ok(other),
            _ => self.integer(position),
        }
    }

    /// A text, or a number as one.
    ///
    /// # Errors
    /// The message about anything else.
    pub fn text(&self, lua: &Lua, position: usize) -> Result<LuaString, Vec<u8>> {
        match self.value(position) {
            Value::String(text) => Ok(text.clone()),
            value @ (Value::Integer(_) | Value::Number(_)) => match lua.coerce_string(value.clone()) {
                Ok(Some(text)) => Ok(text),
                Ok(None) | Err(_) => Err(self.unexpected(position, "string")),
            },
            _ => Err(self.unexpected(position, "string")),
        }
    }
}

/// A value as a number, if it is one or a text of one.
pub fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        Value::String(text) => number_of_text(&text.as_bytes()),
        _ => None,
    }
}

/// A text as a number, in the forms that Lua takes.
fn number_of_text(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => {
            let number = u64::from_str_radix(hexadecimal, 16).ok()? as f64;
            Some(if text.starts_with('-') { -number } else { number })
        }
        None => text.parse().ok(),
    }
}

/// What Lua calls the type of a value.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Boolean(_) => "boolean",
        Value::Integer(_) | Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Table(_) => "table",
        Value::Function(_) => "function",
        Value::Thread(_) => "thread",
        _ => "userdata",
    }
}

/// Bytes as a value.
///
/// # Errors
/// The message when memory is short.
pub fn string(lua: &Lua, bytes: &[u8]) -> Result<Value, Vec<u8>> {
    lua.create_string(bytes).map(Value::String).map_err(message)
}

/// The message of an error of the interpreter.
pub fn message(error: mlua::Error) -> Vec<u8> {
    match error {
        mlua::Error::MemoryError(_) => b"not enough memory".to_vec(),
        other => other.to_string().into_bytes(),
    }
}

/// A native's answer: its result, or an error at the place of its caller.
///
/// # Errors
/// That error.
pub fn answer(lua: &Lua, result: Result<Value, Vec<u8>>) -> mlua::Result<Value> {
    result.map_err(|text| errors::message(lua, &text))
}

/// The same with any number of results.
///
/// # Errors
/// That error.
pub fn answer_with(lua: &Lua, results: Result<Vec<Value>, Vec<u8>>) -> mlua::Result<MultiValue> {
    results
        .map(MultiValue::from_vec)
        .map_err(|text| errors::message(lua, &text))
}

/// A function of a library: its results, or an error.
pub type Native = fn(&Lua, Arguments<'_>) -> Result<Vec<Value>, Vec<u8>>;

/// Puts a function into a library. Its errors are at the place of its caller.
///
/// # Errors
/// When memory is short.
pub fn put_native(lua: &Lua, library: &Table, name: &'static str, native: Native) -> mlua::Result<()> {
    let function = lua
        .create_function(move |lua, values: MultiValue| answer_with(lua, native(lua, Arguments::new(name, &values))))?;
    library.raw_set(name, function)
}
