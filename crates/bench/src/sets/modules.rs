//! The set of commands of a module, which both servers load: `tests/bench/module.c`.

use super::{
    Comparison, Dataset, LoadCase, LoadSet, Program, WARMUP, case, pinned, side, strings, unpinned, without_memory,
};
use crate::background_load::{BackgroundLoad, LongCommand};

/// The number of strings.
const STRINGS: u64 = 1_000_000;

/// The number of commands of the module that the background client of a load sends in a second.
const COMMANDS_PER_S: u32 = 1000;

const NOP: LongCommand = LongCommand {
    line: "BENCH.NOP",
    expected: 1,
};

const fn beside_module_commands(case: LoadCase) -> LoadCase {
    LoadCase {
        background_load: BackgroundLoad::PacedCommand {
            command: NOP,
            per_second: COMMANDS_PER_S,
        },
        ..case
    }
}

const fn small(cases: &'static [LoadCase]) -> Dataset {
    without_memory(strings(STRINGS, 64, cases))
}

/// Commands of a module beside built-in ones.
pub const MODULES: LoadSet = LoadSet {
    name: "modules",
    about: "commands of tests/bench/module.c, at home and slot-safe, on 1M keys of 64 B; needs the module in both servers",
    rounds: 5,
    warmup: WARMUP,
    seconds: 1.0,
    comparisons: &[
        pinned(
            "Commands of a module, one core each",
            &[small(&[
                case("module-nop", 64),
                case("module-get", 64),
                case("module-set", 64),
                case("module-call-get", 64),
                case("get", 64),
                case("slot-safe-get", 64),
                case("set", 64),
                case("slot-safe-set", 64),
                case("slot-safe-call-get", 64),
            ])],
        ),
        unpinned(
            "Commands of a module that cost the server much, with one and two threads, nothing pinned",
            &[
                side(
                    "Weft, 2 threads",
                    Program::Weft,
                    "--io-threads 2 --io-threads-always-active yes",
                ),
                side("Weft, 1 thread", Program::Weft, "--io-threads 1"),
                side("Valkey, 1 thread", Program::Valkey, "--io-threads 1"),
            ],
            &[small(&[case("slot-safe-sum1000", 1), case("module-sum1000", 1)])],
        ),
        Comparison {
            remark: Some("The first row is without commands of the module, the second one beside them"),
            ..unpinned(
                "GET beside commands of a module, two threads, nothing pinned",
                &[side(
                    "Weft, 2 threads",
                    Program::Weft,
                    "--io-threads 2 --io-threads-always-active yes",
                )],
                &[small(&[case("get", 16), beside_module_commands(case("get", 16))])],
            )
        },
    ],
    idle: &[],
};
