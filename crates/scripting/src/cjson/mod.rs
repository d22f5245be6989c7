//! The `cjson` library: JSON with the options, limits and error texts of lua-cjson 2.1.

mod decode;
mod encode;

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use super::arguments::{Arguments, NativeFailure, convert_results, string};
use super::run_checks::{RunChecks, WorkMeter};

/// The maximum nesting of tables, whatever limit a script sets: encoding and decoding are recursive and use stack.
const DEPTH_MAX: i64 = 2000;

/// The treatment of numbers that JSON cannot represent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InvalidNumberPolicy {
    Error,
    Encode,
    Null,
}

/// The options of one instance of the library.
///
/// Those of the instance that scripts find hold for the run that sets them: a thread has its own interpreters, and a
/// script must not depend on what has run on its thread before.
pub(crate) struct Options {
    /// `true` if a function for options was called since the options had their defaults.
    is_changed: Cell<bool>,
    sparse_convert: Cell<bool>,
    sparse_ratio: Cell<i64>,
    sparse_safe: Cell<i64>,
    encode_depth: Cell<i64>,
    decode_depth: Cell<i64>,
    encode_invalid: Cell<InvalidNumberPolicy>,
    decode_invalid: Cell<bool>,
    precision: Cell<i64>,
    keep_buffer: Cell<bool>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            is_changed: Cell::new(false),
            sparse_convert: Cell::new(false),
            sparse_ratio: Cell::new(2),
            sparse_safe: Cell::new(10),
            encode_depth: Cell::new(1000),
            decode_depth: Cell::new(1000),
            encode_invalid: Cell::new(InvalidNumberPolicy::Error),
            decode_invalid: Cell::new(true),
            precision: Cell::new(14),
            keep_buffer: Cell::new(true),
        }
    }
}

impl Options {
    /// Sets all options to their defaults.
    #[inline]
    pub(crate) fn restore_defaults(&self) {
        if self.is_changed.get() {
            self.reset();
        }
    }

    #[cold]
    fn reset(&self) {
        let defaults = Options::default();
        let Options {
            is_changed,
            sparse_convert,
            sparse_ratio,
            sparse_safe,
            encode_depth,
            decode_depth,
            encode_invalid,
            decode_invalid,
            precision,
            keep_buffer,
        } = self;
        is_changed.set(false);
        sparse_convert.swap(&defaults.sparse_convert);
        sparse_ratio.swap(&defaults.sparse_ratio);
        sparse_safe.swap(&defaults.sparse_safe);
        encode_depth.swap(&defaults.encode_depth);
        decode_depth.swap(&defaults.decode_depth);
        encode_invalid.swap(&defaults.encode_invalid);
        decode_invalid.swap(&defaults.decode_invalid);
        precision.swap(&defaults.precision);
        keep_buffer.swap(&defaults.keep_buffer);
    }
}

/// A function that sets an option and returns its value.
type OptionFunction = fn(&Lua, &Options, &Arguments<'_>) -> Result<Vec<Value>, Vec<u8>>;

/// Creates the table with the native functions of the library, which use these options.
///
/// # Errors
/// The interpreter's error if memory is short.
pub(crate) fn library(lua: &Lua, checks: &Rc<RunChecks>, options: Rc<Options>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let add = |name: &'static str, native: OptionFunction| {
        let options = options.clone();
        let function = lua.create_function(move |lua, values: MultiValue| {
            options.is_changed.set(true);
            convert_results(lua, native(lua, &options, &Arguments::new(name, &values)))
        })?;
        table.raw_set(name, function)
    };
    add("encode_sparse_array", set_sparse_array)?;
    add("encode_max_depth", |_, options, arguments| {
        only_integer_option(arguments, &options.encode_depth, &(1..=i64::from(i32::MAX)))
    })?;
    add("decode_max_depth", |_, options, arguments| {
        only_integer_option(arguments, &options.decode_depth, &(1..=i64::from(i32::MAX)))
    })?;
    add("encode_number_precision", |_, options, arguments| {
        only_integer_option(arguments, &options.precision, &(1..=14))
    })?;
    add("encode_keep_buffer", |_, options, arguments| {
        check_argument_count(arguments, 1)?;
        // This encoder keeps no buffer, so the option has no effect; the function only returns its value.
        boolean_option(arguments, 0, &options.keep_buffer).map(|value| vec![value])
    })?;
    add("encode_invalid_numbers", set_encode_invalid)?;
    add("decode_invalid_numbers", |_, options, arguments| {
        check_argument_count(arguments, 1)?;
        boolean_option(arguments, 0, &options.decode_invalid).map(|value| vec![value])
    })?;
    let (encoding, checking) = (options.clone(), checks.clone());
    let encode = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new("encode", &values);
        let meter = WorkMeter::new(lua, &checking);
        let text = encode::encode(&encoding, meter, &arguments);
        text.and_then(|text| Ok(string(lua, &text)?))
            .map_err(|failure| failure.into_error(lua))
    })?;
    table.raw_set("encode", encode)?;
    let (decoding, checking) = (options, checks.clone());
    let decode = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new("decode", &values);
        let meter = WorkMeter::new(lua, &checking);
        decode::decode(lua, &decoding, meter, &arguments).map_err(|failure| failure.into_error(lua))
    })?;
    table.raw_set("decode", decode)?;
    let sharing = checks.clone();
    let new = lua.create_function(move |lua, ()| library(lua, &sharing, Rc::default()))?;
    table.raw_set("new", new)?;
    table.raw_set("null", Value::NULL)?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    Ok(table)
}

fn check_argument_count(arguments: &Arguments<'_>, most: usize) -> Result<(), Vec<u8>> {
    match arguments.len() <= most {
        true => Ok(()),
        false => Err(arguments.argument_error(most, "found too many arguments")),
    }
}

/// Sets an integer option to the argument at `position`, if there is one. Returns the resulting value of the option.
fn integer_option(
    arguments: &Arguments<'_>,
    position: usize,
    option: &Cell<i64>,
    range: &RangeInclusive<i64>,
) -> Result<Value, Vec<u8>> {
    if !matches!(arguments.value(position), Value::Nil) {
        let value = arguments.integer(position)?;
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            return Err(arguments.argument_error(0, &format!("expected integer between {low} and {high}")));
        }
        option.set(value);
    }
    Ok(Value::Integer(option.get()))
}

fn only_integer_option(
    arguments: &Arguments<'_>,
    option: &Cell<i64>,
    range: &RangeInclusive<i64>,
) -> Result<Vec<Value>, Vec<u8>> {
    check_argument_count(arguments, 1)?;
    integer_option(arguments, 0, option, range).map(|value| vec![value])
}

/// Sets a boolean option to the argument at `position`, if there is one. Returns the resulting value of the option.
fn boolean_option(arguments: &Arguments<'_>, position: usize, option: &Cell<bool>) -> Result<Value, Vec<u8>> {
    match arguments.value(position) {
        Value::Nil => {}
        Value::Boolean(on) => option.set(*on),
        _ => option.set(choice(arguments, position, &["off", "on"])? == 1),
    }
    Ok(Value::Boolean(option.get()))
}

fn choice(arguments: &Arguments<'_>, position: usize, names: &[&str]) -> Result<usize, Vec<u8>> {
    let given = match arguments.value(position) {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        _ => {
            let got = super::arguments::type_name(arguments.value(position));
            return Err(arguments.argument_error(position, &format!("string expected, got {got}")));
        }
    };
    names.iter().position(|name| name.as_bytes() == given).ok_or_else(|| {
        let given = String::from_utf8_lossy(&given);
        arguments.argument_error(position, &format!("invalid option '{given}'"))
    })
}

fn set_sparse_array(_: &Lua, options: &Options, arguments: &Arguments<'_>) -> Result<Vec<Value>, Vec<u8>> {
    check_argument_count(arguments, 3)?;
    let range = 0..=i64::from(i32::MAX);
    Ok(vec![
        boolean_option(arguments, 0, &options.sparse_convert)?,
        integer_option(arguments, 1, &options.sparse_ratio, &range)?,
        integer_option(arguments, 2, &options.sparse_safe, &range)?,
    ])
}

fn set_encode_invalid(lua: &Lua, options: &Options, arguments: &Arguments<'_>) -> Result<Vec<Value>, Vec<u8>> {
    check_argument_count(arguments, 1)?;
    let kinds = [
        InvalidNumberPolicy::Error,
        InvalidNumberPolicy::Encode,
        InvalidNumberPolicy::Null,
    ];
    match arguments.value(0) {
        Value::Nil => {}
        Value::Boolean(on) => options.encode_invalid.set(kinds[usize::from(*on)]),
        _ => options
            .encode_invalid
            .set(kinds[choice(arguments, 0, &["off", "on", "null"])?]),
    }
    let value = match options.encode_invalid.get() {
        InvalidNumberPolicy::Error => Value::Boolean(false),
        InvalidNumberPolicy::Encode => Value::Boolean(true),
        InvalidNumberPolicy::Null => string(lua, b"null")?,
    };
    Ok(vec![value])
}
