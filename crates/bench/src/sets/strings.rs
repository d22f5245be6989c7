//! Sets of loads on strings: speed, memory, and parameters of Weft.

use super::{
    Comparison, ComparisonSide, FULL_KEYS, IdleMeasurement, LoadSet, Program, WARMUP, case, pinned, side, strings,
    subscribed, unpinned, with_huge_pages, with_ttl, without_memory,
};

/// Every kind of load.
pub const SMOKE: LoadSet = LoadSet {
    name: "smoke",
    about: "every kind of load for a short time, on 10k keys",
    rounds: 1,
    warmup: WARMUP,
    seconds: 0.3,
    comparisons: &[
        pinned(
            "Strings, a short run of each load",
            &[strings(
                10_000,
                64,
                &[
                    case("ping", 1),
                    case("get", 1),
                    case("get", 16),
                    case("set", 16),
                    case("mget100", 1),
                    case("mset100", 1),
                    case("incr", 16),
                    case("mixed", 16),
                    case("evalsha-get", 16),
                    case("eval-get", 1),
                    case("fcall-get-hset-expire", 16),
                    subscribed(case("publish-1", 16), 1),
                    case("set-new", 16),
                    case("set-sized:50,get-sized:50", 16),
                    case("del:50,set:50", 16),
                ],
            )],
        ),
        Comparison {
            sides: &[
                side("Weft", Program::Weft, "--io-threads 1 --appendonly yes"),
                side("Valkey", Program::Valkey, "--io-threads 1 --appendonly yes"),
            ],
            connections: Some(200),
            has_replicas: true,
            ..pinned(
                "With an append-only file, a replica and more connections",
                &[without_memory(strings(
                    10_000,
                    64,
                    &[case("set", 1), case("append", 1)],
                ))],
            )
        },
    ],
    idle: &[],
};

/// Speed of strings.
pub const STRINGS: LoadSet = LoadSet {
    name: "strings",
    about: "GET, SET, MGET, MSET on 3M keys",
    rounds: 5,
    warmup: WARMUP,
    seconds: 3.0,
    comparisons: &[with_huge_pages(pinned(
        "Strings, one core each",
        &[
            strings(
                FULL_KEYS,
                512,
                &[
                    case("get", 1),
                    case("set", 1),
                    case("get", 16),
                    case("set", 16),
                    case("get", 64),
                    case("set", 64),
                ],
            ),
            strings(
                FULL_KEYS,
                64,
                &[case("get", 16), case("set", 16), case("mget100", 1), case("mset100", 1)],
            ),
        ],
    ))],
    idle: &[],
};

/// Memory of strings.
pub const MEMORY: LoadSet = LoadSet {
    name: "memory",
    about: "bytes per key for values of 8 B to 4 KiB, without and with expiry",
    rounds: 1,
    warmup: WARMUP,
    seconds: 0.3,
    comparisons: &[with_huge_pages(pinned(
        "Memory",
        &[
            strings(FULL_KEYS, 8, &[]),
            with_ttl(strings(FULL_KEYS, 8, &[])),
            strings(FULL_KEYS, 64, &[]),
            with_ttl(strings(FULL_KEYS, 64, &[])),
            strings(FULL_KEYS, 512, &[]),
            with_ttl(strings(FULL_KEYS, 512, &[])),
            strings(500_000, 4096, &[]),
            with_ttl(strings(500_000, 4096, &[])),
        ],
    ))],
    idle: &[],
};

/// Weft with and without prefetching.
pub const PREFETCH: LoadSet = LoadSet {
    name: "prefetch",
    about: "Weft with and without prefetching of batches",
    rounds: 5,
    warmup: WARMUP,
    seconds: 3.0,
    comparisons: &[Comparison {
        sides: &[
            ComparisonSide {
                before_load: "CONFIG SET prefetch-batch-max-size 16",
                ..side("batch 16", Program::Weft, "--io-threads 1")
            },
            ComparisonSide {
                before_load: "CONFIG SET prefetch-batch-max-size 0",
                ..side("off", Program::Weft, "--io-threads 1")
            },
        ],
        shares_server: true,
        ..pinned("Prefetching, one core", &[strings(FULL_KEYS, 64, &[case("get", 16)])])
    }],
    idle: &[],
};

/// Weft with more threads than cores.
pub const THREADS: LoadSet = LoadSet {
    name: "threads",
    about: "Weft with many threads on few cores, and its idle processor time",
    rounds: 5,
    warmup: WARMUP,
    seconds: 3.0,
    comparisons: &[unpinned(
        "Threads, nothing pinned",
        &[
            side("8 threads", Program::Weft, "--io-threads 8"),
            side("1 thread", Program::Weft, "--io-threads 1"),
        ],
        &[strings(
            FULL_KEYS,
            64,
            &[case("get", 1), case("get", 16), case("mixed", 16)],
        )],
    )],
    idle: &[IdleMeasurement {
        side: side("64 threads", Program::Weft, "--io-threads 64"),
        seconds: 10.0,
    }],
};
