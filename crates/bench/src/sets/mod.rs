//! The sets of loads that `compare` runs. The module consists of tables.

mod clients;
mod collections;
mod computing;
mod modules;
mod published;
mod strings;
mod writes;

use crate::background_load::BackgroundLoad;
use crate::error::{Error, Result};
use crate::load::FILL_STRINGS;

pub use published::{PART_NAMES, PUBLISHED, parts_by_name};

#[cfg(test)]
mod tests;

/// The number of keys of a full-size keyspace.
const FULL_KEYS: u64 = 3_000_000;

/// The number of elements of a big collection.
const BIG_ELEMENTS: u64 = 1_000_000;

/// The sets that `all` leaves out: one only shows that all loads work, one repeats loads of further sets, and one needs
/// a module in the servers.
const NOT_IN_ALL: [&str; 3] = ["smoke", "published", "modules"];

const BIG_HASH: &str = "HSET hash field:{id} {value}";

/// The binary that a side runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The server under test.
    Weft,
    /// The server it is compared with.
    Valkey,
}

impl Program {
    /// The name of the server.
    pub fn name(self) -> &'static str {
        match self {
            Program::Weft => "Weft",
            Program::Valkey => "Valkey",
        }
    }
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
    /// Further variables of the server's environment.
    pub environment: &'static [(&'static str, &'static str)],
    /// A command sent before each of its loads; empty for none.
    pub before_load: &'static str,
    /// The number of workers, if the sides of the comparison differ by it; otherwise 0. Numbers that the command line
    /// does not ask for are left out.
    pub workers: usize,
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
    /// `true` if the memory table has a row for it.
    pub reports_memory: bool,
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
    /// The sides; ratios are the first over each other one.
    pub sides: &'static [ComparisonSide],
    /// `true` if all sides share one server and differ by `before_load`.
    pub shares_server: bool,
    /// `true` if servers and client are pinned to different cores.
    pub is_pinned: bool,
    /// The number of connections instead of that of the command line.
    pub connections: Option<usize>,
    /// `true` if each server has a replica, which runs on the client's cores and is not measured.
    pub has_replicas: bool,
    /// `true` if the loads use TLS.
    pub uses_tls: bool,
    /// `true` if `--valkey-huge-pages` adds [`VALKEY_HUGE_PAGES`].
    pub may_add_huge_pages: bool,
    /// `true` if the machine's free memory is prepared before each load, because the loads make servers grow.
    pub prepares_memory: bool,
    /// A remark for the report.
    pub remark: Option<&'static str>,
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

/// Creates a side without further settings.
pub const fn side(label: &'static str, program: Program, arguments: &'static str) -> ComparisonSide {
    ComparisonSide {
        label,
        program,
        arguments,
        environment: &[],
        before_load: "",
        workers: 0,
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

const fn subscribed(case: LoadCase, count: usize) -> LoadCase {
    LoadCase {
        background_load: BackgroundLoad::Subscribers { count },
        ..case
    }
}

const fn paced(case: LoadCase, rate: f64) -> LoadCase {
    LoadCase {
        rate: Some(rate),
        ..case
    }
}

/// Creates a dataset of one kind of data. Its memory is also reported if the items have a name.
const fn dataset(
    what: &'static str,
    keys: u64,
    value_size: usize,
    fills: &'static [&'static str],
    cases: &'static [LoadCase],
) -> Dataset {
    Dataset {
        item_name: what,
        reports_memory: !what.is_empty(),
        keys,
        value_size,
        ttl_s: None,
        fills,
        has_stream: false,
        cases,
    }
}

const fn strings(keys: u64, value_size: usize, cases: &'static [LoadCase]) -> Dataset {
    Dataset {
        reports_memory: true,
        ..dataset("", keys, value_size, &[FILL_STRINGS], cases)
    }
}

const fn without_memory(dataset: Dataset) -> Dataset {
    Dataset {
        reports_memory: false,
        ..dataset
    }
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

/// Creates a comparison with servers and client pinned to different cores.
const fn pinned(title: &'static str, datasets: &'static [Dataset]) -> Comparison {
    Comparison {
        title,
        sides: ONE_THREAD_EACH,
        shares_server: false,
        is_pinned: true,
        connections: None,
        has_replicas: false,
        uses_tls: false,
        may_add_huge_pages: false,
        prepares_memory: false,
        remark: None,
        datasets,
    }
}

/// Creates a comparison in which nothing is pinned.
const fn unpinned(title: &'static str, sides: &'static [ComparisonSide], datasets: &'static [Dataset]) -> Comparison {
    Comparison {
        sides,
        is_pinned: false,
        ..pinned(title, datasets)
    }
}

/// Lets `--valkey-huge-pages` add a side.
const fn with_huge_pages(comparison: Comparison) -> Comparison {
    Comparison {
        may_add_huge_pages: true,
        ..comparison
    }
}

/// Seconds of load before most windows.
const WARMUP: f64 = 0.3;

/// Valkey with huge pages for its heap, for the option `--valkey-huge-pages`.
pub const VALKEY_HUGE_PAGES: ComparisonSide = ComparisonSide {
    environment: &[("MALLOC_CONF", "thp:always")],
    // Otherwise Valkey switches huge pages off for itself if the system uses them always.
    ..side("Valkey, huge pages", Program::Valkey, "--io-threads 1 --disable-thp no")
};

/// All sets.
pub const SETS: &[LoadSet] = &[
    strings::SMOKE,
    strings::STRINGS,
    strings::MEMORY,
    collections::COLLECTIONS,
    collections::COLLECTIONS_MEMORY,
    collections::SMALL_COLLECTIONS,
    collections::BIG_COLLECTIONS,
    collections::STREAMS,
    writes::WRITES,
    writes::DURABILITY,
    computing::SCRIPTS,
    computing::WORKERS,
    modules::MODULES,
    clients::PUBSUB,
    clients::CONNECTIONS,
    clients::TLS,
    clients::LONG,
    clients::BLOCKED,
    strings::PREFETCH,
    strings::THREADS,
    PUBLISHED,
];

/// Finds sets by name: one, several separated by commas, or `all` (every set but `smoke`, `published` and `modules`).
///
/// # Errors
/// Fails if a name is unknown.
pub fn sets_by_name(text: &str) -> Result<Vec<&'static LoadSet>> {
    if text == "all" {
        return Ok(SETS.iter().filter(|set| !NOT_IN_ALL.contains(&set.name)).collect());
    }
    let find = |name: &str| {
        let found = SETS.iter().find(|set| set.name == name);
        found.ok_or_else(|| Error::Usage(format!("unknown set {name:?}")))
    };
    text.split(',').map(find).collect()
}
