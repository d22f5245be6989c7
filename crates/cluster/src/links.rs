//! The state of links: which exist, the nodes they belong to, and the consequences of making or losing one.

use super::message::{MAX_MESSAGE_BYTES, MessageType};
use super::node::{LinkId, NodeFlags, NodeId};
use super::state::{BusAction, ClusterState, LinkInfo};

/// The maximum length of a message over a link whose node is not known, in bytes. Only published messages are longer,
/// and those of unknown nodes are not delivered.
const MAX_STRANGER_MESSAGE_BYTES: usize = 16 << 20;

/// The IP addresses of the two endpoints of a link.
#[derive(Clone, Debug, Default)]
pub struct LinkAddresses {
    /// The address of the other node.
    pub peer: String,
    /// The address of this node.
    pub local: String,
}

impl ClusterState {
    /// Records a new link: an outgoing one to `node`, or an inbound one.
    pub fn on_link_made(&mut self, link: LinkId, node: Option<NodeId>, now_ms: u64) {
        self.links.insert(
            link,
            LinkInfo {
                is_inbound: node.is_none(),
                node,
                created_ms: now_ms,
                queued_bytes: 0,
                is_blocked: false,
                pings_sent: 0,
                pongs_received: 0,
            },
        );
        let Some(id) = node else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&id) else {
            // It was forgotten while the connection was made.
            self.close_link(link);
            return;
        };
        node.link = Some(link);
        let (id, before) = (node.id, node.ping_sent_ms);
        let kind = match node.flags.intersects(NodeFlags::MEET) {
            true => MessageType::Meet,
            false => MessageType::Ping,
        };
        self.send_ping(link, kind, now_ms);
        if let Some(node) = self.nodes.get_mut(&id) {
            // A ping that was not answered before the link broke still counts.
            node.ping_sent_ms = if before > 0 { before } else { now_ms };
        }
    }

    /// Records that a link is gone.
    pub fn on_link_lost(&mut self, link: LinkId) {
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

    /// Closes a link.
    pub fn close_link(&mut self, link: LinkId) {
        if self.links.contains_key(&link) {
            self.on_link_lost(link);
            self.actions.push(BusAction::Close(link));
        }
    }

    /// Assigns an inbound link to a node.
    pub(super) fn assign_link(&mut self, link: LinkId, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if let Some(older) = node.inbound_link.replace(link)
            && older != link
        {
            // The node has probably returned before its old link was found to be broken.
            if let Some(figures) = self.links.get_mut(&older) {
                figures.node = None;
            }
            self.close_link(older);
        }
        if let Some(figures) = self.links.get_mut(&link) {
            figures.node = Some(id);
        }
    }

    /// Returns the maximum length of the next message over a link, in bytes. It is small as long as anything could be
    /// at the other end.
    pub fn max_message_bytes(&self, link: LinkId) -> usize {
        match self.node_of(link).and_then(|id| self.known_node(&id)) {
            Some(_) => MAX_MESSAGE_BYTES,
            None => MAX_STRANGER_MESSAGE_BYTES,
        }
    }

    pub(super) fn node_of(&self, link: LinkId) -> Option<NodeId> {
        self.links.get(&link).and_then(|figures| figures.node)
    }

    pub(super) fn is_inbound(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|figures| figures.is_inbound)
    }
}
