//! Links: which are there, whose they are, and what follows when one is made or lost.

use super::message::Kind;
use super::node::{LinkId, NodeFlags, NodeId};
use super::state::{Action, LinkFigures, State};

/// The two ends of a link: their IP addresses.
#[derive(Clone, Debug, Default)]
pub struct LinkAddresses {
    /// The other node's.
    pub peer: String,
    /// This node's.
    pub local: String,
}

impl State {
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
    pub(super) fn belongs(&mut self, link: LinkId, id: NodeId) {
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

    pub(super) fn node_of(&self, link: LinkId) -> Option<NodeId> {
        self.links.get(&link).and_then(|figures| figures.node)
    }

    pub(super) fn is_inbound(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|figures| figures.inbound)
    }
}
