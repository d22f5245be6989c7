//! Sets of commands that write: new keys, other lengths, logs on disk, and replicas.

use super::{
    Comparison, Dataset, FULL_KEYS, LoadSet, Program, WARMUP, case, dataset, pinned, side, strings, with_ttl,
    without_memory,
};
use crate::load::{FILL_COUNTERS, FILL_HYPERLOGLOGS};

/// The number of counters.
const COUNTERS: u64 = 1_000_000;

/// The number of HyperLogLogs.
const HYPERLOGLOGS: u64 = 1000;

/// The number of values of 64 KiB.
const LARGE_VALUES: u64 = 10_000;

/// The number of keys of the set `durability`.
const DURABLE_KEYS: u64 = 1_000_000;

/// A keyspace that grows: each measurement creates keys that no other one names.
const NEW_KEYS: Dataset = without_memory(strings(FULL_KEYS, 64, &[case("set-new", 1), case("set-new", 16)]));

/// Strings whose lengths change. The second load compares what the first one wrote.
const SIZED_VALUES: Dataset = without_memory(strings(
    FULL_KEYS,
    64,
    &[
        case("set-sized", 1),
        case("set-sized", 16),
        case("set-sized:50,get-sized:50", 16),
    ],
));

/// Strings to which loads append. Lengths remain multiples of the value size.
const GROWING_VALUES: Dataset = without_memory(strings(FULL_KEYS, 64, &[case("append", 1), case("append", 16)]));

const EXPIRING_VALUES: Dataset = without_memory(with_ttl(strings(
    FULL_KEYS,
    64,
    &[
        case("set-ex", 1),
        case("set-ex", 16),
        case("setex", 1),
        case("setex", 16),
    ],
)));

/// Strings of which a half exists, once the load has run for a while.
const DELETED_VALUES: Dataset = without_memory(strings(
    FULL_KEYS,
    64,
    &[case("del:50,set:50", 1), case("del:50,set:50", 16)],
));

/// Writes of strings.
pub const WRITES: LoadSet = LoadSet {
    name: "writes",
    about: "SET of new keys, of other lengths, with expiry and of 64 KiB, APPEND, INCR, DEL, PFADD",
    rounds: 5,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[Comparison {
        prepares_memory: true,
        ..pinned(
            "Writes, one core each",
            &[
                NEW_KEYS,
                SIZED_VALUES,
                GROWING_VALUES,
                dataset("", COUNTERS, 8, &[FILL_COUNTERS], &[case("incr", 1), case("incr", 16)]),
                EXPIRING_VALUES,
                DELETED_VALUES,
                dataset(
                    "",
                    HYPERLOGLOGS,
                    20,
                    &[FILL_HYPERLOGLOGS],
                    &[case("pfadd", 1), case("pfadd", 16)],
                ),
                without_memory(strings(LARGE_VALUES, 65_536, &[case("set", 1), case("set", 16)])),
            ],
        )
    }],
    idle: &[],
};

/// Append-only files and replicas.
pub const DURABILITY: LoadSet = LoadSet {
    name: "durability",
    about: "GET and SET of 64 B with an append-only file (everysec and always), and with a replica",
    rounds: 5,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[
        Comparison {
            sides: &[
                side(
                    "Weft",
                    Program::Weft,
                    "--io-threads 1 --appendonly yes --appendfsync everysec --auto-aof-rewrite-percentage 0",
                ),
                side(
                    "Valkey",
                    Program::Valkey,
                    "--io-threads 1 --appendonly yes --appendfsync everysec --auto-aof-rewrite-percentage 0",
                ),
            ],
            ..pinned(
                "Append-only file, fsync every second, one core each",
                &[without_memory(strings(
                    DURABLE_KEYS,
                    64,
                    &[case("get", 1), case("set", 1), case("get", 16), case("set", 16)],
                ))],
            )
        },
        Comparison {
            sides: &[
                side(
                    "Weft",
                    Program::Weft,
                    "--io-threads 1 --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0",
                ),
                side(
                    "Valkey",
                    Program::Valkey,
                    "--io-threads 1 --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0",
                ),
            ],
            ..pinned(
                "Append-only file, fsync before each reply, one core each",
                &[without_memory(strings(
                    DURABLE_KEYS,
                    64,
                    &[case("set", 1), case("set", 16)],
                ))],
            )
        },
        Comparison {
            // A replica that is slower than its primary is not disconnected, because it would need all data again.
            sides: &[
                side(
                    "Weft",
                    Program::Weft,
                    "--io-threads 1 --client-output-buffer-limit replica 0 0 0 --repl-diskless-sync-delay 0",
                ),
                side(
                    "Valkey",
                    Program::Valkey,
                    "--io-threads 1 --client-output-buffer-limit replica 0 0 0 --repl-diskless-sync-delay 0",
                ),
            ],
            has_replicas: true,
            remark: Some("The replica runs on the client's core; CPU time is that of the primary only"),
            ..pinned(
                "With a replica, one core for the primary",
                &[without_memory(strings(
                    DURABLE_KEYS,
                    64,
                    &[case("get", 16), case("set", 1), case("set", 16)],
                ))],
            )
        },
    ],
    idle: &[],
};
