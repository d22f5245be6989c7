//! Sets of commands that compute in the server: scripts, and commands over many elements.

use super::{
    Dataset, FULL_KEYS, LoadSet, Program, WARMUP, case, dataset, pinned, side, strings, unpinned, without_memory,
};
use crate::load::{FILL_HIGH_SETS, FILL_LOW_SETS, FILL_STRINGS, FILL_UNSORTED_LISTS, GET_HSET_EXPIRE};

/// The number of lists and of pairs of sets over which commands compute.
const LARGE_COLLECTIONS: u64 = 1000;

/// The number of strings of the set `workers`.
const WORKER_KEYS: u64 = 1_000_000;

/// Strings that scripts read and write.
const SCRIPT_STRINGS: Dataset = without_memory(strings(
    FULL_KEYS,
    64,
    &[
        case("get", 1),
        case("evalsha-get", 1),
        case("evalsha-get", 16),
        case("evalsha-set", 1),
        case("evalsha-set", 16),
        case("eval-get", 1),
        case("eval-get", 16),
    ],
));

/// Strings with a hash each, which the scripts with three commands read and write.
const SCRIPT_HASHES: Dataset = dataset(
    "",
    FULL_KEYS,
    64,
    &[FILL_STRINGS, GET_HSET_EXPIRE],
    &[
        case("evalsha-get-hset-expire", 1),
        case("evalsha-get-hset-expire", 16),
        case("fcall-get-hset-expire", 1),
        case("fcall-get-hset-expire", 16),
    ],
);

/// Scripts and functions.
pub const SCRIPTS: LoadSet = LoadSet {
    name: "scripts",
    about: "EVALSHA of GET, of SET, and of GET+HSET+EXPIRE, EVAL, and FCALL, on 3M keys of 64 B",
    rounds: 5,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[pinned("Scripts, one core each", &[SCRIPT_STRINGS, SCRIPT_HASHES])],
    idle: &[],
};

/// Commands that cost the server much and the client little, with one and two threads.
pub const WORKERS: LoadSet = LoadSet {
    name: "workers",
    about: "SORT, SUNION, SINTER, MGET of 100 keys, scripts with a loop that read and write, with one and two threads each",
    rounds: 5,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[unpinned(
        "Server-heavy commands with one and two threads, nothing pinned",
        &[
            side(
                "Weft, 2 threads",
                Program::Weft,
                "--io-threads 2 --io-threads-always-active yes",
            ),
            side("Weft, 1 thread", Program::Weft, "--io-threads 1"),
            side("Valkey, 1 thread", Program::Valkey, "--io-threads 1"),
            side("Valkey, 2 threads", Program::Valkey, "--io-threads 2"),
        ],
        &[
            dataset(
                "",
                LARGE_COLLECTIONS,
                20,
                &[FILL_UNSORTED_LISTS, FILL_LOW_SETS, FILL_HIGH_SETS],
                &[case("sort300", 1), case("sunion1000", 1), case("sinter1000", 1)],
            ),
            without_memory(strings(
                WORKER_KEYS,
                64,
                &[
                    case("mget100", 1),
                    case("evalsha-loop1000", 1),
                    case("evalsha-set-loop1000", 1),
                ],
            )),
        ],
    )],
    idle: &[],
};
