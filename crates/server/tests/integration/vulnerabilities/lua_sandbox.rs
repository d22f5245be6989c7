//! Vulnerabilities of the interpreter and of the sandbox that scripts run in.

use super::{Target, failed, scripts_fail_like_valkey, scripts_like_valkey};

const READ_ONLY: &str = "Attempt to modify a readonly table";

/// The parser keeps the name of the chunk alive while it collects garbage.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2025_49844_a_chunk_name_outlives_a_collection_in_the_parser() {
    let target = scripts_like_valkey(&[
        (
            "local long = string.rep('a', 1024 * 1024) for i = 1, 30 do collectgarbage() \
             loadstring(long .. i .. ' = 1') collectgarbage('step', 1) end return 'alive'",
            "alive",
        ),
        (
            "for i = 1, 300 do local chunk = loadstring('return ' .. i, '@' .. string.rep('n', 100) .. i) \
             collectgarbage() if chunk() ~= i then return 'wrong' end end return 'alive'",
            "alive",
        ),
    ]);
    // The same on all workers at a time.
    let clients: Vec<_> = (0..8).map(|_| target.connect()).collect();
    let script = "for i = 1, 50 do collectgarbage('setstepmul', 100000) \
                  loadstring(string.rep('x = ' .. i .. ' ', 2000), '@' .. string.rep(tostring(i), 50)) end return 'alive'";
    std::thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || assert_eq!(client.call(&["EVAL", script, "0"]), "alive"));
        }
    });
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2025_46817_ranges_of_unpack_do_not_overflow() {
    scripts_fail_like_valkey(&[
        ("return {unpack({1,2,3}, 0, 2147483647)}", "too many results to unpack"),
        (
            "return {unpack({1,2,3}, -2147483648, 2147483647)}",
            "too many results to unpack",
        ),
        ("return {unpack({1,2,3}, -2147483648, 0)}", "too many results to unpack"),
        ("return {unpack({}, 1, 8000)}", "too many results to unpack"),
        (
            "return select(-2147483648, 1)",
            "bad argument #1 to 'select' (index out of range)",
        ),
        (
            "return table.concat({1,2,3}, ',', 2147483647, 2147483647)",
            "invalid value (nil) at index 2147483647 in table for 'concat'",
        ),
        (
            "return string.byte(string.rep('x', 10000), 1, 10000)",
            "stack overflow (string slice too long)",
        ),
    ]);
    scripts_like_valkey(&[
        ("return {unpack({1,2,3}, 2147483647, 2147483647)}", "()"),
        ("return {string.byte('abc', -2147483648, 2147483647)}", "(97 98 99)"),
        ("return string.sub('abc', -2147483648, 2147483647)", "abc"),
        ("local t = {} for i = 1, 100 do t[2^31 - i] = i end return #t", "0"),
    ]);
}

/// A script must not change what the scripts of other users run with.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2025_46818_metatables_of_basic_types_are_read_only() {
    scripts_fail_like_valkey(&[
        ("getmetatable('').__index = function() return 1 end", READ_ONLY),
        ("getmetatable('').__call = function() return 1 end", READ_ONLY),
        ("getmetatable('').__concat = function() return 1 end", READ_ONLY),
        ("getmetatable(_G).__index = 1", READ_ONLY),
        ("string.upper = nil", READ_ONLY),
        ("redis.call = nil", READ_ONLY),
        ("server.call = nil", READ_ONLY),
        ("cjson.encode = nil", READ_ONLY),
        ("math.random = nil", READ_ONLY),
        ("_G.planted = 1", READ_ONLY),
    ]);
    let mut target = scripts_like_valkey(&[
        ("return getmetatable(1)", "-"),
        ("return getmetatable(nil)", "-"),
        ("return getmetatable(true)", "-"),
        ("return getmetatable(function() end)", "-"),
    ]);
    // No worker's interpreter has kept anything.
    for _ in 0..8 {
        let mut client = target.connect();
        assert_eq!(
            client.call(&[
                "EVAL",
                "return string.upper('x') .. tostring(rawget(_G, 'planted'))",
                "0"
            ]),
            "Xnil"
        );
    }
    target.serves();
}

/// The length of a long bracket is counted in a type that does not overflow.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2025_46819_long_brackets_are_read_within_the_source() {
    let mut target = scripts_like_valkey(&[
        ("return [==========[x]==========]", "x"),
        (
            "local level = string.rep('=', 10000000) return #loadstring('return [' .. level .. '[x]' .. level .. ']')()",
            "1",
        ),
        ("return loadstring('return [' .. string.rep('=', 40000000))", "-"),
        (
            "return loadstring('--[' .. string.rep('=', 1000) .. '[ without an end')",
            "-",
        ),
        ("return loadstring('return [[' .. string.rep('[', 100000))", "-"),
    ]);
    target.serves();
}

/// Garbage of a script is collected while the interpreter still exists.
#[test]
fn cve_2024_46981_scripts_leave_nothing_to_be_collected_after_a_flush() {
    let mut target = Target::start(&[]);
    target.answers(&[
        (
            &["EVAL", "return newproxy", "0"],
            &failed("Script attempted to access nonexistent global variable 'newproxy'"),
        ),
        (
            &[
                "EVAL",
                "setmetatable({}, {__gc = function() redis.call('set', 'a', 'b') end}) return 1",
                "0",
            ],
            "1",
        ),
    ]);
    for _ in 0..20 {
        target.answers(&[
            (
                &[
                    "EVAL",
                    "local t = {} for i = 1, 10000 do t[i] = {string.rep('x', i % 100)} end return #t",
                    "0",
                ],
                "10000",
            ),
            (&["SCRIPT", "FLUSH", "SYNC"], "OK"),
            (&["FUNCTION", "FLUSH", "SYNC"], "OK"),
            (&["EXISTS", "a"], "0"),
        ]);
    }
    target.serves_within(400 << 20);
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2022_24735_a_script_cannot_leave_code_for_other_users() {
    let global = |name: &str| format!("Script attempted to access nonexistent global variable '{name}'");
    let names = [
        "setfenv", "getfenv", "debug", "package", "require", "module", "io", "dofile", "loadfile", "print",
    ];
    let scripts: Vec<(String, String)> = names
        .iter()
        .map(|name| (format!("return {name}(1)"), global(name)))
        .collect();
    let cases: Vec<(&str, &str)> = scripts
        .iter()
        .map(|(script, reply)| (script.as_str(), reply.as_str()))
        .collect();
    scripts_fail_like_valkey(&cases);
    let refused = "ERR Attempt to modify a readonly table script: on @user_script:1.";
    scripts_like_valkey(&[
        ("rawset(_G, 'x', 1)", refused),
        ("rawset(string, 'upper', 1)", refused),
        ("setmetatable(_G, {})", refused),
        ("setmetatable(string, {__index = {}})", refused),
        ("table.insert(redis, 1)", refused),
        ("table.insert(KEYS, 'x') return KEYS", "(x)"),
        ("return #KEYS", "0"),
    ]);
    let mut target = Target::start(&[]);
    target.answers(&[
        (
            &["ACL", "SETUSER", "weak", "on", ">pw", "+eval", "+ping", "+auth", "~*"],
            "OK",
        ),
        (&["SET", "secret", "1"], "OK"),
    ]);
    let mut weak = target.connect();
    assert_eq!(weak.call(&["AUTH", "weak", "pw"]), "OK");
    let denied = "ERR ACL failure in script: User weak has no permissions to run the 'get' command";
    let answer = weak.call(&["EVAL", "return redis.call('get', 'secret')", "0"]);
    assert!(answer.starts_with(denied), "{answer}");
    target.serves();
}

/// Neither the compiler nor the interpreter runs out of its stack.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2022_24736_scripts_that_cannot_be_compiled_give_an_error() {
    let mut target = scripts_like_valkey(&[
        ("return loadstring(string.char(27) .. 'Lua')", "-"),
        (
            "return loadstring('return ' .. string.rep('(', 300) .. string.rep(')', 300))",
            "-",
        ),
        ("return loadstring('return ' .. string.rep('-', 30000) .. '1')", "-"),
        (
            "return loadstring('x=' .. string.rep('{', 250) .. string.rep('}', 250))",
            "-",
        ),
        (
            "return loadstring(string.rep('do ', 250) .. string.rep('end ', 250))",
            "-",
        ),
        ("return loadstring('return ' .. string.rep('1 ..', 300) .. '1')", "-"),
        (
            "local names = {} for i = 1, 300 do names[i] = 'a' .. i end return loadstring('local ' .. table.concat(names, ','))",
            "-",
        ),
        (
            "return {pcall(loadstring(string.rep('(', 300)))}",
            "(- attempt to call a nil value)",
        ),
    ]);
    let deep = format!("return {}1{}", "(".repeat(100_000), ")".repeat(100_000));
    let answer = target.attacker.call(&["EVAL", &deep, "0"]);
    assert!(answer.starts_with("ERR Error compiling script"), "{answer}");
    assert!(
        target
            .attacker
            .call(&["SCRIPT", "LOAD", &deep])
            .starts_with("ERR Error compiling script")
    );
    let library = format!("#!lua name=deep\n{deep}");
    assert!(
        target
            .attacker
            .call(&["FUNCTION", "LOAD", &library])
            .starts_with("ERR Error compiling function")
    );
    target.serves();
}

/// A script that uses up Lua's stack fails; the native stack behind it is large enough.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2021_32626_the_stack_of_lua_is_limited() {
    scripts_fail_like_valkey(&[
        ("local function f() return 1 + f() end return f()", "stack overflow"),
        (
            "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) return t[1]",
            "C stack overflow",
        ),
        (
            "local t = {} for i = 1, 200 do t = setmetatable({}, {__index = t}) end return t.x",
            "loop in gettable",
        ),
        (
            "return cmsgpack.unpack(string.rep(string.char(1), 9000))",
            "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)",
        ),
    ]);
    let mut target = scripts_like_valkey(&[("local function f() return pcall(f) end return f()", "1")]);
    // Valkey ends with its assertion at this one.
    let script = "error(setmetatable({}, {__index = function() error('deep') end}))";
    target.answers(&[(&["EVAL", script, "0"], "ERR unknown error script: on @user_script:1.")]);
    // What a script throws runs nothing after its end, when it could not be stopped any more.
    let script = "error(setmetatable({}, {__index = function() while true do end end}))";
    target.answers(&[(
        &["EVAL", script, "1", "k"],
        "ERR unknown error script: on @user_script:1.",
    )]);
    for depth in [100, 1000, 7000, 100_000] {
        let script = format!("local t = {{}} for i = 1, {depth} do t = {{t}} end return t");
        target.attacker.send(&["EVAL", &script, "0"]);
        let answer = answer_flat(&mut target.attacker);
        assert!(answer > 0);
        target.serves();
    }
}

/// Reads one reply of nested arrays without recursion. Returns the number of its lines.
fn answer_flat(client: &mut super::Client) -> usize {
    use std::io::BufRead;
    let (mut pending, mut lines) = (1_i64, 0);
    while pending > 0 {
        let mut line = String::new();
        client.0.read_line(&mut line).expect("receives");
        assert!(!line.is_empty(), "the server closed the connection");
        pending -= 1;
        lines += 1;
        if let Some(count) = line.strip_prefix('*') {
            pending += count.trim_end().parse::<i64>().expect("a count").max(0);
        }
    }
    lines
}

/// The debugger parses what its user sends within the bytes that have arrived.
#[test]
fn cve_2021_32672_the_debugger_reads_only_what_was_sent() {
    use std::io::{Read, Write};
    let requests: [&[u8]; 9] = [
        b"*100000000\r\n",
        b"*-1\r\n",
        b"*2\r\n$100\r\nx\r\n",
        b"*1\r\n$-5\r\nstep\r\n",
        b"*1\r\n$99999999999999999999\r\nx\r\n",
        b"*1\r\nstep\r\n",
        b"*3\r\n$1\r\n",
        b"\r\n\r\n*0\r\n",
        b"*1\r\n$4\r\nstepXX*1\r\n$4\r\nquit\r\n",
    ];
    let mut target = Target::start(&[]);
    for request in requests {
        let mut user = target.connect();
        assert_eq!(user.call(&["SCRIPT", "DEBUG", "YES"]), "OK");
        user.send(&["EVAL", "local a = 1 local b = 2 return a + b", "0"]);
        user.0.get_mut().write_all(request).expect("sends");
        user.0
            .get_mut()
            .shutdown(std::net::Shutdown::Write)
            .expect("shuts down");
        let mut said = Vec::new();
        // The server may reset the connection, which is an answer too.
        let _ = user.0.read_to_end(&mut said);
        assert!(said.len() < 100_000, "{} bytes", said.len());
        target.serves();
    }
    target.serves_within(400 << 20);
}

/// `loadstring` and `load` take source text only: a program of the interpreter could read any address.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2015_4335_compiled_chunks_are_refused() {
    let mut target = scripts_like_valkey(&[
        ("return loadstring(string.dump(function() return 1 end))", "-"),
        (
            "local program = string.dump(function() return 1 end) local sent = false \
             return load(function() if not sent then sent = true return program end end)",
            "-",
        ),
    ]);
    let compiled = b"\x1bLuaQ\x00\x01\x04\x08\x04\x08\x00";
    target.attacker.send(&[&b"EVAL"[..], compiled, b"0"]);
    let answer = target.attacker.answer();
    assert!(answer.starts_with("ERR Error compiling script"), "{answer}");
    target.serves();
}
