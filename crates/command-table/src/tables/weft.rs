//! Metadata of Weft's own commands, which Valkey does not have.

use crate::spec::flag::{ADMIN, ALL_DBS, LOADING, NOSCRIPT, STALE};
use crate::spec::{CommandSpec, Group, block, command, integer, one_of, token};

/// Weft's own commands, by name.
pub const TABLE: &[CommandSpec] = &[command("weft", -2, Group::Server, "9.1.0")
    .complexity("Depends on the subcommand")
    .summary("Groups the commands of Weft that Valkey does not have.")
    .subcommands(WEFT_SUBCOMMANDS)
    .weft_only()];

/// The subcommands of WEFT.
const WEFT_SUBCOMMANDS: &[CommandSpec] = &[
    command("bigkeys", -3, Group::Server, "9.1.0")
        .flags(&[ADMIN, NOSCRIPT, STALE, ALL_DBS])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ])
        .complexity("O(N) for N keys reported; a scan visits all keys in the background")
        .summary("Finds the keys that take the most memory, by a scan in the background.")
        .args(&[one_of(
            "operation",
            &[
                block(
                    "start",
                    &[
                        integer("count").with_token("COUNT").optional(),
                        integer("percent").with_token("EFFORT").optional(),
                        integer("id").with_token("ID").optional(),
                    ],
                )
                .with_token("START"),
                block("stop", &[integer("id").with_token("ID").optional()]).with_token("STOP"),
                token("get", "GET"),
                token("reset", "RESET"),
            ],
        )])
        .weft_only(),
    command("help", 2, Group::Server, "9.1.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands.")
        .weft_only(),
    command("hotkeys", -3, Group::Server, "9.1.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE, ALL_DBS])
        .tips(&[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ])
        .complexity("O(N log N) for N keys that are counted")
        .summary("Finds the most used keys, by sampling the keys of commands.")
        .args(&[one_of(
            "operation",
            &[
                block(
                    "start",
                    &[
                        integer("ratio").with_token("SAMPLE").optional(),
                        integer("seconds").with_token("DURATION").optional(),
                        integer("id").with_token("ID").optional(),
                    ],
                )
                .with_token("START"),
                block("stop", &[integer("id").with_token("ID").optional()]).with_token("STOP"),
                block("get", &[integer("count").with_token("COUNT").optional()]).with_token("GET"),
                token("reset", "RESET"),
            ],
        )])
        .weft_only(),
];
