//! Tests where scripts are expected to run.

use std::time::Duration;

use super::ScriptProfile;

#[test]
fn code_without_loops_is_short_and_loops_are_measured() {
    assert!(!ScriptProfile::predict(b"return redis.call('get', KEYS[1])").is_long());
    let profile = ScriptProfile::predict(b"for i = 1, 3 do redis.call('incr', KEYS[i]) end");
    assert!(profile.is_long());
    profile.note_duration(Duration::from_micros(500));
    assert!(profile.is_long(), "neither short nor long: it stays as it was");
    profile.note_duration(Duration::from_micros(50));
    assert!(!profile.is_long());
    profile.note_duration(Duration::from_millis(5));
    assert!(profile.is_long());
}

#[test]
fn calls_that_query_all_workers_are_found_in_the_code() {
    let cases: [(&str, bool); 8] = [
        ("return redis.call('INFO')", true),
        ("server.pcall( \"client\", 'LIST')", true),
        ("redis.call 'info'", true),
        ("redis.call('information')", false),
        ("redis.call('get', 'info')", false),
        ("redis.call(name)", false),
        ("redis.call", false),
        ("redis.call('info", false),
    ];
    for (code, asks) in cases {
        assert_eq!(
            ScriptProfile::predict(code.as_bytes()).queries_workers(),
            asks,
            "{code}"
        );
    }
    let profile = ScriptProfile::predict(b"redis.call(name)");
    profile.note_query();
    profile.note_duration(Duration::from_micros(50));
    assert!(profile.queries_workers(), "however short it is");
}

#[test]
fn only_code_that_surely_ends_is_taken_for_such() {
    let cases = [
        ("return redis.call('get', KEYS[1])", false),
        ("for i = 1, ARGV[1] do end", true),
        ("while true do end", true),
        ("repeat until false", true),
        ("local function f() return f() end return f()", true),
        ("return loadstring(ARGV[1])()", true),
        ("return _G['lo' .. 'adstring'](ARGV[1])()", true),
        ("return getfenv(0)['lo' .. 'ad'](redis.call)()", true),
        ("redis.register_function('f', function(keys) return keys[1] end)", false),
        ("server.register_function ( \"f\" ,\tfunction() end)", false),
        ("redis.register_function('f', function() while true do end end)", true),
        ("local f = function() end redis.register_function('f', f)", true),
        (
            "redis.register_function{function_name='f', callback=function() end}",
            true,
        ),
        ("t.a, t.b = 1, function() return t.b() end", true),
        (
            "t.a, t.b = 1, -- register_function('f',\nfunction() return t.b() end",
            true,
        ),
        (
            "t.a, t.b = 1 --[[ register_function('f']], function() return t.b() end",
            true,
        ),
        ("functions", false),
    ];
    for (code, expected) in cases {
        let profile = ScriptProfile::predict(code.as_bytes());
        profile.note_duration(Duration::from_micros(1));
        assert_eq!(profile.may_run_forever(), expected, "{code}");
    }
}
