//! Metadata of the group *cluster*. Slots, nodes and their configuration.

use crate::spec::flag::{
    ADMIN, ALL_DBS, FAST, LOADING, MAY_REPLICATE, NO_ASYNC_LOADING, NOSCRIPT, READONLY, STALE, TOUCHES_ARBITRARY_KEYS,
    WRITE,
};
use crate::spec::key_flag::NOT_KEY;
use crate::spec::{CommandSpec, Group, block, category, command, integer, keys, one_of, pattern, string, token};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("asking", 1, Group::Cluster, "3.0.0")
        .flags(&[FAST])
        .categories(&[category::CONNECTION])
        .complexity("O(1)")
        .summary("Lets the next command use a slot that is being imported here."),
    command("cluster", -2, Group::Cluster, "3.0.0")
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about the cluster.")
        .subcommands(CLUSTER_SUBCOMMANDS),
    command("clusterscan", -2, Group::Cluster, "9.1.0")
        .flags(&[READONLY, TOUCHES_ARBITRARY_KEYS])
        .categories(&[category::KEYSPACE])
        .tips(&[
            "nondeterministic_output",
            "request_policy:special",
            "response_policy:special",
        ])
        .keys(&[keys(1, &[NOT_KEY])])
        .complexity("O(N) for N elements returned")
        .summary("Visits the keys of the whole cluster step by step.")
        .args(&[
            string("cursor"),
            pattern("match-pattern").with_token("MATCH").optional(),
            integer("count").with_token("COUNT").optional(),
            string("type").with_token("TYPE").optional(),
            integer("slot").with_token("SLOT").optional(),
        ]),
    command("readonly", 1, Group::Cluster, "3.0.0")
        .flags(&[LOADING, STALE, FAST])
        .categories(&[category::CONNECTION])
        .complexity("O(1)")
        .summary("Lets this connection read from a replica."),
    command("readwrite", 1, Group::Cluster, "3.0.0")
        .flags(&[LOADING, STALE, FAST])
        .categories(&[category::CONNECTION])
        .complexity("O(1)")
        .summary("Sends this connection's reads to primaries again."),
];

/// The subcommands of CLUSTER.
const CLUSTER_SUBCOMMANDS: &[CommandSpec] = &[
    command("addslots", -3, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(N) for N slots")
        .summary("Assigns slots to this node.")
        .args(&[integer("slot").multiple()]),
    command("addslotsrange", -4, Group::Cluster, "7.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(N) for N slots in all ranges together")
        .summary("Assigns ranges of slots to this node.")
        .args(&[block("range", &[integer("start-slot"), integer("end-slot")]).multiple()]),
    command("bumpepoch", 2, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .tips(&["nondeterministic_output"])
        .complexity("O(1)")
        .summary("Raises the configuration epoch."),
    command("cancelslotmigrations", 2, Group::Cluster, "9.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING, ALL_DBS])
        .complexity("O(N) for N cancelled migrations")
        .summary("Cancels all slot migrations under way."),
    command("count-failure-reports", 3, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N failure reports")
        .summary("Counts the failure reports about a node that has not failed yet.")
        .history(&[("9.0.0", "Once a node counts as failed, further reports are not kept.")])
        .args(&[string("node-id")]),
    command("countkeysinslot", 3, Group::Cluster, "3.0.0")
        .flags(&[STALE])
        .complexity("O(1)")
        .summary("Counts the keys of a slot.")
        .args(&[integer("slot")]),
    command("delslots", -3, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(N) for N slots")
        .summary("Releases slots from this node.")
        .args(&[integer("slot").multiple()]),
    command("delslotsrange", -4, Group::Cluster, "7.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(N) for N slots in all ranges together")
        .summary("Releases ranges of slots from this node.")
        .args(&[block("range", &[integer("start-slot"), integer("end-slot")]).multiple()]),
    command("failover", -2, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Makes a replica take over from its primary.")
        .args(&[one_of("options", &[token("force", "FORCE"), token("takeover", "TAKEOVER")]).optional()]),
    command("flushslot", -3, Group::Cluster, "9.0.0")
        .flags(&[WRITE, ADMIN, NO_ASYNC_LOADING, ALL_DBS])
        .categories(&[category::KEYSPACE])
        .complexity("O(N) for N keys in the slot")
        .summary("Deletes all keys of a slot.")
        .args(&[
            integer("slot"),
            one_of("flush-type", &[token("async", "ASYNC"), token("sync", "SYNC")]).optional(),
        ]),
    command("flushslots", 2, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Releases all slots from this node."),
    command("forget", 3, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Removes a node from the list of known nodes.")
        .args(&[string("node-id")]),
    command("getkeysinslot", 4, Group::Cluster, "3.0.0")
        .flags(&[STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N keys")
        .summary("Lists keys of a slot.")
        .args(&[integer("slot"), integer("count")]),
    command("getslotmigrations", 2, Group::Cluster, "9.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(N) for N migrations under way")
        .summary("Describes slot migrations, running and recently finished."),
    command("help", 2, Group::Cluster, "5.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("info", 2, Group::Cluster, "3.0.0")
        .flags(&[LOADING, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(1)")
        .summary("Describes the state of the cluster as this node sees it."),
    command("keyslot", 3, Group::Cluster, "3.0.0")
        .flags(&[STALE])
        .complexity("O(N) for a key of N bytes")
        .summary("Computes the slot of a key.")
        .args(&[string("key")]),
    command("links", 2, Group::Cluster, "7.0.0")
        .flags(&[STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N nodes")
        .summary("Lists the connections to and from other nodes."),
    command("meet", -4, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Introduces another node to this one.")
        .history(&[("4.0.0", "The bus port may be given.")])
        .args(&[
            string("ip"),
            integer("port"),
            integer("cluster-bus-port").since("4.0.0").optional(),
        ]),
    command("migrateslots", -4, Group::Cluster, "9.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING, ALL_DBS])
        .complexity("O(N) for N slots in all ranges together")
        .summary("Moves slots from this node to others.")
        .args(&[block(
            "migration-group",
            &[
                token("slotsrange-token", "SLOTSRANGE"),
                block("range", &[integer("start-slot"), integer("end-slot")]).multiple(),
                token("node-token", "NODE"),
                string("node-id"),
            ],
        )
        .multiple()]),
    command("myid", 2, Group::Cluster, "3.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Tells this node's ID."),
    command("myshardid", 2, Group::Cluster, "7.2.0")
        .flags(&[LOADING, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(1)")
        .summary("Tells the ID of this node's shard."),
    command("nodes", 2, Group::Cluster, "3.0.0")
        .flags(&[LOADING, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N nodes")
        .summary("Describes all nodes as this node sees them."),
    command("replicas", 3, Group::Cluster, "5.0.0")
        .flags(&[ADMIN, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N replicas")
        .summary("Tells which nodes replicate a primary.")
        .args(&[string("node-id")]),
    command("replicate", -3, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Makes this node a replica, or detaches it from its primary.")
        .history(&[("9.0.0", "`NO ONE` detaches a replica from its primary.")])
        .args(&[one_of(
            "args",
            &[
                string("node-id"),
                block("no-one", &[token("no", "NO"), token("one", "ONE")]).since("9.0.0"),
            ],
        )]),
    command("reset", -2, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, NOSCRIPT, STALE])
        .complexity("O(N) for N known nodes, and possibly the cost of a FLUSHALL")
        .summary("Makes this node forget the cluster.")
        .args(&[one_of("reset-type", &[token("hard", "HARD"), token("soft", "SOFT")]).optional()]),
    command("saveconfig", 2, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Writes this node's cluster configuration to disk."),
    command("set-config-epoch", 3, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING])
        .complexity("O(1)")
        .summary("Gives a new node its configuration epoch.")
        .args(&[integer("config-epoch")]),
    command("setslot", -4, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE, NO_ASYNC_LOADING, MAY_REPLICATE])
        .complexity("O(1)")
        .summary("Sets the owner or the migration state of a slot.")
        .history(&[("8.0.0", "Option `TIMEOUT`.")])
        .args(&[
            integer("slot"),
            one_of(
                "subcommand",
                &[
                    string("importing").with_token("IMPORTING").with_display_text("node-id"),
                    string("migrating").with_token("MIGRATING").with_display_text("node-id"),
                    string("node").with_token("NODE").with_display_text("node-id"),
                    token("stable", "STABLE"),
                ],
            ),
            integer("timeout").with_token("TIMEOUT").since("8.0.0").optional(),
        ]),
    command("shards", 2, Group::Cluster, "7.0.0")
        .flags(&[LOADING, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N nodes")
        .summary("Describes the shards with their slots and nodes.")
        .history(&[("9.1.0", "Shards have an `id`, nodes an `availability-zone`.")]),
    command("slaves", 3, Group::Cluster, "3.0.0")
        .flags(&[ADMIN, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N replicas")
        .summary("Tells which nodes replicate a primary.")
        .deprecated("5.0.0", "`CLUSTER REPLICAS`")
        .args(&[string("node-id")]),
    command("slot-stats", -4, Group::Cluster, "8.0.0")
        .flags(&[LOADING, STALE])
        .tips(&["nondeterministic_output", "request_policy:all_shards"])
        .complexity("O(N) for N slots, O(N*log(N)) with ORDERBY")
        .summary("Tells how the slots of this node are used.")
        .args(&[one_of(
            "filter",
            &[
                block("slotsrange", &[integer("start-slot"), integer("end-slot")]).with_token("SLOTSRANGE"),
                block(
                    "orderby",
                    &[
                        string("metric"),
                        integer("limit").with_token("LIMIT").optional(),
                        one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
                    ],
                )
                .with_token("ORDERBY"),
            ],
        )]),
    command("slots", 2, Group::Cluster, "3.0.0")
        .flags(&[LOADING, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N nodes")
        .summary("Tells which nodes serve which slots.")
        .history(&[
            ("4.0.0", "Nodes are listed with their IDs."),
            ("7.0.0", "Nodes are listed with networking metadata."),
            ("9.1.0", "The networking metadata has `availability-zone`."),
        ]),
    command("syncslots", -3, Group::Cluster, "9.0.0")
        .flags(&[ADMIN, STALE, MAY_REPLICATE, NO_ASYNC_LOADING])
        .complexity("Depends on the subcommand")
        .summary("Carries the messages of a slot migration between nodes.")
        .internal(),
];
