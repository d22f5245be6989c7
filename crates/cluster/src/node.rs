//! A node of the cluster as this node knows it.

use std::fmt;

use super::slot_set::SlotSet;

/// The length of a node ID in bytes.
pub const NODE_ID_BYTES: usize = 40;

/// The ID of a node or a shard: 40 digits and lowercase letters. Servers choose hexadecimal digits, and accept others
/// as Valkey does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; NODE_ID_BYTES]);

impl NodeId {
    /// Returns a new random ID.
    pub fn random() -> Self {
        let mut bytes = [0u8; NODE_ID_BYTES / 2];
        if getrandom::fill(&mut bytes).is_err() {
            fastrand::fill(&mut bytes);
        }
        let mut name = [0; NODE_ID_BYTES];
        // Twenty bytes are exactly forty digits.
        let _ = hex::encode_to_slice(bytes, &mut name);
        NodeId(name)
    }

    /// Parses an ID. Returns `None` if the bytes are not an ID.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let name: [u8; NODE_ID_BYTES] = bytes.try_into().ok()?;
        let is_valid = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
        name.iter().all(is_valid).then_some(NodeId(name))
    }

    /// Returns the characters as bytes.
    pub fn as_bytes(&self) -> &[u8; NODE_ID_BYTES] {
        &self.0
    }

    /// Returns the characters as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

bitflags::bitflags! {
    /// The flags of a node, as sent on the bus.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct NodeFlags: u16 {
        /// A primary, with or without slots.
        const PRIMARY = 1;
        /// A replica.
        const REPLICA = 1 << 1;
        /// This node has not received an answer from it for the node timeout.
        const PFAIL = 1 << 2;
        /// A majority of the primaries considers it failed.
        const FAIL = 1 << 3;
        /// This node.
        const MYSELF = 1 << 4;
        /// Its ID is not known yet.
        const HANDSHAKE = 1 << 5;
        /// Its address is not known.
        const NO_ADDRESS = 1 << 6;
        /// It has to be sent a MEET.
        const MEET = 1 << 7;
        /// A primary to which replicas of other primaries may migrate.
        const MIGRATE_TO = 1 << 8;
        /// A replica that does not start a failover.
        const NO_FAILOVER = 1 << 9;
        /// It supports message extensions.
        const EXTENSIONS = 1 << 10;
        /// It supports light headers.
        const LIGHT_HEADERS = 1 << 11;
        /// It accepts a MEET from a node that it knows, and light headers of messages between modules.
        const MULTI_MEET = 1 << 12;
        /// A replica that considers its primary failed.
        const PRIMARY_FAILED = 1 << 13;
    }
}

impl NodeFlags {
    /// The flags with their words, in the order in which they are printed.
    pub const NAMED: [(NodeFlags, &'static str); 8] = [
        (NodeFlags::MYSELF, "myself"),
        (NodeFlags::PRIMARY, "master"),
        (NodeFlags::REPLICA, "slave"),
        (NodeFlags::PFAIL, "fail?"),
        (NodeFlags::FAIL, "fail"),
        (NodeFlags::HANDSHAKE, "handshake"),
        (NodeFlags::NO_ADDRESS, "noaddr"),
        (NodeFlags::NO_FAILOVER, "nofailover"),
    ];
}

impl fmt::Display for NodeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = NodeFlags::NAMED
            .iter()
            .filter(|(flag, _)| self.intersects(*flag))
            .map(|(_, word)| *word)
            .collect();
        f.write_str(&if words.is_empty() {
            "noflags".to_owned()
        } else {
            words.join(",")
        })
    }
}

/// The addresses of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The IP address; empty if unknown.
    pub ip: String,
    /// The TCP port for clients; 0 if there is none.
    pub tcp_port: u16,
    /// The TLS port for clients; 0 if there is none.
    pub tls_port: u16,
    /// The cluster bus port.
    pub bus_port: u16,
}

impl Address {
    /// Returns a client port, for the log.
    pub fn port(&self) -> u16 {
        match self.tcp_port {
            0 => self.tls_port,
            port => port,
        }
    }
}

/// The information that a node announces for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedAddress {
    /// The hostname.
    pub hostname: String,
    /// The human-readable node name.
    pub human_name: String,
    /// The IPv4 address for clients.
    pub client_ipv4: String,
    /// The IPv6 address for clients.
    pub client_ipv6: String,
    /// The availability zone.
    pub availability_zone: String,
    /// The TCP port for clients, if it differs from the node's own; 0 if it does not.
    pub client_port: u16,
    /// The TLS port for clients, if it differs from the node's own; 0 if it does not.
    pub client_tls_port: u16,
}

/// The id of a link to or from a node. Only the bus resolves it.
pub type LinkId = usize;

/// A node.
#[derive(Clone)]
pub struct Node {
    /// Its ID; a random one while the real one is unknown.
    pub id: NodeId,
    /// The ID of its shard.
    pub shard: NodeId,
    /// Its flags.
    pub flags: NodeFlags,
    /// The configuration epoch of its slots.
    pub config_epoch: u64,
    /// Its slots.
    pub slots: SlotSet,
    /// The primary that it replicates.
    pub primary: Option<NodeId>,
    /// Its addresses.
    pub address: Address,
    /// The information that it announces for clients.
    pub announced: AnnouncedAddress,
    /// The time at which it became known, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The time of the ping that has not been answered yet, in milliseconds since the Unix epoch; 0 if there is none.
    pub ping_sent_ms: u64,
    /// The time at which a MEET was last sent to it, in milliseconds since the Unix epoch; 0 if none was.
    pub meet_sent_ms: u64,
    /// The time since which there is no link from it, in milliseconds since the Unix epoch; 0 if there is one.
    pub inbound_missing_since_ms: u64,
    /// The time of its last answer to a ping, in milliseconds since the Unix epoch.
    pub pong_received_ms: u64,
    /// The time of the last message from it, in milliseconds since the Unix epoch.
    pub data_received_ms: u64,
    /// The time at which it was marked as failed, in milliseconds since the Unix epoch.
    pub failed_ms: u64,
    /// The time since which it has had no working replica, in milliseconds since the Unix epoch; 0 if it has one or
    /// needs none.
    pub orphaned_since_ms: u64,
    /// Its replication offset.
    pub offset: u64,
    /// The time at which the offset was received, in milliseconds since the Unix epoch.
    pub offset_ms: u64,
    /// The nodes that report it as failing, with the times of their reports.
    pub failure_reports: Vec<(NodeId, u64)>,
    /// The link to it.
    pub link: Option<LinkId>,
    /// The link from it.
    pub inbound_link: Option<LinkId>,
}

impl Node {
    /// Creates a node of which only the ID is known.
    pub fn new(id: NodeId, flags: NodeFlags, now_ms: u64) -> Self {
        Node {
            id,
            shard: NodeId::random(),
            flags,
            config_epoch: 0,
            slots: SlotSet::default(),
            primary: None,
            address: Address::default(),
            announced: AnnouncedAddress::default(),
            created_ms: now_ms,
            ping_sent_ms: 0,
            meet_sent_ms: 0,
            inbound_missing_since_ms: now_ms,
            pong_received_ms: 0,
            data_received_ms: 0,
            failed_ms: 0,
            orphaned_since_ms: 0,
            offset: 0,
            offset_ms: 0,
            failure_reports: Vec::new(),
            link: None,
            inbound_link: None,
        }
    }

    /// Returns `true` if it is a primary.
    pub fn is_primary(&self) -> bool {
        self.flags.intersects(NodeFlags::PRIMARY)
    }

    /// Returns `true` if it is a replica.
    pub fn is_replica(&self) -> bool {
        self.flags.intersects(NodeFlags::REPLICA)
    }

    /// Returns `true` if its handshake is under way.
    pub fn is_in_handshake(&self) -> bool {
        self.flags.intersects(NodeFlags::HANDSHAKE)
    }

    /// Returns `true` if it is marked as failed (`FAIL`).
    pub fn has_failed(&self) -> bool {
        self.flags.intersects(NodeFlags::FAIL)
    }

    /// Returns `true` if this node considers it possibly failed (`PFAIL`).
    pub fn has_timed_out(&self) -> bool {
        self.flags.intersects(NodeFlags::PFAIL)
    }

    /// Returns `true` if its vote counts: it is a primary with slots.
    pub fn has_vote(&self) -> bool {
        self.is_primary() && !self.slots.is_empty()
    }

    /// Returns its name for the log.
    pub fn log_name(&self) -> String {
        match self.announced.human_name.as_str() {
            "" if self.address.ip.contains(':') => {
                format!("{} ([{}]:{})", self.id, self.address.ip, self.address.port())
            }
            "" => format!("{} ({}:{})", self.id, self.address.ip, self.address.port()),
            name => format!("{} ({name})", self.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NodeId;

    #[test]
    fn an_id_has_digits_and_lowercase_letters() {
        let id = b"fakenode2234567890fakenode2234567890fa12";
        assert_eq!(NodeId::parse(id).map(|id| *id.as_bytes()), Some(*id));
        assert!(NodeId::parse(NodeId::random().as_bytes()).is_some());
        for wrong in [&id[..39], &[b'A'; 40], &[0; 40], &[b' '; 40]] {
            assert!(NodeId::parse(wrong).is_none(), "{wrong:?}");
        }
    }
}
