//! Checks the arguments of native functions as Lua's own library does, and converts their results.

use mlua::{Lua, LuaString, MultiValue, Table, Value};

use super::errors;

/// The arguments of a call of a native function.
pub struct Arguments<'a> {
    function: &'static str,
    /// `true` if a nil follows the last argument.
    has_trailing_nil: bool,
    values: &'a MultiValue,
}

impl<'a> Arguments<'a> {
    /// Wraps the arguments of a call of `function`.
    pub fn new(function: &'static str, values: &'a MultiValue) -> Self {
        Arguments {
            function,
            has_trailing_nil: false,
            values,
        }
    }

    /// Marks that a nil follows the last argument; error messages then show that nil.
    pub fn with_trailing_nil(mut self) -> Self {
        self.has_trailing_nil = true;
        self
    }

    /// Returns the number of arguments.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the argument at `position`, counted from 0; nil if there are fewer arguments.
    pub fn value(&self, position: usize) -> &'a Value {
        self.values.get(position).unwrap_or(&Value::Nil)
    }

    /// Formats the error message about the argument at `position`.
    pub fn argument_error(&self, position: usize, text: &str) -> Vec<u8> {
        format!("bad argument #{} to '{}' ({text})", position + 1, self.function).into_bytes()
    }

    fn unexpected(&self, position: usize, wanted: &str) -> Vec<u8> {
        let got = match self.values.get(position) {
            None if self.has_trailing_nil && position > 0 && position == self.values.len() => "nil",
            None => "no value",
            Some(value) => type_name(value),
        };
        self.argument_error(position, &format!("{wanted} expected, got {got}"))
    }

    /// Returns an argument that is a number, or a string that represents one.
    ///
    /// # Errors
    /// The error message if the argument is neither.
    pub fn number(&self, position: usize) -> Result<f64, Vec<u8>> {
        number_of(self.value(position)).ok_or_else(|| self.unexpected(position, "number"))
    }

    /// Returns a numeric argument truncated to an integer.
    ///
    /// # Errors
    /// The error message if the argument is not a number.
    pub fn integer(&self, position: usize) -> Result<i64, Vec<u8>> {
        self.number(position).map(|number| number as i64)
    }

    /// Returns a numeric argument truncated to an integer, or `other` if the argument is absent.
    ///
    /// # Errors
    /// The error message if the argument is present but not a number.
    pub fn integer_or(&self, position: usize, other: i64) -> Result<i64, Vec<u8>> {
        match self.value(position) {
            Value::Nil => Ok(other),
            _ => self.integer(position),
        }
    }

    /// Returns an argument that is a string; a number is converted.
    ///
    /// # Errors
    /// The error message if the argument is neither.
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

/// Returns a value as a number if it is a number or a string that represents one.
pub fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        Value::String(text) => number_of_text(&text.as_bytes()),
        _ => None,
    }
}

/// Parses a number in the forms that Lua accepts.
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

/// Returns the name that Lua gives to the type of a value.
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

/// Creates a Lua string from bytes.
///
/// # Errors
/// The error message if memory is short.
pub fn string(lua: &Lua, bytes: &[u8]) -> Result<Value, Vec<u8>> {
    lua.create_string(bytes).map(Value::String).map_err(message)
}

/// Returns the message of an interpreter error.
pub fn message(error: mlua::Error) -> Vec<u8> {
    match error {
        mlua::Error::MemoryError(_) => b"not enough memory".to_vec(),
        other => other.to_string().into_bytes(),
    }
}

/// The failure of a native function that may take long.
pub enum NativeFailure {
    /// The function throws an error with this message.
    Message(Vec<u8>),
    /// The error stops the script, which cannot catch it.
    Stop(mlua::Error),
}

impl NativeFailure {
    /// Converts the failure to the Lua error that the function throws. A message gets the position of the caller.
    pub fn into_error(self, lua: &Lua) -> mlua::Error {
        match self {
            NativeFailure::Message(text) => errors::message(lua, &text),
            NativeFailure::Stop(error) => error,
        }
    }
}

impl From<Vec<u8>> for NativeFailure {
    fn from(text: Vec<u8>) -> Self {
        NativeFailure::Message(text)
    }
}

/// The maximum bytes of what a library encodes for a script. No value of the server can be longer, unless
/// `proto-max-bulk-len` is raised.
pub const ENCODED_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 512 << 20 };

/// Returns the failure of a function whose result would have more than [`ENCODED_BYTES_MAX`] bytes, with the message
/// that Lua has for strings that are too long.
pub fn too_long() -> NativeFailure {
    NativeFailure::Message(b"memory allocation error: block too big".to_vec())
}

/// Converts the result of a native function. An error gets the position of the caller.
///
/// # Errors
/// The error of the native function, as a Lua error.
pub fn convert_result(lua: &Lua, result: Result<Value, Vec<u8>>) -> mlua::Result<Value> {
    result.map_err(|text| errors::message(lua, &text))
}

/// Does the same as [`convert_result`] for any number of results.
///
/// # Errors
/// The error of the native function, as a Lua error.
pub fn convert_results(lua: &Lua, results: Result<Vec<Value>, Vec<u8>>) -> mlua::Result<MultiValue> {
    results
        .map(MultiValue::from_vec)
        .map_err(|text| errors::message(lua, &text))
}

/// A native function of a library. Returns its results or an error message.
pub type Native = fn(&Lua, Arguments<'_>) -> Result<Vec<Value>, Vec<u8>>;

/// Adds a native function to a library. Its errors get the position of the caller.
///
/// # Errors
/// The interpreter's error if memory is short.
pub fn add_native(lua: &Lua, library: &Table, name: &'static str, native: Native) -> mlua::Result<()> {
    let function = lua.create_function(move |lua, values: MultiValue| {
        convert_results(lua, native(lua, Arguments::new(name, &values)))
    })?;
    library.raw_set(name, function)
}
