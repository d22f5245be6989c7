//! The sections of INFO.

/// A section of INFO. The order is that of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InfoSection {
    /// The process.
    Server,
    /// Certificates.
    Tls,
    /// Connections.
    Clients,
    /// Memory.
    Memory,
    /// Files.
    Persistence,
    /// Counters.
    Stats,
    /// Primary and replicas.
    Replication,
    /// CPU time.
    Cpu,
    /// Modules.
    Modules,
    /// Figures of each command.
    CommandStats,
    /// Error replies by code.
    ErrorStats,
    /// Latencies of each command.
    LatencyStats,
    /// Cluster mode.
    Cluster,
    /// The cluster's state; empty outside cluster mode.
    ClusterInfo,
    /// Engines that run scripts.
    ScriptingEngines,
    /// Figures that only Weft has: workers, and the distribution of work among them.
    Weft,
    /// The number of keys of each database.
    Keyspace,
    /// Figures for developers, which are shown only to clients that name the section.
    Debug,
}

impl InfoSection {
    /// The sections of INFO ALL.
    pub const ALL: &[InfoSection] = &[
        InfoSection::Server,
        InfoSection::Tls,
        InfoSection::Clients,
        InfoSection::Memory,
        InfoSection::Persistence,
        InfoSection::Stats,
        InfoSection::Replication,
        InfoSection::Cpu,
        InfoSection::Modules,
        InfoSection::CommandStats,
        InfoSection::ErrorStats,
        InfoSection::LatencyStats,
        InfoSection::Cluster,
        InfoSection::ClusterInfo,
        InfoSection::ScriptingEngines,
        InfoSection::Weft,
        InfoSection::Keyspace,
    ];

    /// The sections of an INFO without arguments.
    pub const DEFAULT: &[InfoSection] = &[
        InfoSection::Server,
        InfoSection::Clients,
        InfoSection::Memory,
        InfoSection::Persistence,
        InfoSection::Stats,
        InfoSection::Replication,
        InfoSection::Cpu,
        InfoSection::Modules,
        InfoSection::ErrorStats,
        InfoSection::Cluster,
        InfoSection::Keyspace,
    ];

    /// Returns the section with that name, which must be in lower case.
    pub fn from_name(word: &[u8]) -> Option<InfoSection> {
        InfoSection::ALL
            .iter()
            .chain(&[InfoSection::Debug])
            .find(|section| section.name().as_bytes() == word)
            .copied()
    }

    /// Returns the section's name in requests.
    pub fn name(self) -> &'static str {
        match self {
            InfoSection::Server => "server",
            InfoSection::Tls => "tls",
            InfoSection::Clients => "clients",
            InfoSection::Memory => "memory",
            InfoSection::Persistence => "persistence",
            InfoSection::Stats => "stats",
            InfoSection::Replication => "replication",
            InfoSection::Cpu => "cpu",
            InfoSection::Modules => "modules",
            InfoSection::CommandStats => "commandstats",
            InfoSection::ErrorStats => "errorstats",
            InfoSection::LatencyStats => "latencystats",
            InfoSection::Cluster => "cluster",
            InfoSection::ClusterInfo => "cluster_info",
            InfoSection::ScriptingEngines => "scriptingengines",
            InfoSection::Weft => "weft",
            InfoSection::Keyspace => "keyspace",
            InfoSection::Debug => "debug",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            InfoSection::Server => "Server",
            InfoSection::Tls => "TLS",
            InfoSection::Clients => "Clients",
            InfoSection::Memory => "Memory",
            InfoSection::Persistence => "Persistence",
            InfoSection::Stats => "Stats",
            InfoSection::Replication => "Replication",
            InfoSection::Cpu => "CPU",
            InfoSection::Modules => "Modules",
            InfoSection::CommandStats => "Commandstats",
            InfoSection::ErrorStats => "Errorstats",
            InfoSection::LatencyStats => "Latencystats",
            InfoSection::Cluster => "Cluster",
            InfoSection::ClusterInfo => "Cluster Info",
            InfoSection::ScriptingEngines => "Scripting Engines",
            InfoSection::Weft => "Weft",
            InfoSection::Keyspace => "Keyspace",
            InfoSection::Debug => "Debug",
        }
    }
}
