//! The flags of all commands. What several commands have in common is in one table.

use crate::flags::{Flag, flag};
use crate::load;

/// Creates the flag for the number of rounds, with its default.
const fn rounds_flag(default: &'static str) -> Flag {
    flag("--rounds", "N", default, "interleaved rounds")
}

const SEED_FLAGS: &[Flag] = &[flag("--seed", "N", "1", "seed of all random choices")];

/// The flag about the files of results that are named after the command.
const FOLDER_FLAGS: &[Flag] = &[flag(
    "--out-dir",
    "FOLDER",
    "results",
    "folder for the Markdown and JSON files",
)];

const SERVER_FLAGS: &[Flag] = &[
    flag("--host", "HOST", "127.0.0.1", "address of the server"),
    flag("--port", "PORT", "6379", "port of the server"),
    flag("--protocol", "2|3", "2", "RESP version"),
];

const DATA_FLAGS: &[Flag] = &[
    flag("--keys", "N", "3000000", "size of the key space"),
    flag("--value-size", "BYTES", "64", "bytes of each value"),
];

const RUN_FLAGS: &[Flag] = &[
    flag(
        "--load",
        "NAME",
        "",
        "a named load or a mixture such as get:80,set:20 (see `loads`)",
    ),
    flag("--mix", "MIXTURE", "", "the same as --load"),
    flag(
        "--command",
        "COMMAND",
        "",
        "a command with placeholders instead of a named load",
    ),
    flag("--expect", "KIND", "", "the kind of reply of --command"),
    flag("--expire", "SECONDS", "", "expiry that {expire} sets on written keys"),
    flag(
        "--zipf",
        "EXPONENT",
        "",
        "Zipf-distributed keys instead of uniform ones, such as 0.99",
    ),
    flag("--connections", "N", "50", "connections over all threads"),
    flag("--threads", "N", "1", "client threads"),
    flag(
        "--pipeline",
        "N",
        "1",
        "maximum number of outstanding requests per connection",
    ),
    flag(
        "--rate",
        "R",
        "",
        "open loop: requests per second in total, latency from the due time",
    ),
    flag("--seconds", "S", "3", "length of the measured window"),
    flag("--warmup", "S", "0.5", "seconds of load before the window"),
    flag("--drain", "S", "10", "seconds to wait for replies after the window"),
    flag(
        "--verify-every",
        "N",
        "16",
        "compare the full value in every N-th reply",
    ),
    flag("--cores", "LIST", "", "cores for the client threads, such as 1 or 2,3"),
    flag(
        "--pid",
        "PID",
        "",
        "the server's process id (queried with INFO if the host is local)",
    ),
    flag("--json", "", "", "print JSON"),
];

const FILL_FLAGS: &[Flag] = &[
    flag("--ttl", "SECONDS", "", "expiry of each key"),
    flag(
        "--command",
        "COMMAND",
        load::FILL_STRINGS,
        "the command that creates one key",
    ),
    flag("--load", "NAME", "", "create the data for a named load"),
    flag("--connections", "N", "8", "connections"),
    flag("--pipeline", "N", "64", "outstanding requests per connection"),
    flag("--cores", "LIST", "", "core for the client"),
];

/// The flags about the servers and their client that all commands have which start servers.
const SIDES_FLAGS: &[Flag] = &[
    flag("--weft", "PATH", "", "the weft-server binary"),
    flag(
        "--valkey",
        "PATH",
        "",
        "the valkey-server binary; without it only Weft is measured",
    ),
    flag(
        "--preload",
        "LIBRARY",
        "",
        "LD_PRELOAD for Valkey, such as .../libjemalloc.so.2",
    ),
    flag(
        "--weft-args",
        "ARGS",
        "",
        "further arguments for Weft, separated by blanks",
    ),
    flag("--valkey-args", "ARGS", "", "further arguments for Valkey"),
    flag("--connections", "N", "50", "connections"),
    flag("--server-cores", "LIST", "0", "cores for the servers"),
    flag("--client-cores", "LIST", "1", "cores for the client, one thread each"),
];

const COMPARE_FLAGS: &[Flag] = &[
    flag(
        "--valkey-tls",
        "PATH",
        "",
        "a valkey-server built with TLS, for the set tls; --valkey is used without it",
    ),
    flag(
        "--valkey-huge-pages",
        "",
        "",
        "add a side to the sets strings and memory: Valkey with MALLOC_CONF=thp:always, which --preload reads",
    ),
    flag(
        "--set",
        "NAME",
        "smoke",
        "which loads (below), or several separated by commas, or all",
    ),
    flag("--rounds", "N", "", "interleaved rounds per load instead of the set's"),
    flag(
        "--seconds",
        "S",
        "",
        "length of each measured window instead of the set's",
    ),
    flag("--warmup", "S", "", "load before each window instead of the set's"),
    flag("--keys", "N", "", "size of the key space instead of the set's"),
];

const REPORT_FLAGS: &[Flag] = &[
    flag(
        "--parts",
        "LIST",
        "all",
        "which parts (below), separated by commas, or all",
    ),
    flag(
        "--keys",
        "N",
        "3000000",
        "keys of the largest key space; the others shrink alike",
    ),
    rounds_flag("3"),
    flag("--seconds", "S", "1", "length of each measured window"),
    flag(
        "--warmup",
        "S",
        "",
        "load before each window [0.3, or less for short windows]",
    ),
    flag(
        "--workers",
        "LIST",
        "",
        "numbers of workers to compare, of 1, 2, 4, 8 and 16 [those up to the number of CPUs]",
    ),
    flag(
        "--client-threads",
        "N",
        "",
        "client threads where nothing is pinned [half the number of CPUs]",
    ),
    flag("--out", "FILE", "report.html", "the page"),
    flag(
        "--figure",
        "FILE",
        "",
        "also write the CPU time per request at pipeline 16 as an SVG image",
    ),
];

const INTERLEAVE_FLAGS: &[Flag] = &[
    flag("--lists", "N", "16", "linked lists"),
    flag("--nodes", "N", "10000000", "nodes of each list, of 8 bytes"),
    flag(
        "--work",
        "N",
        "0",
        "multiplications per node, each of which waits for the one before",
    ),
    rounds_flag("3"),
    flag("--core", "N", "", "the core on which it runs"),
];

const KEYSPACE_FLAGS: &[Flag] = &[
    flag("--threads", "N", "2", "threads, in addition to a run with one"),
    flag("--seconds", "S", "2", "length of each measurement"),
    rounds_flag("5"),
];

/// Further flags of `churn`.
const CHURN_FLAGS: &[Flag] = &[
    flag(
        "--servers",
        "NAMES",
        "",
        "servers that take part, of weft, weft-activedefrag, valkey, activedefrag [all]",
    ),
    flag("--maxmemory", "BYTES", "1gb", "maxmemory of the servers"),
    flag("--seconds", "S", "3600", "length of the churn on each server"),
    flag(
        "--flush-every",
        "S",
        "600",
        "seconds between two FLUSHDB during the churn; 0 for none",
    ),
    flag(
        "--settle",
        "S",
        "60",
        "seconds of observation after all keys have shrunk",
    ),
    flag("--keys", "N", "", "size of the key space [about twice as many as fit]"),
    flag(
        "--pipeline",
        "N",
        "8",
        "outstanding requests per connection; one of them reads",
    ),
];

/// Further flags of `eviction`.
const EVICTION_FLAGS: &[Flag] = &[
    flag(
        "--policies",
        "LIST",
        "allkeys-lru,allkeys-lfu",
        "eviction policies; keys have an expiry for those that are volatile",
    ),
    flag("--exponents", "LIST", "0.7,0.9,1.0", "exponents of Zipf's law"),
    flag("--fit", "N", "200000", "keys that fit; there are ten times as many"),
    flag("--value-size", "BYTES", "512", "bytes of each value"),
    flag("--samples", "N", "5", "maxmemory-samples of the servers"),
    flag("--rate", "R", "20000", "reads per second in total"),
    flag("--pipeline", "N", "16", "keys that are read together"),
    flag(
        "--warmup",
        "S",
        "30",
        "seconds between the first eviction and the measurement",
    ),
    flag("--seconds", "S", "30", "length of each measurement"),
    flag(
        "--write-rate",
        "R",
        "20000",
        "writes of new keys per second, for the latencies",
    ),
    rounds_flag("3"),
];

/// The flags of `keyspace`.
pub const KEYSPACE: &[&[Flag]] = &[DATA_FLAGS, KEYSPACE_FLAGS];
/// The flags of `run`.
pub const RUN: &[&[Flag]] = &[SERVER_FLAGS, DATA_FLAGS, RUN_FLAGS, SEED_FLAGS];
/// The flags of `fill`.
pub const FILL: &[&[Flag]] = &[SERVER_FLAGS, DATA_FLAGS, FILL_FLAGS];
/// The flags of `compare`.
pub const COMPARE: &[&[Flag]] = &[SIDES_FLAGS, COMPARE_FLAGS, FOLDER_FLAGS];
/// The flags of `report`.
pub const REPORT: &[&[Flag]] = &[SIDES_FLAGS, REPORT_FLAGS];
/// The flags of `churn`.
pub const CHURN: &[&[Flag]] = &[SIDES_FLAGS, CHURN_FLAGS, SEED_FLAGS, FOLDER_FLAGS];
/// The flags of `eviction`.
pub const EVICTION: &[&[Flag]] = &[SIDES_FLAGS, EVICTION_FLAGS, SEED_FLAGS, FOLDER_FLAGS];
/// The flags of `lab interleave`.
pub const INTERLEAVE: &[&[Flag]] = &[INTERLEAVE_FLAGS, SEED_FLAGS];
