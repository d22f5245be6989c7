//! Metadata of the group *scripting*. Scripts and functions.

use crate::spec::SpecialKeys;
use crate::spec::flag::{
    ALLOW_BUSY, DENYOOM, LOADING, MAY_REPLICATE, NO_MANDATORY_KEYS, NOSCRIPT, READONLY, SKIP_MONITOR, STALE, WRITE,
};
use crate::spec::key_flag::{ACCESS, RO, RW, UPDATE};
use crate::spec::{CommandSpec, Group, command, integer, key, keys, one_of, string, token};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("eval", -3, Group::Scripting, "2.6.0")
        .flags(&[NOSCRIPT, STALE, SKIP_MONITOR, NO_MANDATORY_KEYS, MAY_REPLICATE])
        .keys(&[keys(2, &[RW, ACCESS, UPDATE])
            .with_key_count(0, 1, 1)
            .notes("The code decides what happens; RW and update is the worst case.")])
        .special_keys(SpecialKeys::Counted(2))
        .complexity("Depends on the script")
        .summary("Runs a Lua script.")
        .args(&[
            string("script"),
            integer("numkeys"),
            key("key", 0).optional().multiple(),
            string("arg").optional().multiple(),
        ]),
    command("eval_ro", -3, Group::Scripting, "7.0.0")
        .flags(&[READONLY, NOSCRIPT, STALE, SKIP_MONITOR, NO_MANDATORY_KEYS])
        .keys(&[keys(2, &[RO, ACCESS])
            .with_key_count(0, 1, 1)
            .notes("The code decides what happens; RO and access is the worst case.")])
        .special_keys(SpecialKeys::Counted(2))
        .complexity("Depends on the script")
        .summary("Runs a Lua script that must not write.")
        .args(&[
            string("script"),
            integer("numkeys"),
            key("key", 0).optional().multiple(),
            string("arg").optional().multiple(),
        ]),
    command("evalsha", -3, Group::Scripting, "2.6.0")
        .flags(&[NOSCRIPT, STALE, SKIP_MONITOR, NO_MANDATORY_KEYS, MAY_REPLICATE])
        .keys(&[keys(2, &[RW, ACCESS, UPDATE]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(2))
        .complexity("Depends on the script")
        .summary("Runs a cached Lua script, named by its SHA1 digest.")
        .args(&[
            string("sha1"),
            integer("numkeys"),
            key("key", 0).optional().multiple(),
            string("arg").optional().multiple(),
        ]),
    command("evalsha_ro", -3, Group::Scripting, "7.0.0")
        .flags(&[READONLY, NOSCRIPT, STALE, SKIP_MONITOR, NO_MANDATORY_KEYS])
        .keys(&[keys(2, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(2))
        .complexity("Depends on the script")
        .summary("Runs a cached Lua script that must not write, named by its SHA1 digest.")
        .args(&[
            string("sha1"),
            integer("numkeys"),
            key("key", 0).optional().multiple(),
            string("arg").optional().multiple(),
        ]),
    command("fcall", -3, Group::Scripting, "7.0.0")
        .flags(&[NOSCRIPT, STALE, SKIP_MONITOR, NO_MANDATORY_KEYS, MAY_REPLICATE])
        .keys(&[keys(2, &[RW, ACCESS, UPDATE])
            .with_key_count(0, 1, 1)
            .notes("The code decides what happens; RW and update is the worst case.")])
        .special_keys(SpecialKeys::Counted(2))
        .complexity("Depends on the function")
        .summary("Calls a function.")
        .args(&[
            string("function"),
            integer("numkeys"),
            key("key", 0).optional().multiple(),
            string("arg").optional().multiple(),
        ]),
    command("fcall_ro", -3, Group::Scripting, "7.0.0")
        .flags(&[READONLY, NOSCRIPT, STALE, SKIP_MONITOR, NO_MANDATORY_KEYS])
        .keys(&[keys(2, &[RO, ACCESS])
            .with_key_count(0, 1, 1)
            .notes("The code decides what happens; RO and access is the worst case.")])
        .special_keys(SpecialKeys::Counted(2))
        .complexity("Depends on the function")
        .summary("Calls a function that must not write.")
        .args(&[
            string("function"),
            integer("numkeys"),
            key("key", 0).optional().multiple(),
            string("arg").optional().multiple(),
        ]),
    command("function", -2, Group::Scripting, "7.0.0")
        .categories_without_group(&[])
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about function libraries.")
        .subcommands(FUNCTION_SUBCOMMANDS),
    command("script", -2, Group::Scripting, "2.6.0")
        .categories_without_group(&[])
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about cached scripts.")
        .subcommands(SCRIPT_SUBCOMMANDS),
];

/// The subcommands of FUNCTION.
const FUNCTION_SUBCOMMANDS: &[CommandSpec] = &[
    command("delete", 3, Group::Scripting, "7.0.0")
        .flags(&[WRITE, NOSCRIPT])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .complexity("O(1)")
        .summary("Drops a library together with its functions.")
        .args(&[string("library-name")]),
    command("dump", 2, Group::Scripting, "7.0.0")
        .flags(&[NOSCRIPT])
        .complexity("O(N) for N functions")
        .summary("Serializes all libraries in a form that FUNCTION RESTORE accepts."),
    command("flush", -2, Group::Scripting, "7.0.0")
        .flags(&[WRITE, NOSCRIPT])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .complexity("O(N) for N functions deleted")
        .summary("Deletes all libraries.")
        .args(&[one_of("flush-type", &[token("async", "ASYNC"), token("sync", "SYNC")]).optional()]),
    command("help", 2, Group::Scripting, "7.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("kill", 2, Group::Scripting, "7.0.0")
        .flags(&[NOSCRIPT, ALLOW_BUSY])
        .tips(&["request_policy:all_shards", "response_policy:one_succeeded"])
        .complexity("O(1)")
        .summary("Stops the function that is running."),
    command("list", -2, Group::Scripting, "7.0.0")
        .flags(&[NOSCRIPT])
        .tips(&["nondeterministic_output_order"])
        .complexity("O(N) for N functions")
        .summary("Describes the libraries.")
        .args(&[
            string("library-name-pattern").with_token("LIBRARYNAME").optional(),
            token("withcode", "WITHCODE").optional(),
        ]),
    command("load", -3, Group::Scripting, "7.0.0")
        .flags(&[WRITE, DENYOOM, NOSCRIPT])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .complexity("O(1), not counting compilation")
        .summary("Loads a library.")
        .args(&[token("replace", "REPLACE").optional(), string("function-code")]),
    command("restore", -3, Group::Scripting, "7.0.0")
        .flags(&[WRITE, DENYOOM, NOSCRIPT])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .complexity("O(N) for N functions in the payload")
        .summary("Loads the libraries that FUNCTION DUMP serialized.")
        .args(&[
            string("serialized-value"),
            one_of(
                "policy",
                &[
                    token("flush", "FLUSH"),
                    token("append", "APPEND"),
                    token("replace", "REPLACE"),
                ],
            )
            .optional(),
        ]),
    command("stats", 2, Group::Scripting, "7.0.0")
        .flags(&[NOSCRIPT, ALLOW_BUSY])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ])
        .complexity("O(1)")
        .summary("Describes the function that is running, and the engines."),
];

/// The subcommands of SCRIPT.
const SCRIPT_SUBCOMMANDS: &[CommandSpec] = &[
    command("debug", -3, Group::Scripting, "3.2.0")
        .flags(&[NOSCRIPT])
        .complexity("O(1)")
        .summary("Chooses how scripts of this connection are debugged.")
        .args(&[
            one_of("mode", &[token("yes", "YES"), token("sync", "SYNC"), token("no", "NO")]),
            string("engine").since("9.1.0").optional(),
        ]),
    command("exists", -3, Group::Scripting, "2.6.0")
        .flags(&[NOSCRIPT, STALE])
        .tips(&["request_policy:all_shards", "response_policy:agg_logical_and"])
        .complexity("O(N) for N digests")
        .summary("Tells which scripts are cached.")
        .args(&[string("sha1").multiple()]),
    command("flush", -2, Group::Scripting, "2.6.0")
        .flags(&[NOSCRIPT, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(N) for N cached scripts")
        .summary("Empties the script cache.")
        .history(&[("6.2.0", "Modes `ASYNC` and `SYNC`.")])
        .args(
            &[one_of("flush-type", &[token("async", "ASYNC"), token("sync", "SYNC")])
                .since("6.2.0")
                .optional()],
        ),
    command("help", 2, Group::Scripting, "5.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("kill", 2, Group::Scripting, "2.6.0")
        .flags(&[NOSCRIPT, ALLOW_BUSY])
        .tips(&["request_policy:all_shards", "response_policy:one_succeeded"])
        .complexity("O(1)")
        .summary("Stops the script that is running."),
    command("load", 3, Group::Scripting, "2.6.0")
        .flags(&[NOSCRIPT, STALE])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(N) for a script of N bytes")
        .summary("Caches a script without running it.")
        .args(&[string("script")]),
    command("show", 3, Group::Scripting, "8.0.0")
        .flags(&[NOSCRIPT, STALE])
        .complexity("O(1)")
        .summary("Shows the source of a cached script.")
        .args(&[string("sha1")]),
];
