//! The names that scripts and functions reach, none of which loads code or touches the system.

use super::{Client, Target, failed};
use crate::harness::valkey::Valkey;

/// The functions, and values without a type of their own, that scripts of Valkey 9.1.2 reach. Those of `redis` and
/// `server` are not among them.
const HARMLESS: &str = "__redis__err__handler __server__err__handler __index assert \
    bit.arshift bit.band bit.bnot bit.bor bit.bswap bit.bxor bit.lshift bit.rol bit.ror bit.rshift bit.tobit bit.tohex \
    cjson.decode cjson.decode_invalid_numbers cjson.decode_max_depth cjson.encode cjson.encode_invalid_numbers \
    cjson.encode_keep_buffer cjson.encode_max_depth cjson.encode_number_precision cjson.encode_sparse_array cjson.new \
    cjson.null cmsgpack.pack cmsgpack.unpack cmsgpack.unpack_limit cmsgpack.unpack_one collectgarbage \
    coroutine.create coroutine.resume coroutine.running coroutine.status coroutine.wrap coroutine.yield \
    error gcinfo getmetatable ipairs load loadstring math.abs math.acos math.asin math.atan math.atan2 math.ceil \
    math.cos math.cosh math.deg math.exp math.floor math.fmod math.frexp math.ldexp math.log math.log10 math.max \
    math.min math.mod math.modf math.pow math.rad math.random math.randomseed math.sin math.sinh math.sqrt math.tan \
    math.tanh next os.clock pairs pcall rawequal rawget rawset select setmetatable string.byte string.char string.dump \
    string.find string.format string.gfind string.gmatch string.gsub string.len string.lower string.match string.rep \
    string.reverse string.sub string.upper struct.pack struct.size struct.unpack table.concat table.foreach \
    table.foreachi table.getn table.insert table.maxn table.remove table.setn table.sort tonumber tostring type unpack \
    xpcall";

/// What `lua-enable-insecure-api` adds.
const INSECURE: &str = "getfenv newproxy print setfenv";

/// The globals of Lua 5.1 that load code, touch the system or change the environment of other code.
const DANGEROUS: &str = "package require module loadlib io debug loadfile dofile getfenv setfenv newproxy print";

/// Returns the source of a function `reachable` that returns the names of all functions which its caller reaches.
fn source() -> String {
    let visit = "local names, seen = {}, {}
        local function visit(value, path)
            local kind = type(value)
            if kind == 'function' or kind == 'userdata' then names[path] = true return end
            if kind ~= 'table' or seen[value] then return end
            seen[value] = true
            for name, entry in pairs(value) do
                visit(entry, path == '' and tostring(name) or path .. '.' .. tostring(name))
            end
            visit(getmetatable(value), path)
        end
        local function try(path, action) local works, value = pcall(action) if works then visit(value, path) end end
        visit(redis, 'redis')
        try('', function() return _G end)\n";
    let globals: String = format!("{HARMLESS} {DANGEROUS}")
        .split_whitespace()
        .map(|name| name.split('.').next().unwrap_or(name))
        .chain(["os", "redis", "server"])
        .map(|name| format!("try('{name}', function() return {name} end)\n"))
        .collect();
    let values = "local function metatable(action)
            try('', function() return getmetatable(action()) end)
            try('', function() local works, thrown = pcall(action) return not works and thrown end)
            try('', function() return getmetatable(select(2, pcall(action))) end)
        end
        metatable(function() return '' end)
        metatable(function() return 1 end)
        metatable(function() return nil end)
        metatable(function() return true end)
        metatable(function() return visit end)
        metatable(function() return cjson.null end)
        metatable(function() return coroutine.create(visit) end)
        metatable(function() return nil + 1 end)
        metatable(function() return error() end)
        metatable(function() return error(setmetatable({}, {})) end)
        metatable(function() return redis.call('nosuch') end)
        metatable(function() return redis.pcall('nosuch') end)
        metatable(function() return loadstring('return (') end)
        metatable(function() return loadstring('return package')() end)
        metatable(function() return getmetatable(_G).__index(_G, 'package') end)
        metatable(function() return rawget(_G, 'package') end)
        for level = 0, 9 do try('', function() return getfenv(level) end) end
        try('', function() return getfenv(print) end)
        local sorted = {}
        for name in pairs(names) do sorted[#sorted + 1] = name end
        table.sort(sorted)
        return table.concat(sorted, ' ')\n";
    format!("local function reachable()\n{visit}{globals}{values}end\n")
}

/// Returns the names that a script reaches, and a function that is called.
fn reachable(client: &mut Client) -> [String; 2] {
    let source = source();
    let library =
        format!("#!lua name=names\n{source}server.register_function('reachable', function() return reachable() end)");
    let script = client.call(&["EVAL", &format!("{source}return reachable()"), "0"]);
    assert_eq!(client.call(&["FUNCTION", "LOAD", "REPLACE", &library]), "names");
    [script, client.call(&["FCALL", "reachable", "0"])]
}

/// Loads a library for each name, whose code outside of its functions uses the name. Returns the replies.
fn loads(client: &mut Client) -> Vec<String> {
    let names = DANGEROUS
        .split(' ')
        .chain(["os.execute", "os.clock", "_G", "pcall", "loadstring"]);
    let library =
        |name| format!("#!lua name=one\nlocal found = {name} server.register_function(tostring(found), found)");
    names
        .map(|name| client.call(&["FUNCTION", "LOAD", "REPLACE", &library(name)]))
        .collect()
}

/// Checks that nothing is reached beyond what these texts and the tables `redis` and `server` have.
fn assert_harmless(reached: &str, allowed: &[&str]) {
    assert!(reached.contains("os.clock"), "the search finds nothing: {reached}");
    let is_allowed = |name: &str| {
        let is_own = ["redis.", "server."].iter().any(|table| name.starts_with(table));
        is_own
            || allowed
                .iter()
                .any(|names| names.split_whitespace().any(|known| known == name))
    };
    let others: Vec<&str> = reached.split(' ').filter(|name| !is_allowed(name)).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Debian's package left the global `package`, whose `loadlib` loads the libraries `io` and `os`.
#[test]
fn cve_2022_0543_scripts_reach_no_name_that_loads_code() {
    let mut target = Target::start(&[]);
    let missing = |name: &str| {
        failed(&format!(
            "Script attempted to access nonexistent global variable '{name}'"
        ))
    };
    target.answers(&[
        (
            &[
                "EVAL",
                "return package.loadlib('/usr/lib/x86_64-linux-gnu/liblua5.1.so.0', 'luaopen_io')",
                "0",
            ],
            &missing("package"),
        ),
        (&["EVAL", "return io.popen('id')", "0"], &missing("io")),
        (
            &["EVAL", "return os.execute('id')", "0"],
            &failed("attempt to call field 'execute' (a nil value)"),
        ),
    ]);
    for reached in reachable(&mut target.attacker) {
        assert_harmless(&reached, &[HARMLESS]);
    }
    for reply in loads(&mut target.attacker) {
        assert!(
            reply.contains("attempted to access nonexistent global variable"),
            "{reply}"
        );
    }
    target.serves();
    let mut target = Target::start(&["--lua-enable-insecure-api", "yes"]);
    for reached in reachable(&mut target.attacker) {
        assert_harmless(&reached, &[HARMLESS, INSECURE]);
    }
    target.serves();
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2022_0543_scripts_reach_what_those_of_valkey_reach() {
    for arguments in [&[][..], &["--lua-enable-insecure-api", "yes"]] {
        let mut target = Target::start(arguments);
        let valkey = Valkey::start(arguments);
        let mut client = Client::connect(valkey.port);
        assert_eq!(reachable(&mut target.attacker), reachable(&mut client), "{arguments:?}");
        assert_eq!(loads(&mut target.attacker), loads(&mut client), "{arguments:?}");
        target.serves();
    }
}
