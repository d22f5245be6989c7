//! Calls of scripts with a host that records them and has one reply.

use mlua::{Error, Lua, LuaOptions, LuaString, MultiValue, StdLib, Value};

use super::*;

struct FakeHost {
    keys: Vec<&'static [u8]>,
    arguments: Vec<&'static [u8]>,
    /// The reply to each call; `None` makes it fail.
    reply: Option<Vec<u8>>,
    /// `true` if it writes replies that are results.
    writes_results: bool,
    calls: Vec<String>,
    results: Vec<String>,
}

impl FakeHost {
    fn replying(reply: &[u8]) -> Self {
        FakeHost {
            keys: vec![b"k1", b"k2"],
            arguments: vec![b"a\0b"],
            reply: Some(reply.to_vec()),
            writes_results: false,
            calls: Vec::new(),
            results: Vec::new(),
        }
    }
}

impl ScriptHost for FakeHost {
    fn call(&mut self, arguments: CallArguments<'_>, is_result: bool) -> CallEnd<'_> {
        let words: Vec<String> = arguments
            .iter()
            .map(|argument| match argument {
                CallArgument::Text(text) => String::from_utf8_lossy(text).into_owned(),
                CallArgument::Number(number) => format!("#{number}"),
            })
            .collect();
        self.calls.push(words.join(" "));
        match self.reply.as_deref() {
            Some(reply) if is_result && self.writes_results => {
                self.results.push(format!("reply {}", String::from_utf8_lossy(reply)));
                CallEnd::Written
            }
            Some(reply) => CallEnd::Reply(reply),
            None => CallEnd::Failed,
        }
    }

    fn call_with_values(&mut self, _: &Lua, values: &MultiValue) -> mlua::Result<Value> {
        Ok(Value::Number(values.len() as f64 + 0.5))
    }

    fn may_call(&mut self, _: &MultiValue) -> mlua::Result<Value> {
        Ok(Value::Nil)
    }

    fn take_failure(&mut self) -> Error {
        Error::RuntimeError("it failed".to_owned())
    }

    fn write_result(&mut self, result: ScriptResult<'_>) {
        self.results.push(match result {
            ScriptResult::Text(text) => format!("text {}", String::from_utf8_lossy(text)),
            ScriptResult::Status(text) => format!("status {}", String::from_utf8_lossy(text)),
            other => format!("{other:?}"),
        });
    }
}

/// A state whose global `call` runs commands, and the function that starts scripts in it.
fn new_state() -> (Lua, ScriptStarter) {
    let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE, LuaOptions::new()).expect("there is memory");
    let failing = || match with_current_host(|host| host.take_failure()) {
        Some(error) => Err::<(), Error>(error),
        None => Err(Error::RuntimeError("no script is running".to_owned())),
    };
    let others = |lua: &Lua, values: MultiValue| {
        with_current_host(|host| host.call_with_values(lua, &values)).expect("a script runs")
    };
    let fallbacks = CommandFallbacks {
        on_failure: lua.create_function(move |_, ()| failing()).expect("memory"),
        on_other_arguments: lua.create_function(others).expect("memory"),
        convert_reply: lua
            .create_function(|lua, reply: LuaString| {
                lua.globals().get::<Table>("conversions")?.push(true)?;
                Ok(format!("converted {}", reply.to_string_lossy()))
            })
            .expect("memory"),
    };
    let call = command_function(&lua, fallbacks).expect("memory");
    lua.globals().set("call", call).expect("memory");
    let conversions = lua.create_table().expect("memory");
    lua.globals().set("conversions", conversions).expect("memory");
    let handler = lua.load("return ...").into_function().expect("it compiles");
    let start = ScriptStarter::for_scripts(&lua, handler, lua.globals(), true).expect("memory");
    (lua, start)
}

/// Starts a script with the words of its host.
fn start_script(start: &ScriptStarter, host: &mut FakeHost, script: &StartableScript) -> ScriptEnd {
    let (keys, arguments) = (host.keys.clone(), host.arguments.clone());
    let end = with_host(host, || start.run(script, keys.into_iter(), arguments.into_iter()));
    end.expect("there is memory")
}

/// Runs a script. Returns the values that it left, or the result that the host got.
fn run(host: &mut FakeHost, source: &str) -> String {
    let (lua, start) = new_state();
    let script = start
        .prepare(lua.load(source).into_function().expect("it compiles"))
        .expect("memory");
    match start_script(&start, host, &script) {
        ScriptEnd::Replied => host.results.pop().expect("the host got the result"),
        ScriptEnd::Returned(value) => format!("returned a {}", value.type_name()),
        ScriptEnd::Failed(value) => format!("failed: {}", value.to_string().expect("a text")),
    }
}

/// Writes a value as text.
const SHOW: &str = "
    local function show(value)
        if type(value) ~= 'table' then return tostring(value) end
        if value.ok then return 'ok=' .. value.ok end
        local shown = {}
        for i, element in ipairs(value) do shown[i] = show(element) end
        return '{' .. table.concat(shown, ',') .. '}'
    end ";

#[test]
fn replies_become_values() {
    let deep = [b"*1\r\n".repeat(20), b":1\r\n".to_vec()].concat();
    let cases: &[(&[u8], &str)] = &[
        (b":42\r\n", "42"),
        (b":-7\r\n", "-7"),
        (b":9007199254740993\r\n", "9.007199254741e+15"),
        (b"$3\r\na\0b\r\n", "a\0b"),
        (b"$0\r\n\r\n", ""),
        (b"$-1\r\n", "false"),
        (b"*-1\r\n", "false"),
        (b"+OK\r\n", "ok=OK"),
        (b"*0\r\n", "{}"),
        (b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n+y\r\n$-1\r\n", "{1,{x,ok=y},false}"),
        (b"_\r\n", "converted _\r\n"),
        (b"*2\r\n:1\r\n#t\r\n", "converted *2\r\n:1\r\n#t\r\n"),
        (&deep, &format!("converted {}", String::from_utf8_lossy(&deep))),
    ];
    for (reply, expected) in cases {
        let mut host = FakeHost::replying(reply);
        let shown = run(&mut host, &format!("{SHOW} return show(call('x'))"));
        assert_eq!(shown, format!("text {expected}"), "{}", String::from_utf8_lossy(reply));
    }
}

#[test]
fn the_host_may_write_the_reply_to_a_last_call() {
    let with_result = |source: &str| {
        let mut host = FakeHost::replying(b"$1\r\nv\r\n");
        host.writes_results = true;
        let shown = run(&mut host, source);
        assert_eq!((host.calls.len(), host.results.len()), (1, 0), "{source}");
        shown
    };
    for source in [
        "return call('x')",
        "if KEYS[1] then return call('x', KEYS[1]) end return 1",
        "local function f() return call('x') end return f()",
        "local word = 'x' local function f() return word end return call(f())",
    ] {
        assert_eq!(with_result(source), "reply $1\r\nv\r\n", "{source}");
    }
    for source in [
        "local value = call('x') return value",
        "return (call('x'))",
        "return call('x'), 1",
        "return call('x') .. ''",
        "local function f() return call('x') end local value = f() return value",
        "local function f() return call('x') end return (f())",
        "return select(2, pcall(call, 'x'))",
        "return coroutine.wrap(function() return call('x') end)()",
        "return (string.gsub('x', 'x', call))",
        "return setmetatable({}, {__index = function(_, name) return call(name) end}).x",
    ] {
        assert_eq!(with_result(source), "text v", "{source}");
    }
}

#[test]
fn a_function_of_a_library_may_leave_the_reply_to_its_last_call() {
    let (lua, _) = new_state();
    let handler = lua.load("return ...").into_function().expect("it compiles");
    let start = ScriptStarter::for_functions(&lua, handler).expect("memory");
    let source = "local keys = ... return call('x', keys[1])";
    let function = start
        .prepare(lua.load(source).into_function().expect("it compiles"))
        .expect("memory");
    let mut host = FakeHost::replying(b":1\r\n");
    host.writes_results = true;
    let end = start_script(&start, &mut host, &function);
    assert!(matches!(end, ScriptEnd::Replied));
    assert_eq!(
        (host.calls, host.results),
        (vec!["x k1".to_owned()], vec!["reply :1\r\n".to_owned()])
    );
}

/// Otherwise the script would have two replies.
#[test]
fn what_a_finalizer_calls_before_a_script_begins_is_not_its_result() {
    let (lua, start) = new_state();
    let prepare = |source: &str| {
        let function = lua.load(source).into_function().expect("it compiles");
        start.prepare(function).expect("memory")
    };
    let leaving = prepare("getmetatable(newproxy(true)).__gc = function() return call('x') end");
    let returning = prepare("return 1");
    let mut host = FakeHost::replying(b"$1\r\nv\r\n");
    host.writes_results = true;
    start_script(&start, &mut host, &leaving);
    assert_eq!((host.calls.len(), host.results.len()), (0, 1));
    host.results.clear();
    // Lua looks for garbage while it creates so many words.
    let word = |number: u32| -> &'static [u8] { format!("{number:0100}").into_bytes().leak() };
    host.arguments = (0..50_000).map(word).collect();
    let end = start_script(&start, &mut host, &returning);
    assert!(matches!(end, ScriptEnd::Replied));
    assert_eq!(
        (host.calls, host.results),
        (vec!["x".to_owned()], vec!["Number(1.0)".to_owned()])
    );
}

#[test]
fn a_failed_last_call_is_thrown() {
    let mut host = FakeHost::replying(b"");
    (host.reply, host.writes_results) = (None, true);
    assert!(run(&mut host, "return call('x')").starts_with("failed: runtime error: it failed"));
}

#[test]
fn the_reply_to_a_call_that_is_a_statement_is_not_converted() {
    let mut host = FakeHost::replying(b"_\r\n");
    assert_eq!(run(&mut host, "call('x') call('y') return #conversions"), "Number(0.0)");
    assert_eq!(host.calls, ["x", "y"]);
    assert_eq!(run(&mut host, "local _ = call('x') return #conversions"), "Number(1.0)");
    assert_eq!(run(&mut host, "call({}) return call('z')"), "text converted _\r\n");
}

#[test]
fn truncated_replies_are_left_to_the_other_converter() {
    for reply in [
        &b""[..],
        b":1",
        b"$5\r\nab\r\n",
        b"*2\r\n:1\r\n",
        b"+OK",
        b"*99999999999\r\n",
    ] {
        let mut host = FakeHost::replying(reply);
        assert!(
            run(&mut host, "return call('x')").starts_with("text converted"),
            "{reply:?}"
        );
    }
}

#[test]
fn strings_and_numbers_are_arguments_and_others_are_left_to_a_function() {
    let mut host = FakeHost::replying(b":1\r\n");
    assert_eq!(run(&mut host, "return call('set', 'a b', 12, -0.5)"), "Number(1.0)");
    let many = (1..=40).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(run(&mut host, &format!("return call('many', {many})")), "Number(1.0)");
    assert_eq!(host.calls[0], "set a b #12 #-0.5");
    assert!(host.calls[1].starts_with("many #1 #2") && host.calls[1].ends_with("#40"));
    let nearly_all = "local words = {} for n = 1, 7985 do words[n] = n end return call(unpack(words))";
    assert_eq!(run(&mut host, nearly_all), "Number(1.0)");
    assert!(host.calls[2].ends_with("#7985"));
    assert_eq!(run(&mut host, "return call()"), "Number(0.5)");
    assert_eq!(run(&mut host, "return call('x', nil)"), "Number(2.5)");
    assert_eq!(run(&mut host, "return call('x', {}, true)"), "Number(3.5)");
    assert_eq!(host.calls.len(), 3);
}

#[test]
fn a_failure_is_thrown_and_the_script_may_call_again() {
    let mut host = FakeHost::replying(b"");
    host.reply = None;
    assert!(run(&mut host, "return call('x')").starts_with("failed: runtime error: it failed"));
    assert_eq!(
        run(&mut host, "pcall(call, 'x') return pcall(call, 'y')"),
        "Boolean(false)"
    );
    assert_eq!(host.calls, ["x", "x", "y"]);
}

#[test]
fn scripts_get_their_words_and_simple_results_are_written() {
    let cases = [
        ("return #KEYS .. KEYS[1] .. KEYS[2] .. #ARGV[1]", "text 2k1k23"),
        ("return 1.5", "Number(1.5)"),
        ("return true", "Boolean(true)"),
        ("return", "Nil"),
        ("return {ok = 'fine'}", "status fine"),
        ("return {1, 2}", "returned a table"),
        ("return {ok = 1}", "returned a table"),
        ("return {err = 'no', ok = 'fine'}", "returned a table"),
        ("return call", "returned a function"),
        ("error('no', 0)", "failed: no"),
    ];
    for (source, expected) in cases {
        assert_eq!(run(&mut FakeHost::replying(b""), source), expected, "{source}");
    }
}

#[test]
fn no_script_sees_what_the_one_before_did_to_its_words() {
    let (lua, start) = new_state();
    let shows = "return #KEYS .. ' ' .. KEYS[1] .. ' ' .. KEYS[2] .. ' ' .. #ARGV .. ARGV[1] .. ' ' .. tostring(KEYS.x)
        .. ' ' .. tostring(KEYS[3]) .. ' ' .. tostring(getmetatable(KEYS)) .. ' ' .. tostring(next(KEYS, 2))";
    let shows = start
        .prepare(lua.load(shows).into_function().expect("it compiles"))
        .expect("memory");
    let changes = [
        "KEYS[1] = nil",
        "KEYS[2] = nil KEYS[1] = nil ARGV[1] = nil",
        "KEYS.x = 1",
        "KEYS[3] = 'c'",
        "KEYS.x = 1 KEYS.x = nil",
        "setmetatable(KEYS, {__newindex = function() error('no') end})",
        "table.remove(KEYS) table.insert(ARGV, 'c')",
        "for i = 1, 100 do KEYS[i] = i end",
        "return KEYS",
        "error(KEYS)",
    ];
    for change in changes {
        let change_script = start
            .prepare(lua.load(change).into_function().expect("it compiles"))
            .expect("memory");
        let mut host = FakeHost::replying(b"");
        start_script(&start, &mut host, &change_script);
        host.results.clear();
        start_script(&start, &mut host, &shows);
        assert_eq!(host.results, ["text 2 k1 k2 1a\0b nil nil nil nil"], "{change}");
    }
}

#[test]
fn functions_of_libraries_get_their_words_as_parameters() {
    let (lua, _) = new_state();
    let handler = lua.load("return ...").into_function().expect("it compiles");
    let start = ScriptStarter::for_functions(&lua, handler).expect("memory");
    let source = "local keys, arguments = ... return keys[2] .. #arguments .. type(KEYS)";
    let function = start
        .prepare(lua.load(source).into_function().expect("it compiles"))
        .expect("memory");
    let mut host = FakeHost::replying(b"");
    let end = start_script(&start, &mut host, &function);
    assert!(matches!(end, ScriptEnd::Replied));
    assert_eq!(host.results, ["text k21nil"]);
}

/// Returns a state, the function that starts functions of libraries in it, and the functions that a library returns.
fn library<const COUNT: usize>(source: &str) -> (Lua, ScriptStarter, [StartableScript; COUNT]) {
    let (lua, _) = new_state();
    let handler = lua.load("return ...").into_function().expect("it compiles");
    let start = ScriptStarter::for_functions(&lua, handler).expect("memory");
    let functions: Table = lua.load(source).eval().expect("the library loads");
    let prepare = |index: usize| start.prepare(functions.raw_get(index + 1).expect("a function"));
    let prepared = std::array::from_fn(|index| prepare(index).expect("memory"));
    (lua, start, prepared)
}

/// Runs a function with two keys. Returns its result.
fn run_with_keys(start: &ScriptStarter, keys: [&'static [u8]; 2], function: &StartableScript) -> String {
    let mut host = FakeHost::replying(b"$5\r\nvalue\r\n");
    host.keys = keys.to_vec();
    match start_script(start, &mut host, function) {
        ScriptEnd::Replied => host.results.pop().expect("the host got the result"),
        other => format!("{other:?}"),
    }
}

/// What a library has, in the tests of what its functions keep: variables, a table, and a coroutine that keeps what it
/// is given until it is asked again.
const PLACES: &str = "
    local kept
    local list = {}
    local waiting = coroutine.wrap(function()
        local value = coroutine.yield()
        coroutine.yield()
        coroutine.yield(value)
    end)
    waiting()
    local function holder() end ";

/// Ways to keep a value, and to get it back.
const KEEPERS: &[(&str, &str)] = &[
    ("kept = value", "kept"),
    ("kept = {value}", "kept[1]"),
    ("kept = function() return value end", "kept()"),
    ("list.x = value", "list.x"),
    ("list[1] = value", "list[1]"),
    ("list[value] = 1", "(next(list))"),
    ("list[value] = 1 list[value] = nil list.x = value", "list.x"),
    ("rawset(list, 'x', value)", "list.x"),
    ("rawset(list, 1, value)", "list[1]"),
    ("table.insert(list, value)", "list[1]"),
    ("local _ = (function(...) kept = ... end)(value)", "kept"),
    ("setmetatable(list, {__index = function() return value end})", "list.x"),
    (
        "setmetatable(list, {__newindex = function(_, _, v) kept = v end}) list.x = value",
        "kept",
    ),
    ("waiting(value)", "waiting()"),
    ("pcall(function() kept = value error('no') end)", "kept"),
    ("kept = value collectgarbage() collectgarbage()", "kept"),
    ("setfenv(holder, {value = value})", "getfenv(holder).value"),
];

#[test]
fn a_function_gets_no_words_that_another_one_has_kept() {
    for (keep, show) in KEEPERS {
        let source = format!(
            "{PLACES}
             local function keep(value) {keep} end
             local function other(keys) return keys[1] end
             local function show() return ({show})[1] end
             return {{keep, other, show}}"
        );
        let (_lua, start, [keep_words, other, show_words]) = library::<3>(&source);
        run_with_keys(&start, [b"k1", b"k2"], &keep_words);
        assert_eq!(run_with_keys(&start, [b"o1", b"o2"], &other), "text o1", "{keep}");
        assert_eq!(run_with_keys(&start, [b"s1", b"s2"], &show_words), "text k1", "{keep}");
    }
}

#[test]
fn a_function_finds_nothing_that_another_one_has_done_to_its_words() {
    let source = "
        local function change_element(keys) keys[1] = 'x' end
        local function add(keys) keys.x = 1 end
        local function remove(keys) keys[2] = nil end
        local function grow(keys) for i = 1, 100 do keys[i] = i end end
        local function fail(keys) error(keys) end
        local function set_metatable(keys) setmetatable(keys, {__index = function() return 1 end}) end
        local function show(keys)
            return #keys .. keys[1] .. keys[2] .. tostring(keys[3]) .. tostring(keys.x)
        end
        return {change_element, add, remove, grow, fail, set_metatable, show}";
    let (_lua, start, [others @ .., show]) = library::<7>(source);
    for other in &others {
        run_with_keys(&start, [b"k1", b"k2"], other);
        assert_eq!(run_with_keys(&start, [b"s1", b"s2"], &show), "text 2s1s2nilnil");
    }
}

#[test]
fn functions_that_keep_nothing_use_the_same_tables() {
    let source = "
        local kept
        local function show(keys, arguments) call('x', keys[1]) return tostring(keys) .. tostring(arguments) end
        local function keep(keys) kept = keys[1] return tostring(keys) end
        return {show, keep}";
    let (lua, start, [show, keep]) = library::<2>(source);
    // The collector does not run meanwhile.
    lua.gc_collect().expect("it runs");
    let first = run_with_keys(&start, [b"k1", b"k2"], &show);
    assert_eq!(run_with_keys(&start, [b"o1", b"o2"], &show), first);
    run_with_keys(&start, [b"k1", b"k2"], &keep);
    assert_ne!(run_with_keys(&start, [b"k1", b"k2"], &show), first);
}

/// Ways to keep a value that the collector has part in.
const COLLECTED_KEEPERS: &[(&str, &str)] = &[
    ("collectgarbage() kept = value collectgarbage()", "kept"),
    ("for i = 1, 20000 do local _ = {i} end kept = value", "kept"),
    ("for i = 1, 40 do local _ = 'new ' .. i end kept = value", "kept"),
    ("local other = {value} collectgarbage() kept = other[1]", "kept"),
];

/// Scripts and functions use the memory of earlier ones: what they have kept must not be in it.
#[test]
fn strings_that_a_script_has_kept_stay_as_they_are() {
    for (keep, show) in KEEPERS.iter().chain(COLLECTED_KEEPERS) {
        let library_source = |words: &str, keys: &str| {
            format!(
                "{PLACES}
                 local function keep({words}) local value = {keys}[1] .. call('x') {keep} end
                 local function other({words})
                     local text = ''
                     for i = 1, 9 do text = i .. {keys}[2] .. call('y') end
                     return text
                 end
                 local function show() return {show} end
                 return {{keep, other, show}}"
            )
        };
        let (_lua, start, [keep_string, other, show_string]) = library::<3>(&library_source("keys", "keys"));
        run_with_keys(&start, [b"k1", b"k2"], &keep_string);
        for _ in 0..3 {
            assert_eq!(run_with_keys(&start, [b"o1", b"o2"], &other), "text 9o2value", "{keep}");
        }
        assert_eq!(
            run_with_keys(&start, [b"s1", b"s2"], &show_string),
            "text k1value",
            "{keep}"
        );

        let (lua, start) = new_state();
        let functions: Table = lua.load(library_source("", "KEYS")).eval().expect("it compiles");
        let function = |index: usize| start.prepare(functions.raw_get(index).expect("a function"));
        let [keep_string, other, show_string] = [1, 2, 3].map(|index| function(index).expect("memory"));
        run_with_keys(&start, [b"k1", b"k2"], &keep_string);
        for _ in 0..3 {
            assert_eq!(run_with_keys(&start, [b"o1", b"o2"], &other), "text 9o2value", "{keep}");
        }
        lua.gc_collect().expect("it runs");
        assert_eq!(
            run_with_keys(&start, [b"s1", b"s2"], &show_string),
            "text k1value",
            "{keep}"
        );
    }
}

#[test]
fn the_words_of_a_script_are_there_while_it_runs_and_may_be_kept() {
    let (lua, start) = new_state();
    let script = |source: &str| {
        let function = lua.load(source).into_function().expect("it compiles");
        start.prepare(function).expect("memory")
    };
    let keep = script("conversions.kept = KEYS[2] KEYS[1] = KEYS[1] .. 'changed' return KEYS[1]");
    let show = script("return conversions.kept .. KEYS[1] .. #KEYS");
    assert_eq!(run_with_keys(&start, [b"k1", b"k2"], &keep), "text k1changed");
    for _ in 0..3 {
        assert_eq!(run_with_keys(&start, [b"s1", b"s2"], &show), "text k2s12");
        lua.gc_collect().expect("it runs");
    }
}

/// A finalizer may run while the words of a script are created.
#[test]
fn what_a_finalizer_keeps_before_a_script_begins_stays_as_it_is() {
    let (lua, start) = new_state();
    let script = |source: &str| {
        let function = lua.load(source).into_function().expect("it compiles");
        start.prepare(function).expect("memory")
    };
    let leave = script(
        "for i = 1, 20 do
            getmetatable(newproxy(true)).__gc = function()
                table.insert(conversions, tostring(KEYS[1]) .. ' ' .. i)
            end
        end",
    );
    // The collector is reset after this script, and so takes a step before the next one.
    let stop_collector = script("collectgarbage('stop')");
    let other = script("local text = '' for i = 1, 9 do text = i .. KEYS[1] end return text");
    let show = script(
        "for _, text in ipairs(conversions) do
            local key = string.match(text, '^(%w+) %d+$')
            assert(key == 'k1' or key == 'o1' or key == 's1' or key == 'nil', text)
        end
        return #conversions",
    );
    run_with_keys(&start, [b"k1", b"k2"], &leave);
    for _ in 0..1000 {
        run_with_keys(&start, [b"s1", b"s2"], &stop_collector);
        assert_eq!(run_with_keys(&start, [b"o1", b"o2"], &other), "text 9o1");
    }
    assert_eq!(run_with_keys(&start, [b"s1", b"s2"], &show), "Number(20.0)");
    lua.gc_collect().expect("it runs");
    assert_eq!(run_with_keys(&start, [b"s1", b"s2"], &show), "Number(20.0)");
}

#[test]
fn the_strings_of_a_script_that_keeps_nothing_leave_no_garbage() {
    let source = "
        local function concatenate(keys) local value = call('x', keys[1]) return value .. keys[2] end
        local function reply(keys) return call('x', keys[1], keys[2]) end
        return {concatenate, reply}";
    let (lua, start, functions) = library::<2>(source);
    let word = |number: usize| -> &'static [u8] { format!("a key with the number {number:04}").into_bytes().leak() };
    let run_all = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            let mut host = FakeHost::replying(b"$5\r\nvalue\r\n");
            host.keys = vec![word(2 * number), word(2 * number + 1)];
            host.writes_results = true;
            start_script(&start, &mut host, &functions[number % 2]);
        }
    };
    lua.gc_collect().expect("it runs");
    run_all(0..10);
    let bytes = lua.used_memory();
    run_all(10..500);
    assert_eq!(lua.used_memory(), bytes);
}

/// Between two functions, nothing needs the words of the first one.
#[test]
fn the_words_of_a_function_that_has_ended_are_garbage() {
    let source = "
        local function count(keys, arguments) return #keys + #arguments end
        local function create(keys, arguments)
            local text = ''
            for i = 1, 40 do text = 'new ' .. i end
            return text
        end
        return {count, create}";
    let (lua, start, [count, create]) = library::<2>(source);
    let run_with = |function: &StartableScript, arguments: Vec<&'static [u8]>| {
        let mut host = FakeHost::replying(b"");
        host.arguments = arguments;
        assert!(matches!(start_script(&start, &mut host, function), ScriptEnd::Replied));
        lua.gc_collect().expect("it runs");
        lua.used_memory()
    };
    let least = run_with(&create, vec![b"a"]);
    let large: &'static [u8] = vec![b'x'; 100_000].leak();
    for (function, arguments) in [(&create, vec![large]), (&count, vec![&b"a"[..]; 10_000])] {
        let used = run_with(function, arguments);
        assert!(used < least + 50_000, "{used} of {least}");
    }
}

#[test]
fn no_finalizer_runs_while_a_reply_is_converted() {
    let (lua, start) = new_state();
    // Objects whose finalizers call a command, and throw, become garbage. The reply makes Lua look for garbage.
    let source = "
        local finalized, refused, is_converting = 0, 0, false
        collectgarbage('stop')
        for i = 1, 20 do
            local proxy = newproxy(true)
            getmetatable(proxy).__gc = function()
                if is_converting then error('too early') end
                finalized = finalized + 1
                if not pcall(call, 'from a finalizer') then refused = refused + 1 end
            end
        end
        collectgarbage('restart')
        is_converting = true
        local reply = call('big')
        is_converting = false
        local at_once = finalized
        collectgarbage()
        return #reply .. ' ' .. at_once .. ' ' .. finalized .. ' ' .. refused";
    let script = start
        .prepare(lua.load(source).into_function().expect("it compiles"))
        .expect("memory");
    let elements = 5_000;
    let mut host = FakeHost::replying(&nested_reply(elements));
    let end = start_script(&start, &mut host, &script);
    assert!(matches!(end, ScriptEnd::Replied), "{end:?}");
    assert_eq!(host.results, [format!("text {elements} 0 20 0")]);
}

/// A reply of nested arrays. Each of them becomes a table of its own.
fn nested_reply(elements: usize) -> Vec<u8> {
    [
        format!("*{elements}\r\n").into_bytes(),
        b"*1\r\n$3\r\nabc\r\n".repeat(elements),
    ]
    .concat()
}

/// A script that only calls commands creates nothing outside of their replies.
#[test]
fn replies_that_a_script_does_not_keep_are_collected_while_it_runs() {
    for (reply, calls) in [
        (b"+PONG\r\n".to_vec(), 20_000),
        (b"*2\r\n$1\r\na\r\n$1\r\nb\r\n".to_vec(), 20_000),
        (nested_reply(1000), 100),
    ] {
        let source = format!(
            "local most = 0
             for i = 1, {calls} do
                 local reply = call('x')
                 local count = collectgarbage('count')
                 if count > most then most = count end
             end
             return most"
        );
        let mut host = FakeHost::replying(&reply);
        let result = run(&mut host, &source);
        let kilobytes: f64 = result["Number(".len()..result.len() - 1].parse().expect("a number");
        assert!(kilobytes < 1024.0, "{kilobytes} KB");
    }
}

#[test]
fn the_replies_of_short_scripts_are_collected() {
    let (lua, start) = new_state();
    let function = lua.load("local reply = call('x') return #reply").into_function();
    let script = start.prepare(function.expect("it compiles")).expect("memory");
    let mut host = FakeHost::replying(&nested_reply(1000));
    for _ in 0..100 {
        start_script(&start, &mut host, &script);
        assert!(lua.used_memory() < 1 << 20, "{} bytes", lua.used_memory());
    }
}

#[test]
fn a_call_ends_although_the_collector_is_always_due() {
    let source = "collectgarbage('setpause', 0) collectgarbage() call('x') call('x') return 1";
    let mut host = FakeHost::replying(b"+OK\r\n");
    assert_eq!(run(&mut host, source), "Number(1.0)");
}

#[test]
fn the_host_of_an_outer_script_is_back_after_an_inner_one() {
    let mut outer = FakeHost::replying(b":1\r\n");
    let mut inner = FakeHost::replying(b":2\r\n");
    with_host(&mut outer, || {
        assert_eq!(run(&mut inner, "return call('inner')"), "Number(2.0)");
        with_current_host(|host| host.write_result(ScriptResult::Nil)).expect("the outer script runs");
    });
    assert_eq!((inner.calls.len(), outer.results.len()), (1, 1));
    assert!(with_current_host(|_| ()).is_none(), "no script runs");
}

#[test]
fn a_script_replies_although_memory_was_short_for_a_reply() {
    let (lua, start) = new_state();
    let source = "
        local is_converted, error = pcall(call, 'big')
        return tostring(is_converted) .. ' ' .. tostring(error)";
    let script = start
        .prepare(lua.load(source).into_function().expect("it compiles"))
        .expect("memory");
    let mut host = FakeHost::replying(&[b"$4000000\r\n", &vec![b'x'; 4_000_000][..], b"\r\n"].concat());
    lua.set_memory_limit(lua.used_memory() + 1_000_000)
        .expect("it can be limited");
    let end = start_script(&start, &mut host, &script);
    assert!(matches!(end, ScriptEnd::Replied));
    assert_eq!(host.results, ["text false not enough memory"]);
}

#[test]
fn nothing_changes_a_readonly_table() {
    let (lua, _) = new_state();
    let globals = lua.globals();
    globals
        .set("set_readonly", readonly_function(&lua).expect("memory"))
        .expect("memory");
    let changes = [
        "t.a = 2",
        "t.b = 1",
        "t.a = nil",
        "t[1] = 5",
        "t[2] = 5",
        "rawset(t, 'a', 2)",
        "rawset(t, 2, 2)",
        "setmetatable(t, {})",
        "setmetatable(t, nil)",
        "table.insert(t, 1)",
        "table.remove(t)",
        "table.sort(t, function() return true end)",
        "setmetatable({}, {__newindex = t}).c = 1",
    ];
    for change in changes {
        let source = format!(
            "local t = set_readonly({{'x', 'y', a = 1}}, true)
             local ok, text = pcall(function() {change} end)
             assert(t[1] == 'x' and t[2] == 'y' and t.a == 1 and t.b == nil and t.c == nil and #t == 2)
             assert(not getmetatable(t) and next(t, 'a') == nil)
             set_readonly(t, false)
             t.a = 5
             return ok, text, t.a"
        );
        let (ok, text, after): (bool, String, i64) = lua.load(source).eval().expect("it runs");
        assert!(!ok, "{change}");
        assert!(text.ends_with("Attempt to modify a readonly table"), "{change}: {text}");
        assert_eq!(after, 5, "{change}");
    }
}
