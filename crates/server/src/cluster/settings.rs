//! The parameters that the cluster's state depends on, read out of the configuration when it changes.

use super::node::AnnouncedAddress;
use crate::config::{Config, ParameterId, id};

/// What is added to the port for clients to make the port of the bus.
pub const BUS_PORT_OFFSET: u16 = 10_000;

/// A copy of the parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Milliseconds after which a silent node counts as failing.
    pub node_timeout_ms: u64,
    /// Milliseconds after which a node is greeted again; half of the timeout if it is not set.
    pub ping_interval_ms: Option<u64>,
    /// Per cent of the nodes in a message's gossip.
    pub gossip_percent: u64,
    /// Whether every slot must have an owner.
    pub full_coverage: bool,
    /// Whether replicas move to primaries without any.
    pub replica_migration: bool,
    /// Whether this node as a replica stays one.
    pub replica_no_failover: bool,
    /// Node timeouts that a replica may have been cut off and still be promoted; 0 for no limit.
    pub validity_factor: u64,
    /// Replicas that a primary keeps before one may move to another primary.
    pub migration_barrier: u64,
    /// How long a manual failover may take, ms.
    pub manual_failover_ms: u64,
    /// How often a primary gives its replicas a sign of life, ms.
    pub sign_of_life_ms: u64,
    /// How long a forgotten node stays away, seconds.
    pub forget_s: u64,
    /// Bytes queued to one node after which the link is ended; 0 for no limit.
    pub link_limit: u64,
    /// Whether clients are told names instead of addresses, or nothing.
    pub endpoint: Endpoint,
    /// The address to tell.
    pub announced_ip: Option<String>,
    /// The address was told until now and is to be found out again.
    pub forgets_ip: bool,
    /// The port for clients.
    pub tcp_port: u16,
    /// The port for clients with TLS.
    pub tls_port: u16,
    /// Whether nodes talk over TLS. The port that they tell first is then that for TLS.
    pub tls_bus: bool,
    /// Whether replicas follow over TLS.
    pub tls_replication: bool,
    /// The port for nodes.
    pub bus_port: u16,
    /// What clients are told otherwise.
    pub announced: AnnouncedAddress,
}

/// What stands for a node in replies to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Endpoint {
    /// Its address.
    #[default]
    Ip,
    /// Its host name.
    Hostname,
    /// Nothing: clients stay where they are.
    Unknown,
}

impl Endpoint {
    /// What the configuration says at this moment.
    pub fn of(config: &Config) -> Self {
        match config.choice(id::CLUSTER_PREFERRED_ENDPOINT_TYPE) {
            "hostname" => Endpoint::Hostname,
            "unknown-endpoint" => Endpoint::Unknown,
            _ => Endpoint::Ip,
        }
    }
}

impl Settings {
    /// Reads the parameters; `previous` is what they were.
    pub fn read(config: &Config, previous: Option<&Settings>) -> Self {
        let text = |id: ParameterId| String::from_utf8_lossy(&config.text(id)).into_owned();
        let port = |id: ParameterId| u16::try_from(config.integer(id)).unwrap_or(0);
        let or = |port: u16, default: u16| if port == 0 { default } else { port };
        let announced_ip = Some(text(id::CLUSTER_ANNOUNCE_IP)).filter(|ip| !ip.is_empty());
        let (plain, tls) = (port(id::PORT), port(id::TLS_PORT));
        let default_bus = or(port(id::CLUSTER_PORT), or(plain, tls).saturating_add(BUS_PORT_OFFSET));
        Settings {
            node_timeout_ms: config.unsigned(id::CLUSTER_NODE_TIMEOUT),
            ping_interval_ms: Some(config.unsigned(id::CLUSTER_PING_INTERVAL)).filter(|ms| *ms > 0),
            gossip_percent: config.unsigned(id::CLUSTER_MESSAGE_GOSSIP_PERC),
            full_coverage: config.boolean(id::CLUSTER_REQUIRE_FULL_COVERAGE),
            replica_migration: config.boolean(id::CLUSTER_ALLOW_REPLICA_MIGRATION),
            replica_no_failover: config.boolean(id::CLUSTER_REPLICA_NO_FAILOVER),
            validity_factor: config.unsigned(id::CLUSTER_REPLICA_VALIDITY_FACTOR),
            migration_barrier: config.unsigned(id::CLUSTER_MIGRATION_BARRIER),
            manual_failover_ms: config.unsigned(id::CLUSTER_MANUAL_FAILOVER_TIMEOUT),
            sign_of_life_ms: config.unsigned(id::REPL_PING_REPLICA_PERIOD).saturating_mul(1000),
            forget_s: config.unsigned(id::CLUSTER_BLACKLIST_TTL),
            link_limit: config.unsigned(id::CLUSTER_LINK_SENDBUF_LIMIT),
            endpoint: Endpoint::of(config),
            forgets_ip: announced_ip.is_none()
                && previous.is_some_and(|previous| previous.announced_ip.is_some() || previous.forgets_ip),
            announced_ip,
            tcp_port: or(port(id::CLUSTER_ANNOUNCE_PORT), plain),
            tls_port: or(port(id::CLUSTER_ANNOUNCE_TLS_PORT), tls),
            tls_bus: config.boolean(id::TLS_CLUSTER),
            tls_replication: config.boolean(id::TLS_REPLICATION),
            bus_port: or(port(id::CLUSTER_ANNOUNCE_BUS_PORT), default_bus),
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

    /// The ports in the order in which messages have them, of those without and with TLS; and the other way round.
    pub fn in_order(&self, ports: (u16, u16)) -> (u16, u16) {
        match self.tls_bus {
            true => (ports.1, ports.0),
            false => ports,
        }
    }

    /// The port that this node's bus listens on, or nothing if that would be none.
    pub fn listening_bus_port(config: &Config) -> Option<u16> {
        let port = |id: ParameterId| u16::try_from(config.integer(id)).ok().filter(|port| *port != 0);
        match port(id::CLUSTER_PORT) {
            Some(bus) => Some(bus),
            None => port(id::PORT)
                .or_else(|| port(id::TLS_PORT))?
                .checked_add(BUS_PORT_OFFSET),
        }
    }
}
