//! The immutable view of the cluster that commands use: the owners of slots, and the slots in migration. A change
//! creates a new view.

use std::collections::BTreeMap;

use super::node::{Node, NodeId};
use super::settings::EndpointType;
use super::state::ClusterState;
use weft_base::SlotIndex;

/// The slot has no owner.
const UNASSIGNED: u16 = 0;
/// This node owns the slot.
const MYSELF: u16 = 1;

/// The addresses of a node for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEndpoint {
    /// The node.
    pub id: NodeId,
    ip: String,
    client_ipv4: String,
    client_ipv6: String,
    hostname: String,
    port: u16,
    tls_port: u16,
}

/// The properties of the connection of the client that asks for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterInfo {
    /// `true` if it uses IPv6.
    pub ipv6: bool,
    /// `true` if it uses TLS.
    pub tls: bool,
}

/// Returns the client port of a node.
pub fn client_port(node: &Node, tls: bool) -> u16 {
    let announced = &node.announced;
    let or = |port: u16, default: u16| if port == 0 { default } else { port };
    match tls {
        true => or(announced.client_tls_port, node.address.tls_port),
        false => or(announced.client_port, node.address.tcp_port),
    }
}

/// Returns the client IP address of a node.
pub fn client_ip(node: &Node, ipv6: bool) -> &str {
    let announced = match ipv6 {
        true => &node.announced.client_ipv6,
        false => &node.announced.client_ipv4,
    };
    if announced.is_empty() {
        &node.address.ip
    } else {
        announced
    }
}

/// Returns the endpoint of a node in redirects: an IP address or a hostname, `?` if the hostname is missing, or an
/// empty string, which means the address that the client is connected to.
pub fn endpoint_text<'a>(endpoint: EndpointType, ip: &'a str, hostname: &'a str) -> &'a str {
    match endpoint {
        EndpointType::Ip => ip,
        EndpointType::Hostname if hostname.is_empty() => "?",
        EndpointType::Hostname => hostname,
        EndpointType::Unknown => "",
    }
}

impl ClientEndpoint {
    fn from_node(node: &Node) -> Self {
        ClientEndpoint {
            id: node.id,
            ip: node.address.ip.clone(),
            client_ipv4: node.announced.client_ipv4.clone(),
            client_ipv6: node.announced.client_ipv6.clone(),
            hostname: node.announced.hostname.clone(),
            port: client_port(node, false),
            tls_port: client_port(node, true),
        }
    }

    /// Returns `endpoint:port`, as in redirects.
    pub fn text(&self, kind: EndpointType, origin: RequesterInfo) -> String {
        let announced = match origin.ipv6 {
            true => &self.client_ipv6,
            false => &self.client_ipv4,
        };
        let ip = if announced.is_empty() { &self.ip } else { announced };
        let port = if origin.tls { self.tls_port } else { self.port };
        format!("{}:{port}", endpoint_text(kind, ip, &self.hostname))
    }
}

/// The owner of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOwner<'v> {
    /// The slot has no owner.
    Unassigned,
    /// This node.
    Myself,
    /// Another node.
    Other(&'v ClientEndpoint),
}

/// The view of the cluster that commands use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// `true` if commands are accepted.
    pub is_up: bool,
    /// `true` if this node is a replica.
    pub is_replica: bool,
    /// The primary of this node's shard.
    pub my_primary: NodeId,
    /// The address of that primary, if this node is a replica and knows it.
    pub primary_address: Option<(String, u16)>,
    /// For each slot [`UNASSIGNED`], [`MYSELF`], or an index of `places` plus 2.
    owners: Box<[u16]>,
    places: Vec<ClientEndpoint>,
    migrating: BTreeMap<SlotIndex, ClientEndpoint>,
    importing: BTreeMap<SlotIndex, NodeId>,
}

impl ClusterView {
    /// Creates the view of a state.
    pub fn from_state(state: &ClusterState) -> Self {
        let mut places: Vec<ClientEndpoint> = Vec::new();
        let mut last: Option<(NodeId, u16)> = None;
        let mut number = |owner: NodeId| {
            if let Some((id, number)) = last
                && id == owner
            {
                return number;
            }
            let known = places.iter().position(|place| place.id == owner);
            let number = if owner == state.myself {
                MYSELF
            } else if let Some(index) = known {
                index as u16 + 2
            } else if let Some(node) = state.nodes.get(&owner) {
                places.push(ClientEndpoint::from_node(node));
                places.len() as u16 + 1
            } else {
                UNASSIGNED
            };
            last = Some((owner, number));
            number
        };
        let owners: Box<[u16]> = state
            .owners
            .iter()
            .map(|owner| owner.map_or(UNASSIGNED, &mut number))
            .collect();
        let place = |id: &NodeId| state.nodes.get(id).map(ClientEndpoint::from_node);
        ClusterView {
            is_up: state.is_up,
            is_replica: state.me().is_replica(),
            my_primary: state.my_primary(),
            primary_address: state.primary_address(),
            owners,
            places,
            migrating: state
                .migrating
                .iter()
                .filter_map(|(slot, to)| Some((*slot, place(to)?)))
                .collect(),
            importing: state.importing.clone(),
        }
    }

    /// Returns this view restricted to what this node still may do according to a newer state: slots that it has lost
    /// belong to their new owners, and the cluster is up only if it still is. Returns `None` if nothing differs.
    pub fn restricted_by(&self, state: &ClusterState) -> Option<ClusterView> {
        let is_up = self.is_up && state.is_up;
        let is_lost = |slot: &SlotIndex| self.is_mine(*slot) && state.owner(*slot) != Some(state.myself);
        let lost: Vec<SlotIndex> = SlotIndex::all().filter(is_lost).collect();
        if lost.is_empty() && is_up == self.is_up {
            return None;
        }
        let mut view = ClusterView { is_up, ..self.clone() };
        for slot in lost {
            let owner = state.owner(slot).and_then(|owner| state.nodes.get(&owner));
            let number = owner.map_or(UNASSIGNED, |owner| view.number_of(owner));
            if let Some(entry) = view.owners.get_mut(slot.index()) {
                *entry = number;
            }
            view.migrating.remove(&slot);
        }
        Some(view)
    }

    /// Returns the number of another node in `owners`, which becomes known if it is not.
    fn number_of(&mut self, node: &Node) -> u16 {
        let known = self.places.iter().position(|place| place.id == node.id);
        let index = known.unwrap_or_else(|| {
            self.places.push(ClientEndpoint::from_node(node));
            self.places.len() - 1
        });
        index as u16 + 2
    }

    /// Returns the owner of a slot.
    #[inline]
    pub fn owner(&self, slot: SlotIndex) -> SlotOwner<'_> {
        match self.owners.get(slot.index()).copied().unwrap_or(UNASSIGNED) {
            UNASSIGNED => SlotOwner::Unassigned,
            MYSELF => SlotOwner::Myself,
            other => match self.places.get(usize::from(other) - 2) {
                Some(place) => SlotOwner::Other(place),
                None => SlotOwner::Unassigned,
            },
        }
    }

    /// Returns `true` if this node owns the slot.
    #[inline]
    pub fn is_mine(&self, slot: SlotIndex) -> bool {
        self.owners.get(slot.index()) == Some(&MYSELF)
    }

    /// Returns `true` if the node with this id, which is not this node, owns the slot.
    pub fn is_owned_by(&self, slot: SlotIndex, node: &NodeId) -> bool {
        matches!(self.owner(slot), SlotOwner::Other(place) if place.id == *node)
    }

    /// Returns `true` if this node or its primary owns the slot.
    pub fn is_of_my_shard(&self, slot: SlotIndex) -> bool {
        match self.owner(slot) {
            SlotOwner::Unassigned => false,
            SlotOwner::Myself => true,
            SlotOwner::Other(place) => self.is_replica && place.id == self.my_primary,
        }
    }

    /// Returns the node that a slot is migrating to.
    pub fn migrating(&self, slot: SlotIndex) -> Option<&ClientEndpoint> {
        if self.migrating.is_empty() {
            return None;
        }
        self.migrating.get(&slot)
    }

    /// Returns `true` if the slot is being imported by this node.
    pub fn is_importing(&self, slot: SlotIndex) -> bool {
        !self.importing.is_empty() && self.importing.contains_key(&slot)
    }

    /// Returns `true` if a slot that was being imported in an older view is so no longer, and does not belong to this
    /// node.
    pub fn has_given_up_import_since(&self, older: &ClusterView) -> bool {
        let mut imported = older.importing.keys();
        imported.any(|slot| !self.is_importing(*slot) && !self.is_mine(*slot))
    }

    /// Returns the slots whose owner differs from the one in an older view.
    pub fn moved_since<'v>(&'v self, older: &'v ClusterView) -> impl Iterator<Item = SlotIndex> + 'v {
        let same = |slot: SlotIndex| match (self.owner(slot), older.owner(slot)) {
            (SlotOwner::Other(now), SlotOwner::Other(before)) => now.id == before.id,
            (now, before) => now == before,
        };
        SlotIndex::all().filter(move |slot| !same(*slot))
    }

    /// Returns the slots that belonged to this node's shard in an older view and no longer do.
    pub fn lost_since<'v>(&'v self, older: &'v ClusterView) -> impl Iterator<Item = SlotIndex> + 'v {
        SlotIndex::all().filter(|slot| older.is_of_my_shard(*slot) && !self.is_of_my_shard(*slot))
    }
}
