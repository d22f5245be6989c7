//! The subjects of generated sequences: for each type of value, its commands and the commands that create initial data.

use super::exceptions::Exceptions;
use super::leeway::AllowedDifference;

/// Configuration parameters with their values.
pub type Parameters = &'static [(&'static str, &'static str)];

/// The subject of a sequence.
#[derive(Debug)]
pub struct Theme {
    /// The name, for `--filter`.
    pub name: &'static str,
    /// The ACL category whose commands it uses; empty for none.
    pub category: &'static str,
    /// Additional commands. A repeated name makes the command more frequent.
    pub extra_commands: &'static [&'static str],
    /// Commands sent first, in three of four sequences.
    pub initial_commands: &'static [&'static str],
    /// Parameters that are always set.
    pub fixed_parameters: Parameters,
    /// Groups of parameters. In every second sequence, one group is set: small limits make small collections change
    /// encodings.
    pub parameters: &'static [Parameters],
}

/// The themes other than strings. The commands for strings are in the [`grammar`](super::grammar).
pub const THEMES: &[Theme] = &[
    Theme {
        name: "hash",
        category: "hash",
        extra_commands: &[],
        initial_commands: &["HSET k1 a 1 b 2 c three d 4.5", "HSET k2 f v a w"],
        fixed_parameters: &[],
        parameters: &[
            &[("hash-max-listpack-entries", "3")],
            &[("hash-max-listpack-value", "4")],
        ],
    },
    Theme {
        name: "list",
        category: "list",
        extra_commands: &[],
        initial_commands: &["RPUSH k1 a b c 1 2 3 a", "RPUSH k2 x a 100"],
        fixed_parameters: &[],
        parameters: &[
            &[("list-max-listpack-size", "3")],
            &[("list-max-listpack-size", "1")],
            &[("list-compress-depth", "1")],
        ],
    },
    Theme {
        name: "set",
        category: "set",
        extra_commands: &[],
        initial_commands: &["SADD k1 a b c 1 2", "SADD k2 1 2 3", "SADD k3 c d e f"],
        fixed_parameters: &[],
        parameters: &[
            // If the limit for integers were smaller than the limit for other elements, the encoding would reveal the
            // order in which the elements were added.
            &[("set-max-intset-entries", "2"), ("set-max-listpack-entries", "2")],
            &[("set-max-listpack-entries", "3")],
            &[("set-max-listpack-value", "4")],
        ],
    },
    Theme {
        name: "sorted_set",
        category: "sortedset",
        extra_commands: &[],
        initial_commands: &["ZADD k1 1 a 2 b 2 c 3 d", "ZADD k2 0 a 0 b 0 c 0 f", "SADD k3 a c 1"],
        fixed_parameters: &[],
        parameters: &[
            &[("zset-max-listpack-entries", "3")],
            &[("zset-max-listpack-value", "4")],
        ],
    },
    Theme {
        name: "stream",
        category: "stream",
        extra_commands: &["xadd", "xadd", "xgroup|create", "xreadgroup", "xreadgroup"],
        initial_commands: &[
            "XADD k1 1-1 a 1 b 2",
            "XADD k1 1-2 a 1 c 2",
            "XGROUP CREATE k1 g1 0",
            "XGROUP CREATE k2 g1 0 MKSTREAM",
            "XADD k2 2-0 f v",
            "XREADGROUP GROUP g1 c1 COUNT 1 STREAMS k1 k2 > >",
        ],
        fixed_parameters: &[],
        parameters: &[&[("stream-node-max-entries", "3")], &[("stream-node-max-bytes", "40")]],
    },
    Theme {
        name: "geo",
        category: "geo",
        extra_commands: &["zrange", "zrem"],
        initial_commands: &["GEOADD k1 13.361389 38.115556 Palermo 15.087269 37.502669 Catania 10.75 59.91 Oslo"],
        fixed_parameters: &[],
        parameters: &[&[("zset-max-listpack-entries", "3")]],
    },
    Theme {
        name: "hyperloglog",
        category: "hyperloglog",
        extra_commands: &["pfadd", "pfadd"],
        initial_commands: &[],
        fixed_parameters: &[],
        parameters: &[&[("hll-sparse-max-bytes", "30")]],
    },
    Theme {
        name: "sort",
        category: "",
        extra_commands: &[
            "sort", "sort", "sort", "sort", "sort_ro", "sort_ro", "rpush", "sadd", "zadd",
        ],
        initial_commands: &[
            "MSET w_1 3 w_2 1 w_3 2 w_10 2 w_a 5 w_b x w_-4 0",
            "HSET h_1 f 5",
            "HSET h_2 f 1",
            "HSET h_3 g 1",
            "RPUSH k1 3 1 2 10 1",
            "SADD k2 1 2 3 10",
            "ZADD k3 5 1 4 2 3 3",
        ],
        // Sorting a small sorted set changes its encoding in Valkey, although it only reads the set.
        fixed_parameters: &[("zset-max-listpack-entries", "0")],
        parameters: &[&[("set-max-intset-entries", "2")]],
    },
    Theme {
        name: "acl",
        category: "",
        extra_commands: &["acl|setuser", "acl|dryrun"],
        initial_commands: &[
            "ACL SETUSER u1 reset on nopass +@all -@dangerous ~k* &c* db=0,1",
            "ACL SETUSER u2 reset on >p1 +@read +@connection %R~* (+set %W~k1)",
            "SET k1 v",
            "RPUSH k2 3 1 2",
        ],
        fixed_parameters: &[],
        parameters: &[&[("acl-pubsub-default", "allchannels")], &[("requirepass", "")]],
    },
];

/// Commands that are not generated, with the reason.
pub const EXCLUDED_COMMANDS: &[(&str, &str)] = &[
    ("sort", "has a theme of its own"),
    ("sort_ro", "has a theme of its own"),
    ("pfselftest", "is about the server's own code"),
];

/// Returns `true` if Valkey's reply is an accident of its implementation that no client can want, and that is accepted
/// as a difference. Valkey truncates the index of LSET to 32 bits, so that the largest number means the last element.
/// Its commands for fields that expire also search for FIELDS at the position of the key.
pub fn is_valkey_accident(command: &[Vec<u8>], exceptions: &Exceptions) -> bool {
    let is = |place: usize, word: &[u8]| command.get(place).is_some_and(|found| found.eq_ignore_ascii_case(word));
    let beyond_32_bits = || {
        let index = command
            .get(2)
            .and_then(|index| std::str::from_utf8(index).ok()?.parse::<i64>().ok());
        index.is_some_and(|index| i32::try_from(index).is_err())
    };
    let searches_fields = || {
        let name = command
            .first()
            .map(|name| name.to_ascii_lowercase())
            .unwrap_or_default();
        FIELD_EXPIRY_COMMANDS.iter().any(|known| known.as_bytes() == name)
    };
    is(0, b"LSET") && beyond_32_bits() && exceptions.accepts_generated("index beyond 32 bits")
        || is(1, b"FIELDS") && searches_fields() && exceptions.accepts_generated("key called FIELDS")
}

/// The commands that search for the word FIELDS.
const FIELD_EXPIRY_COMMANDS: &[&str] = &[
    "hexpire",
    "hexpireat",
    "hexpiretime",
    "hgetdel",
    "hgetex",
    "hpersist",
    "hpexpire",
    "hpexpireat",
    "hpexpiretime",
    "hpttl",
    "hsetex",
    "httl",
];

/// The allowed differences in the replies of commands. Commands that are not listed allow none.
pub const LEEWAYS: &[(&str, AllowedDifference)] = &[
    ("hexpiretime", AllowedDifference::ExpirySeconds),
    ("hgetall", AllowedDifference::Pairs),
    ("hkeys", AllowedDifference::Elements),
    ("hpexpiretime", AllowedDifference::ExpiryMilliseconds),
    ("hpttl", AllowedDifference::Milliseconds),
    ("hrandfield", AllowedDifference::RandomDraw("HGETALL")),
    ("hscan", AllowedDifference::UnorderedScan),
    ("httl", AllowedDifference::Seconds),
    ("hvals", AllowedDifference::Elements),
    ("sdiff", AllowedDifference::Order),
    ("sinter", AllowedDifference::Order),
    ("smembers", AllowedDifference::Elements),
    ("sort", AllowedDifference::Sort),
    ("sort_ro", AllowedDifference::Sort),
    ("spop", AllowedDifference::RandomDraw("SMEMBERS")),
    ("srandmember", AllowedDifference::RandomDraw("SMEMBERS")),
    ("sscan", AllowedDifference::Scan),
    ("sunion", AllowedDifference::Order),
    ("xadd", AllowedDifference::EntryId),
    ("xinfo|consumers", AllowedDifference::StreamTimes),
    ("xinfo|stream", AllowedDifference::StreamTimes),
    ("xpending", AllowedDifference::IdleTime),
    ("zrandmember", AllowedDifference::RandomDraw("ZRANGE")),
    ("zlexcount", AllowedDifference::LexicographicRange),
    ("zrange", AllowedDifference::LexicographicRange),
    ("zrangebylex", AllowedDifference::LexicographicRange),
    ("zrangestore", AllowedDifference::LexicographicRange),
    ("zremrangebylex", AllowedDifference::LexicographicRange),
    ("zrevrangebylex", AllowedDifference::LexicographicRange),
    ("zscan", AllowedDifference::Scan),
];

/// Returns the allowed differences in the replies of a command.
pub fn leeway_of(command: &str) -> AllowedDifference {
    let known = LEEWAYS.iter().find(|(name, _)| *name == command);
    known.map_or(AllowedDifference::None, |(_, leeway)| *leeway)
}
