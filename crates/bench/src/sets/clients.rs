//! Sets about clients: many connections, subscribers, TLS, waiting clients, and clients with long commands.

use super::{
    BIG_ELEMENTS, BIG_HASH, Comparison, FULL_KEYS, LoadCase, LoadSet, Program, WARMUP, case, dataset, paced, pinned,
    side, strings, subscribed, unpinned, waiting, without_memory,
};
use crate::background_load::{BackgroundLoad, LongCommand};
use crate::load::{FILL_BIG_SET, FILL_BIG_SORTED_SET, FILL_QUEUES, FILL_STRINGS};

/// The rate of pushes to waiting clients. It is low, because a server may visit each of 10 000 clients for every push.
const PUSHES_PER_S: f64 = 200.0;

/// Commands over 1M elements each.
const LONG_COMMANDS: &[LongCommand] = &[
    LongCommand {
        line: "SUNIONSTORE set:union set",
        expected: BIG_ELEMENTS,
    },
    LongCommand {
        line: "SORT set ALPHA LIMIT 0 10",
        expected: 10,
    },
    LongCommand {
        line: "ZUNIONSTORE zset:union 1 zset",
        expected: BIG_ELEMENTS,
    },
    LongCommand {
        line: "KEYS key:00000000001?",
        expected: 10,
    },
    LongCommand {
        line: "HGETALL hash",
        expected: 2 * BIG_ELEMENTS,
    },
];

/// Publishing to subscribers.
pub const PUBSUB: LoadSet = LoadSet {
    name: "pubsub",
    about: "PUBLISH of 64 B to no, one and 100 subscribers, which count and check every message",
    rounds: 5,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[Comparison {
        // A slow subscriber is not disconnected, because it would lose messages.
        sides: &[
            side(
                "Weft",
                Program::Weft,
                "--io-threads 1 --client-output-buffer-limit pubsub 0 0 0",
            ),
            side(
                "Valkey",
                Program::Valkey,
                "--io-threads 1 --client-output-buffer-limit pubsub 0 0 0",
            ),
        ],
        remark: Some("Publishers and subscribers share the client's core, with a thread each"),
        ..pinned(
            "PUBLISH, one core each",
            &[dataset(
                "",
                1000,
                64,
                &[],
                &[
                    case("publish-0", 1),
                    case("publish-0", 16),
                    subscribed(case("publish-1", 1), 1),
                    subscribed(case("publish-1", 16), 1),
                    subscribed(case("publish-100", 1), 100),
                    subscribed(case("publish-100", 16), 100),
                ],
            )],
        )
    }],
    idle: &[],
};

/// Many connections.
pub const CONNECTIONS: LoadSet = LoadSet {
    name: "connections",
    about: "GET and SET of 64 B with 5,000 connections",
    rounds: 5,
    // The first requests of all connections arrive at once.
    warmup: 1.0,
    seconds: 2.0,
    comparisons: &[Comparison {
        sides: &[
            side("Weft", Program::Weft, "--io-threads 1 --maxclients 6000"),
            side("Valkey", Program::Valkey, "--io-threads 1 --maxclients 6000"),
        ],
        connections: Some(5000),
        ..pinned(
            "Many connections, one core each",
            &[without_memory(strings(
                FULL_KEYS,
                64,
                &[case("get", 1), case("set", 1)],
            ))],
        )
    }],
    idle: &[],
};

/// Encrypted connections.
pub const TLS: LoadSet = LoadSet {
    name: "tls",
    about: "GET and SET of 64 B over TLS 1.3 with AES-256-GCM; needs the program openssl",
    rounds: 5,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[Comparison {
        uses_tls: true,
        ..pinned(
            "TLS, one core each",
            &[without_memory(strings(
                FULL_KEYS,
                64,
                &[case("get", 1), case("set", 1), case("get", 16), case("set", 16)],
            ))],
        )
    }],
    idle: &[],
};

/// Short commands during long ones.
pub const LONG: LoadSet = LoadSet {
    name: "long",
    about: "GET and SET at a fixed rate during commands over 1M elements: p99.9",
    rounds: 2,
    // The warm-up lets the server's heap reach its working size: memory for the first of these commands is newly
    // allocated.
    warmup: 5.0,
    seconds: 8.0,
    comparisons: &[unpinned(
        "During commands over 1M elements, nothing pinned",
        &[
            side("Weft, 2 threads", Program::Weft, "--io-threads 2"),
            side("Valkey", Program::Valkey, "--io-threads 1"),
        ],
        &[dataset(
            "",
            BIG_ELEMENTS,
            20,
            &[FILL_STRINGS, BIG_HASH, FILL_BIG_SET, FILL_BIG_SORTED_SET],
            &[
                // The baseline: the same load without long commands.
                paced(case("mixed", 1), 10_000.0),
                LoadCase {
                    background_load: BackgroundLoad::LongCommands(LONG_COMMANDS),
                    ..paced(case("mixed", 1), 10_000.0)
                },
            ],
        )],
    )],
    idle: &[],
};

/// Pushes while clients wait.
pub const BLOCKED: LoadSet = LoadSet {
    name: "blocked",
    about: "cost of a push while 10 or 10 000 clients wait, for other lists or for this one",
    rounds: 3,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[Comparison {
        sides: &[
            side("Weft", Program::Weft, "--io-threads 1 --maxclients 15000"),
            side("Valkey", Program::Valkey, "--io-threads 1 --maxclients 15000"),
        ],
        ..pinned(
            "Pushes while clients wait, one core each",
            &[dataset(
                "",
                1000,
                70,
                &[FILL_QUEUES],
                &[
                    waiting(case("lpush:50,rpop:50", 16), 10, false),
                    waiting(case("lpush:50,rpop:50", 16), 10_000, false),
                    waiting(paced(case("push-awaited", 16), PUSHES_PER_S), 10, true),
                    waiting(paced(case("push-awaited", 16), PUSHES_PER_S), 10_000, true),
                ],
            )],
        )
    }],
    idle: &[],
};
