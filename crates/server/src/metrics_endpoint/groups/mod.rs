//! The metrics by topic. Each topic is a file with a table of its metrics, from which `docs/metrics.md` is generated,
//! and a function that writes their samples.

mod clients;
mod cluster;
mod commands;
mod endpoint;
mod keyspace;
mod memory;
mod persistence;
mod process;
mod replication;
mod scripts;
mod table;
mod workers;

pub use endpoint::EndpointFigures;
pub use process::is_loading;

use super::exposition::Exposition;
#[cfg(test)]
use super::exposition::Metric;
use crate::state::Server;

/// A topic.
#[cfg(test)]
pub struct MetricGroup {
    /// The heading in the documentation.
    pub title: &'static str,
    /// The metrics.
    pub table: &'static [&'static Metric],
}

/// All topics.
#[cfg(test)]
pub const GROUPS: &[MetricGroup] = &[
    MetricGroup {
        title: "Process",
        table: process::TABLE,
    },
    MetricGroup {
        title: "Commands",
        table: commands::TABLE,
    },
    MetricGroup {
        title: "Workers",
        table: workers::TABLE,
    },
    MetricGroup {
        title: "Clients and network",
        table: clients::TABLE,
    },
    MetricGroup {
        title: "Keys",
        table: keyspace::TABLE,
    },
    MetricGroup {
        title: "Memory",
        table: memory::TABLE,
    },
    MetricGroup {
        title: "Persistence",
        table: persistence::TABLE,
    },
    MetricGroup {
        title: "Replication",
        table: replication::TABLE,
    },
    MetricGroup {
        title: "Cluster",
        table: cluster::TABLE,
    },
    MetricGroup {
        title: "Scripts",
        table: scripts::TABLE,
    },
    MetricGroup {
        title: "The endpoint itself",
        table: endpoint::TABLE,
    },
];

/// Writes all metrics.
pub fn write_all(out: &mut Exposition, server: &Server, figures: &EndpointFigures) {
    process::write(out, server);
    commands::write(out, server);
    workers::write(out, server);
    clients::write(out, server);
    keyspace::write(out, server);
    memory::write(out, server);
    persistence::write(out, server);
    replication::write(out, server);
    cluster::write(out, server);
    scripts::write(out, server);
    endpoint::write(out, figures);
}
