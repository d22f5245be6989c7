//! The sections of INFO.

/// A section of INFO. The order is that of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
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

impl Section {
    /// The sections of INFO ALL.
    pub const ALL: &[Section] = &[
        Section::Server,
        Section::Tls,
        Section::Clients,
        Section::Memory,
        Section::Persistence,
        Section::Stats,
        Section::Replication,
        Section::Cpu,
        Section::Modules,
        Section::CommandStats,
        Section::ErrorStats,
        Section::LatencyStats,
        Section::Cluster,
        Section::ClusterInfo,
        Section::ScriptingEngines,
        Section::Weft,
        Section::Keyspace,
    ];

    /// The sections of an INFO without arguments.
    pub const DEFAULT: &[Section] = &[
        Section::Server,
        Section::Clients,
        Section::Memory,
        Section::Persistence,
        Section::Stats,
        Section::Replication,
        Section::Cpu,
        Section::Modules,
        Section::ErrorStats,
        Section::Cluster,
        Section::Keyspace,
    ];

    /// Returns the section with that name, which must be in lower case.
    pub fn named(word: &[u8]) -> Option<Section> {
        Section::ALL
            .iter()
            .chain(&[Section::Debug])
            .find(|section| section.name().as_bytes() == word)
            .copied()
    }

    /// Returns the section's name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Section::Server => "server",
            Section::Tls => "tls",
            Section::Clients => "clients",
            Section::Memory => "memory",
            Section::Persistence => "persistence",
            Section::Stats => "stats",
            Section::Replication => "replication",
            Section::Cpu => "cpu",
            Section::Modules => "modules",
            Section::CommandStats => "commandstats",
            Section::ErrorStats => "errorstats",
            Section::LatencyStats => "latencystats",
            Section::Cluster => "cluster",
            Section::ClusterInfo => "cluster_info",
            Section::ScriptingEngines => "scriptingengines",
            Section::Weft => "weft",
            Section::Keyspace => "keyspace",
            Section::Debug => "debug",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Section::Server => "Server",
            Section::Tls => "TLS",
            Section::Clients => "Clients",
            Section::Memory => "Memory",
            Section::Persistence => "Persistence",
            Section::Stats => "Stats",
            Section::Replication => "Replication",
            Section::Cpu => "CPU",
            Section::Modules => "Modules",
            Section::CommandStats => "Commandstats",
            Section::ErrorStats => "Errorstats",
            Section::LatencyStats => "Latencystats",
            Section::Cluster => "Cluster",
            Section::ClusterInfo => "Cluster Info",
            Section::ScriptingEngines => "Scripting Engines",
            Section::Weft => "Weft",
            Section::Keyspace => "Keyspace",
            Section::Debug => "Debug",
        }
    }
}
