//! Errors that native functions throw at scripts.
//!
//! A native function cannot throw a Lua value. It can only throw a Rust error, which the script would see as an opaque
//! object. Therefore every function of the prelude that shows errors to scripts (pcall, xpcall, coroutine.resume) asks
//! this module for the value that the error stands for.

use std::fmt::{self, Display, Formatter};

use mlua::{Error, Lua, Value};

/// The value that is thrown.
#[derive(Debug)]
enum ThrownValue {
    /// A text that begins with its position in the source.
    Message(Vec<u8>),
    /// A table with the text of an error reply. `counted` is `true` if the statistics already include the error.
    Reply { text: Vec<u8>, counted: bool },
}

impl Display for ThrownValue {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let (ThrownValue::Message(text) | ThrownValue::Reply { text, .. }) = self;
        out.write_str(&String::from_utf8_lossy(text))
    }
}

impl std::error::Error for ThrownValue {}

/// Creates an error with this message, prefixed by the position from which the running native function was called.
pub fn message(lua: &Lua, text: &[u8]) -> Error {
    let place = lua.inspect_stack(1, |frame| {
        let source = frame.source();
        let line = frame.current_line()?;
        Some(format!("{}:{line}: ", source.short_src?))
    });
    let place = place.flatten().unwrap_or_default();
    Error::external(ThrownValue::Message([place.as_bytes(), text].concat()))
}

/// Creates an error reply. `counted` is `true` if the statistics already include it.
pub fn reply(text: &[u8], counted: bool) -> Error {
    Error::external(ThrownValue::Reply {
        text: text.to_vec(),
        counted,
    })
}

/// Returns the value that an error stands for; `None` for an error that stops the script.
///
/// # Errors
/// The interpreter's error if memory is short.
pub fn value_of(lua: &Lua, mut error: &Error) -> mlua::Result<Option<Value>> {
    while let Error::CallbackError { cause, .. } = error {
        error = cause;
    }
    let text = match error {
        Error::ExternalError(external) => match external.downcast_ref::<ThrownValue>() {
            Some(ThrownValue::Message(text)) => text.clone(),
            Some(ThrownValue::Reply { text, counted }) => return reply_value(lua, text, *counted).map(Some),
            None => return Ok(None),
        },
        Error::MemoryError(_) => b"not enough memory".to_vec(),
        Error::StackError => b"stack overflow (too many arguments)".to_vec(),
        _ => return Ok(None),
    };
    lua.create_string(text).map(|text| Some(Value::String(text)))
}

/// Creates the table as which scripts see an error reply.
///
/// # Errors
/// The interpreter's error if memory is short.
pub fn reply_value(lua: &Lua, text: &[u8], counted: bool) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 2)?;
    table.raw_set("err", lua.create_string(text)?)?;
    if counted {
        table.raw_set("ignore_error_stats_update", true)?;
    }
    Ok(Value::Table(table))
}
