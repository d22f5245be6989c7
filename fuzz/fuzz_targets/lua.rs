//! Fuzzes what scripts give to the libraries and to the compiler: cjson, cmsgpack, struct and bit take the input as an
//! argument. A value that was decoded must be encoded and decoded as the same value. The scripts check this themselves.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use weft_resp::{ArgRange, Args, Protocol, Reply};
use weft_scripting::{
    CallResult, CurrentRun, Host, RunOutcome, RunParameters, ScriptRun, ScriptWords, Scripts, prepare_script,
};

/// Compares two values; tables by their contents. Numbers that are not equal to themselves are equal here. A table with
/// a table as a key counts as deep, because such keys are compared by their identity.
const SAME: &str = "local function same(a, b) \
    if type(a) ~= type(b) then return false end \
    if type(a) ~= 'table' then return a == b or (a ~= a and b ~= b) end \
    for k, v in pairs(a) do if not same(v, b[k]) then return false end end \
    for k in pairs(b) do if a[k] == nil then return false end end \
    return true end \
    local function depth(v) if type(v) ~= 'table' then return 0 end local most = 0 \
    for k, x in pairs(v) do if type(k) == 'table' then return 99 end most = math.max(most, depth(x)) end return most + 1 end ";

const CJSON: &str = "local fine, value = pcall(cjson.decode, ARGV[1]) if not fine then return 'refused' end \
    local encodes, text = pcall(cjson.encode, value) if not encodes then return 'refused' end \
    local again = cjson.encode(cjson.decode(text)) \
    if not same(cjson.decode(text), cjson.decode(again)) then return 'DIFFERENT ' .. text .. ' ' .. again end return 'same'";

const CMSGPACK: &str = "local found = {pcall(cmsgpack.unpack, ARGV[1])} if not found[1] then return 'refused' end \
    for i = 2, #found do local value = found[i] if depth(value) < 15 then \
    local packed = cmsgpack.pack(value) local again = cmsgpack.unpack(packed) \
    if not same(cmsgpack.unpack(cmsgpack.pack(again)), again) then return 'DIFFERENT ' .. packed end end end return 'same'";

const STRUCT: &str = "local at = string.find(ARGV[1], '\\n', 1, true) or 1 \
    local format, data = string.sub(ARGV[1], 1, at - 1), string.sub(ARGV[1], at + 1) \
    pcall(struct.size, format) \
    local found = {pcall(struct.unpack, format, data)} if not found[1] then return 'refused' end \
    local position = found[#found] if position < 1 or position > #data + 1 then return 'DIFFERENT position ' .. position end \
    table.remove(found, 1) table.remove(found) pcall(struct.pack, format, unpack(found)) return 'same'";

const BIT: &str = "local numbers = {} for word in string.gmatch(ARGV[1], '%S+') do numbers[#numbers + 1] = tonumber(word) end \
    if #numbers < 2 then return 'refused' end local a, b = numbers[1], numbers[2] \
    for _, name in ipairs({'tobit', 'bnot', 'bswap', 'band', 'bor', 'bxor', 'lshift', 'rshift', 'arshift', 'rol', 'ror'}) do \
    local result = bit[name](a, b) \
    if result ~= math.floor(result) or result < -2147483648 or result > 2147483647 then return 'DIFFERENT ' .. name end end \
    if #bit.tohex(a, b) > 8 then return 'DIFFERENT tohex' end return 'same'";

/// A host that refuses every command.
struct NoCommands;

impl Host for NoCommands {
    fn call(&mut self, _: &[u8], _: &[ArgRange]) -> CallResult<'_> {
        CallResult::Refused(b"ERR no commands".to_vec())
    }

    fn set_protocol(&mut self, _: Protocol) {}

    fn set_replication(&mut self, _: u8) {}

    fn may_call(&mut self, _: &[u8], _: &[ArgRange]) -> Option<bool> {
        Some(true)
    }
}

thread_local! {
    static SCRIPTS: Scripts = Scripts::default();
}

fn evaluate(scripts: &Scripts, body: &str, argument: &[u8]) -> Vec<u8> {
    let source = format!("{SAME}{body}");
    let Ok(program) = prepare_script(scripts, Some(source.as_bytes()), b"", false) else {
        panic!("{body} does not compile");
    };
    let run = CurrentRun {
        run: Arc::new(ScriptRun::new(RunParameters::default())),
        is_listed: false,
    };
    // The name of the command, the script and the number of keys precede the argument.
    let nothing = ArgRange { start: 0, len: 0 };
    let len = u32::try_from(argument.len()).expect("libFuzzer's inputs are short");
    let ranges = [nothing, nothing, nothing, ArgRange { start: 0, len }];
    let words = ScriptWords {
        command: Args::new(argument, &ranges),
        key_count: 0,
    };
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Protocol::Resp2);
    let ended = weft_scripting::run(&program, run, words, &mut NoCommands, &mut reply);
    weft_scripting::count_memory(scripts, program.kind);
    match ended {
        RunOutcome::Done { .. } => out,
        RunOutcome::Stopped(_) => panic!("the script does not end"),
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, argument)) = input.split_first() else {
        return;
    };
    SCRIPTS.with(|scripts| {
        let body = match kind % 5 {
            0 => CJSON,
            1 => CMSGPACK,
            2 => STRUCT,
            3 => BIT,
            _ => {
                if let Err(error) = prepare_script(scripts, Some(argument), b"", false) {
                    assert!(!error.is_empty());
                }
                scripts.cache.flush();
                return;
            }
        };
        let reply = evaluate(scripts, body, argument);
        // An error of a script is one line.
        let is_error = reply.starts_with(b"-");
        assert!(!is_error || reply.iter().filter(|byte| **byte == b'\n').count() == 1);
        assert!(
            !reply.windows(9).any(|found| found == b"DIFFERENT"),
            "{:?}",
            String::from_utf8_lossy(&reply)
        );
    });
});
