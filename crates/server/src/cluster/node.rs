//! One node of the cluster as this node sees it.

use std::fmt;

use super::slot_set::SlotSet;

/// Bytes of a node's name.
pub const NAME_BYTES: usize = 40;

/// The name of a node or a shard: 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; NAME_BYTES]);

impl NodeId {
    /// A name that nobody else has.
    pub fn random() -> Self {
        let mut bytes = [0u8; NAME_BYTES / 2];
        if getrandom::fill(&mut bytes).is_err() {
            fastrand::fill(&mut bytes);
        }
        let mut name = [0; NAME_BYTES];
        // Twenty bytes are forty digits.
        let _ = hex::encode_to_slice(bytes, &mut name);
        NodeId(name)
    }

    /// The name that these bytes are, if they are one.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let name: [u8; NAME_BYTES] = bytes.try_into().ok()?;
        let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        name.iter().all(is_digit).then_some(NodeId(name))
    }

    /// Its digits.
    pub fn as_bytes(&self) -> &[u8; NAME_BYTES] {
        &self.0
    }

    /// Its digits as text.
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

/// What is known of a node, as nodes send it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFlags(pub u16);

impl NodeFlags {
    /// It owns slots, or could.
    pub const PRIMARY: NodeFlags = NodeFlags(1);
    /// It replicates a primary.
    pub const REPLICA: NodeFlags = NodeFlags(1 << 1);
    /// This node finds it silent.
    pub const PFAIL: NodeFlags = NodeFlags(1 << 2);
    /// A majority found it silent.
    pub const FAIL: NodeFlags = NodeFlags(1 << 3);
    /// It is this node.
    pub const MYSELF: NodeFlags = NodeFlags(1 << 4);
    /// Its name is not known yet.
    pub const HANDSHAKE: NodeFlags = NodeFlags(1 << 5);
    /// Its address is not known.
    pub const NO_ADDRESS: NodeFlags = NodeFlags(1 << 6);
    /// It is to be sent a MEET.
    pub const MEET: NodeFlags = NodeFlags(1 << 7);
    /// A primary that may be given replicas of others.
    pub const MIGRATE_TO: NodeFlags = NodeFlags(1 << 8);
    /// A replica that does not promote itself.
    pub const NO_FAILOVER: NodeFlags = NodeFlags(1 << 9);
    /// It understands extensions of messages.
    pub const EXTENSIONS: NodeFlags = NodeFlags(1 << 10);
    /// It understands short headers.
    pub const LIGHT_HEADERS: NodeFlags = NodeFlags(1 << 11);
    /// A replica that holds its primary for dead.
    pub const PRIMARY_FAILED: NodeFlags = NodeFlags(1 << 13);

    /// Flags with the words that describe them, in the order of printing.
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

    /// Both.
    pub const fn with(self, other: NodeFlags) -> NodeFlags {
        NodeFlags(self.0 | other.0)
    }

    /// Whether any of `other` is set.
    pub const fn has_any(self, other: NodeFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets or clears `other`.
    pub fn put(&mut self, other: NodeFlags, on: bool) {
        if on {
            self.0 |= other.0;
        } else {
            self.0 &= !other.0;
        }
    }
}

impl fmt::Display for NodeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = NodeFlags::NAMED
            .iter()
            .filter(|(flag, _)| self.has_any(*flag))
            .map(|(_, word)| *word)
            .collect();
        f.write_str(&if words.is_empty() {
            "noflags".to_owned()
        } else {
            words.join(",")
        })
    }
}

/// Where a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Its IP address, empty if unknown.
    pub ip: String,
    /// Port for clients; 0 for none.
    pub tcp_port: u16,
    /// Port for clients with TLS; 0 for none.
    pub tls_port: u16,
    /// Port for nodes.
    pub bus_port: u16,
}

impl Address {
    /// A port for clients, for the log.
    pub fn port(&self) -> u16 {
        match self.tcp_port {
            0 => self.tls_port,
            port => port,
        }
    }
}

/// What a node tells about itself for the sake of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedAddress {
    /// Host name.
    pub hostname: String,
    /// Name for people.
    pub human_name: String,
    /// IPv4 address for clients.
    pub client_ipv4: String,
    /// IPv6 address for clients.
    pub client_ipv6: String,
    /// Where it stands.
    pub availability_zone: String,
    /// Port for clients, where that is another than the port for nodes' own connections; 0 for none.
    pub client_port: u16,
    /// The same with TLS.
    pub client_tls_port: u16,
}

/// A link to or from a node; the bus knows what it stands for.
pub type LinkId = usize;

/// A node.
#[derive(Clone)]
pub struct Node {
    /// Its name; while the real one is unknown, an invented one.
    pub id: NodeId,
    /// Its shard.
    pub shard: NodeId,
    /// Flags.
    pub flags: NodeFlags,
    /// The version of its slots.
    pub config_epoch: u64,
    /// Its slots.
    pub slots: SlotSet,
    /// The primary that it replicates.
    pub primary: Option<NodeId>,
    /// Where it is.
    pub address: Address,
    /// What clients are told.
    pub announced: AnnouncedAddress,
    /// When it became known, ms.
    pub created_ms: u64,
    /// When it was sent a ping that is not answered yet, ms; 0 for none.
    pub ping_sent_ms: u64,
    /// When it last answered one, ms.
    pub pong_received_ms: u64,
    /// When anything last came from it, ms.
    pub data_received_ms: u64,
    /// When it was marked as failing, ms.
    pub failed_ms: u64,
    /// Since when it has had no replica that works, ms; 0 if it has one, or is not to have any.
    pub orphaned_ms: u64,
    /// Its replication offset.
    pub offset: u64,
    /// When that was heard, ms.
    pub offset_ms: u64,
    /// Who finds it failing, and since when.
    pub reports: Vec<(NodeId, u64)>,
    /// The link to it.
    pub link: Option<LinkId>,
    /// The link from it.
    pub inbound_link: Option<LinkId>,
}

impl Node {
    /// A node of which only the name is known.
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
            pong_received_ms: 0,
            data_received_ms: 0,
            failed_ms: 0,
            orphaned_ms: 0,
            offset: 0,
            offset_ms: 0,
            reports: Vec::new(),
            link: None,
            inbound_link: None,
        }
    }

    /// Whether it is a primary.
    pub fn is_primary(&self) -> bool {
        self.flags.has_any(NodeFlags::PRIMARY)
    }

    /// Whether it is a replica.
    pub fn is_replica(&self) -> bool {
        self.flags.has_any(NodeFlags::REPLICA)
    }

    /// Whether it is being met.
    pub fn is_in_handshake(&self) -> bool {
        self.flags.has_any(NodeFlags::HANDSHAKE)
    }

    /// Whether a majority holds it for dead.
    pub fn has_failed(&self) -> bool {
        self.flags.has_any(NodeFlags::FAIL)
    }

    /// Whether this node finds it silent.
    pub fn has_timed_out(&self) -> bool {
        self.flags.has_any(NodeFlags::PFAIL)
    }

    /// Whether its vote counts.
    pub fn votes(&self) -> bool {
        self.is_primary() && !self.slots.is_empty()
    }

    /// The name for logs.
    pub fn named(&self) -> String {
        match self.announced.human_name.as_str() {
            "" => format!("{} ({}:{})", self.id, self.address.ip, self.address.port()),
            name => format!("{} ({name})", self.id),
        }
    }
}
