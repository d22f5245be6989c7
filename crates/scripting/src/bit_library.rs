//! The `bit` library: operations on 32-bit words, by the rules of LuaJIT's library of that name.

use mlua::{Lua, MultiValue, Table, Value};

use super::arguments::{Arguments, convert_result};

/// The number 2^52 + 2^51. Adding it to a float puts the integer part into the low bits of the mantissa.
const SHIFT_TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// Creates the table with the native functions of the library.
///
/// # Errors
/// The interpreter's error if memory is short.
pub fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let one = |name: &'static str, operation: fn(u32) -> u32| {
        let native = lua.create_function(move |lua, values: MultiValue| {
            convert_result(
                lua,
                word(&Arguments::new(name, &values), 0).map(|bits| number(operation(bits))),
            )
        })?;
        table.raw_set(name, native)
    };
    one("tobit", |bits| bits)?;
    one("bnot", |bits| !bits)?;
    one("bswap", u32::swap_bytes)?;
    let many = |name: &'static str, operation: fn(u32, u32) -> u32| {
        let native = lua.create_function(move |lua, values: MultiValue| {
            let arguments = Arguments::new(name, &values);
            let fold = || {
                let mut bits = word(&arguments, 0)?;
                // From the last argument to the first: if several arguments are wrong, the error is about the last one.
                for position in (1..arguments.len()).rev() {
                    bits = operation(bits, word(&arguments, position)?);
                }
                Ok(number(bits))
            };
            convert_result(lua, fold())
        })?;
        table.raw_set(name, native)
    };
    many("band", |bits, other| bits & other)?;
    many("bor", |bits, other| bits | other)?;
    many("bxor", |bits, other| bits ^ other)?;
    let shift = |name: &'static str, operation: fn(u32, u32) -> u32| {
        let native = lua.create_function(move |lua, values: MultiValue| {
            let arguments = Arguments::new(name, &values);
            let shifted = || Ok(number(operation(word(&arguments, 0)?, word(&arguments, 1)? & 31)));
            convert_result(lua, shifted())
        })?;
        table.raw_set(name, native)
    };
    shift("lshift", |bits, by| bits << by)?;
    shift("rshift", |bits, by| bits >> by)?;
    shift("arshift", |bits, by| (bits as i32 >> by) as u32)?;
    shift("rol", u32::rotate_left)?;
    shift("ror", u32::rotate_right)?;
    let to_hex = lua.create_function(|lua, values: MultiValue| {
        let arguments = Arguments::new("tohex", &values);
        let text = || {
            let digits = match arguments.len() {
                0 | 1 => 8,
                _ => word(&arguments, 1)? as i32,
            };
            Ok(hexadecimal(word(&arguments, 0)?, digits))
        };
        convert_result(
            lua,
            text().and_then(|text| super::arguments::string(lua, text.as_bytes())),
        )
    })?;
    table.raw_set("tohex", to_hex)?;
    Ok(table)
}

/// Returns the low 32 bits of an argument.
fn word(arguments: &Arguments<'_>, position: usize) -> Result<u32, Vec<u8>> {
    let number = arguments.number(position)?;
    Ok((number + SHIFT_TO_INTEGER).to_bits() as u32)
}

/// Converts a word to a signed Lua number.
fn number(bits: u32) -> Value {
    Value::Integer(i64::from(bits as i32))
}

/// Formats the low digits of a word; `digits` is their number, and a negative one selects capital letters.
fn hexadecimal(bits: u32, digits: i32) -> String {
    let shown = digits.unsigned_abs().min(8) as usize;
    let text = match digits < 0 {
        true => format!("{bits:08X}"),
        false => format!("{bits:08x}"),
    };
    text[8 - shown..].to_owned()
}
