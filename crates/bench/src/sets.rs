//! The sets of loads that `compare` runs. The module consists of tables.

use crate::background_load::{BackgroundLoad, LongCommand};
use crate::error::{Error, Result};
use crate::load::{FILL_STRINGS, GROUP_READ};

/// The number of keys of a full-size keyspace.
const FULL_KEYS: u64 = 3_000_000;

/// The number of collections of 50 elements.
const COLLECTIONS: u64 = 100_000;

/// The number of collections of 10 elements.
const SMALL_COLLECTIONS: u64 = 500_000;

/// The number of elements of a big collection.
const BIG_ELEMENTS: u64 = 1_000_000;

const HASHES_OF_50: &str = "HSET hash:{id} {fields:50}";
const LISTS_OF_50: &str = "RPUSH list:{id} {values:50}";
const SETS_OF_50: &str = "SADD set:{id} {names:50}";
const SORTED_SETS_OF_50: &str = "ZADD zset:{id} {scored:50}";
const BIG_HASH: &str = "HSET hash field:{id} {value}";
const BIG_SET: &str = "SADD set {idname}";
const BIG_SORTED_SET: &str = "ZADD zset {scored-id}";
const QUEUES: &str = "RPUSH queue:{id} {names:1000}";

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

/// The binary that a side runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The server under test.
    Weft,
    /// The server it is compared with.
    Valkey,
}

/// One side of a comparison.
#[derive(Debug, Clone, Copy)]
pub struct ComparisonSide {
    /// The name in the table.
    pub label: &'static str,
    /// The binary.
    pub program: Program,
    /// The arguments of the server.
    pub arguments: &'static str,
    /// A command sent before each of its loads; empty for none.
    pub before_load: &'static str,
}

/// A load on a filled keyspace.
#[derive(Debug, Clone, Copy)]
pub struct LoadCase {
    /// A load or mixture; see [`crate::load`].
    pub load: &'static str,
    /// The number of outstanding requests per connection.
    pub pipeline: u64,
    /// Requests per second, due independently of the server; `None` sends as fast as replies come.
    pub rate: Option<f64>,
    /// The other clients during the load.
    pub background_load: BackgroundLoad,
}

/// A keyspace and the loads measured on it. Each is filled into fresh servers.
#[derive(Debug, Clone, Copy)]
pub struct Dataset {
    /// The counted item in the memory table, such as "hash of 50 fields"; empty for keys.
    pub item_name: &'static str,
    /// The number of requests per fill command.
    pub keys: u64,
    /// The size of each value in bytes.
    pub value_size: usize,
    /// The expiry of each key, in seconds.
    pub ttl_s: Option<u64>,
    /// The commands that create the data. Each is sent once per key. A command whose key has no placeholder fills one
    /// key.
    pub fills: &'static [&'static str],
    /// `true` if the stream exists that the load `group-read` reads in a cycle.
    pub has_stream: bool,
    /// The loads, run in this order. Without loads, only memory is measured.
    pub cases: &'static [LoadCase],
}

/// A comparison of sides on datasets.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// The heading of the table.
    pub title: &'static str,
    /// The sides; ratios are the first over the second.
    pub sides: &'static [ComparisonSide],
    /// `true` if all sides share one server and differ by `before_load`.
    pub shares_server: bool,
    /// `true` if servers and client are pinned to different cores.
    pub is_pinned: bool,
    /// The datasets that are measured.
    pub datasets: &'static [Dataset],
}

/// A server without load whose CPU time is measured.
#[derive(Debug, Clone, Copy)]
pub struct IdleMeasurement {
    /// The server.
    pub side: ComparisonSide,
    /// The length of the measurement in seconds.
    pub seconds: f64,
}

/// A named set of comparisons.
#[derive(Debug, Clone, Copy)]
pub struct LoadSet {
    /// The name on the command line.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// The number of interleaved rounds per load, unless the command line overrides it.
    pub rounds: usize,
    /// Seconds of load before each window, unless the command line overrides it.
    pub warmup: f64,
    /// Seconds per measured window, unless the command line overrides it.
    pub seconds: f64,
    /// The comparisons.
    pub comparisons: &'static [Comparison],
    /// The idle measurements.
    pub idle: &'static [IdleMeasurement],
}

const fn side(label: &'static str, program: Program, arguments: &'static str) -> ComparisonSide {
    ComparisonSide {
        label,
        program,
        arguments,
        before_load: "",
    }
}

const fn case(load: &'static str, pipeline: u64) -> LoadCase {
    LoadCase {
        load,
        pipeline,
        rate: None,
        background_load: BackgroundLoad::None,
    }
}

const fn waiting(case: LoadCase, clients: usize, same_list: bool) -> LoadCase {
    LoadCase {
        background_load: BackgroundLoad::Waiting { clients, same_list },
        ..case
    }
}

const fn paced(case: LoadCase, rate: f64) -> LoadCase {
    LoadCase {
        rate: Some(rate),
        ..case
    }
}

/// Creates a dataset of one kind of data, whose memory is also reported.
const fn dataset(
    what: &'static str,
    keys: u64,
    value_size: usize,
    fills: &'static [&'static str],
    cases: &'static [LoadCase],
) -> Dataset {
    Dataset {
        item_name: what,
        keys,
        value_size,
        ttl_s: None,
        fills,
        has_stream: false,
        cases,
    }
}

const fn strings(keys: u64, value_size: usize, cases: &'static [LoadCase]) -> Dataset {
    dataset("", keys, value_size, &[FILL_STRINGS], cases)
}

const fn with_ttl(dataset: Dataset) -> Dataset {
    Dataset {
        ttl_s: Some(1_000_000),
        ..dataset
    }
}

/// Weft and Valkey, one thread each.
const ONE_THREAD_EACH: &[ComparisonSide] = &[
    side("Weft", Program::Weft, "--io-threads 1"),
    side("Valkey", Program::Valkey, "--io-threads 1"),
];

const fn pinned(title: &'static str, datasets: &'static [Dataset]) -> Comparison {
    Comparison {
        title,
        sides: ONE_THREAD_EACH,
        shares_server: false,
        is_pinned: true,
        datasets,
    }
}

/// Seconds of load before most windows.
const WARMUP: f64 = 0.3;

/// All sets.
pub const SETS: &[LoadSet] = &[
    LoadSet {
        name: "smoke",
        about: "every kind of load for a short time, on 10k keys",
        rounds: 1,
        warmup: WARMUP,
        seconds: 0.3,
        comparisons: &[pinned(
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
                ],
            )],
        )],
        idle: &[],
    },
    LoadSet {
        name: "strings",
        about: "GET, SET, MGET, MSET on 3M keys",
        rounds: 5,
        warmup: WARMUP,
        seconds: 3.0,
        comparisons: &[pinned(
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
        )],
        idle: &[],
    },
    LoadSet {
        name: "memory",
        about: "bytes per key for values of 8 B to 4 KiB, without and with expiry",
        rounds: 1,
        warmup: WARMUP,
        seconds: 0.3,
        comparisons: &[pinned(
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
        )],
        idle: &[],
    },
    LoadSet {
        name: "collections",
        about: "100k hashes, lists, sets and sorted sets of 50 elements of 70 B",
        rounds: 3,
        warmup: WARMUP,
        seconds: 1.0,
        comparisons: &[pinned(
            "Collections of 50 elements of 70 B, one core each",
            &[
                dataset(
                    "hash of 50 fields",
                    COLLECTIONS,
                    70,
                    &[HASHES_OF_50],
                    &[case("hgetall", 1), case("hgetall", 16), case("hgetall:80,hset:20", 16)],
                ),
                dataset(
                    "sorted set of 50 members",
                    COLLECTIONS,
                    70,
                    &[SORTED_SETS_OF_50],
                    &[case("zrank", 16), case("zrange", 16), case("zrank-any:80,zadd:20", 16)],
                ),
                dataset(
                    "list of 50 elements",
                    COLLECTIONS,
                    70,
                    &[LISTS_OF_50],
                    &[case("lindex", 16), case("lrange", 16), case("lindex:80,lset:20", 16)],
                ),
                dataset(
                    "set of 50 members",
                    COLLECTIONS,
                    70,
                    &[SETS_OF_50],
                    &[case("smembers", 16)],
                ),
            ],
        )],
        idle: &[],
    },
    LoadSet {
        name: "collections-memory",
        about: "bytes per collection of 50 x 70 B and 10 x 10 B, and per member of one with 1M members of 20 B",
        rounds: 1,
        warmup: WARMUP,
        seconds: 0.3,
        comparisons: &[pinned(
            "Memory of collections",
            &[
                dataset("hash of 50 fields", COLLECTIONS, 70, &[HASHES_OF_50], &[]),
                dataset("list of 50 elements", COLLECTIONS, 70, &[LISTS_OF_50], &[]),
                dataset("set of 50 members", COLLECTIONS, 70, &[SETS_OF_50], &[]),
                dataset("sorted set of 50 members", COLLECTIONS, 70, &[SORTED_SETS_OF_50], &[]),
                dataset(
                    "hash of 10 fields",
                    SMALL_COLLECTIONS,
                    10,
                    &["HSET hash:{id} {fields:10}"],
                    &[],
                ),
                dataset(
                    "list of 10 elements",
                    SMALL_COLLECTIONS,
                    10,
                    &["RPUSH list:{id} {values:10}"],
                    &[],
                ),
                dataset(
                    "set of 10 members",
                    SMALL_COLLECTIONS,
                    10,
                    &["SADD set:{id} {names:10}"],
                    &[],
                ),
                dataset(
                    "sorted set of 10 members",
                    SMALL_COLLECTIONS,
                    10,
                    &["ZADD zset:{id} {scored:10}"],
                    &[],
                ),
                dataset("field of one hash", BIG_ELEMENTS, 20, &[BIG_HASH], &[]),
                dataset("member of one set", BIG_ELEMENTS, 20, &[BIG_SET], &[]),
                dataset("member of one sorted set", BIG_ELEMENTS, 20, &[BIG_SORTED_SET], &[]),
            ],
        )],
        idle: &[],
    },
    LoadSet {
        name: "big-collections",
        about: "one set and one sorted set of 1M members of 20 B, and queues",
        rounds: 3,
        warmup: WARMUP,
        seconds: 1.0,
        comparisons: &[pinned(
            "Big collections and queues, one core each",
            &[
                dataset(
                    "member of one sorted set",
                    BIG_ELEMENTS,
                    20,
                    &[BIG_SORTED_SET],
                    &[
                        case("big-zrank", 16),
                        case("big-zrangebyscore", 16),
                        case("big-zadd", 16),
                    ],
                ),
                dataset(
                    "member of one set",
                    BIG_ELEMENTS,
                    20,
                    &[BIG_SET],
                    &[case("big-sismember", 16), case("big-sadd", 16)],
                ),
                dataset(
                    "queue of 1000 elements",
                    1000,
                    70,
                    &[QUEUES],
                    &[case("lpush:50,rpop:50", 16)],
                ),
            ],
        )],
        idle: &[],
    },
    LoadSet {
        name: "streams",
        about: "XADD to 1000 streams; reading ten entries as a group and acknowledging them",
        rounds: 3,
        warmup: WARMUP,
        seconds: 1.0,
        comparisons: &[pinned(
            "Streams, one core each",
            &[Dataset {
                has_stream: true,
                ..dataset(
                    "",
                    1000,
                    20,
                    &[],
                    &[
                        case(GROUP_READ, 1),
                        case(GROUP_READ, 16),
                        case("xadd", 1),
                        case("xadd", 16),
                    ],
                )
            }],
        )],
        idle: &[],
    },
    LoadSet {
        name: "long",
        about: "GET and SET at a fixed rate during commands over 1M elements: p99.9",
        rounds: 2,
        // The warm-up lets the server's heap reach its working size: memory for the first of these commands is newly
        // allocated.
        warmup: 5.0,
        seconds: 8.0,
        comparisons: &[Comparison {
            title: "During commands over 1M elements, nothing pinned",
            sides: &[
                side("Weft, 2 threads", Program::Weft, "--io-threads 2"),
                side("Valkey", Program::Valkey, "--io-threads 1"),
            ],
            shares_server: false,
            is_pinned: false,
            datasets: &[dataset(
                "",
                BIG_ELEMENTS,
                20,
                &[FILL_STRINGS, BIG_HASH, BIG_SET, BIG_SORTED_SET],
                &[
                    // The baseline: the same load without long commands.
                    paced(case("mixed", 1), 10_000.0),
                    LoadCase {
                        background_load: BackgroundLoad::LongCommands(LONG_COMMANDS),
                        ..paced(case("mixed", 1), 10_000.0)
                    },
                ],
            )],
        }],
        idle: &[],
    },
    LoadSet {
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
                    &[QUEUES],
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
    },
    LoadSet {
        name: "prefetch",
        about: "Weft with and without prefetching of batches",
        rounds: 5,
        warmup: WARMUP,
        seconds: 3.0,
        comparisons: &[Comparison {
            title: "Prefetching, one core",
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
            is_pinned: true,
            datasets: &[strings(FULL_KEYS, 64, &[case("get", 16)])],
        }],
        idle: &[],
    },
    LoadSet {
        name: "threads",
        about: "Weft with many threads on few cores, and its idle processor time",
        rounds: 5,
        warmup: WARMUP,
        seconds: 3.0,
        comparisons: &[Comparison {
            title: "Threads, nothing pinned",
            sides: &[
                side("8 threads", Program::Weft, "--io-threads 8"),
                side("1 thread", Program::Weft, "--io-threads 1"),
            ],
            shares_server: false,
            is_pinned: false,
            datasets: &[strings(
                FULL_KEYS,
                64,
                &[case("get", 1), case("get", 16), case("mixed", 16)],
            )],
        }],
        idle: &[IdleMeasurement {
            side: side("64 threads", Program::Weft, "--io-threads 64"),
            seconds: 10.0,
        }],
    },
];

/// Finds sets by name: one, several separated by commas, or `all` (every set but `smoke`).
///
/// # Errors
/// Fails if a name is unknown.
pub fn sets_by_name(text: &str) -> Result<Vec<&'static LoadSet>> {
    if text == "all" {
        return Ok(SETS.iter().filter(|set| set.name != "smoke").collect());
    }
    let find = |name: &str| {
        let found = SETS.iter().find(|set| set.name == name);
        found.ok_or_else(|| Error::Usage(format!("unknown set {name:?}")))
    };
    text.split(',').map(find).collect()
}
