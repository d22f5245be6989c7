//! The state changes of the CLUSTER subcommands.

use super::node::{Node, NodeFlags, NodeId};
use super::refusal::ClusterRefusal;
use super::slot_set::SlotSet;
use super::state::ClusterState;
use weft_base::SlotIndex;
use weft_base::clock::unix_ms;

/// The change that CLUSTER SETSLOT makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotChange {
    /// Marks the slot as migrating to a node, key by key.
    Migrating(Vec<u8>),
    /// Marks the slot as importing from a node, key by key.
    Importing(Vec<u8>),
    /// Clears the migrating and importing state of the slot.
    Stable,
    /// Assigns the slot to a node.
    Node(Vec<u8>),
}

fn lossy(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

impl ClusterState {
    /// Returns the node that a client names.
    pub fn node_by_id(&self, word: &[u8]) -> Option<&Node> {
        NodeId::parse(word).and_then(|id| self.nodes.get(&id))
    }

    /// Adds or deletes slots (ADDSLOTS, DELSLOTS). The ranges must not overlap.
    ///
    /// # Errors
    /// When a slot is busy, unassigned, or specified twice. Nothing has changed then.
    pub fn change_slots(&mut self, ranges: &[(SlotIndex, SlotIndex)], delete: bool) -> Result<(), ClusterRefusal> {
        let mut named = SlotSet::default();
        for slot in ranges.iter().flat_map(|(first, last)| first.to(*last)) {
            match (delete, self.owner(slot)) {
                (true, None) => return Err(ClusterRefusal::SlotUnassigned(slot)),
                (false, Some(_)) => return Err(ClusterRefusal::SlotBusy(slot)),
                _ => {}
            }
            if !named.set(slot, true) {
                return Err(ClusterRefusal::SlotRepeated(slot));
            }
        }
        let myself = self.myself;
        for slot in named.iter() {
            self.set_importing(slot, None);
            match delete {
                true => self.delete_slot(slot),
                false => self.add_slot(myself, slot),
            };
        }
        self.todo.save = true;
        Ok(())
    }

    /// Executes SETSLOT. `keys` is the number of keys of the slot on this node.
    ///
    /// # Errors
    /// When the node or the slot does not permit the change.
    pub fn change_slot(&mut self, slot: SlotIndex, change: &SlotChange, keys: usize) -> Result<(), ClusterRefusal> {
        self.check_slot_change(slot, change, keys)?;
        self.apply_slot_change(slot, change, keys)
    }

    /// Applies a SETSLOT that this replica's primary propagated. The primary has checked it.
    ///
    /// # Errors
    /// When a node is unknown here.
    pub fn apply_propagated_slot_change(
        &mut self,
        slot: SlotIndex,
        change: &SlotChange,
        keys: usize,
    ) -> Result<(), ClusterRefusal> {
        self.apply_slot_change(slot, change, keys)
    }

    fn apply_slot_change(&mut self, slot: SlotIndex, change: &SlotChange, keys: usize) -> Result<(), ClusterRefusal> {
        match change {
            SlotChange::Stable => {
                log::info!("Marking slot {slot} stable");
                self.set_migrating(slot, None);
                self.set_importing(slot, None);
            }
            SlotChange::Migrating(word) => {
                let node = self.target_primary(word, ClusterRefusal::TargetNotKnown)?;
                log::info!("Migrating slot {slot} to node {}", self.nodes[&node].log_name());
                self.set_migrating(slot, Some(node));
            }
            SlotChange::Importing(word) => {
                let node = self.target_primary(word, ClusterRefusal::TargetNotKnown)?;
                log::info!("Importing slot {slot} from node {}", self.nodes[&node].log_name());
                self.set_importing(slot, Some(node));
            }
            SlotChange::Node(word) => {
                let node = self.target_primary(word, ClusterRefusal::UnknownNode)?;
                self.assign_slot(slot, node, keys);
            }
        }
        self.todo.save = true;
        Ok(())
    }

    /// Checks if SETSLOT is permitted.
    ///
    /// # Errors
    /// The reason for refusal.
    pub fn check_slot_change(&self, slot: SlotIndex, change: &SlotChange, keys: usize) -> Result<(), ClusterRefusal> {
        if self.me().is_replica() {
            return Err(ClusterRefusal::SetSlotOnReplica);
        }
        let mine = self.owner(slot) == Some(self.myself);
        match change {
            SlotChange::Stable => Ok(()),
            SlotChange::Migrating(_) if !mine => Err(ClusterRefusal::SlotNotMine(slot)),
            SlotChange::Importing(_) if mine => Err(ClusterRefusal::SlotMine(slot)),
            SlotChange::Migrating(word) | SlotChange::Importing(word) => {
                match self.target_primary(word, ClusterRefusal::TargetNotKnown)? == self.myself {
                    true => Err(ClusterRefusal::TargetIsMyself),
                    false => Ok(()),
                }
            }
            SlotChange::Node(word) => {
                let node = self.target_primary(word, ClusterRefusal::UnknownNode)?;
                match mine && node != self.myself && keys > 0 {
                    true => Err(ClusterRefusal::SlotHasKeys(slot)),
                    false => Ok(()),
                }
            }
        }
    }

    fn target_primary(
        &self,
        word: &[u8],
        unknown: impl FnOnce(String) -> ClusterRefusal,
    ) -> Result<NodeId, ClusterRefusal> {
        let known = NodeId::parse(word).and_then(|id| self.known_node(&id));
        let node = known.ok_or_else(|| unknown(lossy(word)))?;
        if node.is_replica() {
            return Err(ClusterRefusal::TargetIsReplica);
        }
        Ok(node.id)
    }

    fn assign_slot(&mut self, slot: SlotIndex, node: NodeId, keys: usize) {
        log::info!(
            "Assigning slot {slot} to node {} in shard {}",
            self.nodes[&node].log_name(),
            self.nodes[&node].shard
        );
        if keys == 0 {
            self.set_migrating(slot, None);
        }
        let primary = self.my_primary();
        let former_owner = self.owner(slot);
        let was_ours = former_owner == Some(primary);
        self.delete_slot(slot);
        self.add_slot(node, slot);
        let is_bare = self.nodes.get(&primary).is_some_and(|primary| primary.slots.is_empty());
        let lost_last = was_ours && node != primary && is_bare;
        if lost_last && self.settings.allows_replica_migration {
            log::info!(
                "Lost my last slot during slot migration. Reconfiguring myself as a replica of {} in shard {}",
                self.nodes[&node].log_name(),
                self.nodes[&node].shard
            );
            // The other shard has its own replication history.
            self.set_primary(node, true, true);
            self.todo.sync = true;
        } else if lost_last && self.me().is_primary() {
            log::info!(
                "My last slot was migrated to node {} in shard {}. I am now an empty primary.",
                self.nodes[&node].log_name(),
                self.nodes[&node].shard
            );
        }
        if node != self.my_primary() || !self.importing.contains_key(&slot) {
            return;
        }
        let source = self.importing.get(&slot).copied();
        self.set_importing(slot, None);
        if node == self.myself {
            // The source still claims the slot, perhaps soon under a newer epoch, which it may get for another reason.
            if let Some(source) = source.filter(|source| former_owner == Some(*source)) {
                self.taken_over.insert(slot, source);
            }
            if self.bump_epoch_unannounced() {
                log::info!("ConfigEpoch updated after importing slot {slot}");
            }
            self.broadcast_pong(unix_ms());
        }
    }

    /// Executes REPLICATE. `has_keys` is `true` if this node has any keys.
    ///
    /// # Errors
    /// When the node cannot be followed, or this node has slots or keys.
    pub fn replicate(&mut self, word: &[u8], has_keys: bool, now_ms: u64) -> Result<(), ClusterRefusal> {
        let Some(node) = NodeId::parse(word).and_then(|id| self.known_node(&id)) else {
            return Err(ClusterRefusal::UnknownNode(lossy(word)));
        };
        let id = node.id;
        if id == self.myself {
            return Err(ClusterRefusal::ReplicatesMyself);
        }
        if node.is_replica() {
            return Err(ClusterRefusal::ReplicatesReplica);
        }
        if self.me().is_primary() && (!self.me().slots.is_empty() || has_keys) {
            return Err(ClusterRefusal::NodeNotEmpty);
        }
        if self.me().primary != Some(id) {
            self.set_primary(id, true, true);
            self.announce_change(now_ms);
        }
        Ok(())
    }

    /// Executes REPLICATE NO ONE: makes this node an empty primary in a new shard. Returns `true` if it was a replica,
    /// whose data then has to be deleted.
    pub fn replicate_no_one(&mut self, now_ms: u64) -> bool {
        if self.me().is_primary() {
            return false;
        }
        log::info!("Stop replication and turning myself into empty primary.");
        let myself = self.myself;
        self.make_primary(myself);
        self.end_slot_migrations();
        self.end_manual_failover();
        self.election = Default::default();
        self.needs_full_sync = false;
        (self.leftover, self.unclaimed_with_keys) = Default::default();
        self.me_mut().shard = NodeId::random();
        (self.todo.save, self.todo.sync, self.todo.publish) = (true, true, true);
        self.broadcast_pong(now_ms);
        true
    }

    /// Executes SET-CONFIG-EPOCH.
    ///
    /// # Errors
    /// When the epoch is invalid, or this node is not new any more.
    pub fn set_config_epoch(&mut self, epoch: i64) -> Result<(), ClusterRefusal> {
        let epoch = u64::try_from(epoch).map_err(|_| ClusterRefusal::InvalidEpoch(epoch))?;
        if self.nodes.len() > 1 {
            return Err(ClusterRefusal::KnowsOtherNodes);
        }
        if self.me().config_epoch != 0 {
            return Err(ClusterRefusal::EpochIsSet);
        }
        self.me_mut().config_epoch = epoch;
        log::info!("configEpoch set to {epoch} via CLUSTER SET-CONFIG-EPOCH");
        self.current_epoch = self.current_epoch.max(epoch);
        self.todo.save = true;
        Ok(())
    }

    /// Executes FORGET.
    ///
    /// # Errors
    /// When the node is unknown, or is this node or its primary.
    pub fn forget_node(&mut self, word: &[u8], now_ms: u64) -> Result<(), ClusterRefusal> {
        let Some(node) = self.node_by_id(word) else {
            let gone = NodeId::parse(word).is_some_and(|id| self.is_forgotten(&id, now_ms));
            return if gone {
                Ok(())
            } else {
                Err(ClusterRefusal::UnknownNode(lossy(word)))
            };
        };
        let id = node.id;
        if id == self.myself {
            return Err(ClusterRefusal::ForgetsMyself);
        }
        if self.me().is_replica() && self.me().primary == Some(id) {
            return Err(ClusterRefusal::ForgetsPrimary);
        }
        self.forget(id, self.settings.forget_s, now_ms);
        self.delete_node(id);
        self.todo.save = true;
        Ok(())
    }

    /// Executes MEET. Returns `false` if the address is invalid.
    pub fn meet(&mut self, ip: &str, port: u16, bus_port: u16, now_ms: u64) -> bool {
        let Ok(ip) = ip.parse::<std::net::IpAddr>() else {
            return false;
        };
        if port == 0 || bus_port == 0 {
            return false;
        }
        let ip = ip.to_string();
        let under_way = self
            .nodes
            .values()
            .any(|node| node.is_in_handshake() && node.address.ip == ip && node.address.bus_port == bus_port);
        if !under_way {
            let flags = NodeFlags::HANDSHAKE.union(NodeFlags::MEET);
            let (tcp_port, tls_port) = self.settings.swap_ports_for_tls(port, 0);
            self.begin_handshake(&ip, tcp_port, tls_port, bus_port, flags, now_ms);
        }
        true
    }

    /// Creates a node in handshake, under a random ID until its own ID is known.
    pub fn begin_handshake(
        &mut self,
        ip: &str,
        tcp_port: u16,
        tls_port: u16,
        bus_port: u16,
        flags: NodeFlags,
        now_ms: u64,
    ) {
        let mut node = Node::new(NodeId::random(), flags, now_ms);
        node.address.ip = ip.to_owned();
        (node.address.tcp_port, node.address.tls_port) = (tcp_port, tls_port);
        node.address.bus_port = bus_port;
        self.nodes.insert(node.id, node);
    }
}
