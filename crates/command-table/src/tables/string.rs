//! Metadata of the group *string*. Strings and the numbers in them.

use crate::spec::SpecialKeys;
use crate::spec::flag::{DENYOOM, FAST, READONLY, WRITE};
use crate::spec::key_flag::{ACCESS, DELETE, INSERT, OW, RM, RO, RW, UPDATE, VARIABLE_FLAGS};
use crate::spec::{CommandSpec, Group, block, command, double, integer, key, keys, one_of, string, token, unix_time};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("append", 3, Group::String, "2.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(1), amortized, for a short value")
        .summary("Appends bytes to the string at a key; an absent key counts as empty.")
        .args(&[key("key", 0), string("value")]),
    command("decr", 2, Group::String, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Subtracts one from the integer at a key; an absent key counts as 0.")
        .args(&[key("key", 0)]),
    command("decrby", 3, Group::String, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Subtracts an amount from the integer at a key; an absent key counts as 0.")
        .args(&[key("key", 0), integer("decrement")]),
    command("delifeq", 3, Group::String, "9.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RM, DELETE])])
        .complexity("O(1)")
        .summary("Deletes a key if it holds exactly the given string.")
        .args(&[key("key", 0), string("value")]),
    command("get", 2, Group::String, "1.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Reads the string at a key.")
        .args(&[key("key", 0)]),
    command("getdel", 2, Group::String, "6.2.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE])])
        .complexity("O(1)")
        .summary("Reads the string at a key and deletes the key.")
        .args(&[key("key", 0)]),
    command("getex", -2, Group::String, "6.2.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE]).notes("The expiry may change, hence RW and update.")])
        .complexity("O(1)")
        .summary("Reads the string at a key and sets or clears its expiry.")
        .args(&[
            key("key", 0),
            one_of(
                "expiration",
                &[
                    integer("seconds").with_token("EX"),
                    integer("milliseconds").with_token("PX"),
                    unix_time("unix-time-seconds").with_token("EXAT"),
                    unix_time("unix-time-milliseconds").with_token("PXAT"),
                    token("persist", "PERSIST"),
                ],
            )
            .optional(),
        ]),
    command("getrange", 4, Group::String, "2.4.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) to return N bytes")
        .summary("Reads the bytes of a string between two offsets.")
        .args(&[key("key", 0), integer("start"), integer("end")]),
    command("getset", 3, Group::String, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Stores a string at a key and returns the one it replaces.")
        .args(&[key("key", 0), string("value")]),
    command("incr", 2, Group::String, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Adds one to the integer at a key; an absent key counts as 0.")
        .args(&[key("key", 0)]),
    command("incrby", 3, Group::String, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Adds an amount to the integer at a key; an absent key counts as 0.")
        .args(&[key("key", 0), integer("increment")]),
    command("incrbyfloat", 3, Group::String, "2.6.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Adds an amount to the float at a key; an absent key counts as 0.")
        .args(&[key("key", 0), double("increment")]),
    command("lcs", -3, Group::String, "7.0.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS]).with_range(1, 1)])
        .complexity("O(N*M) for strings of N and M bytes")
        .summary("Computes the longest common subsequence of two strings.")
        .args(&[
            key("key1", 0),
            key("key2", 0),
            token("len", "LEN").optional(),
            token("idx", "IDX").optional(),
            integer("min-match-len").with_token("MINMATCHLEN").optional(),
            token("withmatchlen", "WITHMATCHLEN").optional(),
        ]),
    command("mget", -2, Group::String, "1.0.0")
        .flags(&[READONLY, FAST])
        .tips(&["request_policy:multi_shard"])
        .keys(&[keys(1, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N) for N keys")
        .summary("Reads the strings at several keys in one atomic step.")
        .args(&[key("key", 0).multiple()]),
    command("mset", -3, Group::String, "1.0.1")
        .flags(&[WRITE, DENYOOM])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .keys(&[keys(1, &[OW, UPDATE]).with_range(-1, 2)])
        .complexity("O(N) for N keys")
        .summary("Stores strings at several keys in one atomic step.")
        .args(&[block("data", &[key("key", 0), string("value")]).multiple()]),
    command("msetex", -4, Group::String, "9.1.0")
        .flags(&[WRITE, DENYOOM])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .keys(&[keys(1, &[OW, UPDATE]).with_key_count(0, 1, 2)])
        .complexity("O(N) for N keys")
        .summary("Stores strings at several keys at once, with a shared expiry if wanted.")
        .args(&[
            integer("numkeys"),
            block("data", &[key("key", 0), string("value")]).multiple(),
            one_of("condition", &[token("nx", "NX"), token("xx", "XX")]).optional(),
            one_of(
                "expiration",
                &[
                    integer("seconds").with_token("EX"),
                    integer("milliseconds").with_token("PX"),
                    unix_time("unix-time-seconds").with_token("EXAT"),
                    unix_time("unix-time-milliseconds").with_token("PXAT"),
                    token("keepttl", "KEEPTTL"),
                ],
            )
            .optional(),
        ]),
    command("msetnx", -3, Group::String, "1.0.1")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, INSERT]).with_range(-1, 2)])
        .complexity("O(N) for N keys")
        .summary("Stores strings at several keys, but only if none of the keys exists.")
        .args(&[block("data", &[key("key", 0), string("value")]).multiple()]),
    command("psetex", 4, Group::String, "2.6.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE])])
        .complexity("O(1)")
        .summary("Stores a string at a key together with a time to live in milliseconds.")
        .args(&[key("key", 0), integer("milliseconds"), string("value")]),
    command("set", -3, Group::String, "1.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE, VARIABLE_FLAGS])
            .notes("With `GET` the old value is read, hence RW and access.")])
        .special_keys(SpecialKeys::Set)
        .complexity("O(1)")
        .summary("Stores a string at a key, whatever it held before.")
        .history(&[
            ("2.6.12", "Options `EX`, `PX`, `NX`, `XX`."),
            ("6.0.0", "Option `KEEPTTL`."),
            ("6.2.0", "Options `GET`, `EXAT`, `PXAT`."),
            ("7.0.0", "`NX` and `GET` may be combined."),
            ("8.1.0", "Option `IFEQ`."),
        ])
        .args(&[
            key("key", 0),
            string("value"),
            one_of(
                "condition",
                &[
                    token("nx", "NX").since("2.6.12"),
                    token("xx", "XX").since("2.6.12"),
                    string("comparison-value")
                        .with_token("IFEQ")
                        .since("8.1.0")
                        .summary("Only if the key holds exactly this string."),
                ],
            )
            .optional(),
            token("get", "GET").since("6.2.0").optional(),
            one_of(
                "expiration",
                &[
                    integer("seconds").with_token("EX").since("2.6.12"),
                    integer("milliseconds").with_token("PX").since("2.6.12"),
                    unix_time("unix-time-seconds").with_token("EXAT").since("6.2.0"),
                    unix_time("unix-time-milliseconds").with_token("PXAT").since("6.2.0"),
                    token("keepttl", "KEEPTTL").since("6.0.0"),
                ],
            )
            .optional(),
        ]),
    command("setex", 4, Group::String, "2.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE])])
        .complexity("O(1)")
        .summary("Stores a string at a key together with a time to live in seconds.")
        .args(&[key("key", 0), integer("seconds"), string("value")]),
    command("setnx", 3, Group::String, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[OW, INSERT])])
        .complexity("O(1)")
        .summary("Stores a string at a key that does not exist yet.")
        .args(&[key("key", 0), string("value")]),
    command("setrange", 4, Group::String, "2.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(1) for a short value, O(M) to copy one of M bytes")
        .summary("Overwrites the string at a key from an offset on, padding with zero bytes.")
        .args(&[key("key", 0), integer("offset"), string("value")]),
    command("strlen", 2, Group::String, "2.2.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Tells the length of the string at a key in bytes.")
        .args(&[key("key", 0)]),
    command("substr", 4, Group::String, "1.0.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) to return N bytes")
        .summary("Reads the bytes of a string between two offsets.")
        .args(&[key("key", 0), integer("start"), integer("end")]),
];
