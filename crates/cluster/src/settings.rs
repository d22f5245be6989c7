//! The parameters that the cluster state depends on. They are read from the configuration when it changes.

use super::message::is_plain;
use super::node::AnnouncedAddress;
use weft_config::{Config, ParameterId, id};

/// The difference between the cluster bus port and the client port.
pub const BUS_PORT_OFFSET: u16 = 10_000;

/// A copy of the parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSettings {
    /// The time after which a node that does not answer is considered failing, in milliseconds.
    pub node_timeout_ms: u64,
    /// The interval between pings, in milliseconds; `None` for half of the node timeout.
    pub ping_interval_ms: Option<u64>,
    /// The percentage of the nodes that the gossip of a message covers.
    pub gossip_percent: u64,
    /// `true` if every slot must have an owner.
    pub requires_full_coverage: bool,
    /// `true` if replicas migrate to primaries without replicas.
    pub allows_replica_migration: bool,
    /// `true` if this node, as a replica, does not start a failover.
    pub replica_no_failover: bool,
    /// The time for which a replica may have been disconnected and still start a failover, in node timeouts; 0 for no
    /// limit.
    pub validity_factor: u64,
    /// The number of replicas that a primary keeps before one may migrate to another primary.
    pub migration_barrier: u64,
    /// The timeout of a manual failover, in milliseconds.
    pub manual_failover_ms: u64,
    /// The interval at which a primary pings its replicas, in milliseconds.
    pub replica_ping_interval_ms: u64,
    /// The time for which a forgotten node is not added again, in seconds.
    pub forget_s: u64,
    /// The number of bytes queued to a node above which the link is closed; 0 for no limit.
    pub link_limit: u64,
    /// The preferred endpoint type for clients.
    pub endpoint_type: EndpointType,
    /// The announced IP address.
    pub announced_ip: Option<String>,
    /// `true` if an announced IP address was removed, so that the address has to be detected again.
    pub must_detect_ip: bool,
    /// The TCP port for clients.
    pub tcp_port: u16,
    /// The TLS port for clients.
    pub tls_port: u16,
    /// `true` if the bus uses TLS. Messages then have the TLS port first.
    pub tls_bus: bool,
    /// `true` if replication uses TLS.
    pub tls_replication: bool,
    /// The cluster bus port.
    pub bus_port: u16,
    /// `true` if the bus used TLS at the start: without `cluster-port`, its port is derived from the TLS port. The
    /// listening port does not change if the bus begins to use TLS later.
    pub derives_bus_port_from_tls: bool,
    /// The other information announced to clients.
    pub announced: AnnouncedAddress,
}

/// The form in which a node appears in replies to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointType {
    /// Its IP address.
    #[default]
    Ip,
    /// Its hostname.
    Hostname,
    /// No endpoint: clients use the address that they are connected to.
    Unknown,
}

impl EndpointType {
    /// Returns the configured endpoint type.
    pub fn configured(config: &Config) -> Self {
        match config.choice(id::CLUSTER_PREFERRED_ENDPOINT_TYPE) {
            "hostname" => EndpointType::Hostname,
            "unknown-endpoint" => EndpointType::Unknown,
            _ => EndpointType::Ip,
        }
    }
}

impl ClusterSettings {
    /// Reads the parameters. `previous` contains the previous ones.
    pub fn read(config: &Config, previous: Option<&ClusterSettings>) -> Self {
        // A value that would add fields or lines to the cluster configuration file, such as an availability zone with a
        // line break, is not announced.
        let text = |id: ParameterId| {
            let text = String::from_utf8_lossy(&config.text(id)).into_owned();
            Some(text).filter(|text| is_plain(text)).unwrap_or_default()
        };
        let port = |id: ParameterId| u16::try_from(config.integer(id)).unwrap_or(0);
        let or = |port: u16, default: u16| if port == 0 { default } else { port };
        let announced_ip = Some(text(id::CLUSTER_ANNOUNCE_IP)).filter(|ip| !ip.is_empty());
        let (plain, tls) = (port(id::PORT), port(id::TLS_PORT));
        let tls_bus = config.boolean(id::TLS_CLUSTER);
        let from_tls = previous.map_or(tls_bus, |previous| previous.derives_bus_port_from_tls);
        let base = if from_tls { or(tls, plain) } else { or(plain, tls) };
        let default_bus = or(port(id::CLUSTER_PORT), base.saturating_add(BUS_PORT_OFFSET));
        ClusterSettings {
            node_timeout_ms: config.unsigned(id::CLUSTER_NODE_TIMEOUT),
            ping_interval_ms: Some(config.unsigned(id::CLUSTER_PING_INTERVAL)).filter(|ms| *ms > 0),
            gossip_percent: config.unsigned(id::CLUSTER_MESSAGE_GOSSIP_PERC),
            requires_full_coverage: config.boolean(id::CLUSTER_REQUIRE_FULL_COVERAGE),
            allows_replica_migration: config.boolean(id::CLUSTER_ALLOW_REPLICA_MIGRATION),
            replica_no_failover: config.boolean(id::CLUSTER_REPLICA_NO_FAILOVER),
            validity_factor: config.unsigned(id::CLUSTER_REPLICA_VALIDITY_FACTOR),
            migration_barrier: config.unsigned(id::CLUSTER_MIGRATION_BARRIER),
            manual_failover_ms: config.unsigned(id::CLUSTER_MANUAL_FAILOVER_TIMEOUT),
            replica_ping_interval_ms: config.unsigned(id::REPL_PING_REPLICA_PERIOD).saturating_mul(1000),
            forget_s: config.unsigned(id::CLUSTER_BLACKLIST_TTL),
            link_limit: config.unsigned(id::CLUSTER_LINK_SENDBUF_LIMIT),
            endpoint_type: EndpointType::configured(config),
            must_detect_ip: announced_ip.is_none()
                && previous.is_some_and(|previous| previous.announced_ip.is_some() || previous.must_detect_ip),
            announced_ip,
            tcp_port: or(port(id::CLUSTER_ANNOUNCE_PORT), plain),
            tls_port: or(port(id::CLUSTER_ANNOUNCE_TLS_PORT), tls),
            tls_bus,
            tls_replication: config.boolean(id::TLS_REPLICATION),
            bus_port: or(port(id::CLUSTER_ANNOUNCE_BUS_PORT), default_bus),
            derives_bus_port_from_tls: from_tls,
            announced: AnnouncedAddress {
                hostname: text(id::CLUSTER_ANNOUNCE_HOSTNAME),
                human_name: text(id::CLUSTER_ANNOUNCE_HUMAN_NODENAME),
                client_ipv4: text(id::CLUSTER_ANNOUNCE_CLIENT_IPV4),
                client_ipv6: text(id::CLUSTER_ANNOUNCE_CLIENT_IPV6),
                availability_zone: text(id::AVAILABILITY_ZONE),
                client_port: port(id::CLUSTER_ANNOUNCE_CLIENT_PORT),
                client_tls_port: port(id::CLUSTER_ANNOUNCE_CLIENT_TLS_PORT),
            },
        }
    }

    /// Converts a pair of ports between the order (TCP, TLS) and the order in messages, in either direction.
    pub fn swap_ports_for_tls(&self, first: u16, second: u16) -> (u16, u16) {
        match self.tls_bus {
            true => (second, first),
            false => (first, second),
        }
    }

    /// Returns the port that this node's bus listens on from the start, or `None` if it would be invalid.
    pub fn listening_bus_port(config: &Config) -> Option<u16> {
        let id = Self::bus_port_parameter(config);
        let port = u16::try_from(config.integer(id)).ok().filter(|port| *port != 0)?;
        match id {
            id::CLUSTER_PORT => Some(port),
            _ => port.checked_add(BUS_PORT_OFFSET),
        }
    }

    /// Returns the parameter that determines the port of the bus: `cluster-port`, or else the port of the clients.
    pub fn bus_port_parameter(config: &Config) -> ParameterId {
        let [first, second] = match config.boolean(id::TLS_CLUSTER) {
            true => [id::TLS_PORT, id::PORT],
            false => [id::PORT, id::TLS_PORT],
        };
        let is_set = |id: &ParameterId| config.integer(*id) != 0;
        [id::CLUSTER_PORT, first].into_iter().find(is_set).unwrap_or(second)
    }
}

#[cfg(test)]
mod tests;
