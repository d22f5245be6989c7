//! The Lua scripts of loads, and their function library.

use std::fmt::Write;

use sha1::{Digest, Sha1};

use crate::control::ControlConnection;
use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// A script that requests name in `{script:NAME}` and `{sha:NAME}`.
#[derive(Debug, Clone, Copy)]
pub struct LoadScript {
    /// The name in placeholders.
    pub name: &'static str,
    /// The source, as a script for EVAL.
    pub source: &'static str,
}

/// All scripts.
pub const SCRIPTS: &[LoadScript] = &[
    LoadScript {
        name: "get",
        source: "return redis.call('GET', KEYS[1])",
    },
    LoadScript {
        name: "set",
        source: "return redis.call('SET', KEYS[1], ARGV[1])",
    },
    LoadScript {
        name: "get-hset-expire",
        source: "local value = redis.call('GET', KEYS[1]) \
                 redis.call('HSET', KEYS[2], 'field', value) \
                 redis.call('EXPIRE', KEYS[2], ARGV[1]) \
                 return value",
    },
    LoadScript {
        name: "loop",
        source: "local sum = 0 \
                 for number = 1, tonumber(ARGV[1]) do sum = sum + number end \
                 return sum",
    },
    LoadScript {
        name: "set-loop",
        source: "redis.call('SET', KEYS[1], ARGV[1]) \
                 local sum = 0 \
                 for number = 1, tonumber(ARGV[2]) do sum = sum + number end \
                 return sum",
    },
];

/// The library of functions that loads call with FCALL.
const LIBRARY: &str = "#!lua name=weftbench
redis.register_function('get_hset_expire', function(keys, args)
    local value = redis.call('GET', keys[1])
    redis.call('HSET', keys[2], 'field', value)
    redis.call('EXPIRE', keys[2], args[1])
    return value
end)";

/// Finds the source of a script.
///
/// # Errors
/// Fails if the name is unknown.
pub fn source_by_name(name: &str) -> Result<&'static str> {
    let found = SCRIPTS.iter().find(|script| script.name == name);
    let found = found.ok_or_else(|| Error::Usage(format!("unknown script {name:?}; run `weft-bench loads`")))?;
    Ok(found.source)
}

/// Returns the SHA-1 digest of `bytes` in hexadecimal, which is how EVALSHA names a script.
pub fn sha1_hex(bytes: &[u8]) -> String {
    Sha1::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns `true` if a command of a load needs the scripts or the library on the server.
pub fn is_used_by(command: &str) -> bool {
    command.contains("{sha:") || command.starts_with("FCALL ")
}

/// Loads all scripts and the library into a server.
///
/// # Errors
/// Fails if the server refuses one of them, or names a script by another digest.
pub fn load_all(control: &mut ControlConnection) -> Result<()> {
    for script in SCRIPTS {
        let reply = control.call(&["SCRIPT", "LOAD", script.source])?;
        if !reply.ends_with(&sha1_hex(script.source.as_bytes())) {
            return Err(Error::WrongReply(format!(
                "SCRIPT LOAD of {} answered {reply:?}",
                script.name
            )));
        }
    }
    control.call(&["FUNCTION", "LOAD", "REPLACE", LIBRARY])?;
    Ok(())
}
