//! Connects a script to its host.
//!
//! Every run has its own host, but `redis.call` is one function for all runs: a library may keep a reference to it.
//! Therefore the host of the current run is stored in a scoped thread-local variable, and the function takes it from
//! there.

use mlua::{Lua, MultiValue, Value};
use weft_resp::{ArgRange, Protocol, number};

use super::{CallResult, Host};
use crate::{convert, errors};

scoped_tls_hkt::scoped_thread_local!(static mut GATE: for<'a> &'a mut (dyn Asked + 'a));

/// The operations that a script's calls reach.
trait Asked {
    fn call(&mut self, lua: &Lua, values: &MultiValue, protocol: Protocol, replication: u8) -> mlua::Result<Value>;
    fn may_call(&mut self, values: &MultiValue) -> mlua::Result<Value>;
}

/// Runs `script`, with `host` as the host of its calls.
pub(super) fn with_host<T>(host: &mut dyn Host, script: impl FnOnce() -> T) -> T {
    GATE.set(&mut HostGate::new(host), script)
}

/// Executes a command for the running script.
pub(super) fn call(lua: &Lua, values: &MultiValue, protocol: Protocol, replication: u8) -> mlua::Result<Value> {
    with_gate(|gate| gate.call(lua, values, protocol, replication))
}

/// Returns `true`, as a Lua value, if the running script may call a command.
pub(super) fn may_call(values: &MultiValue) -> mlua::Result<Value> {
    with_gate(|gate| gate.may_call(values))
}

fn with_gate(ask: impl FnOnce(&mut dyn Asked) -> mlua::Result<Value>) -> mlua::Result<Value> {
    if !GATE.is_set() {
        return Err(errors::reply(b"ERR no script is running", false));
    }
    GATE.with(|gate| ask(gate))
}

/// Translates a script's calls into requests to its host.
struct HostGate<'h> {
    host: &'h mut dyn Host,
    request: Vec<u8>,
    ranges: Vec<ArgRange>,
}

/// Returns the error that ends a script; no script can catch it.
pub(super) fn stop_error() -> mlua::Error {
    mlua::Error::RuntimeError("stopped".to_owned())
}

impl<'h> HostGate<'h> {
    fn new(host: &'h mut dyn Host) -> Self {
        HostGate {
            host,
            request: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Builds a request from the arguments of a call, and reports an invalid one to the host.
    fn build_request(&mut self, values: &MultiValue) -> mlua::Result<()> {
        self.read_request(values.iter()).map_err(|text| {
            self.host.note_malformed(text);
            errors::reply(text.as_bytes(), false)
        })
    }

    /// Builds a request from the arguments of a call.
    fn read_request<'v>(&mut self, values: impl Iterator<Item = &'v Value>) -> Result<(), &'static str> {
        self.request.clear();
        self.ranges.clear();
        for value in values {
            let start = self.request.len();
            match value {
                Value::String(text) => self.request.extend_from_slice(&text.as_bytes()),
                Value::Integer(number) if number.unsigned_abs() <= i64::MAX as u64 / 2 => {
                    number::append_i64(*number, &mut self.request);
                }
                Value::Integer(number) => number::format_f64(*number as f64, &mut self.request),
                Value::Number(number) if *number == 0.0 => self.request.push(b'0'),
                Value::Number(number) if number.is_nan() && number.is_sign_negative() => {
                    self.request.extend_from_slice(b"-nan");
                }
                Value::Number(number) => number::format_f64(*number, &mut self.request),
                _ => return Err("ERR Command arguments must be strings or integers"),
            }
            let (Ok(start), Ok(len)) = (u32::try_from(start), u32::try_from(self.request.len() - start)) else {
                return Err("ERR The arguments of this call are longer than 4 GiB");
            };
            self.ranges.push(ArgRange { start, len });
        }
        match self.ranges.is_empty() {
            true => Err("ERR Please specify at least one argument for this call"),
            false => Ok(()),
        }
    }
}

impl Asked for HostGate<'_> {
    fn may_call(&mut self, values: &MultiValue) -> mlua::Result<Value> {
        self.build_request(values)?;
        let unknown = b"ERR Invalid command passed to server.acl_check_cmd()";
        let may = self.host.may_call(&self.request, &self.ranges);
        may.map(Value::Boolean).ok_or_else(|| errors::reply(unknown, false))
    }

    fn call(&mut self, lua: &Lua, values: &MultiValue, protocol: Protocol, replication: u8) -> mlua::Result<Value> {
        self.build_request(values)?;
        self.host.set_protocol(protocol);
        self.host.set_replication(replication);
        match self.host.call(&self.request, &self.ranges) {
            CallResult::Reply(reply) => match reply.strip_prefix(b"-") {
                Some(error) => Err(errors::reply(&convert::with_code(error.trim_ascii_end()), true)),
                None => convert::value_of(lua, reply),
            },
            CallResult::Refused(text) => Err(errors::reply(&text, true)),
            CallResult::Stop => Err(stop_error()),
        }
    }
}
