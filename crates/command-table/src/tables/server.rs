//! Metadata of the group *server*. The server itself: configuration, persistence, replication, users, diagnosis.

use crate::spec::flag::{
    ADMIN, ALL_DBS, ALLOW_BUSY, ASKING, DENYOOM, FAST, LOADING, NO_ASYNC_LOADING, NO_MULTI, NOSCRIPT, PROTECTED,
    READONLY, STALE, WRITE,
};
use crate::spec::key_flag::{OW, RO, UPDATE};
use crate::spec::{CommandSpec, Group, block, category, command, integer, key, keys, one_of, pattern, string, token};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("acl", -2, Group::Server, "6.0.0")
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about users and their permissions.")
        .subcommands(ACL_SUBCOMMANDS),
    command("bgrewriteaof", 1, Group::Server, "1.0.0")
        .flags(&[ADMIN, NOSCRIPT, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Rewrites the append-only file in the background."),
    command("bgsave", -1, Group::Server, "1.0.0")
        .flags(&[ADMIN, NOSCRIPT, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Saves a snapshot in the background.")
        .history(&[("3.2.2", "Option `SCHEDULE`."), ("8.1.0", "Option `CANCEL`.")])
        .args(&[one_of(
            "operation",
            &[
                token("schedule", "SCHEDULE").since("3.2.2"),
                token("cancel", "CANCEL").since("8.1.0"),
            ],
        )
        .optional()]),
    command("command", -1, Group::Server, "2.8.13")
        .flags(&[LOADING, STALE])
        .categories(&[category::CONNECTION])
        .tips(&["nondeterministic_output_order"])
        .complexity("O(N) for N commands")
        .summary("Describes all commands.")
        .subcommands(COMMAND_SUBCOMMANDS),
    command("commandlog", -2, Group::Server, "8.1.0")
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about the logs of costly commands.")
        .subcommands(COMMANDLOG_SUBCOMMANDS),
    command("config", -2, Group::Server, "2.0.0")
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about parameters.")
        .subcommands(CONFIG_SUBCOMMANDS),
    command("dbsize", 1, Group::Server, "1.0.0")
        .flags(&[READONLY, FAST])
        .categories(&[category::KEYSPACE])
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"])
        .complexity("O(1)")
        .summary("Counts the keys of the database."),
    command("debug", -2, Group::Server, "1.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE, PROTECTED])
        .complexity("Depends on the subcommand")
        .summary("Groups the commands for testing and debugging.")
        .internal(),
    command("failover", -1, Group::Server, "6.2.0")
        .flags(&[ADMIN, NOSCRIPT, STALE])
        .complexity("O(1)")
        .summary("Hands the role of primary over to a replica.")
        .args(&[
            block(
                "target",
                &[string("host"), integer("port"), token("force", "FORCE").optional()],
            )
            .with_token("TO")
            .optional(),
            token("abort", "ABORT").optional(),
            integer("milliseconds").with_token("TIMEOUT").optional(),
        ]),
    command("flushall", -1, Group::Server, "1.0.0")
        .flags(&[WRITE, ALL_DBS])
        .categories(&[category::DANGEROUS, category::KEYSPACE])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .complexity("O(N) for N keys in all databases")
        .summary("Deletes the keys of all databases.")
        .history(&[("4.0.0", "Mode `ASYNC`."), ("6.2.0", "Mode `SYNC`.")])
        .args(&[one_of(
            "flush-type",
            &[
                token("async", "ASYNC").since("4.0.0"),
                token("sync", "SYNC").since("6.2.0"),
            ],
        )
        .optional()]),
    command("flushdb", -1, Group::Server, "1.0.0")
        .flags(&[WRITE])
        .categories(&[category::DANGEROUS, category::KEYSPACE])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .complexity("O(N) for N keys in the database")
        .summary("Deletes the keys of the database.")
        .history(&[("4.0.0", "Mode `ASYNC`."), ("6.2.0", "Mode `SYNC`.")])
        .args(&[one_of(
            "flush-type",
            &[
                token("async", "ASYNC").since("4.0.0"),
                token("sync", "SYNC").since("6.2.0"),
            ],
        )
        .optional()]),
    command("info", -1, Group::Server, "1.0.0")
        .flags(&[LOADING, STALE])
        .categories(&[category::DANGEROUS])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ])
        .complexity("O(1)")
        .summary("Describes the server and its statistics.")
        .history(&[("7.0.0", "Takes more than one section.")])
        .args(&[string("section").optional().multiple()]),
    command("lastsave", 1, Group::Server, "1.0.0")
        .flags(&[LOADING, STALE, FAST])
        .categories(&[category::ADMIN, category::DANGEROUS])
        .tips(&["nondeterministic_output"])
        .complexity("O(1)")
        .summary("Tells when the last save succeeded, as a Unix time."),
    command("latency", -2, Group::Server, "2.8.13")
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about latency events.")
        .subcommands(LATENCY_SUBCOMMANDS),
    command("lolwut", -1, Group::Server, "5.0.0")
        .flags(&[READONLY, FAST])
        .summary("Draws a picture and tells the version.")
        .args(&[integer("version").with_token("VERSION").optional()]),
    command("memory", -2, Group::Server, "4.0.0")
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about memory.")
        .subcommands(MEMORY_SUBCOMMANDS),
    command("module", -2, Group::Server, "4.0.0")
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about modules.")
        .subcommands(MODULE_SUBCOMMANDS),
    command("monitor", 1, Group::Server, "1.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .summary("Shows every request that the server receives."),
    command("psync", -3, Group::Server, "2.8.0")
        .flags(&[ADMIN, NOSCRIPT, NO_ASYNC_LOADING, NO_MULTI])
        .summary("Starts or resumes replication; sent by replicas.")
        .args(&[string("replicationid"), integer("offset")]),
    command("replconf", -1, Group::Server, "3.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Negotiates replication; sent by replicas.")
        .internal(),
    command("replicaof", 3, Group::Server, "5.0.0")
        .flags(&[ADMIN, NOSCRIPT, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Makes this server a replica of another, or a primary again.")
        .args(&[one_of(
            "args",
            &[
                block("host-port", &[string("host"), integer("port")]),
                block("no-one", &[token("no", "NO"), token("one", "ONE")]),
            ],
        )]),
    command("restore-asking", -4, Group::Server, "3.0.0")
        .flags(&[WRITE, DENYOOM, ASKING])
        .categories(&[category::DANGEROUS, category::KEYSPACE])
        .keys(&[keys(1, &[OW, UPDATE])])
        .complexity("O(1) and O(N*M) for N parts of size M; sorted sets O(N*M*log(N))")
        .summary("Creates a key in a slot that is being imported here.")
        .history(&[
            ("3.0.0", "Option `REPLACE`."),
            ("5.0.0", "Option `ABSTTL`."),
            ("5.0.0", "Options `IDLETIME` and `FREQ`."),
        ])
        .internal()
        .args(&[
            key("key", 0),
            integer("ttl"),
            string("serialized-value"),
            token("replace", "REPLACE").since("3.0.0").optional(),
            token("absttl", "ABSTTL").since("5.0.0").optional(),
            integer("seconds").with_token("IDLETIME").since("5.0.0").optional(),
            integer("frequency").with_token("FREQ").since("5.0.0").optional(),
        ]),
    command("role", 1, Group::Server, "2.8.12")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST])
        .categories(&[category::ADMIN, category::DANGEROUS])
        .complexity("O(1)")
        .summary("Tells the role in replication."),
    command("save", 1, Group::Server, "1.0.0")
        .flags(&[ADMIN, NOSCRIPT, NO_ASYNC_LOADING, NO_MULTI])
        .complexity("O(N) for N keys in all databases")
        .summary("Saves a snapshot, holding up everything else."),
    command("shutdown", -1, Group::Server, "1.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE, NO_MULTI, ALLOW_BUSY])
        .complexity("O(N) to save N keys, O(1) without saving")
        .summary("Saves if configured to, and ends the server.")
        .history(&[
            ("7.0.0", "Options `NOW`, `FORCE`, `ABORT`."),
            ("9.0.0", "Options `SAFE` and `FAILOVER`."),
        ])
        .args(&[one_of(
            "abort-selector",
            &[
                block(
                    "save-selector-block",
                    &[
                        one_of("save-selector", &[token("nosave", "NOSAVE"), token("save", "SAVE")]).optional(),
                        token("now", "NOW").since("7.0.0").optional(),
                        token("force", "FORCE").since("7.0.0").optional(),
                        token("safe", "SAFE").since("9.0.0").optional(),
                        token("failover", "FAILOVER").since("9.0.0").optional(),
                    ],
                ),
                token("abort", "ABORT").since("7.0.0"),
            ],
        )
        .optional()]),
    command("slaveof", 3, Group::Server, "1.0.0")
        .flags(&[ADMIN, NOSCRIPT, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Makes this server a replica of another, or a primary again.")
        .deprecated("5.0.0", "`REPLICAOF`")
        .args(&[one_of(
            "args",
            &[
                block("host-port", &[string("host"), integer("port")]),
                block("no-one", &[token("no", "NO"), token("one", "ONE")]),
            ],
        )]),
    command("slowlog", -2, Group::Server, "2.2.12")
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about the log of slow commands.")
        .subcommands(SLOWLOG_SUBCOMMANDS),
    command("swapdb", 3, Group::Server, "4.0.0")
        .flags(&[WRITE, FAST])
        .categories(&[category::DANGEROUS, category::KEYSPACE])
        .complexity("O(N) for N clients that watch or wait for keys of the two databases")
        .summary("Exchanges the contents of two databases.")
        .args(&[integer("index1"), integer("index2")]),
    command("sync", 1, Group::Server, "1.0.0")
        .flags(&[ADMIN, NOSCRIPT, NO_ASYNC_LOADING, NO_MULTI])
        .summary("Starts replication with a full copy; sent by replicas."),
    command("time", 1, Group::Server, "2.6.0")
        .flags(&[LOADING, STALE, FAST])
        .tips(&["nondeterministic_output"])
        .complexity("O(1)")
        .summary("Tells the time of the server."),
];

/// The subcommands of ACL.
const ACL_SUBCOMMANDS: &[CommandSpec] = &[
    command("cat", -2, Group::Server, "6.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE])
        .complexity("O(1), the categories and commands being fixed")
        .summary("Lists the categories, or the commands in one.")
        .args(&[string("category").optional()]),
    command("deluser", -3, Group::Server, "6.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(1), amortized, for an ordinary user")
        .summary("Removes users and disconnects them.")
        .args(&[string("username").multiple()]),
    command("dryrun", -4, Group::Server, "7.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(1)")
        .summary("Tells whether a user might run a command.")
        .args(&[
            string("username"),
            string("command"),
            string("arg").optional().multiple(),
        ]),
    command("genpass", -2, Group::Server, "6.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE])
        .complexity("O(1)")
        .summary("Generates a random password.")
        .args(&[integer("bits").optional()]),
    command("getuser", 3, Group::Server, "6.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for a user with N rules")
        .summary("Describes a user.")
        .history(&[
            ("6.2.0", "Rules for channels."),
            (
                "7.0.0",
                "Selectors; key and channel patterns are shown as rules instead of lists.",
            ),
            ("9.1.0", "Rules for databases."),
        ])
        .args(&[string("username")]),
    command("help", 2, Group::Server, "6.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("list", 2, Group::Server, "6.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N users")
        .summary("Lists all users as lines of an ACL file."),
    command("load", 2, Group::Server, "6.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N users")
        .summary("Replaces all users by those in the ACL file."),
    command("log", -2, Group::Server, "6.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N entries shown")
        .summary("Lists recent refusals, or clears the list.")
        .history(&[("7.2.0", "Entries have an ID, a creation time and an update time.")])
        .args(&[one_of("operation", &[integer("count"), token("reset", "RESET")]).optional()]),
    command("save", 2, Group::Server, "6.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(N) for N users")
        .summary("Writes all users to the ACL file."),
    command("setuser", -3, Group::Server, "6.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(N) for N rules")
        .summary("Creates or changes a user.")
        .history(&[
            ("6.2.0", "Rules for channels."),
            ("7.0.0", "Selectors; separate read and write rules for keys."),
            ("9.1.0", "Rules for databases."),
        ])
        .args(&[string("username"), string("rule").optional().multiple()]),
    command("users", 2, Group::Server, "6.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N users")
        .summary("Lists the names of all users."),
    command("whoami", 2, Group::Server, "6.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE])
        .complexity("O(1)")
        .summary("Tells the user of this connection."),
];

/// The subcommands of COMMAND.
const COMMAND_SUBCOMMANDS: &[CommandSpec] = &[
    command("count", 2, Group::Server, "2.8.13")
        .flags(&[LOADING, STALE])
        .categories(&[category::CONNECTION])
        .complexity("O(1)")
        .summary("Counts the commands."),
    command("docs", -2, Group::Server, "7.0.0")
        .flags(&[LOADING, STALE])
        .categories(&[category::CONNECTION])
        .tips(&["nondeterministic_output_order"])
        .complexity("O(N) for N commands")
        .summary("Returns documentation of commands.")
        .args(&[string("command-name").optional().multiple()]),
    command("getkeys", -3, Group::Server, "2.8.13")
        .flags(&[LOADING, STALE])
        .categories(&[category::CONNECTION])
        .complexity("O(N) for N arguments")
        .summary("Finds the keys in a command with its arguments.")
        .args(&[string("command"), string("arg").optional().multiple()]),
    command("getkeysandflags", -3, Group::Server, "7.0.0")
        .flags(&[LOADING, STALE])
        .categories(&[category::CONNECTION])
        .complexity("O(N) for N arguments")
        .summary("Finds the keys in a command and tells how they are used.")
        .args(&[string("command"), string("arg").optional().multiple()]),
    command("help", 2, Group::Server, "5.0.0")
        .flags(&[LOADING, STALE])
        .categories(&[category::CONNECTION])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("info", -2, Group::Server, "2.8.13")
        .flags(&[LOADING, STALE])
        .categories(&[category::CONNECTION])
        .tips(&["nondeterministic_output_order"])
        .complexity("O(N) for N commands")
        .summary("Describes commands.")
        .history(&[("7.0.0", "Without arguments it describes all commands.")])
        .args(&[string("command-name").optional().multiple()]),
    command("list", -2, Group::Server, "7.0.0")
        .flags(&[LOADING, STALE])
        .categories(&[category::CONNECTION])
        .tips(&["nondeterministic_output_order"])
        .complexity("O(N) for N commands")
        .summary("Lists the names of commands.")
        .args(&[one_of(
            "filterby",
            &[
                string("module-name").with_token("MODULE"),
                string("category").with_token("ACLCAT"),
                pattern("pattern").with_token("PATTERN"),
            ],
        )
        .with_token("FILTERBY")
        .optional()]),
];

/// The subcommands of COMMANDLOG.
const COMMANDLOG_SUBCOMMANDS: &[CommandSpec] = &[
    command("get", 4, Group::Server, "8.1.0")
        .flags(&[ADMIN, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "nondeterministic_output"])
        .complexity("O(N) for N entries returned")
        .summary("Returns the entries of a log.")
        .args(&[
            integer("count"),
            one_of(
                "type",
                &[
                    token("slow", "SLOW"),
                    token("large-request", "LARGE-REQUEST"),
                    token("large-reply", "LARGE-REPLY"),
                ],
            ),
        ]),
    command("help", 2, Group::Server, "8.1.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("len", 3, Group::Server, "8.1.0")
        .flags(&[ADMIN, LOADING, STALE])
        .tips(&[
            "request_policy:all_nodes",
            "response_policy:agg_sum",
            "nondeterministic_output",
        ])
        .complexity("O(1)")
        .summary("Counts the entries of a log.")
        .args(&[one_of(
            "type",
            &[
                token("slow", "SLOW"),
                token("large-request", "LARGE-REQUEST"),
                token("large-reply", "LARGE-REPLY"),
            ],
        )]),
    command("reset", 3, Group::Server, "8.1.0")
        .flags(&[ADMIN, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(N) for a log of N entries")
        .summary("Empties a log.")
        .args(&[one_of(
            "type",
            &[
                token("slow", "SLOW"),
                token("large-request", "LARGE-REQUEST"),
                token("large-reply", "LARGE-REPLY"),
            ],
        )]),
];

/// The subcommands of CONFIG.
const CONFIG_SUBCOMMANDS: &[CommandSpec] = &[
    command("get", -3, Group::Server, "2.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N parameters")
        .summary("Reads the parameters that match patterns.")
        .history(&[("7.0.0", "Takes more than one pattern.")])
        .args(&[string("parameter").multiple()]),
    command("help", 2, Group::Server, "5.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("resetstat", 2, Group::Server, "2.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(1)")
        .summary("Sets the statistics back to zero."),
    command("rewrite", 2, Group::Server, "2.8.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(1)")
        .summary("Writes the current parameters to the configuration file."),
    command("set", -4, Group::Server, "2.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(N) for N parameters")
        .summary("Changes parameters while running.")
        .history(&[("7.0.0", "Sets more than one parameter at once.")])
        .args(&[block("data", &[string("parameter"), string("value")]).multiple()]),
];

/// The subcommands of LATENCY.
const LATENCY_SUBCOMMANDS: &[CommandSpec] = &[
    command("doctor", 2, Group::Server, "2.8.13")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ])
        .complexity("O(1)")
        .summary("Analyses latency events in plain words."),
    command("graph", 3, Group::Server, "2.8.13")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ])
        .complexity("O(1)")
        .summary("Draws the latencies of an event.")
        .args(&[string("event")]),
    command("help", 2, Group::Server, "2.8.13")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("histogram", -2, Group::Server, "7.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ])
        .complexity("O(N) for N commands with recorded latencies")
        .summary("Tells how the latencies of commands are distributed.")
        .args(&[string("command").optional().multiple()]),
    command("history", 3, Group::Server, "2.8.13")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ])
        .complexity("O(1)")
        .summary("Lists the samples of an event.")
        .args(&[string("event")]),
    command("latest", 2, Group::Server, "2.8.13")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ])
        .complexity("O(1)")
        .summary("Lists the latest sample of each event."),
    command("reset", -2, Group::Server, "2.8.13")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:agg_sum"])
        .complexity("O(1)")
        .summary("Deletes the samples of events.")
        .args(&[string("event").optional().multiple()]),
];

/// The subcommands of MEMORY.
const MEMORY_SUBCOMMANDS: &[CommandSpec] = &[
    command("doctor", 2, Group::Server, "4.0.0")
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ])
        .complexity("O(1)")
        .summary("Analyses the use of memory in plain words."),
    command("help", 2, Group::Server, "4.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("malloc-stats", 2, Group::Server, "4.0.0")
        .flags(&[LOADING])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ])
        .complexity("Depends on the memory in use; can be slow")
        .summary("Reports the statistics of the allocator."),
    command("purge", 2, Group::Server, "4.0.0")
        .flags(&[LOADING])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .complexity("Depends on the memory in use; can be slow")
        .summary("Makes the allocator return unused memory."),
    command("stats", 2, Group::Server, "4.0.0")
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ])
        .complexity("O(1)")
        .summary("Tells what memory is used for."),
    command("usage", -3, Group::Server, "4.0.0")
        .flags(&[READONLY])
        .keys(&[keys(2, &[RO])])
        .complexity("O(N) for N samples")
        .summary("Estimates the memory that a key takes.")
        .args(&[key("key", 0), integer("count").with_token("SAMPLES").optional()]),
];

/// The subcommands of MODULE.
const MODULE_SUBCOMMANDS: &[CommandSpec] = &[
    command("help", 2, Group::Server, "5.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("list", 2, Group::Server, "4.0.0")
        .flags(&[ADMIN, NOSCRIPT])
        .tips(&["nondeterministic_output_order"])
        .complexity("O(N) for N modules")
        .summary("Lists the loaded modules."),
    command("load", -3, Group::Server, "4.0.0")
        .flags(&[ADMIN, NOSCRIPT, NO_ASYNC_LOADING, PROTECTED])
        .complexity("O(1)")
        .summary("Adds a module to the running server.")
        .args(&[string("path"), string("arg").optional().multiple()]),
    command("loadex", -3, Group::Server, "7.0.0")
        .flags(&[ADMIN, NOSCRIPT, NO_ASYNC_LOADING, PROTECTED])
        .complexity("O(1)")
        .summary("Loads a module with parameters and arguments.")
        .args(&[
            string("path"),
            block("configs", &[string("name"), string("value")])
                .with_token("CONFIG")
                .optional()
                .multiple()
                .multiple_token(),
            string("args").with_token("ARGS").optional().multiple(),
        ]),
    command("unload", 3, Group::Server, "4.0.0")
        .flags(&[ADMIN, NOSCRIPT, NO_ASYNC_LOADING, PROTECTED])
        .complexity("O(1)")
        .summary("Takes a module out of the running server.")
        .args(&[string("name")]),
];

/// The subcommands of SLOWLOG.
const SLOWLOG_SUBCOMMANDS: &[CommandSpec] = &[
    command("get", -2, Group::Server, "2.2.12")
        .flags(&[ADMIN, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "nondeterministic_output"])
        .complexity("O(N) for N entries returned")
        .summary("Returns the entries of the log.")
        .history(&[("4.0.0", "Entries tell the client's address and name.")])
        .args(&[integer("count").optional()]),
    command("help", 2, Group::Server, "6.2.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("len", 2, Group::Server, "2.2.12")
        .flags(&[ADMIN, LOADING, STALE])
        .tips(&[
            "request_policy:all_nodes",
            "response_policy:agg_sum",
            "nondeterministic_output",
        ])
        .complexity("O(1)")
        .summary("Counts the entries of the log."),
    command("reset", 2, Group::Server, "2.2.12")
        .flags(&[ADMIN, LOADING, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(N) for a log of N entries")
        .summary("Empties the log."),
];
