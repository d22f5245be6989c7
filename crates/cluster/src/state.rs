//! The cluster state of this node, and the changes of slots, epochs and health.
//!
//! It is plain data behind one lock, without sockets, files or keys. The work that a change requires outside is
//! recorded in [`DeferredActions`] and [`BusAction`], and the thread that held the lock performs it.

use std::collections::BTreeMap;

use super::election::{Election, WitnessedElection};
use super::manual_failover::ManualFailover;
use super::node::{LinkId, Node, NodeFlags, NodeId};
use super::settings::ClusterSettings;
use super::slot_in_migration::SlotInMigration;
use weft_base::SlotIndex;
use weft_base::slots::SLOTS;

/// The time after the start for which a primary accepts no commands, in milliseconds, because it may have been
/// replaced.
const WRITABLE_DELAY_MS: u64 = 2000;
/// The minimum and the maximum time for which a primary accepts no commands after a partition, in milliseconds.
const REJOIN_DELAY_MS: (u64, u64) = (500, 5000);

/// The work to do after the lock is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeferredActions {
    /// The cluster configuration file is out of date.
    pub save: bool,
    /// The file must be on disk before any other node or client is told.
    pub sync: bool,
    /// The view that commands use is out of date.
    pub publish: bool,
}

/// An action for the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusAction {
    /// Send these bytes over a link.
    Send(LinkId, Vec<u8>),
    /// Close a link.
    Close(LinkId),
    /// Connect to a node.
    Connect {
        /// The node.
        node: NodeId,
        /// Its IP address.
        ip: String,
        /// Its cluster bus port.
        port: u16,
    },
    /// Pause writes until this time, in milliseconds since the Unix epoch, because a replica takes over.
    PauseWrites(u64),
    /// Resume writes.
    ResumeWrites,
    /// Deliver a message to a module.
    DeliverToModule {
        /// The sender.
        sender: NodeId,
        /// The number of the module.
        module: u64,
        /// The type of the message.
        kind: u8,
        /// The message.
        payload: Vec<u8>,
    },
    /// Deliver a published message to the subscribers on this node.
    Publish {
        /// `true` if the channel is a shard channel.
        sharded: bool,
        /// The channel.
        channel: Vec<u8>,
        /// The message.
        payload: Vec<u8>,
    },
}

/// The number of message types.
pub const MESSAGE_TYPES: usize = 11;

/// The statistics of the bus.
#[derive(Clone, Debug, Default)]
pub struct BusStatistics {
    /// The number of messages sent, by type.
    pub sent: [u64; MESSAGE_TYPES],
    /// The number of messages received, by type.
    pub received: [u64; MESSAGE_TYPES],
    /// The number of bytes sent.
    pub bytes_sent: u64,
    /// The number of bytes received.
    pub bytes_received: u64,
    /// The number of bytes of published messages sent.
    pub pubsub_bytes_sent: u64,
    /// The number of bytes of published messages received.
    pub pubsub_bytes_received: u64,
    /// The number of bytes of messages between modules sent.
    pub module_bytes_sent: u64,
    /// The number of bytes of messages between modules received.
    pub module_bytes_received: u64,
    /// The number of links closed because too many bytes were queued.
    pub links_over_limit: u64,
}

/// A link as CLUSTER LINKS reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// `true` if the other node opened the link.
    pub is_inbound: bool,
    /// The node at the other end, if known.
    pub node: Option<NodeId>,
    /// The time at which the link was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The number of bytes that wait to be sent, including their buffers.
    pub queued_bytes: usize,
    /// `true` if the socket is full.
    pub is_blocked: bool,
    /// The number of messages sent over an outgoing link that the other node answers with PONG.
    pub pings_sent: u64,
    /// The number of these answers that were processed.
    pub pongs_received: u64,
}

/// The faults that DEBUG injects for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedFaults {
    /// The messages that are ignored.
    pub dropped: DroppedMessages,
    /// `true` if the links of ignored messages are closed, too.
    pub ends_links: bool,
    /// `true` if no random node is pinged.
    pub no_random_ping: bool,
    /// `true` if broken links are not made again.
    pub no_reconnection: bool,
}

/// Received messages that are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DroppedMessages {
    /// None.
    #[default]
    None,
    /// All.
    All,
    /// Those of one type, by its number.
    OfType(usize),
}

impl DroppedMessages {
    /// Returns the messages that a number of DEBUG DROP-CLUSTER-PACKET-FILTER stands for.
    pub fn from_number(number: i64) -> DroppedMessages {
        match usize::try_from(number) {
            Ok(kind) => DroppedMessages::OfType(kind),
            Err(_) if number == -2 => DroppedMessages::All,
            Err(_) => DroppedMessages::None,
        }
    }

    /// Returns `true` if messages of a type are ignored.
    pub fn includes(self, kind: usize) -> bool {
        match self {
            DroppedMessages::None => false,
            DroppedMessages::All => true,
            DroppedMessages::OfType(dropped) => dropped == kind,
        }
    }
}

/// The state of this node's data. Updated by each caller that has access to both the lock and the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataState {
    /// The time since the primary was last heard, in milliseconds.
    pub age_ms: u64,
    /// `true` if the data is none that the primary ever had: the dump is still to come or is being received.
    pub awaits_full_sync: bool,
}

/// The cluster state of this node.
pub struct ClusterState {
    /// The ID of this node.
    pub myself: NodeId,
    /// `true` if modules do not want replicas to take the place of their primary.
    pub is_failover_off: bool,
    /// `true` if modules want this node to serve all slots: it ignores which slots others claim.
    pub ignores_claims: bool,
    /// All known nodes, including this one.
    pub nodes: BTreeMap<NodeId, Node>,
    /// The owner of each slot.
    pub owners: Vec<Option<NodeId>>,
    /// The slots migrating to other nodes.
    pub migrating: BTreeMap<SlotIndex, NodeId>,
    /// The slots importing from other nodes.
    pub importing: BTreeMap<SlotIndex, NodeId>,
    /// The slots that another node may take over from this one, which has stopped writing to them.
    pub granted: BTreeMap<SlotIndex, NodeId>,
    /// The slots that another shard has taken from this node, or from the primary that it follows, as long as keys of
    /// before may be left in them. A slot leaves the set before it can get new keys, see
    /// [`ClusterState::take_reopened`].
    pub leftover: super::slot_set::SlotSet,
    /// The unclaimed slots of which this node, a promoted replica, has keys: these may be the only ones. A slot moves
    /// to `leftover` when another shard claims it; if this node imports it key by key at that time, its keys stay. The
    /// cluster configuration file has the set, because the keys of other slots that this node does not own are deleted
    /// at the next start.
    pub(super) unclaimed_with_keys: super::slot_set::SlotSet,
    /// The slots that this node has taken over from nodes that still claim them.
    pub taken_over: BTreeMap<SlotIndex, NodeId>,
    /// The migrations recorded in the dump of this node's primary whose nodes are not known yet.
    pub unapplied_migrations: Vec<SlotInMigration>,
    /// The slots that their owner has stopped claiming. They are not announced as its slots. The cluster configuration
    /// file has the set: the keys of an import that ended with the process may be deleted before the owner is heard.
    pub unclaimed: super::slot_set::SlotSet,
    /// The current epoch: the greatest epoch known.
    pub current_epoch: u64,
    /// The epoch in which this node last voted.
    pub last_vote_epoch: u64,
    /// The primaries whose replicas have requested votes, and the last election of each.
    pub(super) elections: BTreeMap<NodeId, WitnessedElection>,
    /// `true` if commands are accepted.
    pub is_up: bool,
    /// The number of primaries with slots.
    pub size: usize,
    /// The state of this node's data.
    pub data: DataState,
    /// This replica's election.
    pub election: Election,
    /// The manual failover under way.
    pub manual: ManualFailover,
    /// Set once this node shuts down and lets a replica take over.
    pub is_handing_over_on_shutdown: bool,
    /// Set if a full synchronisation with the primary is required, because this node's data has another history.
    pub needs_full_sync: bool,
    /// Set if all nodes must be told at once about a change of this node's role or configuration epoch.
    pub must_announce: bool,
    /// The forgotten nodes, with the times until which they are not added again, in milliseconds since the Unix epoch.
    pub forgotten: BTreeMap<NodeId, u64>,
    /// The parameters.
    pub settings: ClusterSettings,
    /// The work to do after the lock is released.
    pub todo: DeferredActions,
    /// The actions for the bus.
    pub actions: Vec<BusAction>,
    /// The earliest end of a pause that a message among these actions mentions, in milliseconds since the Unix epoch.
    pub(super) queued_pause_end_ms: Option<u64>,
    /// The statistics of the bus.
    pub statistics: BusStatistics,
    /// The links as the bus last saw them.
    pub links: BTreeMap<LinkId, LinkInfo>,
    /// The injected faults.
    pub faults: InjectedFaults,
    /// The number of rounds so far.
    pub rounds: u64,
    /// Set if the health may have changed.
    pub health_may_have_changed: bool,
    /// The time of the first health check, in milliseconds since the Unix epoch.
    first_health_check_ms: Option<u64>,
    /// `false` for a while after the start of a primary, which does not know yet what has changed meanwhile.
    pub(super) is_safe_to_vote: bool,
    /// The time at which this node was last in a minority partition, or its bus last made no progress, in milliseconds
    /// since the Unix epoch.
    minority_ms: u64,
    /// Set while the bus has made no progress for so long that a replica may be replacing this node.
    is_bus_late: bool,
    /// Set from then on until this node would have heard of a replica that has replaced it, as after a partition.
    awaits_news: bool,
    /// The last logged reason for the cluster being down, so that each reason is logged once.
    last_reason: &'static str,
}

impl ClusterState {
    /// Creates a cluster of this node alone.
    pub fn new(settings: ClusterSettings, now_ms: u64) -> Self {
        let id = NodeId::random();
        let flags = NodeFlags::MYSELF.union(NodeFlags::PRIMARY);
        let mut state = ClusterState::empty(id, settings);
        state.nodes.insert(id, Node::new(id, flags, now_ms));
        state.update_own_entry();
        state.todo.save = true;
        state
    }

    /// Creates a state without nodes, for the parser of the configuration file.
    pub fn empty(myself: NodeId, settings: ClusterSettings) -> Self {
        ClusterState {
            myself,
            is_failover_off: false,
            ignores_claims: false,
            nodes: BTreeMap::new(),
            owners: vec![None; SLOTS],
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            granted: BTreeMap::new(),
            leftover: Default::default(),
            unclaimed_with_keys: Default::default(),
            taken_over: BTreeMap::new(),
            unapplied_migrations: Vec::new(),
            unclaimed: Default::default(),
            current_epoch: 0,
            last_vote_epoch: 0,
            is_up: false,
            size: 0,
            data: DataState::default(),
            election: Election::default(),
            manual: ManualFailover::default(),
            is_handing_over_on_shutdown: false,
            needs_full_sync: false,
            must_announce: false,
            elections: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            settings,
            todo: DeferredActions::default(),
            actions: Vec::new(),
            queued_pause_end_ms: None,
            statistics: BusStatistics::default(),
            links: BTreeMap::new(),
            faults: InjectedFaults::default(),
            rounds: 0,
            health_may_have_changed: false,
            first_health_check_ms: None,
            is_safe_to_vote: false,
            minority_ms: 0,
            is_bus_late: false,
            awaits_news: false,
            last_reason: "",
        }
    }

    /// Returns this node.
    pub fn me(&self) -> &Node {
        match self.nodes.get(&self.myself) {
            Some(node) => node,
            None => unreachable!("this node is always among the nodes"),
        }
    }

    /// Returns this node for modification.
    pub fn me_mut(&mut self) -> &mut Node {
        match self.nodes.get_mut(&self.myself) {
            Some(node) => node,
            None => unreachable!("this node is always among the nodes"),
        }
    }

    /// Returns the primary of this node's shard: this node, or the node that it replicates.
    pub fn my_primary(&self) -> NodeId {
        let me = self.me();
        match me.primary {
            Some(primary) if me.is_replica() => primary,
            _ => self.myself,
        }
    }

    /// Returns the node with this ID, unless the ID is the random one of a node in handshake.
    pub fn known_node(&self, id: &NodeId) -> Option<&Node> {
        self.nodes.get(id).filter(|node| !node.is_in_handshake())
    }

    /// Returns the owner of a slot.
    pub fn owner(&self, slot: SlotIndex) -> Option<NodeId> {
        self.owners.get(slot.index()).copied().flatten()
    }

    /// Returns the replicas of a node.
    pub fn replicas(&self, of: NodeId) -> impl Iterator<Item = &Node> {
        self.nodes
            .values()
            .filter(move |node| node.is_replica() && node.primary == Some(of))
    }

    /// Returns the announced replication offset of a node. It is at least 1 for a replica with data, since 0 means that
    /// the data is still to come.
    pub fn announced_offset(&self, node: &Node) -> u64 {
        let has_data = node.id == self.myself && node.is_replica() && !self.data.awaits_full_sync;
        node.offset.max(u64::from(has_data))
    }

    /// Returns the address of the primary that this node follows, if it is known.
    pub fn primary_address(&self) -> Option<(String, u16)> {
        let me = self.me();
        let primary = me.primary.filter(|_| me.is_replica())?;
        let address = &self.nodes.get(&primary)?.address;
        let port = match self.settings.tls_replication {
            true => address.tls_port,
            false => address.tcp_port,
        };
        (!address.ip.is_empty() && port != 0).then(|| (address.ip.clone(), port))
    }

    /// Returns the configuration epoch of a node's slots. A replica has the one of its primary.
    pub fn epoch_of(&self, node: &Node) -> u64 {
        match node.primary.and_then(|primary| self.nodes.get(&primary)) {
            Some(primary) if node.is_replica() => primary.config_epoch,
            _ => node.config_epoch,
        }
    }

    /// Applies changed parameters.
    pub fn configure(&mut self, settings: ClusterSettings) {
        if settings == self.settings {
            return;
        }
        self.settings = settings;
        self.update_own_entry();
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// Updates this node's own entry from the parameters.
    pub fn update_own_entry(&mut self) {
        let settings = self.settings.clone();
        let me = self.me_mut();
        if settings.announced_ip.is_some() || me.flags.intersects(NodeFlags::MYSELF) && settings.must_detect_ip {
            me.address.ip = settings.announced_ip.clone().unwrap_or_default();
        }
        me.address.tcp_port = settings.tcp_port;
        me.address.tls_port = settings.tls_port;
        me.address.bus_port = settings.bus_port;
        me.announced = settings.announced;
        me.flags.set(NodeFlags::NO_FAILOVER, settings.replica_no_failover);
        let supported = NodeFlags::EXTENSIONS | NodeFlags::LIGHT_HEADERS | NodeFlags::MULTI_MEET;
        me.flags.set(supported, true);
        self.settings.must_detect_ip = false;
    }

    // ---- slots ------------------------------------------------------------------------------------------------------
    /// Assigns an unassigned slot to a node. Returns `true` if it was unassigned and the node is known. A node in
    /// handshake gets no slots, because it is not in the cluster configuration file.
    pub fn add_slot(&mut self, to: NodeId, slot: SlotIndex) -> bool {
        if self.owner(slot).is_some() {
            return false;
        }
        let Some(node) = self.nodes.get_mut(&to).filter(|node| !node.is_in_handshake()) else {
            return false;
        };
        if node.slots.is_empty() && node.slots.set(slot, true) {
            // A primary without slots so far may receive replicas of other primaries, if there are any replicas.
            let any_replicas = self
                .nodes
                .values()
                .any(|other| other.is_replica() && other.primary.is_some());
            if any_replicas && let Some(node) = self.nodes.get_mut(&to) {
                node.flags.set(NodeFlags::MIGRATE_TO, true);
            }
        } else {
            node.slots.set(slot, true);
        }
        self.owners[slot.index()] = Some(to);
        self.unclaimed.set(slot, false);
        // The keys here are those of this shard's slot now.
        if self.unclaimed_with_keys.contains(slot) && self.shard_of(&to) == self.shard_of(&self.myself) {
            self.unclaimed_with_keys.set(slot, false);
        }
        self.todo.publish = true;
        true
    }

    /// Unassigns a slot. Returns `true` if it had an owner.
    pub fn delete_slot(&mut self, slot: SlotIndex) -> bool {
        let Some(owner) = self.owner(slot) else {
            return false;
        };
        if let Some(node) = self.nodes.get_mut(&owner) {
            node.slots.set(slot, false);
        }
        self.owners[slot.index()] = None;
        self.unclaimed.set(slot, false);
        self.granted.remove(&slot);
        self.taken_over.remove(&slot);
        self.todo.publish = true;
        true
    }

    /// Unassigns all slots of a node. Returns their number.
    pub fn delete_slots_of(&mut self, node: NodeId) -> usize {
        let slots: Vec<SlotIndex> = match self.nodes.get(&node) {
            Some(node) => node.slots.iter().collect(),
            None => Vec::new(),
        };
        for slot in &slots {
            self.delete_slot(*slot);
        }
        slots.len()
    }

    /// Marks a slot as migrating to a node, or clears the mark.
    pub fn set_migrating(&mut self, slot: SlotIndex, to: Option<NodeId>) {
        match to {
            Some(node) => {
                // An administrator moves the slot on, perhaps back to the node that it came from.
                self.taken_over.remove(&slot);
                self.migrating.insert(slot, node)
            }
            None => self.migrating.remove(&slot),
        };
        self.todo.publish = true;
    }

    /// Marks a slot as importing from a node, or clears the mark.
    pub fn set_importing(&mut self, slot: SlotIndex, from: Option<NodeId>) {
        match from {
            Some(node) => self.importing.insert(slot, node),
            None => self.importing.remove(&slot),
        };
        self.todo.publish = true;
    }

    /// Ends all slot migrations.
    pub fn end_slot_migrations(&mut self) {
        self.migrating.clear();
        self.importing.clear();
        self.unapplied_migrations.clear();
        self.todo.publish = true;
    }

    // ---- nodes ------------------------------------------------------------------------------------------------------
    /// Removes a node and all references to it.
    pub fn delete_node(&mut self, id: NodeId) {
        self.delete_slots_of(id);
        self.migrating.retain(|_, to| *to != id);
        self.importing.retain(|_, from| *from != id);
        self.granted.retain(|_, target| *target != id);
        self.taken_over.retain(|_, source| *source != id);
        self.clear_primary_of(id);
        for node in self.nodes.values_mut() {
            node.failure_reports.retain(|(reporter, _)| *reporter != id);
            if node.primary == Some(id) {
                node.primary = None;
            }
        }
        let links = self.nodes.get(&id).map(|node| [node.link, node.inbound_link]);
        for link in links.into_iter().flatten().flatten() {
            self.close_link(link);
        }
        self.nodes.remove(&id);
        self.todo.publish = true;
    }

    /// Changes the ID of a node. The ID of a node in handshake becomes known with its first message. Another node in
    /// handshake that has this ID by chance is removed.
    pub fn rename_node(&mut self, from: NodeId, to: NodeId) {
        if from != to && self.nodes.contains_key(&to) {
            self.delete_node(to);
        }
        if let Some(mut node) = self.nodes.remove(&from) {
            node.id = to;
            self.nodes.insert(to, node);
            for figures in self.links.values_mut() {
                if figures.node == Some(from) {
                    figures.node = Some(to);
                }
            }
        }
    }

    /// Prevents a node from being added again for a while.
    pub fn forget(&mut self, id: NodeId, seconds: u64, now_ms: u64) {
        self.forgotten
            .insert(id, now_ms.saturating_add(seconds.saturating_mul(1000)));
    }

    /// Returns `true` if a node must not be added.
    pub fn is_forgotten(&mut self, id: &NodeId, now_ms: u64) -> bool {
        self.forgotten.retain(|_, until_ms| *until_ms > now_ms);
        self.forgotten.contains_key(id)
    }

    /// Makes a node a primary.
    pub fn make_primary(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_none_or(Node::is_primary) {
            return;
        }
        let had_primary = self.clear_primary_of(id);
        let is_me = id == self.myself;
        if let Some(node) = self.nodes.get_mut(&id) {
            if had_primary && !is_me {
                node.flags.set(NodeFlags::MIGRATE_TO, true);
            }
            node.flags.set(NodeFlags::REPLICA, false);
            node.flags.set(NodeFlags::PRIMARY, true);
            (self.todo.save, self.todo.publish, self.health_may_have_changed) = (true, true, true);
        }
    }

    /// Returns the number of nodes that currently report a node as failing.
    pub fn failure_reports(&self, node: &Node, now_ms: u64) -> usize {
        let valid_ms = self.settings.node_timeout_ms.saturating_mul(2);
        let fresh = |(_, since_ms): &&(NodeId, u64)| now_ms.saturating_sub(*since_ms) <= valid_ms;
        node.failure_reports.iter().filter(fresh).count()
    }

    // ---- epochs -----------------------------------------------------------------------------------------------------
    /// Returns the greatest epoch known.
    pub fn newest_epoch(&self) -> u64 {
        let of_nodes = self.nodes.values().map(|node| node.config_epoch).max();
        of_nodes.unwrap_or(0).max(self.current_epoch)
    }

    /// Gives this node the greatest configuration epoch without consulting other nodes, and announces it. Returns
    /// `false` if it has it already.
    pub fn bump_epoch(&mut self) -> bool {
        let is_bumped = self.bump_epoch_unannounced();
        self.must_announce |= is_bumped;
        is_bumped
    }

    /// Does the same as [`Self::bump_epoch`] for a caller that announces the epoch itself.
    pub(super) fn bump_epoch_unannounced(&mut self) -> bool {
        let newest = self.newest_epoch();
        let mine = self.me().config_epoch;
        if mine != 0 && mine == newest {
            return false;
        }
        self.current_epoch += 1;
        let epoch = self.current_epoch;
        self.me_mut().config_epoch = epoch;
        self.todo.save = true;
        self.todo.sync = true;
        log::info!("New configEpoch set to {epoch}");
        true
    }

    /// Resets the cluster state. With `hard`, this node also gets a new ID.
    pub fn reset(&mut self, hard: bool, now_ms: u64) {
        let me = self.myself;
        self.make_primary(me);
        self.end_slot_migrations();
        self.end_manual_failover();
        self.election = Election::default();
        self.needs_full_sync = false;
        for slot in SlotIndex::all() {
            self.delete_slot(slot);
        }
        // A node that is reset has no keys.
        (self.leftover, self.unclaimed_with_keys) = Default::default();
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|id| *id != me).collect();
        for id in others {
            self.delete_node(id);
        }
        self.forgotten.clear();
        if hard {
            (self.current_epoch, self.last_vote_epoch) = (0, 0);
            self.me_mut().config_epoch = 0;
            log::info!("configEpoch set to 0 via CLUSTER RESET HARD");
            let id = NodeId::random();
            self.rename_node(me, id);
            self.myself = id;
            log::info!("Node hard reset, now I'm {id}");
        }
        let shard = NodeId::random();
        self.me_mut().shard = shard;
        log::info!("Moving myself to a new shard {shard}.");
        (self.todo.save, self.todo.sync, self.todo.publish) = (true, true, true);
        self.update_health(now_ms);
    }

    /// Returns the number of votes that are a majority. Before the first health check no voters have been counted, and
    /// nodes may have become voters since the last one.
    pub fn quorum(&self) -> usize {
        let voters = self.nodes.values().filter(|node| node.has_vote()).count();
        self.size.max(voters) / 2 + 1
    }

    // ---- health -----------------------------------------------------------------------------------------------------
    /// Determines if commands are accepted.
    pub fn update_health(&mut self, now_ms: u64) {
        let first_look_ms = *self.first_health_check_ms.get_or_insert(now_ms);
        let is_primary = self.me().is_primary();
        self.is_safe_to_vote = !is_primary || self.is_up || now_ms.saturating_sub(first_look_ms) >= WRITABLE_DELAY_MS;
        if !self.is_safe_to_vote {
            return;
        }
        let mut reason = "";
        if self.settings.requires_full_coverage && !self.covers_all_slots() {
            reason = "At least one hash slot is not served by any available node. Please check the 'cluster-require-full-coverage' configuration.";
        }
        self.size = self.nodes.values().filter(|node| node.has_vote()).count();
        let silent = NodeFlags::FAIL.union(NodeFlags::PFAIL);
        let reachable = self
            .nodes
            .values()
            .filter(|node| node.has_vote() && !node.flags.intersects(silent))
            .count();
        if reachable < self.size / 2 + 1 {
            reason = "I am part of a minority partition.";
            self.minority_ms = now_ms;
        }
        if self.is_bus_late {
            reason = "The cluster bus makes no progress, so other nodes may consider this node failed.";
            self.minority_ms = now_ms;
        }
        let (least, most) = REJOIN_DELAY_MS;
        let delay_ms = self.settings.node_timeout_ms.clamp(least, most);
        let is_informed = now_ms.saturating_sub(self.minority_ms) >= delay_ms;
        if is_informed && std::mem::take(&mut self.awaits_news) {
            // Doubtful writes are decided about, even if the cluster stays down for another reason.
            self.todo.publish = true;
        }
        let up = reason.is_empty();
        if up != self.is_up {
            if up && is_primary && !is_informed {
                return;
            }
            match up {
                true => log::info!("Cluster state changed: ok"),
                false => log::warn!("Cluster state changed: fail"),
            }
            self.is_up = up;
            self.todo.publish = true;
        }
        if !up && reason != self.last_reason {
            log::warn!("Cluster is currently down: {reason}");
        }
        self.last_reason = reason;
    }

    /// Accepts no commands until [`Self::end_suspension`] and the delay after a partition: the bus makes no progress,
    /// so other nodes may have elected a replica of this node.
    pub fn suspend(&mut self, now_ms: u64) {
        self.is_bus_late = true;
        self.awaits_news = true;
        // Doubtful writes are decided about then, even if the cluster has been down before.
        self.todo.publish = true;
        self.update_health(now_ms);
    }

    /// Ends the suspension, because the bus makes progress again. Commands are accepted after the same delay as after a
    /// partition: meanwhile this node hears of a failover.
    pub fn end_suspension(&mut self, now_ms: u64) {
        self.is_bus_late = false;
        self.minority_ms = now_ms;
        self.health_may_have_changed = true;
    }

    /// Returns `true` if a replica may have replaced this node while its bus made no progress, and this node may not
    /// have heard of it yet.
    pub fn awaits_news(&self) -> bool {
        self.awaits_news
    }

    /// Returns `true` if this node is suspended because of its bus.
    pub fn is_suspended(&self) -> bool {
        self.is_bus_late
    }

    fn covers_all_slots(&self) -> bool {
        let mut last: Option<(NodeId, bool)> = None;
        self.owners.iter().all(|owner| {
            let Some(owner) = owner else {
                return false;
            };
            if let Some((id, alive)) = last
                && id == *owner
            {
                return alive;
            }
            let alive = self.nodes.get(owner).is_some_and(|node| !node.has_failed());
            last = Some((*owner, alive));
            alive
        })
    }
}

#[cfg(test)]
mod tests;
