//! Connects a script to its host.
//!
//! Every run has its own host, but `redis.call` is one function for all runs: a library may keep a reference to it.
//! Therefore `weft-lua` keeps the host of the current run in a thread-local variable, and the function takes it from
//! there. What a script calls and returns mostly passes between Lua's stack and the buffers of requests and replies;
//! only errors, and types of replies that RESP2 does not have, become values of `mlua` on the way.

use mlua::{Lua, MultiValue, Value};
use weft_lua::calls::{self, CallArgument, CallArguments, CallEnd, ScriptHost, ScriptResult};
use weft_resp::{ArgRange, Args, Protocol, Reply, number};

use super::{CallResult, Host, InterpreterShared};
use crate::run_checks::stop_error;
use crate::{convert, errors};

/// The keys and arguments that a script is started with: KEYS and ARGV.
#[derive(Clone, Copy, Debug)]
pub struct ScriptWords<'a> {
    /// The words of the command that starts the script.
    pub command: Args<'a>,
    /// The number of keys. They follow the first three words; what follows them are the arguments.
    pub key_count: usize,
}

/// The number of words before the keys.
const WORDS_BEFORE_KEYS: usize = 3;

impl<'a> ScriptWords<'a> {
    /// Returns the keys.
    pub(super) fn keys(self) -> impl Iterator<Item = &'a [u8]> {
        let indices = WORDS_BEFORE_KEYS..WORDS_BEFORE_KEYS + self.key_count;
        indices.map(move |index| self.command.argument(index))
    }

    /// Returns the arguments.
    pub(super) fn arguments(self) -> impl Iterator<Item = &'a [u8]> {
        let indices = WORDS_BEFORE_KEYS + self.key_count..self.command.len();
        indices.map(move |index| self.command.argument(index))
    }
}

/// The request of one call, in buffers that are used again.
#[derive(Debug, Default)]
pub(super) struct CallRequest {
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
}

/// The bytes of a request's buffer that are kept for the next one.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// The settings for the commands of a script that the script may change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HostSettings {
    /// The protocol of the replies.
    pub(super) protocol: Protocol,
    /// The propagation targets, as [`Host::set_replication`] takes them.
    pub(super) replication: u8,
}

impl HostSettings {
    /// The settings with which every run starts.
    pub(super) const INITIAL: HostSettings = HostSettings {
        protocol: Protocol::Resp2,
        replication: 3,
    };
}

/// Translates a script's calls into requests to its host.
pub(super) struct HostGate<'h, 'r> {
    host: &'h mut dyn Host,
    shared: &'h InterpreterShared,
    reply: &'h mut Reply<'r>,
    request: CallRequest,
    /// The settings that the host has.
    settings: HostSettings,
    failure: Option<mlua::Error>,
}

/// Executes a command for the running script.
pub(super) fn call(lua: &Lua, values: &MultiValue) -> mlua::Result<Value> {
    with_running_script(|script| script.call_with_values(lua, values))?
}

/// Returns `true`, as a Lua value, if the running script may call a command.
pub(super) fn may_call(values: &MultiValue) -> mlua::Result<Value> {
    with_running_script(|script| script.may_call(values))?
}

/// Returns the error of the last call of the running script.
pub(super) fn last_failure() -> mlua::Error {
    match with_running_script(|script| script.take_failure()) {
        Ok(error) | Err(error) => error,
    }
}

fn with_running_script<T>(ask: impl FnOnce(&mut dyn ScriptHost) -> T) -> mlua::Result<T> {
    calls::with_current_host(ask).ok_or_else(no_script)
}

fn no_script() -> mlua::Error {
    errors::reply(b"ERR no script is running", false)
}

impl CallRequest {
    fn begin(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }

    #[inline]
    fn add(&mut self, argument: CallArgument<'_>) -> Result<(), &'static str> {
        match argument {
            CallArgument::Text(text) => self.add_text(text),
            CallArgument::Number(number) => self.add_number(number),
        }
    }

    #[inline]
    fn add_text(&mut self, text: &[u8]) -> Result<(), &'static str> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        self.end_argument(start)
    }

    #[inline(never)]
    fn add_number(&mut self, number: f64) -> Result<(), &'static str> {
        let start = self.bytes.len();
        match number {
            0.0 => self.bytes.push(b'0'),
            number if number.is_nan() && number.is_sign_negative() => self.bytes.extend_from_slice(b"-nan"),
            number => number::format_f64(number, &mut self.bytes),
        }
        self.end_argument(start)
    }

    /// Adds the range of an argument whose bytes are behind `start`.
    #[inline]
    fn end_argument(&mut self, start: usize) -> Result<(), &'static str> {
        let (Ok(start), Ok(len)) = (u32::try_from(start), u32::try_from(self.bytes.len() - start)) else {
            return Err("ERR The arguments of this call are longer than 4 GiB");
        };
        self.ranges.push(ArgRange { start, len });
        Ok(())
    }

    fn add_value(&mut self, value: &Value) -> Result<(), &'static str> {
        match value {
            Value::String(text) => self.add_text(&text.as_bytes()),
            Value::Integer(number) if number.unsigned_abs() <= i64::MAX as u64 / 2 => {
                let mut text = Vec::new();
                number::append_i64(*number, &mut text);
                self.add_text(&text)
            }
            Value::Integer(number) => self.add_number(*number as f64),
            Value::Number(number) => self.add_number(*number),
            _ => Err("ERR Command arguments must be strings or integers"),
        }
    }
}

impl<'h, 'r> HostGate<'h, 'r> {
    pub(super) fn new(host: &'h mut dyn Host, shared: &'h InterpreterShared, reply: &'h mut Reply<'r>) -> Self {
        HostGate {
            host,
            shared,
            reply,
            request: shared.request.take(),
            settings: HostSettings::INITIAL,
            failure: None,
        }
    }

    /// Runs `script`, whose calls go to this host.
    pub(super) fn run<T>(mut self, script: impl FnOnce() -> T) -> T {
        let result = calls::with_host(&mut self, script);
        let shared = self.shared;
        if self.request.bytes.capacity() <= MAX_KEPT_BYTES {
            shared.request.set(self.request);
        }
        result
    }

    /// Builds a request from the arguments of a call, and reports an invalid one to the host.
    fn build_request(&mut self, values: &MultiValue) -> mlua::Result<()> {
        self.request.begin();
        let built = match values.is_empty() {
            true => Err("ERR Please specify at least one argument for this call"),
            false => values.iter().try_for_each(|value| self.request.add_value(value)),
        };
        built.map_err(|text| self.malformed(text))
    }

    fn malformed(&mut self, text: &'static str) -> mlua::Error {
        self.host.note_malformed(text);
        errors::reply(text.as_bytes(), false)
    }
}

/// Executes the command of a request. Returns its reply, which is no error. `settings` are those of the host.
#[inline]
fn call_host<'a>(
    host: &'a mut dyn Host,
    shared: &InterpreterShared,
    request: &CallRequest,
    settings: &mut HostSettings,
) -> mlua::Result<&'a [u8]> {
    let chosen = HostSettings {
        protocol: shared.protocol.get(),
        replication: shared.replication.get(),
    };
    if *settings != chosen {
        host.set_protocol(chosen.protocol);
        host.set_replication(chosen.replication);
        *settings = chosen;
    }
    match host.call(&request.bytes, &request.ranges) {
        CallResult::Reply(reply) => match reply.strip_prefix(b"-") {
            Some(error) => Err(errors::reply(&convert::with_code(error.trim_ascii_end()), true)),
            None => Ok(reply),
        },
        CallResult::Refused(text) => Err(errors::reply(&text, true)),
        CallResult::Stop => Err(stop_error()),
    }
}

impl ScriptHost for HostGate<'_, '_> {
    fn call(&mut self, arguments: CallArguments<'_>, is_result: bool) -> CallEnd<'_> {
        self.request.begin();
        for argument in arguments.iter() {
            if let Err(text) = self.request.add(argument) {
                self.failure = Some(self.malformed(text));
                return CallEnd::Failed;
            }
        }
        match call_host(self.host, self.shared, &self.request, &mut self.settings) {
            Ok(reply) if is_result && convert::is_reply_of_its_value(reply) => {
                self.reply.raw(reply);
                CallEnd::Written
            }
            Ok(reply) => CallEnd::Reply(reply),
            Err(error) => {
                self.failure = Some(error);
                CallEnd::Failed
            }
        }
    }

    fn call_with_values(&mut self, lua: &Lua, values: &MultiValue) -> mlua::Result<Value> {
        self.build_request(values)?;
        let reply = call_host(self.host, self.shared, &self.request, &mut self.settings)?;
        convert::value_of(lua, reply)
    }

    fn may_call(&mut self, values: &MultiValue) -> mlua::Result<Value> {
        self.build_request(values)?;
        let unknown = b"ERR Invalid command passed to server.acl_check_cmd()";
        let may = self.host.may_call(&self.request.bytes, &self.request.ranges);
        may.map(Value::Boolean).ok_or_else(|| errors::reply(unknown, false))
    }

    fn take_failure(&mut self) -> mlua::Error {
        // A finalizer that ran meanwhile may have taken it.
        self.failure.take().unwrap_or_else(no_script)
    }

    fn write_result(&mut self, result: ScriptResult<'_>) {
        convert::write_result(result, self.shared.protocol.get(), self.reply);
    }
}
