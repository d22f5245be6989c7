//! Sets of loads on collections: hashes, lists, sets, sorted sets and streams.

use super::{BIG_ELEMENTS, BIG_HASH, Dataset, LoadSet, WARMUP, case, dataset, pinned};
use crate::load::{
    FILL_BIG_SET, FILL_BIG_SORTED_SET, FILL_HASHES, FILL_LISTS, FILL_QUEUES, FILL_SETS, FILL_SMALL_HASHES,
    FILL_SMALL_LISTS, FILL_SMALL_SETS, FILL_SMALL_SORTED_SETS, FILL_SORTED_SETS, GROUP_READ,
};

/// The number of collections of 50 elements.
const COLLECTIONS_OF_50: u64 = 100_000;

/// The number of collections of 10 elements.
const COLLECTIONS_OF_10: u64 = 500_000;

/// Speed of collections of 50 elements.
pub const COLLECTIONS: LoadSet = LoadSet {
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
                COLLECTIONS_OF_50,
                70,
                &[FILL_HASHES],
                &[case("hgetall", 1), case("hgetall", 16), case("hgetall:80,hset:20", 16)],
            ),
            dataset(
                "sorted set of 50 members",
                COLLECTIONS_OF_50,
                70,
                &[FILL_SORTED_SETS],
                &[case("zrank", 16), case("zrange", 16), case("zrank-any:80,zadd:20", 16)],
            ),
            dataset(
                "list of 50 elements",
                COLLECTIONS_OF_50,
                70,
                &[FILL_LISTS],
                &[case("lindex", 16), case("lrange", 16), case("lindex:80,lset:20", 16)],
            ),
            dataset(
                "set of 50 members",
                COLLECTIONS_OF_50,
                70,
                &[FILL_SETS],
                &[case("smembers", 16)],
            ),
        ],
    )],
    idle: &[],
};

/// Memory of collections.
pub const COLLECTIONS_MEMORY: LoadSet = LoadSet {
    name: "collections-memory",
    about: "bytes per collection of 50 x 70 B and 10 x 10 B, and per member of one with 1M members of 20 B",
    rounds: 1,
    warmup: WARMUP,
    seconds: 0.3,
    comparisons: &[pinned(
        "Memory of collections",
        &[
            dataset("hash of 50 fields", COLLECTIONS_OF_50, 70, &[FILL_HASHES], &[]),
            dataset("list of 50 elements", COLLECTIONS_OF_50, 70, &[FILL_LISTS], &[]),
            dataset("set of 50 members", COLLECTIONS_OF_50, 70, &[FILL_SETS], &[]),
            dataset(
                "sorted set of 50 members",
                COLLECTIONS_OF_50,
                70,
                &[FILL_SORTED_SETS],
                &[],
            ),
            dataset("hash of 10 fields", COLLECTIONS_OF_10, 10, &[FILL_SMALL_HASHES], &[]),
            dataset("list of 10 elements", COLLECTIONS_OF_10, 10, &[FILL_SMALL_LISTS], &[]),
            dataset("set of 10 members", COLLECTIONS_OF_10, 10, &[FILL_SMALL_SETS], &[]),
            dataset(
                "sorted set of 10 members",
                COLLECTIONS_OF_10,
                10,
                &[FILL_SMALL_SORTED_SETS],
                &[],
            ),
            dataset("field of one hash", BIG_ELEMENTS, 20, &[BIG_HASH], &[]),
            dataset("member of one set", BIG_ELEMENTS, 20, &[FILL_BIG_SET], &[]),
            dataset(
                "member of one sorted set",
                BIG_ELEMENTS,
                20,
                &[FILL_BIG_SORTED_SET],
                &[],
            ),
        ],
    )],
    idle: &[],
};

/// Speed of collections of 10 short elements.
pub const SMALL_COLLECTIONS: LoadSet = LoadSet {
    name: "small-collections",
    about: "500k hashes, lists, sets and sorted sets of 10 elements of 10 B, which Valkey stores as listpacks",
    rounds: 5,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[pinned(
        "Collections of 10 elements of 10 B, one core each",
        &[
            dataset(
                "hash of 10 fields",
                COLLECTIONS_OF_10,
                10,
                &[FILL_SMALL_HASHES],
                &[case("hget10", 16), case("hgetall10", 16), case("hset10", 16)],
            ),
            dataset(
                "list of 10 elements",
                COLLECTIONS_OF_10,
                10,
                &[FILL_SMALL_LISTS],
                &[case("lrange10", 16)],
            ),
            dataset(
                "set of 10 members",
                COLLECTIONS_OF_10,
                10,
                &[FILL_SMALL_SETS],
                &[case("smembers10", 16), case("sismember10", 16)],
            ),
            // ZADD changes the scores, so ZRANGE goes first.
            dataset(
                "sorted set of 10 members",
                COLLECTIONS_OF_10,
                10,
                &[FILL_SMALL_SORTED_SETS],
                &[case("zrange10", 16), case("zadd10", 16)],
            ),
        ],
    )],
    idle: &[],
};

/// One collection of many elements, and queues.
pub const BIG_COLLECTIONS: LoadSet = LoadSet {
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
                &[FILL_BIG_SORTED_SET],
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
                &[FILL_BIG_SET],
                &[case("big-sismember", 16), case("big-sadd", 16)],
            ),
            dataset(
                "queue of 1000 elements",
                1000,
                70,
                &[FILL_QUEUES],
                &[case("lpush:50,rpop:50", 16)],
            ),
        ],
    )],
    idle: &[],
};

/// Streams.
pub const STREAMS: LoadSet = LoadSet {
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
};
