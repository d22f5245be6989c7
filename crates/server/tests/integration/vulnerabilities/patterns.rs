//! Vulnerabilities of pattern matching.

use super::{Target, failed, in_time};

/// A pattern with many asterisks costs no more than the product of the lengths.
#[test]
fn cve_2022_36021_patterns_with_many_asterisks_end() {
    let mut target = Target::start(&[]);
    let key = "a".repeat(10_000);
    let pattern = format!("{}b", "a*".repeat(100));
    let classes = format!("{}b", "[a-z]*".repeat(100));
    target.answers(&[(&["SET", &key, "1"], "OK"), (&["RPUSH", "l", &key], "1")]);
    in_time(|| {
        for pattern in [&pattern, &classes] {
            target.answers(&[
                (&["KEYS", pattern], "()"),
                (&["SCAN", "0", "MATCH", pattern, "COUNT", "1000"], "(0 ())"),
                (&["PUBLISH", &key, "m"], "0"),
                (&["CONFIG", "GET", pattern], "()"),
                (&["PUBSUB", "CHANNELS", pattern], "()"),
            ]);
        }
        // A subscription matches at each message.
        let mut subscriber = target.connect();
        assert_eq!(
            subscriber.call(&["PSUBSCRIBE", &pattern]),
            format!("(psubscribe {pattern} 1)")
        );
        for _ in 0..10 {
            target.answers(&[(&["PUBLISH", &key, "m"], "0")]);
        }
    });
}

/// A pattern of hundreds of thousands of asterisks does not use up the stack, wherever patterns are taken.
#[test]
fn cve_2024_31228_long_patterns_do_not_use_up_the_stack() {
    let mut target = Target::start(&[]);
    let pattern = "*?".repeat(500_000);
    target.answers(&[
        (&["SET", "key", "1"], "OK"),
        (&["SADD", "set", "member"], "1"),
        (&["HSET", "hash", "field", "1"], "1"),
    ]);
    in_time(|| {
        target.answers(&[
            (&["KEYS", &pattern], "()"),
            (&["SCAN", "0", "MATCH", &pattern, "COUNT", "1000"], "(0 ())"),
            (&["SSCAN", "set", "0", "MATCH", &pattern], "(0 ())"),
            (&["HSCAN", "hash", "0", "MATCH", &pattern], "(0 ())"),
            (&["FUNCTION", "LIST", "LIBRARYNAME", &pattern], "()"),
            (&["PUBSUB", "CHANNELS", &pattern], "()"),
            (&["CONFIG", "GET", &pattern], "()"),
            (&["COMMAND", "LIST", "FILTERBY", "PATTERN", &pattern], "()"),
            (
                &[
                    "ACL",
                    "SETUSER",
                    "u",
                    "on",
                    ">pw",
                    "+@all",
                    &format!("~{pattern}"),
                    &format!("&{pattern}"),
                ],
                "OK",
            ),
        ]);
        let mut user = target.connect();
        assert_eq!(user.call(&["AUTH", "u", "pw"]), "OK");
        assert_eq!(user.call(&["GET", "key"]), "NOPERM No permissions to access a key");
        assert_eq!(
            user.call(&["PUBLISH", "c", "m"]),
            "NOPERM No permissions to access a channel"
        );
        let mut subscriber = target.connect();
        subscriber.send(&["PSUBSCRIBE", &pattern]);
        assert!(subscriber.answer().starts_with("(psubscribe"));
        target.answers(&[(&["PUBLISH", "channel", "m"], "0")]);
        let key = "a".repeat(2000);
        target.answers(&[
            (&["SET", &key, "1"], "OK"),
            (&["KEYS", &pattern], "()"),
            (&["KEYS", &"a*".repeat(900)], &format!("({key})")),
            // A pattern that nests deeper matches nothing, as in Valkey.
            (&["KEYS", &"a*".repeat(1900)], "()"),
        ]);
    });
}

/// Patterns of Lua recurse in the native stack of the thread that runs the script.
#[test]
fn cve_2024_31228_patterns_of_lua_do_not_use_up_the_stack() {
    let mut target = Target::start(&[]);
    let complex = failed("pattern too complex");
    target.answers(&[
        (
            &[
                "EVAL",
                "return string.find(string.rep('a', 200000), string.rep('a?', 200000) .. 'b')",
                "0",
            ],
            &complex,
        ),
        (
            &[
                "EVAL",
                "return string.match(string.rep('x', 300000), string.rep('(x', 33))",
                "0",
            ],
            &failed("too many captures"),
        ),
        (
            &["EVAL", "return string.match('x', '[')", "0"],
            &failed("malformed pattern (missing ']')"),
        ),
        (
            &["EVAL", "return string.match('x', '%')", "0"],
            &failed("malformed pattern (ends with '%')"),
        ),
        (
            &["EVAL", "return string.match('x', '%f')", "0"],
            &failed("missing '[' after '%f' in pattern"),
        ),
        (
            &["EVAL", "return string.match('x', '%1')", "0"],
            &failed("invalid capture index"),
        ),
        (
            &["EVAL", "return string.gsub('x', 'x', '%9')", "0"],
            &failed("invalid capture index"),
        ),
    ]);
    target.serves_within(400 << 20);
}
