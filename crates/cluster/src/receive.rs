//! Dispatches received messages: determines the sender and calls the function for the type.

use super::links::LinkAddresses;
use super::message::{BusMessage, HEADER_BYTES, Header, LIGHT_HEADER_BYTES, MODULE_FIELDS_BYTES, MessageType, switch};
use super::node::{LinkId, NodeFlags, NodeId};
use super::ping::PingMessage;
use super::slot_set::SlotSet;
use super::state::{BusAction, ClusterState};

impl ClusterState {
    /// Processes a message that was received over a link.
    pub fn receive(&mut self, link: LinkId, message: BusMessage, ends: &LinkAddresses, now_ms: u64) {
        self.end_overdue_hand_over(now_ms);
        let Some(header) = header_of(&message) else {
            self.receive_light(link, message, now_ms);
            return;
        };
        let sender = self.sender(link, header);
        let is_pong = matches!(&message, BusMessage::Ping { kind, .. } if *kind == MessageType::Pong);
        if is_pong && let Some(figures) = self.links.get_mut(&link).filter(|figures| !figures.is_inbound) {
            figures.pongs_received += 1;
        }
        if let Some(id) = sender {
            self.update_sender(id, link, header, now_ms);
        }
        match message {
            BusMessage::Ping {
                kind,
                header,
                gossip,
                extensions,
            } => {
                let ping = PingMessage {
                    kind,
                    header,
                    gossip,
                    extensions,
                };
                self.receive_ping(link, sender, &ping, ends, now_ms);
            }
            BusMessage::Fail(header, failing) => self.receive_fail(sender, &header, failing, now_ms),
            BusMessage::Publish {
                is_sharded: sharded,
                channel,
                payload,
                ..
            } if sender.is_some() => self.deliver_published(sharded, channel, payload),
            BusMessage::VoteRequest(header) => {
                if let Some(id) = sender {
                    self.consider_vote(id, &header, now_ms);
                }
            }
            BusMessage::Vote(header) => {
                if let Some(id) = sender {
                    self.count_vote(id, &header, now_ms);
                }
            }
            BusMessage::Update {
                id,
                config_epoch,
                slots,
                ..
            } if sender.is_some() => self.receive_update(id, config_epoch, &slots),
            BusMessage::ManualFailover(_) => {
                if let Some(id) = sender {
                    self.pause_for_replica(id, now_ms);
                }
            }
            BusMessage::Module {
                module, kind, payload, ..
            } => {
                if let Some(id) = sender {
                    self.deliver_to_module(id, module, kind, payload, HEADER_BYTES);
                }
            }
            BusMessage::Publish { .. } | BusMessage::Update { .. } => {}
        }
        self.announce_change(now_ms);
    }

    fn receive_light(&mut self, link: LinkId, message: BusMessage, now_ms: u64) {
        let known = self
            .node_of(link)
            .filter(|id| self.nodes.get(id).is_some_and(|node| !node.is_in_handshake()));
        let Some(id) = known else {
            log::info!("Closing link for node that sent a lightweight message as its first message on the link");
            self.close_link(link);
            return;
        };
        if let Some(node) = self.nodes.get_mut(&id) {
            node.data_received_ms = now_ms;
        }
        match message {
            BusMessage::Publish {
                is_sharded: sharded,
                channel,
                payload,
                ..
            } => self.deliver_published(sharded, channel, payload),
            BusMessage::Module {
                module, kind, payload, ..
            } => self.deliver_to_module(id, module, kind, payload, LIGHT_HEADER_BYTES),
            _ => {}
        }
    }

    fn deliver_to_module(&mut self, sender: NodeId, module: u64, kind: u8, payload: Vec<u8>, header_bytes: usize) {
        self.statistics.module_bytes_received += (header_bytes + MODULE_FIELDS_BYTES + payload.len()) as u64;
        self.actions.push(BusAction::DeliverToModule {
            sender,
            module,
            kind,
            payload,
        });
    }

    fn deliver_published(&mut self, sharded: bool, channel: Vec<u8>, payload: Vec<u8>) {
        self.statistics.pubsub_bytes_received += (channel.len() + payload.len()) as u64;
        self.actions.push(BusAction::Publish {
            sharded,
            channel,
            payload,
        });
    }

    /// Returns the node that sent a message, if it is known. The random ID of a node in handshake is not an ID that a
    /// sender has.
    fn sender(&mut self, link: LinkId, header: &Header) -> Option<NodeId> {
        let of_link = self.node_of(link);
        if let Some(id) = of_link
            && self.nodes.get(&id).is_some_and(|node| !node.is_in_handshake())
        {
            return Some(id);
        }
        let sender = self.known_node(&header.sender)?.id;
        if of_link.is_none() && self.is_inbound(link) {
            self.assign_link(link, sender);
        }
        Some(sender)
    }

    /// Records the information about the sender that every message has.
    fn update_sender(&mut self, id: NodeId, link: LinkId, header: &Header, now_ms: u64) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if header.switches & switch::EXTENSIONS != 0 {
            node.flags.set(NodeFlags::EXTENSIONS, true);
        }
        for flag in [
            NodeFlags::LIGHT_HEADERS,
            NodeFlags::MULTI_MEET,
            NodeFlags::PRIMARY_FAILED,
        ] {
            node.flags.set(flag, header.flags.intersects(flag));
        }
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
        if header.primary.is_none() {
            self.reset_election_if_outdated(id, header.config_epoch);
        }
        self.record_primary_offset(id, link, header, now_ms);
    }

    fn receive_fail(&mut self, sender: Option<NodeId>, header: &Header, failing: NodeId, now_ms: u64) {
        if sender.is_none() {
            log::info!(
                "Ignoring FAIL message from unknown node {} about {failing}",
                header.sender
            );
            return;
        }
        let spared = NodeFlags::FAIL.union(NodeFlags::MYSELF);
        if let Some(node) = self
            .nodes
            .get_mut(&failing)
            .filter(|node| !node.flags.intersects(spared))
        {
            log::info!("FAIL message received from {} about {}", header.sender, node.log_name());
            node.flags.set(NodeFlags::FAIL, true);
            node.flags.set(NodeFlags::PFAIL, false);
            node.failed_ms = now_ms;
            (self.todo.save, self.health_may_have_changed) = (true, true);
        }
    }

    fn receive_update(&mut self, id: NodeId, config_epoch: u64, slots: &SlotSet) {
        let Some(node) = self.known_node(&id).filter(|node| node.config_epoch < config_epoch) else {
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
}

fn header_of(message: &BusMessage) -> Option<&Header> {
    match message {
        BusMessage::Ping { header, .. }
        | BusMessage::Fail(header, _)
        | BusMessage::VoteRequest(header)
        | BusMessage::Vote(header)
        | BusMessage::Update { header, .. }
        | BusMessage::ManualFailover(header) => Some(header),
        BusMessage::Publish { header, .. } | BusMessage::Module { header, .. } => header.as_ref(),
    }
}

#[cfg(test)]
pub(super) mod tests;
