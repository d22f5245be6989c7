//! What a node does with a message: who sent it, what that says about the sender, its slots, and others.

use super::message::{Extensions, Gossip, Header, Kind, Message, switch};
use super::node::{LinkId, Node, NodeFlags, NodeId};
use super::slot_set::SlotSet;
use super::state::{Action, LinkFigures, State};
use crate::keyspace::SLOTS;
use crate::observe::log;

/// The two ends of a link: their IP addresses.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// The other node's.
    pub peer: String,
    /// This node's.
    pub local: String,
}

/// How long after a node was marked as failing it may be taken back, in node timeouts.
const UNDO_TIMEOUTS: u64 = 2;

impl State {
    // ---- links -------------------------------------------------------------------------------------

    /// A link has been made: by this node to `node`, or by somebody to this node.
    pub fn link_made(&mut self, link: LinkId, node: Option<NodeId>, now_ms: u64) {
        self.links.insert(
            link,
            LinkFigures {
                inbound: node.is_none(),
                node,
                created_ms: now_ms,
                queued_bytes: 0,
                blocked: false,
            },
        );
        let Some(node) = node.and_then(|id| self.nodes.get_mut(&id)) else {
            return;
        };
        node.link = Some(link);
        let (id, before) = (node.id, node.ping_sent_ms);
        let kind = match node.flags.has_any(NodeFlags::MEET) {
            true => Kind::Meet,
            false => Kind::Ping,
        };
        self.greet(link, kind, now_ms);
        if let Some(node) = self.nodes.get_mut(&id) {
            // What was not answered before the link broke still counts.
            node.ping_sent_ms = if before > 0 { before } else { now_ms };
        }
    }

    /// A link is gone.
    pub fn link_lost(&mut self, link: LinkId) {
        let Some(figures) = self.links.remove(&link) else {
            return;
        };
        if let Some(node) = figures.node.and_then(|id| self.nodes.get_mut(&id)) {
            for side in [&mut node.link, &mut node.inbound_link] {
                if *side == Some(link) {
                    *side = None;
                }
            }
        }
    }

    /// Ends a link.
    pub fn close_link(&mut self, link: LinkId) {
        if self.links.contains_key(&link) {
            self.link_lost(link);
            self.actions.push(Action::Close(link));
        }
    }

    /// An inbound link turns out to be that of a node.
    fn belongs(&mut self, link: LinkId, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if let Some(older) = node.inbound_link.replace(link)
            && older != link
        {
            // Likely the node has come back before its old link was found broken.
            if let Some(figures) = self.links.get_mut(&older) {
                figures.node = None;
            }
            self.close_link(older);
        }
        if let Some(figures) = self.links.get_mut(&link) {
            figures.node = Some(id);
        }
    }

    fn node_of(&self, link: LinkId) -> Option<NodeId> {
        self.links.get(&link).and_then(|figures| figures.node)
    }

    fn is_inbound(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|figures| figures.inbound)
    }

    // ---- receiving ---------------------------------------------------------------------------------

    /// Takes a message that came over a link.
    pub fn receive(&mut self, link: LinkId, message: Message, ends: &Ends, now_ms: u64) {
        let Some(header) = header_of(&message) else {
            self.receive_light(link, message, now_ms);
            return;
        };
        let sender = self.sender(link, header);
        if let Some(id) = sender {
            self.note_sender(id, header, now_ms);
        }
        match message {
            Message::Greeting {
                kind,
                header,
                gossip,
                extensions,
            } => {
                let greeting = Greeting {
                    kind,
                    header,
                    gossip,
                    extensions,
                };
                self.receive_greeting(link, sender, &greeting, ends, now_ms);
            }
            Message::Fail(header, failing) => self.receive_fail(sender, &header, failing, now_ms),
            Message::Publish {
                sharded,
                channel,
                payload,
                ..
            } if sender.is_some() => self.publish_here(sharded, channel, payload),
            Message::VoteRequest(header) => {
                if let Some(id) = sender {
                    self.vote(id, &header, now_ms);
                }
            }
            Message::Update {
                id,
                config_epoch,
                slots,
                ..
            } if sender.is_some() => self.receive_update(id, config_epoch, &slots),
            Message::ManualFailover(_) => {
                log::notice!("A replica asks for a manual failover, which is not possible yet")
            }
            Message::Publish { .. } | Message::Update { .. } | Message::Vote(_) | Message::Other(_) => {}
        }
    }

    fn receive_light(&mut self, link: LinkId, message: Message, now_ms: u64) {
        let known = self
            .node_of(link)
            .filter(|id| self.nodes.get(id).is_some_and(|node| !node.is_in_handshake()));
        let Some(id) = known else {
            log::notice!("Closing link for node that sent a lightweight message as its first message on the link");
            self.close_link(link);
            return;
        };
        if let Some(node) = self.nodes.get_mut(&id) {
            node.data_received_ms = now_ms;
        }
        if let Message::Publish {
            sharded,
            channel,
            payload,
            ..
        } = message
        {
            self.publish_here(sharded, channel, payload);
        }
    }

    fn publish_here(&mut self, sharded: bool, channel: Vec<u8>, payload: Vec<u8>) {
        self.statistics.pubsub_bytes_received += (channel.len() + payload.len()) as u64;
        self.actions.push(Action::Publish {
            sharded,
            channel,
            payload,
        });
    }

    /// The node that sent a message, if it is known.
    fn sender(&mut self, link: LinkId, header: &Header) -> Option<NodeId> {
        let of_link = self.node_of(link);
        if let Some(id) = of_link
            && self.nodes.get(&id).is_some_and(|node| !node.is_in_handshake())
        {
            return Some(id);
        }
        let sender = self.nodes.get(&header.sender).map(|node| node.id)?;
        if of_link.is_none() && self.is_inbound(link) {
            self.belongs(link, sender);
        }
        Some(sender)
    }

    /// What every message says about its sender.
    fn note_sender(&mut self, id: NodeId, header: &Header, now_ms: u64) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if header.switches & switch::EXTENSIONS != 0 {
            node.flags.put(NodeFlags::EXTENSIONS, true);
        }
        node.flags
            .put(NodeFlags::LIGHT_HEADERS, header.flags.has_any(NodeFlags::LIGHT_HEADERS));
        node.data_received_ms = now_ms;
        if node.is_in_handshake() || id == self.myself {
            return;
        }
        if header.primary.is_none() && header.config_epoch > node.config_epoch {
            node.config_epoch = header.config_epoch;
            (self.todo.save, self.todo.sync) = (true, true);
        }
        (node.offset, node.offset_ms) = (header.offset, now_ms);
        self.current_epoch = self.current_epoch.max(header.current_epoch);
    }

    fn receive_fail(&mut self, sender: Option<NodeId>, header: &Header, failing: NodeId, now_ms: u64) {
        if sender.is_none() {
            log::notice!(
                "Ignoring FAIL message from unknown node {} about {failing}",
                header.sender
            );
            return;
        }
        let spared = NodeFlags::FAIL.with(NodeFlags::MYSELF);
        if let Some(node) = self.nodes.get_mut(&failing).filter(|node| !node.flags.has_any(spared)) {
            log::notice!("FAIL message received from {} about {}", header.sender, node.named());
            node.flags.put(NodeFlags::FAIL, true);
            node.flags.put(NodeFlags::PFAIL, false);
            node.failed_ms = now_ms;
            (self.todo.save, self.look) = (true, true);
        }
    }

    fn receive_update(&mut self, id: NodeId, config_epoch: u64, slots: &SlotSet) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.config_epoch < config_epoch) else {
            return;
        };
        if node.is_replica() {
            self.make_primary(id);
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.config_epoch = config_epoch;
        }
        (self.todo.save, self.todo.sync) = (true, true);
        self.update_slots(id, config_epoch, slots);
    }

    // ---- greetings ---------------------------------------------------------------------------------

    fn receive_greeting(
        &mut self,
        link: LinkId,
        sender: Option<NodeId>,
        greeting: &Greeting,
        ends: &Ends,
        now_ms: u64,
    ) {
        let Greeting { kind, header, .. } = greeting;
        if *kind != Kind::Pong {
            self.find_own_address(*kind, ends);
            if sender.is_none() && *kind == Kind::Meet {
                self.meet_back(link, header, ends, now_ms);
                self.hear_of_others(None, &greeting.gossip, true, now_ms);
            }
            self.greet(link, Kind::Pong, now_ms);
        }
        if let Some(node) = sender.and_then(|id| self.nodes.get_mut(&id))
            && node.flags.has_any(NodeFlags::MEET)
        {
            node.flags.put(NodeFlags::MEET, false);
            log::notice!("Successfully completed handshake with {}", node.named());
        }
        if !self.is_inbound(link) && !self.is_expected(link, sender, header, ends) {
            return;
        }
        // A handshake that has just ended made its node known.
        let sender = sender.or_else(|| self.node_of(link).filter(|id| *id == header.sender));
        let Some(id) = sender else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.flags
            .put(NodeFlags::NO_FAILOVER, header.flags.has_any(NodeFlags::NO_FAILOVER));
        if *kind == Kind::Ping && !node.is_in_handshake() {
            self.update_address(id, link, header, ends);
        }
        if !self.is_inbound(link) && *kind == Kind::Pong {
            self.answered(link, now_ms);
        }
        self.note_role_and_slots(id, header);
        self.hear_of_others(Some(id), &greeting.gossip, false, now_ms);
        self.note_extensions(id, &greeting.extensions, now_ms);
    }

    /// Others know under which address they reach this node.
    fn find_own_address(&mut self, kind: Kind, ends: &Ends) {
        let announced = self.settings.announced_ip.is_some();
        let me = self.me_mut();
        let unknown = kind == Kind::Meet || me.address.ip.is_empty();
        if unknown && !announced && !ends.local.is_empty() && me.address.ip != ends.local {
            me.address.ip.clone_from(&ends.local);
            log::notice!("IP address for this node updated to {}", ends.local);
            (self.todo.save, self.todo.publish) = (true, true);
        }
    }

    /// Takes note of a node that wants to know this one; its name comes when it answers.
    fn meet_back(&mut self, link: LinkId, header: &Header, ends: &Ends, now_ms: u64) {
        let mut node = Node::new(NodeId::random(), NodeFlags::HANDSHAKE, now_ms);
        let id = node.id;
        node.address.ip = announced_or_seen(header, ends);
        (node.address.tcp_port, node.address.tls_port) = (header.port, header.tls_port);
        node.address.bus_port = header.bus_port;
        node.flags
            .put(NodeFlags::EXTENSIONS, header.switches & switch::EXTENSIONS != 0);
        self.nodes.insert(id, node);
        self.belongs(link, id);
        self.todo.save = true;
    }

    /// Whether the node at the other end of an outgoing link is the one that was called.
    fn is_expected(&mut self, link: LinkId, sender: Option<NodeId>, header: &Header, ends: &Ends) -> bool {
        let Some(called) = self.node_of(link) else {
            return false;
        };
        let Some(node) = self.nodes.get_mut(&called) else {
            return false;
        };
        if node.is_in_handshake() {
            if let Some(known) = sender {
                self.update_address(known, link, header, ends);
                self.delete_node(called);
                return false;
            }
            node.flags.put(NodeFlags::HANDSHAKE, false);
            let roles = NodeFlags::PRIMARY.with(NodeFlags::REPLICA);
            node.flags.0 |= header.flags.0 & roles.0;
            if node.flags.has_any(NodeFlags::MEET) {
                node.flags.put(NodeFlags::MEET, false);
                log::notice!("Successfully completed handshake with {}", header.sender);
            }
            self.rename_node(called, header.sender);
            (self.todo.save, self.todo.publish) = (true, true);
            return true;
        }
        if called != header.sender {
            log::notice!("PONG contains mismatching sender ID. About node {}", node.named());
            node.flags.put(NodeFlags::NO_ADDRESS, true);
            node.address = Default::default();
            (self.todo.save, self.todo.publish) = (true, true);
            self.close_link(link);
            return false;
        }
        true
    }

    fn update_address(&mut self, id: NodeId, link: LinkId, header: &Header, ends: &Ends) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let ip = announced_or_seen(header, ends);
        let address = super::node::Address {
            ip,
            tcp_port: header.port,
            tls_port: header.tls_port,
            bus_port: header.bus_port,
        };
        if node.link == Some(link) || address.ip.is_empty() || node.address == address || id == self.myself {
            return;
        }
        log::notice!(
            "Address updated for node {}, now {}:{}",
            node.named(),
            address.ip,
            address.tcp_port
        );
        node.address = address;
        node.flags.put(NodeFlags::NO_ADDRESS, false);
        let old = node.link;
        (self.todo.save, self.todo.publish, self.look) = (true, true, true);
        if let Some(old) = old {
            self.close_link(old);
        }
    }

    /// A node has answered a ping.
    fn answered(&mut self, link: LinkId, now_ms: u64) {
        let Some(node) = self.node_of(link).and_then(|id| self.nodes.get_mut(&id)) else {
            return;
        };
        (node.pong_received_ms, node.ping_sent_ms) = (now_ms, 0);
        if node.has_timed_out() {
            node.flags.put(NodeFlags::PFAIL, false);
            (self.todo.save, self.look) = (true, true);
        } else if node.has_failed() {
            let undo_ms = self.settings.node_timeout_ms.saturating_mul(UNDO_TIMEOUTS);
            let old = now_ms.saturating_sub(node.failed_ms) > undo_ms;
            if !node.votes() || old {
                log::notice!("Clear FAIL state for node {}: it is reachable again.", node.named());
                node.flags.put(NodeFlags::FAIL, false);
                (self.todo.save, self.look) = (true, true);
            }
        }
    }

    // ---- roles and slots ---------------------------------------------------------------------------

    fn note_role_and_slots(&mut self, id: NodeId, header: &Header) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        if id == self.myself {
            return;
        }
        let was_replica = node.is_replica();
        match header.primary {
            None => self.make_primary(id),
            Some(primary) => self.note_replica(id, primary, header.config_epoch),
        }
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        if header.primary.is_none() && (was_replica || node.slots != header.slots) {
            self.update_slots(id, header.config_epoch, &header.slots);
            self.correct(id, header);
        }
        self.settle_collision(id, header);
    }

    fn note_replica(&mut self, id: NodeId, primary: NodeId, epoch: u64) {
        let known = self.nodes.get(&primary).map(|node| node.shard);
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        if !node.is_replica() {
            if known == Some(node.shard) {
                // A failover within the shard.
                if node.config_epoch <= epoch {
                    self.make_primary(primary);
                    if let Some(node) = self.nodes.get_mut(&primary) {
                        node.config_epoch = epoch;
                    }
                }
            } else {
                let slots = self.delete_slots_of(id);
                log::notice!("Node {id} is no longer primary; removed all {slots} slot(s) it used to own");
            }
            if let Some(node) = self.nodes.get_mut(&id) {
                node.flags.put(NodeFlags::PRIMARY.with(NodeFlags::MIGRATE_TO), false);
                node.flags.put(NodeFlags::REPLICA, true);
            }
            (self.todo.save, self.todo.publish, self.look) = (true, true, true);
        }
        if let (Some(shard), Some(node)) = (known, self.nodes.get_mut(&id))
            && node.primary != Some(primary)
        {
            log::notice!(
                "Node {} is now a replica of node {primary} in shard {shard}",
                node.named()
            );
            node.primary = Some(primary);
            node.shard = shard;
            (self.todo.save, self.todo.publish) = (true, true);
        }
    }

    /// Tells a node that claims slots by an old version whose they are.
    fn correct(&mut self, id: NodeId, header: &Header) {
        let newer = header.slots.iter().find_map(|slot| {
            let owner = self.owner(slot).filter(|owner| *owner != id)?;
            let claimed = !self.unclaimed.contains(slot);
            let node = self.nodes.get(&owner)?;
            (claimed && node.config_epoch > header.config_epoch).then_some(owner)
        });
        let link = self.nodes.get(&id).and_then(|node| node.link);
        if let (Some(owner), Some(link)) = (newer, link) {
            self.send_update(link, owner);
        }
    }

    /// Two primaries must not have the same version: the one with the smaller name takes a new one.
    fn settle_collision(&mut self, id: NodeId, header: &Header) {
        let me = self.me();
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let collides = node.is_primary()
            && me.is_primary()
            && header.config_epoch == me.config_epoch
            && node.config_epoch == me.config_epoch;
        if collides && id > self.myself {
            self.current_epoch += 1;
            let epoch = self.current_epoch;
            log::notice!(
                "configEpoch collision with node {}. configEpoch set to {epoch}",
                node.named()
            );
            self.me_mut().config_epoch = epoch;
            (self.todo.save, self.todo.sync) = (true, true);
        }
    }

    /// Takes over what a node says about its slots, as far as that is newer than what is known.
    pub fn update_slots(&mut self, id: NodeId, epoch: u64, slots: &SlotSet) {
        if id == self.myself {
            log::notice!("Discarding UPDATE message about myself.");
            return;
        }
        let mut lost = Vec::new();
        let had_slots = !self.me().slots.is_empty();
        for slot in 0..SLOTS as u16 {
            match slots.contains(slot) {
                true => self.claimed(id, epoch, slot, &mut lost),
                false => self.not_claimed(id, epoch, slot),
            }
        }
        if had_slots && self.me().slots.is_empty() && !lost.is_empty() {
            log::notice!("My last slot was migrated to node {id}. I am now an empty primary.");
        }
        if !lost.is_empty() {
            self.actions.push(Action::DropKeys(lost));
        }
    }

    fn shard_of(&self, id: &NodeId) -> Option<NodeId> {
        self.nodes.get(id).map(|node| node.shard)
    }

    /// A node says that a slot is its own.
    fn claimed(&mut self, id: NodeId, epoch: u64, slot: u16, lost: &mut Vec<u16>) {
        let owner = self.owner(slot);
        if owner == Some(id) {
            self.unclaimed.put(slot, false);
            return;
        }
        let epoch_of_owner = owner
            .and_then(|owner| self.nodes.get(&owner))
            .map(|node| node.config_epoch);
        let free = owner.is_none() || self.unclaimed.contains(slot);
        if !free && epoch_of_owner.is_some_and(|known| known >= epoch) {
            return;
        }
        if owner == Some(self.myself) {
            lost.push(slot);
        }
        if let Some(owner) = owner.filter(|owner| self.shard_of(owner) != self.shard_of(&id)) {
            log::notice!("Slot {slot} is migrated from node {owner} to node {id}.");
        }
        if self.migrating.contains_key(&slot) && self.shard_of(&id) != Some(self.me().shard) {
            self.set_migrating(slot, None);
        }
        if let Some(source) = self.importing.get(&slot).copied().filter(|source| *source != id) {
            let same = self.shard_of(&source) == self.shard_of(&id);
            self.set_importing(slot, same.then_some(id));
        }
        self.delete_slot(slot);
        self.add_slot(id, slot);
        (self.todo.save, self.todo.sync, self.look) = (true, true, true);
    }

    /// A node says that a slot is not its own.
    fn not_claimed(&mut self, id: NodeId, epoch: u64, slot: u16) {
        if self.owner(slot) == Some(id) {
            // It stays for now: whoever has it will tell, and until then a redirect more does less harm than none.
            self.unclaimed.put(slot, true);
        }
        if let Some(target) = self.migrating.get(&slot).copied().filter(|target| *target != id) {
            let behind = self
                .nodes
                .get(&target)
                .is_some_and(|node| node.config_epoch < epoch || node.is_replica());
            if behind && self.shard_of(&target) == self.shard_of(&id) {
                self.set_migrating(slot, Some(id));
                (self.todo.save, self.todo.sync) = (true, true);
            }
        }
        if self.me().is_primary() && self.importing.get(&slot) == Some(&id) {
            // Its old owner has let it go, so the slot has moved: the last step was missed here.
            self.set_importing(slot, None);
            if self.owner(slot) != Some(self.myself) {
                let myself = self.myself;
                self.delete_slot(slot);
                self.add_slot(myself, slot);
                self.bump_epoch();
                (self.todo.save, self.todo.sync, self.look) = (true, true, true);
            }
        }
    }

    // ---- others ------------------------------------------------------------------------------------

    /// What a node tells of others. One that is not known itself is believed only when it is being met.
    fn hear_of_others(&mut self, sender: Option<NodeId>, gossip: &[Gossip], meeting: bool, now_ms: u64) {
        let votes = sender.and_then(|id| self.nodes.get(&id)).is_some_and(Node::votes);
        for entry in gossip {
            if entry.id == self.myself {
                continue;
            }
            if self.nodes.contains_key(&entry.id) {
                self.hear_of(sender.filter(|_| votes), entry, now_ms);
            } else if (sender.is_some() || meeting)
                && !entry.flags.has_any(NodeFlags::NO_ADDRESS)
                && !self.is_forgotten(&entry.id, now_ms)
            {
                self.learn(entry, now_ms);
            }
        }
    }

    fn hear_of(&mut self, voter: Option<NodeId>, entry: &Gossip, now_ms: u64) {
        let silent = NodeFlags::FAIL.with(NodeFlags::PFAIL);
        let fails = entry.flags.has_any(silent);
        if let Some(voter) = voter {
            match fails {
                true => {
                    self.report(entry.id, voter, now_ms);
                    self.mark_failing(entry.id, now_ms);
                }
                false => {
                    if let Some(node) = self.nodes.get_mut(&entry.id) {
                        node.reports.retain(|(reporter, _)| *reporter != voter);
                    }
                }
            }
        }
        let Some(node) = self.nodes.get(&entry.id) else {
            return;
        };
        let reports = self.failure_reports(node, now_ms);
        let Some(node) = self.nodes.get_mut(&entry.id) else {
            return;
        };
        if !fails && node.ping_sent_ms == 0 && reports == 0 {
            let pong_ms = u64::from(entry.pong_received_s) * 1000;
            if pong_ms <= now_ms + 500 && pong_ms > node.pong_received_ms {
                node.pong_received_ms = pong_ms;
            }
        }
        let address = address_of(entry);
        if node.flags.has_any(silent)
            && !fails
            && !entry.flags.has_any(NodeFlags::NO_ADDRESS)
            && node.address != address
        {
            log::notice!(
                "Address updated for node {}, now {}:{}",
                node.named(),
                address.ip,
                address.tcp_port
            );
            node.address = address;
            node.flags.put(NodeFlags::NO_ADDRESS, false);
            let link = node.link;
            (self.todo.save, self.todo.publish) = (true, true);
            if let Some(link) = link {
                self.close_link(link);
            }
        }
    }

    fn learn(&mut self, entry: &Gossip, now_ms: u64) {
        let own = NodeFlags::MYSELF.with(NodeFlags::MEET).with(NodeFlags::HANDSHAKE);
        let mut flags = entry.flags;
        flags.put(own, false);
        let mut node = Node::new(entry.id, flags, now_ms);
        node.address = address_of(entry);
        self.nodes.insert(entry.id, node);
        (self.todo.save, self.todo.publish) = (true, true);
    }

    /// A voter finds a node failing.
    fn report(&mut self, failing: NodeId, by: NodeId, now_ms: u64) {
        let reporter = self.nodes.get(&by).map(Node::named).unwrap_or_default();
        let Some(node) = self.nodes.get_mut(&failing) else {
            return;
        };
        match node.reports.iter_mut().find(|(reporter, _)| *reporter == by) {
            Some((_, at_ms)) => *at_ms = now_ms,
            None => {
                log::notice!("Node {reporter} reported node {} as not reachable.", node.named());
                node.reports.push((by, now_ms));
            }
        }
    }

    /// Marks a node as failing if this node finds it silent and a majority agrees.
    pub fn mark_failing(&mut self, id: NodeId, now_ms: u64) {
        let Some(node) = self
            .nodes
            .get(&id)
            .filter(|node| node.has_timed_out() && !node.has_failed())
        else {
            return;
        };
        let votes = self.failure_reports(node, now_ms) + usize::from(self.me().votes());
        if votes < self.size / 2 + 1 {
            return;
        }
        log::notice!("Marking node {} as failing (quorum reached).", node.named());
        if let Some(node) = self.nodes.get_mut(&id) {
            node.flags.put(NodeFlags::PFAIL, false);
            node.flags.put(NodeFlags::FAIL, true);
            node.failed_ms = now_ms;
        }
        self.broadcast(&Message::Fail(self.header(), id));
        (self.todo.save, self.look) = (true, true);
    }

    fn note_extensions(&mut self, id: NodeId, extensions: &Extensions, now_ms: u64) {
        for (forgotten, seconds) in &extensions.forgotten {
            let needed = *forgotten == self.myself || (self.me().is_replica() && self.me().primary == Some(*forgotten));
            if !needed && self.nodes.contains_key(forgotten) {
                self.forget(*forgotten, *seconds, now_ms);
                self.delete_node(*forgotten);
                (self.todo.save, self.look) = (true, true);
            }
        }
        let of_primary = self.nodes.get(&id).and_then(|node| self.shard_of(&node.primary?));
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.announced != extensions.announced {
            node.announced = extensions.announced.clone();
            (self.todo.save, self.todo.publish) = (true, true);
        }
        if let Some(shard) = of_primary.or(extensions.shard)
            && node.shard != shard
        {
            node.shard = shard;
            self.todo.save = true;
        }
    }

    // ---- votes -------------------------------------------------------------------------------------

    /// Votes for a replica that wants to take over from its failed primary, if that is due to it.
    fn vote(&mut self, id: NodeId, request: &Header, now_ms: u64) {
        if !self.me().votes() {
            return;
        }
        let forced = request.switches & switch::FORCED != 0;
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let primary = node.primary.and_then(|primary| self.nodes.get(&primary));
        let reason = if request.current_epoch < self.current_epoch {
            Some("its epoch is old")
        } else if self.last_vote_epoch == self.current_epoch {
            Some("this epoch has got a vote already")
        } else if node.is_primary() {
            Some("it is a primary")
        } else {
            match primary {
                None => Some("its primary is unknown"),
                Some(primary) if !primary.has_failed() && !forced => Some("its primary is up"),
                Some(primary)
                    if now_ms.saturating_sub(primary.voted_ms) < self.settings.node_timeout_ms.saturating_mul(2) =>
                {
                    Some("another replica of its primary has got a vote lately")
                }
                Some(_) => {
                    let newer = |slot: u16| {
                        let owner = self.owner(slot).and_then(|owner| self.nodes.get(&owner));
                        owner.is_some_and(|owner| owner.config_epoch > request.config_epoch)
                    };
                    request
                        .slots
                        .iter()
                        .any(newer)
                        .then_some("some of its slots have got another owner")
                }
            }
        };
        if let Some(reason) = reason {
            log::warning!("Failover auth denied to {}: {reason}", node.named());
            return;
        }
        let (primary, link) = (node.primary, node.link);
        log::notice!(
            "Failover auth granted to {} for epoch {}",
            node.named(),
            self.current_epoch
        );
        if let Some(primary) = primary.and_then(|primary| self.nodes.get_mut(&primary)) {
            primary.voted_ms = now_ms;
        }
        self.last_vote_epoch = self.current_epoch;
        (self.todo.save, self.todo.sync) = (true, true);
        if let Some(link) = link {
            self.send(link, &Message::Vote(self.header()));
        }
    }
}

/// A PING, PONG or MEET.
struct Greeting {
    kind: Kind,
    header: Header,
    gossip: Vec<Gossip>,
    extensions: Extensions,
}

fn header_of(message: &Message) -> Option<&Header> {
    match message {
        Message::Greeting { header, .. }
        | Message::Fail(header, _)
        | Message::VoteRequest(header)
        | Message::Vote(header)
        | Message::Update { header, .. }
        | Message::ManualFailover(header)
        | Message::Other(header) => Some(header),
        Message::Publish { header, .. } => header.as_ref(),
    }
}

/// The address that a node announces, or else the one that its link shows.
fn announced_or_seen(header: &Header, ends: &Ends) -> String {
    match header.ip.is_empty() {
        true => ends.peer.clone(),
        false => header.ip.clone(),
    }
}

fn address_of(entry: &Gossip) -> super::node::Address {
    super::node::Address {
        ip: entry.ip.clone(),
        tcp_port: entry.port,
        tls_port: entry.tls_port,
        bus_port: entry.bus_port,
    }
}

#[cfg(test)]
mod tests;
