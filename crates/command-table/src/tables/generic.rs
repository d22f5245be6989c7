//! Metadata of the group *generic*. Keys of any type: expiry, names, deletion, iteration, serialization.

use crate::spec::SpecialKeys;
use crate::spec::flag::{BLOCKING, DENYOOM, FAST, LOADING, READONLY, STALE, TOUCHES_ARBITRARY_KEYS, WRITE};
use crate::spec::key_flag::{ACCESS, DELETE, INCOMPLETE, INSERT, OW, RM, RO, RW, UPDATE};
use crate::spec::{
    CommandSpec, Group, block, category, command, integer, key, keys, keys_after, one_of, pattern, string, token,
    unix_time, unknown_keys,
};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("copy", -3, Group::Generic, "6.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RO, ACCESS]), keys(2, &[OW, UPDATE])])
        .complexity("O(N) at worst for a collection of N elements, O(1) for a string")
        .summary("Duplicates the value of a key under another one.")
        .args(&[
            key("source", 0),
            key("destination", 1),
            integer("destination-db").with_token("DB").optional(),
            token("replace", "REPLACE").optional(),
        ]),
    command("del", -2, Group::Generic, "1.0.0")
        .flags(&[WRITE])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[keys(1, &[RM, DELETE]).with_range(-1, 1)])
        .complexity("O(N) for N keys, plus O(M) for each collection of M elements")
        .summary("Deletes keys.")
        .args(&[key("key", 0).multiple()]),
    command("dump", 2, Group::Generic, "2.6.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1) to find the key and O(N*M) to serialize N parts of size M")
        .summary("Serializes the value at a key in a form that RESTORE accepts.")
        .args(&[key("key", 0)]),
    command("exists", -2, Group::Generic, "1.0.0")
        .flags(&[READONLY, FAST])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[keys(1, &[RO]).with_range(-1, 1)])
        .complexity("O(N) for N keys")
        .summary("Counts how many of the given keys exist.")
        .history(&[("3.0.3", "Takes more than one key.")])
        .args(&[key("key", 0).multiple()]),
    command("expire", -3, Group::Generic, "1.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(1)")
        .summary("Sets a key's time to live in seconds.")
        .history(&[("7.0.0", "Conditions `NX`, `XX`, `GT`, `LT`.")])
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
            .since("7.0.0")
            .optional(),
        ]),
    command("expireat", -3, Group::Generic, "1.2.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(1)")
        .summary("Sets the Unix time in seconds at which a key expires.")
        .history(&[("7.0.0", "Conditions `NX`, `XX`, `GT`, `LT`.")])
        .args(&[
            key("key", 0),
            unix_time("unix-time-seconds"),
            one_of(
                "condition",
                &[
                    token("nx", "NX"),
                    token("xx", "XX"),
                    token("gt", "GT"),
                    token("lt", "LT"),
                ],
            )
            .since("7.0.0")
            .optional(),
        ]),
    command("expiretime", 2, Group::Generic, "7.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Tells the Unix time in seconds at which a key expires.")
        .args(&[key("key", 0)]),
    command("keys", 2, Group::Generic, "1.0.0")
        .flags(&[READONLY])
        .categories(&[category::DANGEROUS])
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"])
        .complexity("O(N) for N keys in the database, with keys and pattern of bounded length")
        .summary("Lists the keys whose names match a pattern.")
        .args(&[pattern("pattern")]),
    command("migrate", -6, Group::Generic, "2.6.0")
        .flags(&[WRITE])
        .categories(&[category::DANGEROUS])
        .tips(&["nondeterministic_output"])
        .keys(&[
            keys(3, &[RW, ACCESS, DELETE]),
            keys_after("KEYS", -2, &[RW, ACCESS, DELETE, INCOMPLETE]).with_range(-1, 1),
        ])
        .special_keys(SpecialKeys::Migrate)
        .complexity("DUMP and DEL here, RESTORE there, and O(N) to transfer N bytes")
        .summary("Moves keys to another server in one atomic step.")
        .history(&[
            ("3.0.0", "Options `COPY` and `REPLACE`."),
            ("3.0.6", "Option `KEYS`."),
            ("4.0.7", "Option `AUTH`."),
            ("6.0.0", "Option `AUTH2`."),
        ])
        .args(&[
            string("host"),
            integer("port"),
            one_of("key-selector", &[key("key", 0), token("empty-string", "")]),
            integer("destination-db"),
            integer("timeout"),
            token("copy", "COPY").since("3.0.0").optional(),
            token("replace", "REPLACE").since("3.0.0").optional(),
            one_of(
                "authentication",
                &[
                    string("auth")
                        .with_token("AUTH")
                        .with_display_text("password")
                        .since("4.0.7"),
                    block("auth2", &[string("username"), string("password")])
                        .with_token("AUTH2")
                        .since("6.0.0"),
                ],
            )
            .optional(),
            key("keys", 1)
                .with_token("KEYS")
                .with_display_text("key")
                .since("3.0.6")
                .optional()
                .multiple(),
        ]),
    command("move", 3, Group::Generic, "1.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Carries a key over to another database.")
        .args(&[key("key", 0), integer("db")]),
    command("object", -2, Group::Generic, "2.2.3")
        .categories_without_group(&[])
        .complexity("Depends on the subcommand")
        .summary("Groups the commands that look into how a value is stored.")
        .subcommands(OBJECT_SUBCOMMANDS),
    command("persist", 2, Group::Generic, "2.2.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(1)")
        .summary("Makes a key stay for good, dropping its expiry.")
        .args(&[key("key", 0)]),
    command("pexpire", -3, Group::Generic, "2.6.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(1)")
        .summary("Sets a key's time to live in milliseconds.")
        .history(&[("7.0.0", "Conditions `NX`, `XX`, `GT`, `LT`.")])
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
            .since("7.0.0")
            .optional(),
        ]),
    command("pexpireat", -3, Group::Generic, "2.6.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(1)")
        .summary("Sets the Unix time in milliseconds at which a key expires.")
        .history(&[("7.0.0", "Conditions `NX`, `XX`, `GT`, `LT`.")])
        .args(&[
            key("key", 0),
            unix_time("unix-time-milliseconds"),
            one_of(
                "condition",
                &[
                    token("nx", "NX"),
                    token("xx", "XX"),
                    token("gt", "GT"),
                    token("lt", "LT"),
                ],
            )
            .since("7.0.0")
            .optional(),
        ]),
    command("pexpiretime", 2, Group::Generic, "7.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Tells the Unix time in milliseconds at which a key expires.")
        .args(&[key("key", 0)]),
    command("pttl", 2, Group::Generic, "2.6.0")
        .flags(&[READONLY, FAST])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Tells a key's remaining time to live in milliseconds.")
        .history(&[("2.8.0", "Replies -2 if the key does not exist.")])
        .args(&[key("key", 0)]),
    command("randomkey", 1, Group::Generic, "1.0.0")
        .flags(&[READONLY, TOUCHES_ARBITRARY_KEYS])
        .tips(&[
            "request_policy:all_shards",
            "response_policy:special",
            "nondeterministic_output",
        ])
        .complexity("O(1)")
        .summary("Picks a key of the database at random."),
    command("rename", 3, Group::Generic, "1.0.0")
        .flags(&[WRITE])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]), keys(2, &[OW, UPDATE])])
        .complexity("O(1)")
        .summary("Gives a key a new name, replacing whatever has that name.")
        .args(&[key("key", 0), key("newkey", 1)]),
    command("renamenx", 3, Group::Generic, "1.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]), keys(2, &[OW, INSERT])])
        .complexity("O(1)")
        .summary("Gives a key a new name unless that name is taken.")
        .history(&[("3.2.0", "Equal names are no error.")])
        .args(&[key("key", 0), key("newkey", 1)]),
    command("restore", -4, Group::Generic, "2.6.0")
        .flags(&[WRITE, DENYOOM])
        .categories(&[category::DANGEROUS])
        .keys(&[keys(1, &[OW, UPDATE])])
        .complexity("O(1) and O(N*M) for N parts of size M; sorted sets O(N*M*log(N))")
        .summary("Creates a key from a value that DUMP serialized.")
        .history(&[
            ("3.0.0", "Option `REPLACE`."),
            ("5.0.0", "Option `ABSTTL`."),
            ("5.0.0", "Options `IDLETIME` and `FREQ`."),
        ])
        .args(&[
            key("key", 0),
            integer("ttl"),
            string("serialized-value"),
            token("replace", "REPLACE").since("3.0.0").optional(),
            token("absttl", "ABSTTL").since("5.0.0").optional(),
            integer("seconds").with_token("IDLETIME").since("5.0.0").optional(),
            integer("frequency").with_token("FREQ").since("5.0.0").optional(),
        ]),
    command("scan", -2, Group::Generic, "2.8.0")
        .flags(&[READONLY, TOUCHES_ARBITRARY_KEYS])
        .tips(&[
            "nondeterministic_output",
            "request_policy:special",
            "response_policy:special",
        ])
        .complexity("O(1) a call, O(N) for a complete iteration over N elements")
        .summary("Visits the keys of the database step by step.")
        .history(&[("6.0.0", "Option `TYPE`.")])
        .args(&[
            integer("cursor"),
            pattern("pattern").with_token("MATCH").optional(),
            integer("count").with_token("COUNT").optional(),
            string("type").with_token("TYPE").since("6.0.0").optional(),
        ]),
    command("sort", -2, Group::Generic, "1.0.0")
        .flags(&[WRITE, DENYOOM])
        .categories_without_group(&[category::DANGEROUS, category::LIST, category::SET, category::SORTEDSET])
        .keys(&[
            keys(1, &[RO, ACCESS]),
            unknown_keys(&[RO, ACCESS]).notes("Stands for BY and GET, whose keys come from the sorted elements."),
            unknown_keys(&[OW, UPDATE]).notes("Stands for STORE, which may be anywhere among the options."),
        ])
        .special_keys(SpecialKeys::Sort)
        .complexity("O(N+M*log(M)) for M results out of N elements; O(N) without sorting")
        .summary("Sorts a list, set or sorted set, and stores the outcome if asked to.")
        .args(&[
            key("key", 0),
            pattern("by-pattern")
                .with_token("BY")
                .with_display_text("pattern")
                .with_key_spec(1)
                .optional(),
            block("limit", &[integer("offset"), integer("count")])
                .with_token("LIMIT")
                .optional(),
            pattern("get-pattern")
                .with_token("GET")
                .with_display_text("pattern")
                .with_key_spec(1)
                .optional()
                .multiple()
                .multiple_token(),
            one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
            token("sorting", "ALPHA").optional(),
            key("destination", 2).with_token("STORE").optional(),
        ]),
    command("sort_ro", -2, Group::Generic, "7.0.0")
        .flags(&[READONLY])
        .categories_without_group(&[category::DANGEROUS, category::LIST, category::SET, category::SORTEDSET])
        .keys(&[
            keys(1, &[RO, ACCESS]),
            unknown_keys(&[RO, ACCESS]).notes("Stands for BY and GET, whose keys come from the sorted elements."),
        ])
        .special_keys(SpecialKeys::SortReadOnly)
        .complexity("O(N+M*log(M)) for M results out of N elements; O(N) without sorting")
        .summary("Sorts the elements of a list, set or sorted set without storing anything.")
        .args(&[
            key("key", 0),
            pattern("by-pattern")
                .with_token("BY")
                .with_display_text("pattern")
                .with_key_spec(1)
                .optional(),
            block("limit", &[integer("offset"), integer("count")])
                .with_token("LIMIT")
                .optional(),
            pattern("get-pattern")
                .with_token("GET")
                .with_display_text("pattern")
                .with_key_spec(1)
                .optional()
                .multiple()
                .multiple_token(),
            one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
            token("sorting", "ALPHA").optional(),
        ]),
    command("touch", -2, Group::Generic, "3.2.1")
        .flags(&[READONLY, FAST])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[keys(1, &[RO]).with_range(-1, 1)])
        .complexity("O(N) for N keys")
        .summary("Counts which of the given keys exist and marks them as just accessed.")
        .args(&[key("key", 0).multiple()]),
    command("ttl", 2, Group::Generic, "1.0.0")
        .flags(&[READONLY, FAST])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Tells a key's remaining time to live in seconds.")
        .history(&[("2.8.0", "Replies -2 if the key does not exist.")])
        .args(&[key("key", 0)]),
    command("type", 2, Group::Generic, "1.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Names the type of the value at a key.")
        .args(&[key("key", 0)]),
    command("unlink", -2, Group::Generic, "4.0.0")
        .flags(&[WRITE, FAST])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .keys(&[keys(1, &[RM, DELETE]).with_range(-1, 1)])
        .complexity("O(1) for each key; its N allocations are freed in O(N) on another thread")
        .summary("Deletes keys and frees their memory in the background.")
        .args(&[key("key", 0).multiple()]),
    command("wait", 3, Group::Generic, "3.0.0")
        .flags(&[BLOCKING])
        .categories_without_group(&[category::CONNECTION])
        .tips(&["request_policy:all_shards", "response_policy:agg_min"])
        .complexity("O(1)")
        .summary("Waits until replicas have received the writes this connection has made.")
        .args(&[integer("numreplicas"), integer("timeout")]),
    command("waitaof", 4, Group::Generic, "7.2.0")
        .flags(&[BLOCKING])
        .categories_without_group(&[category::CONNECTION])
        .tips(&["request_policy:all_shards", "response_policy:agg_min"])
        .complexity("O(1)")
        .summary("Waits until the writes of this connection are in append-only files.")
        .args(&[integer("numlocal"), integer("numreplicas"), integer("timeout")]),
];

/// The subcommands of OBJECT.
const OBJECT_SUBCOMMANDS: &[CommandSpec] = &[
    command("encoding", 3, Group::Generic, "2.2.3")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(2, &[RO])])
        .complexity("O(1)")
        .summary("Names the internal encoding of a value.")
        .args(&[key("key", 0)]),
    command("freq", 3, Group::Generic, "4.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(2, &[RO])])
        .complexity("O(1)")
        .summary("Tells the access frequency counter of a key.")
        .args(&[key("key", 0)]),
    command("help", 2, Group::Generic, "6.2.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("idletime", 3, Group::Generic, "2.2.3")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(2, &[RO])])
        .complexity("O(1)")
        .summary("Tells how many seconds ago a key was last accessed.")
        .args(&[key("key", 0)]),
    command("refcount", 3, Group::Generic, "2.2.3")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(2, &[RO])])
        .complexity("O(1)")
        .summary("Tells how many references to a value exist.")
        .args(&[key("key", 0)]),
];
