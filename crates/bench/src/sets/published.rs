//! The loads of the published measurements, which `report` runs: reads only, and 80 % reads with 20 % writes, at three
//! depths of the pipeline.

use super::{
    Comparison, ComparisonSide, Dataset, FULL_KEYS, LoadSet, Program, WARMUP, case, dataset, pinned, side, strings,
    unpinned, without_memory,
};
use crate::error::{Error, Result};
use crate::load::{FILL_HASHES, FILL_LISTS, FILL_SETS, FILL_SORTED_SETS};

/// The number of collections of 50 elements.
const COLLECTIONS_OF_50: u64 = 100_000;

/// The number of keys where logs, replicas or the number of workers are compared.
const FEWER_KEYS: u64 = 1_000_000;

const STRINGS: Comparison = pinned(
    "Strings of 512 B, one core each",
    &[strings(
        FULL_KEYS,
        512,
        &[
            case("get", 1),
            case("get", 16),
            case("get", 64),
            case("mixed", 1),
            case("mixed", 16),
            case("mixed", 64),
        ],
    )],
);

/// Hashes. A field is set to the value that it has.
const HASHES: Dataset = dataset(
    "hash of 50 fields",
    COLLECTIONS_OF_50,
    70,
    &[FILL_HASHES],
    &[
        case("hgetall", 1),
        case("hgetall", 16),
        case("hgetall", 64),
        case("hgetall:80,hset:20", 1),
        case("hgetall:80,hset:20", 16),
        case("hgetall:80,hset:20", 64),
    ],
);

const LISTS: Dataset = dataset(
    "list of 50 elements",
    COLLECTIONS_OF_50,
    70,
    &[FILL_LISTS],
    &[
        case("lindex", 1),
        case("lindex", 16),
        case("lindex", 64),
        case("lindex:80,lset:20", 1),
        case("lindex:80,lset:20", 16),
        case("lindex:80,lset:20", 64),
    ],
);

const SETS_OF_50: Dataset = dataset(
    "set of 50 members",
    COLLECTIONS_OF_50,
    70,
    &[FILL_SETS],
    &[
        case("smembers", 1),
        case("smembers", 16),
        case("smembers", 64),
        case("smembers:80,sadd:20", 1),
        case("smembers:80,sadd:20", 16),
        case("smembers:80,sadd:20", 64),
    ],
);

/// Sorted sets. ZADD changes the scores, so the loads that compare ranks go first.
const SORTED_SETS: Dataset = dataset(
    "sorted set of 50 members",
    COLLECTIONS_OF_50,
    70,
    &[FILL_SORTED_SETS],
    &[
        case("zrank", 1),
        case("zrank", 16),
        case("zrank", 64),
        case("zrank-any:80,zadd:20", 1),
        case("zrank-any:80,zadd:20", 16),
        case("zrank-any:80,zadd:20", 64),
    ],
);

const COLLECTIONS: Comparison = pinned(
    "Collections of 50 elements of 70 B, one core each",
    &[HASHES, LISTS, SETS_OF_50, SORTED_SETS],
);

const SCRIPTS: Comparison = pinned(
    "Scripts on strings of 64 B, one core each",
    &[strings(
        FULL_KEYS,
        64,
        &[
            case("evalsha-get", 1),
            case("evalsha-get", 16),
            case("evalsha-get", 64),
            case("evalsha-get:80,evalsha-set:20", 1),
            case("evalsha-get:80,evalsha-set:20", 16),
            case("evalsha-get:80,evalsha-set:20", 64),
        ],
    )],
);

const WRITTEN_STRINGS: Dataset = without_memory(strings(
    FEWER_KEYS,
    64,
    &[case("mixed", 1), case("mixed", 16), case("mixed", 64), case("set", 16)],
));

const APPEND_ONLY: Comparison = Comparison {
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
        "Strings of 64 B with an append-only file, fsync every second, one core each",
        &[WRITTEN_STRINGS],
    )
};

const REPLICA: Comparison = Comparison {
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
        "Strings of 64 B with a replica attached, one core for the primary",
        &[WRITTEN_STRINGS],
    )
};

const fn weft_workers(label: &'static str, arguments: &'static str, workers: usize) -> ComparisonSide {
    ComparisonSide {
        workers,
        ..side(label, Program::Weft, arguments)
    }
}

const fn valkey_workers(label: &'static str, arguments: &'static str, workers: usize) -> ComparisonSide {
    ComparisonSide {
        workers,
        ..side(label, Program::Valkey, arguments)
    }
}

const WORKERS: Comparison = Comparison {
    remark: Some("Each load runs on all servers in turn; those that wait for their turn are idle"),
    ..unpinned(
        "Scaling over workers, strings of 64 B, nothing pinned",
        &[
            weft_workers("Weft, 1 worker", "--io-threads 1", 1),
            valkey_workers("Valkey, 1 thread", "--io-threads 1", 1),
            weft_workers("Weft, 2 workers", "--io-threads 2 --io-threads-always-active yes", 2),
            valkey_workers("Valkey, 2 threads", "--io-threads 2", 2),
            weft_workers("Weft, 4 workers", "--io-threads 4 --io-threads-always-active yes", 4),
            valkey_workers("Valkey, 4 threads", "--io-threads 4", 4),
            weft_workers("Weft, 8 workers", "--io-threads 8 --io-threads-always-active yes", 8),
            valkey_workers("Valkey, 8 threads", "--io-threads 8", 8),
            weft_workers("Weft, 16 workers", "--io-threads 16 --io-threads-always-active yes", 16),
            valkey_workers("Valkey, 16 threads", "--io-threads 16", 16),
        ],
        &[without_memory(strings(
            FEWER_KEYS,
            64,
            &[
                case("get", 16),
                case("mixed", 16),
                case("mget100", 1),
                case("evalsha-loop1000", 1),
            ],
        ))],
    )
};

/// The published loads.
pub const PUBLISHED: LoadSet = LoadSet {
    name: "published",
    about: "the loads of `report`: strings, collections, scripts, append-only file, replica, numbers of workers",
    rounds: 3,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[STRINGS, COLLECTIONS, SCRIPTS, APPEND_ONLY, REPLICA, WORKERS],
    idle: &[],
};

/// The names of the comparisons of [`PUBLISHED`], in their order.
pub const PART_NAMES: [&str; 6] = ["strings", "collections", "scripts", "append-only", "replica", "workers"];

/// Finds comparisons of [`PUBLISHED`] by name: several separated by commas, or `all`.
///
/// # Errors
/// Fails if a name is unknown.
pub fn parts_by_name(text: &str) -> Result<Vec<&'static Comparison>> {
    let comparisons: &'static [Comparison] = PUBLISHED.comparisons;
    if text == "all" {
        return Ok(comparisons.iter().collect());
    }
    let find = |name: &str| {
        let place = PART_NAMES.iter().position(|part| *part == name);
        let found = place.and_then(|place| comparisons.get(place));
        found.ok_or_else(|| Error::Usage(format!("unknown part {name:?}; parts are {}", PART_NAMES.join(", "))))
    };
    text.split(',').map(find).collect()
}
