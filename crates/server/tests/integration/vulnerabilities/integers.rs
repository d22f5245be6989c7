//! Vulnerabilities by numbers that overflow, and by lengths that are larger than any memory.

use super::{Target, like_valkey};

const MAX: &str = "9223372036854775807";
const MIN: &str = "-9223372036854775808";
const RANGE: &str = "ERR value is out of range";
const LONG_RANGE: &str = "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
const BIT_OFFSET: &str = "ERR bit offset is not an integer or out of range";

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2021_29477_and_cve_2021_32625_lcs_refuses_a_matrix_beyond_the_limit() {
    let too_large = "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len";
    let mut target = like_valkey(
        &["--proto-max-bulk-len", "1048576"],
        &[
            (&["SETRANGE", "a", "1000000", "x"], "1000001"),
            (&["SETRANGE", "b", "999999", "x"], "1000000"),
            (&["LCS", "a", "b"], too_large),
            (&["LCS", "a", "a", "LEN"], too_large),
            (&["LCS", "a", "a", "IDX", "MINMATCHLEN", MAX], too_large),
            (&["LCS", "a", "a", "IDX", "MINMATCHLEN", MIN], too_large),
        ],
    );
    target.serves_within(200 << 20);
}

/// A set of many integers is copied and dumped whole, whatever the limits of encodings are.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2021_29478_and_cve_2021_32687_large_sets_of_integers_are_copied() {
    let fill = "for i = 1, 300000 do redis.call('sadd', 'set', i * 4294967296) end return redis.call('scard', 'set')";
    let mut target = like_valkey(
        &["--set-max-intset-entries", "1073741824"],
        &[
            (&["EVAL", fill, "1", "set"], "300000"),
            (&["COPY", "set", "copy"], "1"),
            (&["SCARD", "copy"], "300000"),
            (&["SINTERCARD", "2", "set", "copy"], "300000"),
            (
                &[
                    "EVAL",
                    "return redis.call('restore', 'again', 0, redis.call('dump', 'set')).ok",
                    "2",
                    "set",
                    "again",
                ],
                "OK",
            ),
            (&["SDIFFSTORE", "left", "again", "copy"], "0"),
        ],
    );
    target.serves_within(500 << 20);
}

/// Limits of encodings far beyond the defaults do not lead to one buffer that is too long for its lengths.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2021_32628_small_encodings_end_before_their_lengths_overflow() {
    let fill = "local long = string.rep('x', 1000000) for i = 1, 60 do \
                redis.call('hset', 'h', 'f' .. i, long) redis.call('zadd', 'z', i, long .. i) redis.call('rpush', 'l', long) end \
                return redis.call('hlen', 'h') + redis.call('zcard', 'z') + redis.call('llen', 'l')";
    let mut target = like_valkey(
        &[
            "--hash-max-listpack-entries",
            "4294967295",
            "--hash-max-listpack-value",
            "4294967295",
            "--zset-max-listpack-entries",
            "4294967295",
            "--zset-max-listpack-value",
            "4294967295",
            "--list-max-listpack-size",
            "2147483647",
        ],
        &[
            (&["EVAL", fill, "3", "h", "z", "l"], "180"),
            (&["HSTRLEN", "h", "f60"], "1000000"),
            (&["ZSCORE", "z", "none"], "-"),
            (&["ZCOUNT", "z", "-inf", "+inf"], "60"),
            (&["EVAL", "return #redis.call('lindex', 'l', -1)", "1", "l"], "1000000"),
            (
                &[
                    "EVAL",
                    "return redis.call('restore', 'h2', 0, redis.call('dump', 'h')).ok",
                    "2",
                    "h",
                    "h2",
                ],
                "OK",
            ),
            (&["HLEN", "h2"], "60"),
        ],
    );
    target.serves_within(1 << 30);
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2021_32627_a_stream_takes_long_fields() {
    let add = "local long = string.rep('x', 20000000) redis.call('xadd', 's', '1-1', 'f', long, long, 'v') \
               redis.call('xadd', 's', '1-2', 'f', 'v') return #redis.call('xrange', 's', '1-1', '1-1')[1][2][2]";
    let mut target = like_valkey(
        &[
            "--proto-max-bulk-len",
            "9223372036854775807",
            "--client-query-buffer-limit",
            "9223372036854775807",
        ],
        &[
            (&["EVAL", add, "1", "s"], "20000000"),
            (&["XLEN", "s"], "2"),
            (&["XDEL", "s", "1-1"], "1"),
            (&["XLEN", "s"], "1"),
        ],
    );
    target.serves_within(500 << 20);
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2021_32761_bit_offsets_do_not_overflow() {
    let mut target = like_valkey(
        &[],
        &[
            (&["SET", "s", "abc"], "OK"),
            (
                &["BITFIELD", "s", "SET", "u63", "#9223372036854775807", "1"],
                BIT_OFFSET,
            ),
            (&["BITFIELD", "s", "INCRBY", "i64", "#536870911", "1"], BIT_OFFSET),
            (&["BITFIELD", "s", "SET", "u8", "4294967296", "1"], BIT_OFFSET),
            (&["BITFIELD", "s", "SET", "i64", MAX, "1"], BIT_OFFSET),
            (&["BITFIELD", "s", "SET", "i64", "-1", "1"], BIT_OFFSET),
            (&["BITFIELD_RO", "s", "GET", "i64", "4294967231"], "(0)"),
            (&["SETBIT", "s", MAX, "1"], BIT_OFFSET),
            (&["SETBIT", "s", "4294967296", "1"], BIT_OFFSET),
            (&["GETBIT", "s", "4294967295"], "0"),
            (&["BITCOUNT", "s", MIN, MAX], "10"),
            (&["BITPOS", "s", "1", MIN, MAX, "BIT"], "1"),
            (&["STRLEN", "s"], "3"),
        ],
    );
    target.serves_within(200 << 20);
}

/// CVE-2021-21309 and CVE-2021-41099 need a limit of strings that was raised; CVE-2022-35977 does not.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2021_21309_and_cve_2021_41099_strings_end_at_the_limit() {
    let cases: &[super::Case<'_>] = &[
        (&["SET", "s", "abc"], "OK"),
        (&["SETRANGE", "s", MAX, "x"], TOO_LONG),
        (&["SETRANGE", "s", "4611686018427387903", "x"], TOO_LONG),
        (&["SETRANGE", "s", "-1", "x"], "ERR offset is out of range"),
        (&["GETRANGE", "s", MIN, MAX], "abc"),
    ];
    for limit in ["1048576", "536870912"] {
        like_valkey(&["--proto-max-bulk-len", limit], cases).serves_within(200 << 20);
    }
    // A request that announces a long argument takes no memory before the argument comes.
    let mut target = Target::start(&["--proto-max-bulk-len", MAX, "--client-query-buffer-limit", MAX]);
    let mut senders: Vec<_> = (0..100).map(|_| target.connect()).collect();
    for sender in &mut senders {
        use std::io::Write;
        let stream = sender.0.get_mut();
        stream
            .write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4611686018427387904\r\nstart")
            .expect("sends");
    }
    target.serves_within(200 << 20);
    let bulk = "ERR Protocol error: invalid bulk length";
    for length in ["9223372036854775808", "-2", "99999999999999999999999"] {
        use std::io::Write;
        let mut sender = target.connect();
        sender
            .0
            .get_mut()
            .write_all(format!("*1\r\n${length}\r\n").as_bytes())
            .expect("sends");
        assert_eq!(sender.answer(), bulk, "{length}");
    }
    target.serves();
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2022_35977_offsets_of_setrange_and_sort_do_not_overflow() {
    let mut target = like_valkey(
        &[],
        &[
            (&["SETRANGE", "s", "536870912", "x"], TOO_LONG),
            (&["SETRANGE", "s", MAX, "x"], TOO_LONG),
            (&["EXISTS", "s"], "0"),
            (&["RPUSH", "l", "3", "1", "2"], "3"),
            (&["SORT", "l", "LIMIT", MAX, MAX], "()"),
            (&["SORT", "l", "LIMIT", "1", MAX], "(2 3)"),
            (&["SORT", "l", "LIMIT", "-1", "-1"], "(1 2 3)"),
            (&["SORT", "l", "LIMIT", "2", MIN], "(3)"),
            (&["SORT_RO", "l", "LIMIT", MIN, MAX], "(1 2 3)"),
            (&["SORT", "l", "LIMIT", "1", MAX, "STORE", "d"], "2"),
            (&["LRANGE", "l", MIN, MAX], "(3 1 2)"),
            (&["LINDEX", "l", MIN], "-"),
            (&["LREM", "l", MIN, "9"], LONG_RANGE),
            (&["LPOS", "l", "1", "RANK", MIN], LONG_RANGE),
            (&["LPOP", "l", MAX], "(3 1 2)"),
        ],
    );
    target.serves_within(200 << 20);
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2023_22458_and_cve_2023_25155_counts_of_random_members_do_not_overflow() {
    let mut target = like_valkey(
        &[],
        &[
            (&["HSET", "h", "a", "1"], "1"),
            (&["ZADD", "z", "1", "a"], "1"),
            (&["SADD", "s", "a"], "1"),
            (&["HRANDFIELD", "h", MIN], LONG_RANGE),
            (&["HRANDFIELD", "h", "-4611686018427387904", "WITHVALUES"], RANGE),
            (&["HRANDFIELD", "h", "-9223372036854775807", "WITHVALUES"], RANGE),
            (&["HRANDFIELD", "h", "4611686018427387904", "WITHVALUES"], RANGE),
            (&["HRANDFIELD", "h", MAX], "(a)"),
            (&["ZRANDMEMBER", "z", MIN], LONG_RANGE),
            (&["ZRANDMEMBER", "z", "-4611686018427387904", "WITHSCORES"], RANGE),
            (&["ZRANDMEMBER", "z", "-9223372036854775807", "WITHSCORES"], RANGE),
            (&["ZRANDMEMBER", "z", MAX], "(a)"),
            (&["SRANDMEMBER", "s", MIN], LONG_RANGE),
            (&["SRANDMEMBER", "s", MAX], "(a)"),
            (&["SPOP", "s", "-1"], "ERR value is out of range, must be positive"),
            (&["SPOP", "s", MAX], "(a)"),
        ],
    );
    target.serves_within(200 << 20);
    // A count that is allowed and whose reply no client can take: the server does not build it beyond the limit.
    for words in [
        ["SRANDMEMBER", "s2", "-9223372036854775807"],
        ["HRANDFIELD", "h", "-9223372036854775807"],
        ["ZRANDMEMBER", "z", "-9223372036854775807"],
    ] {
        target.answers(&[(&["SADD", "s2", "a"], if words[1] == "s2" { "1" } else { "0" })]);
        let mut greedy = target.connect();
        greedy.send(&words);
        target.serves();
        drop(greedy);
        target.serves();
    }
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2023_28425_msetnx_takes_a_key_several_times() {
    like_valkey(
        &[],
        &[
            (&["MSETNX", "a", "1", "a", "2", "a", "3"], "1"),
            (&["GET", "a"], "3"),
            (&["MSETNX", "a", "1", "b", "2"], "0"),
            (&["EXISTS", "b"], "0"),
            (&["MSETNX", "a"], "ERR wrong number of arguments for 'msetnx' command"),
        ],
    );
}

/// A field that cannot be loaded again must not come into being.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2023_28856_hincrbyfloat_leaves_no_field_that_is_not_a_number() {
    like_valkey(
        &[],
        &[
            (&["HINCRBYFLOAT", "h", "f", "inf"], "ERR value is NaN or Infinity"),
            (&["HINCRBYFLOAT", "h", "f", "-inf"], "ERR value is NaN or Infinity"),
            (&["HINCRBYFLOAT", "h", "f", "nan"], "ERR value is not a valid float"),
            (&["HINCRBYFLOAT", "h", "f", "1e5000"], "ERR value is not a valid float"),
            (&["EXISTS", "h"], "0"),
            (&["HSET", "h", "f", "1"], "1"),
            (&["HINCRBYFLOAT", "h", "f", "inf"], "ERR value is NaN or Infinity"),
            (&["HGETALL", "h"], "(f 1)"),
            (
                &["INCRBYFLOAT", "s", "inf"],
                "ERR increment would produce NaN or Infinity",
            ),
            (&["EXISTS", "s"], "0"),
            (&["ZADD", "z", "inf", "m"], "1"),
            (
                &["ZINCRBY", "z", "-inf", "m"],
                "ERR resulting score is not a number (NaN)",
            ),
            (&["ZSCORE", "z", "m"], "inf"),
        ],
    );
}

/// Keys are extracted from arguments that are there.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2023_36824_key_extraction_stays_within_the_arguments() {
    let count = "ERR Invalid number of arguments specified for command";
    let invalid = "ERR Invalid arguments specified for command";
    let mut target = like_valkey(
        &[],
        &[
            (&["COMMAND", "GETKEYS", "EVAL", "x", "2147483647", "a"], "()"),
            (&["COMMAND", "GETKEYS", "EVAL", "x", "-1", "a"], "()"),
            (&["COMMAND", "GETKEYS", "EVAL"], count),
            (&["COMMAND", "GETKEYS", "EVAL", "x"], count),
            (&["COMMAND", "GETKEYS", "ZUNION", MAX, "a"], invalid),
            (&["COMMAND", "GETKEYS", "XREAD", "STREAMS"], count),
            (&["COMMAND", "GETKEYS", "XREAD", "STREAMS", "a"], count),
            (&["COMMAND", "GETKEYS", "MSET", "a"], count),
            (&["COMMAND", "GETKEYS", "SORT", "a", "STORE"], "(a)"),
            (&["COMMAND", "GETKEYS", "LMPOP", "3", "a", "LEFT"], invalid),
            (&["COMMAND", "GETKEYS", "MSETEX", "3", "a", "1"], invalid),
            (&["COMMAND", "GETKEYSANDFLAGS", "EVALSHA", "x", "9999999999", "a"], "()"),
            (
                &["COMMAND", "GETKEYS", "GEORADIUS", "k", "1", "1", "1", "m", "STORE"],
                "(k)",
            ),
            (&["ACL", "SETUSER", "u", "on", "nopass", "+@all", "~a"], "OK"),
            (
                &["ACL", "DRYRUN", "u", "EVAL", "x"],
                "ERR wrong number of arguments for 'eval' command",
            ),
            (&["ACL", "DRYRUN", "u", "ZUNION", "9", "a"], "OK"),
        ],
    );
    target.serves();
}

/// CVE-2016-8339: the limits of output buffers come in groups of four, for classes that exist.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2016_8339_limits_of_output_buffers_are_checked() {
    let failed = |reason: &str| {
        format!("ERR CONFIG SET failed (possibly related to argument 'client-output-buffer-limit') - {reason}")
    };
    let count = failed("Wrong number of arguments in buffer limit configuration.");
    let class = failed("Invalid client class specified in buffer limit configuration.");
    let (many, long) = ("slave 0 0 0 ".repeat(100), "x".repeat(5000));
    let set = |value| ["CONFIG", "SET", "client-output-buffer-limit", value];
    like_valkey(
        &[],
        &[
            (&set("normal 0 0 0 normal 0 0"), &count),
            (&set("master 0 0 0"), &class),
            (&set(&many), &count),
            (&set(&long), &count),
            (
                &["CONFIG", "GET", "client-output-buffer-limit"],
                "(client-output-buffer-limit normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60)",
            ),
        ],
    );
}
