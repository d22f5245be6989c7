//! The native libraries and functions that the prelude gets.

use std::rc::Rc;

use mlua::{Lua, LuaString, MultiValue, Table, Value};
use sha1::{Digest as _, Sha1};
use weft_lua::calls::{self, CommandFallbacks};
use weft_resp::Protocol;

use super::InterpreterShared;
use super::gate;
use crate::arguments::{Arguments, convert_result, number_of};
use crate::run_checks::{current_position, position_of_stop};
use crate::{bit_library, cjson, cmsgpack, convert, errors, struct_library};

/// Creates the table of all native libraries and functions.
pub(super) fn create_natives(lua: &Lua, shared: &Rc<InterpreterShared>) -> mlua::Result<Table> {
    let natives = lua.create_table()?;
    natives.raw_set("null", Value::NULL)?;
    natives.raw_set("cjson", cjson::library(lua, &shared.checks, shared.json.clone())?)?;
    natives.raw_set("cmsgpack", cmsgpack::library(lua, &shared.checks)?)?;
    natives.raw_set("struct", struct_library::library(lua)?)?;
    natives.raw_set("bit", bit_library::library(lua)?)?;
    natives.raw_set("constants", constants(lua)?)?;
    // Two frames are skipped: this native function and the error handler.
    natives.raw_set("where", lua.create_function(|lua, ()| Ok(current_position(lua, 2)))?)?;
    natives.raw_set("thrown", lua.create_function(value_of_thrown)?)?;
    let checking = shared.clone();
    natives.raw_set(
        "check_run",
        lua.create_function(move |lua, ()| checking.checks.check(lua))?,
    )?;
    natives.raw_set("sha1hex", lua.create_function(sha1hex)?)?;
    add_calls(lua, &natives, shared)?;
    let may_call = lua.create_function(|_, values: MultiValue| gate::may_call(&values))?;
    natives.raw_set("acl_check_cmd", may_call)?;
    add_random(lua, &natives, shared)?;
    let replying = shared.clone();
    let set_protocol = lua.create_function(move |_, values: MultiValue| {
        let version = only_number(&values, "ERR server.setresp() requires one argument.")?;
        replying.protocol.set(match version {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(errors::reply(b"ERR RESP version must be 2 or 3.", false)),
        });
        Ok(())
    })?;
    natives.raw_set("setresp", set_protocol)?;
    let replicating = shared.clone();
    let set_replication = lua.create_function(move |_, values: MultiValue| {
        match only_number(&values, "ERR server.set_repl() requires one argument.")? {
            parts @ 0..=3 => {
                replicating.replication.set(parts as u8);
                Ok(())
            }
            _ => {
                let text = "ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.";
                Err(errors::reply(text.as_bytes(), false))
            }
        }
    })?;
    natives.raw_set("set_repl", set_replication)?;
    let logging = shared.clone();
    natives.raw_set(
        "log",
        lua.create_function(move |lua, values: MultiValue| write_log(lua, &logging, &values))?,
    )?;
    Ok(natives)
}

/// Adds the functions that run commands. The prelude makes `pcall` of the last two.
fn add_calls(lua: &Lua, natives: &Table, shared: &Rc<InterpreterShared>) -> mlua::Result<()> {
    let (failing, trying) = (shared.clone(), shared.clone());
    let fallbacks = CommandFallbacks {
        on_failure: lua.create_function(move |lua, ()| Err::<(), _>(last_failure(lua, &failing)))?,
        on_other_arguments: lua.create_function(|lua, values: MultiValue| gate::call(lua, &values))?,
        convert_reply: lua.create_function(convert_reply)?,
    };
    natives.raw_set("set_readonly", calls::readonly_function(lua)?)?;
    natives.raw_set("call", calls::command_function(lua, fallbacks)?)?;
    let try_call = lua.create_function(|lua, values: MultiValue| {
        Ok(match gate::call(lua, &values) {
            Ok(value) => (true, value),
            Err(error) => (false, Value::Error(Box::new(error))),
        })
    })?;
    natives.raw_set("try_call", try_call)?;
    let failure = lua.create_function(move |lua, ()| Ok(Value::Error(Box::new(last_failure(lua, &trying)))))?;
    natives.raw_set("failure", failure)?;
    let command_function = lua.create_function(|lua, (on_failure, on_other_arguments)| {
        let fallbacks = CommandFallbacks {
            on_failure,
            on_other_arguments,
            convert_reply: lua.create_function(convert_reply)?,
        };
        calls::command_function(lua, fallbacks)
    })?;
    natives.raw_set("command_function", command_function)
}

/// Returns the error of the last call. If it is the end of the run, notes where the script was.
fn last_failure(lua: &Lua, shared: &InterpreterShared) -> mlua::Error {
    if let Some(current) = shared.checks.run.borrow().as_ref() {
        current.run.note_place_of_stop(|| position_of_stop(lua));
    }
    gate::last_failure()
}

fn convert_reply(lua: &Lua, reply: LuaString) -> mlua::Result<Value> {
    convert::value_of(lua, &reply.as_bytes())
}

/// Returns the Lua value that a thrown error stands for; any other value is returned unchanged.
fn value_of_thrown(lua: &Lua, value: Value) -> mlua::Result<Value> {
    let thrown = match &value {
        Value::Error(error) => errors::value_of(lua, error)?,
        _ => None,
    };
    Ok(thrown.unwrap_or(value))
}

fn sha1hex(lua: &Lua, values: MultiValue) -> mlua::Result<LuaString> {
    if values.len() != 1 {
        return Err(errors::reply(b"ERR wrong number of arguments", false));
    }
    let text = lua.coerce_string(values[0].clone())?;
    let digest = match &text {
        Some(text) => Sha1::digest(text.as_bytes()),
        None => Sha1::digest(b""),
    };
    lua.create_string(hex::encode(digest))
}

/// Returns the only argument as an integer; 0 if it is not a number.
fn only_number(values: &MultiValue, otherwise: &str) -> mlua::Result<i64> {
    match values.len() {
        1 => Ok(number_of(&values[0]).unwrap_or(0.0) as i64),
        _ => Err(errors::reply(otherwise.as_bytes(), false)),
    }
}

/// Adds `math.random` and `math.randomseed`.
fn add_random(lua: &Lua, natives: &Table, shared: &Rc<InterpreterShared>) -> mlua::Result<()> {
    let drawing = shared.clone();
    let random = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments::new("random", &values);
        let drawn = drawing.random.draw();
        let number = || match arguments.len() {
            0 => Ok(drawn),
            1 | 2 => {
                let last = arguments.len() - 1;
                let low = if last == 0 { 1 } else { arguments.integer(0)? };
                let high = arguments.integer(last)?;
                if low > high {
                    return Err(arguments.argument_error(last, "interval is empty"));
                }
                let width = i128::from(high) - i128::from(low) + 1;
                Ok((drawn * width as f64).floor() + low as f64)
            }
            _ => Err(b"wrong number of arguments".to_vec()),
        };
        convert_result(lua, number().map(Value::Number))
    })?;
    natives.raw_set("random", random)?;
    let seeding = shared.clone();
    let seed = lua.create_function(move |lua, values: MultiValue| {
        let seed = Arguments::new("randomseed", &values).integer(0);
        let seed = seed.map_err(|text| errors::message(lua, &text))?;
        seeding.random.seed(seed as i32);
        Ok(())
    })?;
    natives.raw_set("randomseed", seed)
}

fn write_log(_: &Lua, shared: &InterpreterShared, values: &MultiValue) -> mlua::Result<()> {
    let refused = |text: &str| Err(errors::reply(text.as_bytes(), false));
    if values.len() < 2 {
        return refused("ERR server.log() requires two arguments or more.");
    }
    let Some(level) = number_of(&values[0]) else {
        return refused("ERR First argument must be a number (log level).");
    };
    let level = level as i64;
    if !(0..=3).contains(&level) {
        return refused("ERR Invalid log level.");
    }
    let words: Vec<Vec<u8>> = values
        .iter()
        .skip(1)
        .filter_map(|value| match value {
            Value::String(text) => Some(text.as_bytes().to_vec()),
            Value::Integer(_) | Value::Number(_) => value.to_string().ok().map(String::into_bytes),
            _ => None,
        })
        .collect();
    shared.log_lines.push(level, words.join(&b' '));
    Ok(())
}

/// Creates the table of version strings and named numbers.
fn constants(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (name, value) in [
        ("LOG_DEBUG", 0),
        ("LOG_VERBOSE", 1),
        ("LOG_NOTICE", 2),
        ("LOG_WARNING", 3),
        ("REPL_NONE", 0),
        ("REPL_AOF", 1),
        ("REPL_SLAVE", 2),
        ("REPL_REPLICA", 2),
        ("REPL_ALL", 3),
        ("REDIS_VERSION_NUM", 0x0007_0204),
        ("VALKEY_VERSION_NUM", 0x0009_0102),
    ] {
        table.raw_set(name, value)?;
    }
    table.raw_set("REDIS_VERSION", "7.2.4")?;
    table.raw_set("VALKEY_VERSION", "9.1.2")?;
    table.raw_set("SERVER_NAME", "valkey")?;
    Ok(table)
}
