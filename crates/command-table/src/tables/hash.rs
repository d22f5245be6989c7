//! Metadata of the group *hash*. Hashes: fields with values, and fields that expire.

use crate::spec::flag::{DENYOOM, FAST, READONLY, WRITE};
use crate::spec::key_flag::{ACCESS, DELETE, INSERT, RO, RW, UPDATE};
use crate::spec::{
    CommandSpec, Group, block, command, double, integer, key, keys, one_of, pattern, string, token, unix_time,
};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("hdel", -3, Group::Hash, "2.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(N) for N fields")
        .summary("Deletes fields of a hash, and the hash with its last field.")
        .history(&[("2.4.0", "Takes more than one field.")])
        .args(&[key("key", 0), string("field").multiple()]),
    command("hexists", 3, Group::Hash, "2.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Tells whether a hash has a field.")
        .args(&[key("key", 0), string("field")]),
    command("hexpire", -6, Group::Hash, "9.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(N) for N fields")
        .summary("Sets the time to live of fields in seconds.")
        .args(&[
            key("key", 0),
            integer("seconds"),
            one_of(
                "condition",
                &[
                    token("nx", "NX"),
                    token("xx", "XX"),
                    token("gt", "GT"),
                    token("lt", "LT"),
                ],
            )
            .optional(),
            block("fields", &[integer("numfields"), string("field").multiple()]).with_token("FIELDS"),
        ]),
    command("hexpireat", -6, Group::Hash, "9.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(N) for N fields")
        .summary("Sets the Unix time in seconds at which fields expire.")
        .args(&[
            key("key", 0),
            integer("unix-time-seconds"),
            one_of(
                "condition",
                &[
                    token("nx", "NX"),
                    token("xx", "XX"),
                    token("gt", "GT"),
                    token("lt", "LT"),
                ],
            )
            .since("9.0.0")
            .optional(),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hexpiretime", -5, Group::Hash, "9.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N fields")
        .summary("Tells the Unix time in seconds at which fields expire.")
        .args(&[
            key("key", 0),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hget", 3, Group::Hash, "2.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Reads a field of a hash.")
        .args(&[key("key", 0), string("field")]),
    command("hgetall", 2, Group::Hash, "2.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output_order"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for a hash of N fields")
        .summary("Reads all fields of a hash with their values.")
        .args(&[key("key", 0)]),
    command("hgetdel", -5, Group::Hash, "9.1.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE])])
        .complexity("O(N) for N fields")
        .summary("Reads fields of a hash and deletes them.")
        .args(&[
            key("key", 0),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hgetex", -5, Group::Hash, "9.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(N) for N fields")
        .summary("Reads fields of a hash and sets or clears their expiry.")
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
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hincrby", 4, Group::Hash, "2.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Adds an amount to the integer in a field; an absent field counts as 0.")
        .args(&[key("key", 0), string("field"), integer("increment")]),
    command("hincrbyfloat", 4, Group::Hash, "2.6.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Adds an amount to the float in a field; an absent field counts as 0.")
        .args(&[key("key", 0), string("field"), double("increment")]),
    command("hkeys", 2, Group::Hash, "2.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output_order"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for a hash of N fields")
        .summary("Lists the fields of a hash.")
        .args(&[key("key", 0)]),
    command("hlen", 2, Group::Hash, "2.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Counts the fields of a hash.")
        .args(&[key("key", 0)]),
    command("hmget", -3, Group::Hash, "2.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N fields")
        .summary("Reads several fields of a hash.")
        .args(&[key("key", 0), string("field").multiple()]),
    command("hmset", -4, Group::Hash, "2.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(N) for N fields")
        .summary("Sets several fields of a hash.")
        .args(&[
            key("key", 0),
            block("data", &[string("field"), string("value")]).multiple(),
        ]),
    command("hpersist", -5, Group::Hash, "9.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(N) for N fields")
        .summary("Removes the expiry of fields.")
        .args(&[
            key("key", 0),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hpexpire", -6, Group::Hash, "9.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(N) for N fields")
        .summary("Sets the time to live of fields in milliseconds.")
        .args(&[
            key("key", 0),
            integer("milliseconds"),
            one_of(
                "condition",
                &[
                    token("nx", "NX"),
                    token("xx", "XX"),
                    token("gt", "GT"),
                    token("lt", "LT"),
                ],
            )
            .since("9.0.0")
            .optional(),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hpexpireat", -6, Group::Hash, "9.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(N) for N fields")
        .summary("Sets the Unix time in milliseconds at which fields expire.")
        .args(&[
            key("key", 0),
            integer("unix-time-milliseconds"),
            one_of(
                "condition",
                &[
                    token("nx", "NX"),
                    token("xx", "XX"),
                    token("gt", "GT"),
                    token("lt", "LT"),
                ],
            )
            .since("9.0.0")
            .optional(),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hpexpiretime", -5, Group::Hash, "9.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N fields")
        .summary("Tells the Unix time in milliseconds at which fields expire.")
        .args(&[
            key("key", 0),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hpttl", -5, Group::Hash, "9.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N fields")
        .summary("Tells the remaining time to live of fields in milliseconds.")
        .args(&[
            key("key", 0),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hrandfield", -2, Group::Hash, "6.2.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N fields returned")
        .summary("Picks fields of a hash at random.")
        .args(&[
            key("key", 0),
            block(
                "options",
                &[integer("count"), token("withvalues", "WITHVALUES").optional()],
            )
            .optional(),
        ]),
    command("hscan", -3, Group::Hash, "2.8.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1) a call, O(N) for a complete iteration over N elements")
        .summary("Visits the fields of a hash step by step.")
        .args(&[
            key("key", 0),
            integer("cursor"),
            pattern("pattern").with_token("MATCH").optional(),
            integer("count").with_token("COUNT").optional(),
            token("novalues", "NOVALUES").optional(),
        ]),
    command("hset", -4, Group::Hash, "2.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(N) for N fields")
        .summary("Sets fields of a hash, creating the hash when absent.")
        .history(&[("4.0.0", "Takes more than one field and value.")])
        .args(&[
            key("key", 0),
            block("data", &[string("field"), string("value")]).multiple(),
        ]),
    command("hsetex", -6, Group::Hash, "9.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(N) for N fields")
        .summary("Sets fields of a hash together with their expiry.")
        .args(&[
            key("key", 0),
            one_of("key-condition", &[token("nx", "NX"), token("xx", "XX")]).optional(),
            one_of("fields-condition", &[token("fnx", "FNX"), token("fxx", "FXX")]).optional(),
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
            block(
                "fields",
                &[
                    integer("numfields").with_key_spec(0),
                    block("data", &[string("field"), string("value")]).multiple(),
                ],
            )
            .with_token("FIELDS"),
        ]),
    command("hsetnx", 4, Group::Hash, "2.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(1)")
        .summary("Sets a field of a hash that does not exist yet.")
        .args(&[key("key", 0), string("field"), string("value")]),
    command("hstrlen", 3, Group::Hash, "3.2.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Measures the value of a field in bytes.")
        .args(&[key("key", 0), string("field")]),
    command("httl", -5, Group::Hash, "9.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N fields")
        .summary("Tells the remaining time to live of fields in seconds.")
        .args(&[
            key("key", 0),
            block(
                "fields",
                &[integer("numfields").with_key_spec(0), string("field").multiple()],
            )
            .with_token("FIELDS"),
        ]),
    command("hvals", 2, Group::Hash, "2.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output_order"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for a hash of N fields")
        .summary("Lists the values of a hash.")
        .args(&[key("key", 0)]),
];
