//! The sets of loads that `compare` runs: tables only.

use crate::error::{Error, Result};
use crate::load::FILL_STRINGS;

/// Keys of a full-size key space.
const FULL: u64 = 3_000_000;

/// Which binary a side runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The one under test.
    Weft,
    /// The one it is compared with.
    Valkey,
}

/// One side of a comparison.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    /// Its name in the table.
    pub label: &'static str,
    /// What it runs.
    pub program: Program,
    /// Arguments of the server.
    pub arguments: &'static str,
    /// A command sent before each of its loads; empty for none.
    pub before_load: &'static str,
}

/// A load on a filled key space.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// A load or mixture; see [`crate::load`].
    pub load: &'static str,
    /// Requests on their way per connection.
    pub pipeline: u64,
}

/// A key space and what is measured on it. Each is filled into fresh servers.
#[derive(Debug, Clone, Copy)]
pub struct Dataset {
    /// Keys per fill command.
    pub keys: u64,
    /// Bytes of each value.
    pub value_size: usize,
    /// Expiry of each key.
    pub ttl_s: Option<u64>,
    /// The commands that create the data, each sent once per key.
    pub fills: &'static [&'static str],
    /// The loads, run in this order; with none only memory is measured.
    pub cases: &'static [Case],
}

/// A comparison of sides on datasets.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// What the table says above it.
    pub title: &'static str,
    /// The sides; ratios are the first over the second.
    pub sides: &'static [Side],
    /// Whether all sides share one server, told apart by `before_load`.
    pub one_server: bool,
    /// Whether servers and client are pinned to different cores.
    pub pinned: bool,
    /// What is measured.
    pub datasets: &'static [Dataset],
}

/// A server without load, whose processor time is measured.
#[derive(Debug, Clone, Copy)]
pub struct Idle {
    /// The server.
    pub side: Side,
    /// For how long.
    pub seconds: f64,
}

/// A named set.
#[derive(Debug, Clone, Copy)]
pub struct Set {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// Interleaved rounds per load, unless the command line says otherwise.
    pub rounds: usize,
    /// Seconds per measured window, unless the command line says otherwise.
    pub seconds: f64,
    /// The comparisons.
    pub comparisons: &'static [Comparison],
    /// The idle measurements.
    pub idle: &'static [Idle],
}

const fn side(label: &'static str, program: Program, arguments: &'static str) -> Side {
    Side {
        label,
        program,
        arguments,
        before_load: "",
    }
}

const fn case(load: &'static str, pipeline: u64) -> Case {
    Case { load, pipeline }
}

const fn strings(keys: u64, value_size: usize, cases: &'static [Case]) -> Dataset {
    Dataset {
        keys,
        value_size,
        ttl_s: None,
        fills: &[FILL_STRINGS],
        cases,
    }
}

const fn with_ttl(dataset: Dataset) -> Dataset {
    Dataset {
        ttl_s: Some(1_000_000),
        ..dataset
    }
}

/// Weft and Valkey, one thread each.
const ONE_THREAD_EACH: &[Side] = &[
    side("Weft", Program::Weft, "--io-threads 1"),
    side("Valkey", Program::Valkey, "--io-threads 1"),
];

const fn pinned(title: &'static str, datasets: &'static [Dataset]) -> Comparison {
    Comparison {
        title,
        sides: ONE_THREAD_EACH,
        one_server: false,
        pinned: true,
        datasets,
    }
}

/// All sets.
pub const SETS: &[Set] = &[
    Set {
        name: "smoke",
        about: "every kind of load for a moment, on 10k keys",
        rounds: 1,
        seconds: 0.3,
        comparisons: &[pinned(
            "Strings, a moment of each load",
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
                ],
            )],
        )],
        idle: &[],
    },
    Set {
        name: "strings",
        about: "GET, SET, MGET, MSET on 3M keys",
        rounds: 5,
        seconds: 3.0,
        comparisons: &[pinned(
            "Strings, one core each",
            &[
                strings(
                    FULL,
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
                    FULL,
                    64,
                    &[case("get", 16), case("set", 16), case("mget100", 1), case("mset100", 1)],
                ),
            ],
        )],
        idle: &[],
    },
    Set {
        name: "memory",
        about: "bytes per key for values of 8 B to 4 KiB, without and with expiry",
        rounds: 1,
        seconds: 0.3,
        comparisons: &[pinned(
            "Memory",
            &[
                strings(FULL, 8, &[]),
                with_ttl(strings(FULL, 8, &[])),
                strings(FULL, 64, &[]),
                with_ttl(strings(FULL, 64, &[])),
                strings(FULL, 512, &[]),
                with_ttl(strings(FULL, 512, &[])),
                strings(500_000, 4096, &[]),
                with_ttl(strings(500_000, 4096, &[])),
            ],
        )],
        idle: &[],
    },
    Set {
        name: "collections",
        about: "hashes, lists, sets and sorted sets of 50 elements",
        rounds: 5,
        seconds: 3.0,
        comparisons: &[pinned(
            "Collections of 50 elements, one core each",
            &[Dataset {
                keys: 40_000,
                value_size: 70,
                ttl_s: None,
                fills: &[
                    "HSET hash:{id} {fields:50}",
                    "RPUSH list:{id} {values:50}",
                    "SADD set:{id} {members:50}",
                    "ZADD zset:{id} {scored:50}",
                ],
                cases: &[
                    case("hget", 16),
                    case("hgetall", 16),
                    case("lrange", 16),
                    case("lindex", 16),
                    case("sismember", 16),
                    case("smembers", 16),
                    case("zrange", 16),
                    case("zrank", 16),
                ],
            }],
        )],
        idle: &[],
    },
    Set {
        name: "prefetch",
        about: "Weft with and without prefetching of batches",
        rounds: 5,
        seconds: 3.0,
        comparisons: &[Comparison {
            title: "Prefetching, one core",
            sides: &[
                Side {
                    before_load: "CONFIG SET prefetch-batch-max-size 16",
                    ..side("batch 16", Program::Weft, "--io-threads 1")
                },
                Side {
                    before_load: "CONFIG SET prefetch-batch-max-size 0",
                    ..side("off", Program::Weft, "--io-threads 1")
                },
            ],
            one_server: true,
            pinned: true,
            datasets: &[strings(FULL, 64, &[case("get", 16)])],
        }],
        idle: &[],
    },
    Set {
        name: "threads",
        about: "Weft with many threads on few cores, and its idle processor time",
        rounds: 5,
        seconds: 3.0,
        comparisons: &[Comparison {
            title: "Threads, nothing pinned",
            sides: &[
                side("8 threads", Program::Weft, "--io-threads 8"),
                side("1 thread", Program::Weft, "--io-threads 1"),
            ],
            one_server: false,
            pinned: false,
            datasets: &[strings(FULL, 64, &[case("get", 1), case("get", 16), case("mixed", 16)])],
        }],
        idle: &[Idle {
            side: side("64 threads", Program::Weft, "--io-threads 64"),
            seconds: 10.0,
        }],
    },
];

/// Sets by name: one, several separated by commas, or `all` (every one but `smoke`).
pub fn named(text: &str) -> Result<Vec<&'static Set>> {
    if text == "all" {
        return Ok(SETS.iter().filter(|set| set.name != "smoke").collect());
    }
    let find = |name: &str| {
        let found = SETS.iter().find(|set| set.name == name);
        found.ok_or_else(|| Error::Usage(format!("unknown set {name:?}")))
    };
    text.split(',').map(find).collect()
}
