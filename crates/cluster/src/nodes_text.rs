//! The texts of CLUSTER NODES and CLUSTER INFO.

use std::fmt::Write as _;

use super::node::{Node, NodeFlags};
use super::state::{ClusterState, MESSAGE_TYPES};
use super::view::{RequesterInfo, client_ip, client_port};

/// The names of the message types.
pub const MESSAGE_NAMES: [&str; MESSAGE_TYPES] = [
    "ping",
    "pong",
    "meet",
    "fail",
    "publish",
    "auth-req",
    "auth-ack",
    "update",
    "mfstart",
    "module",
    "publishshard",
];

/// Returns the line of a node in CLUSTER NODES, without the newline.
pub fn node_line(state: &ClusterState, node: &Node, origin: RequesterInfo) -> String {
    let mut out = format!(
        "{} {}:{}@{}",
        node.id,
        client_ip(node, origin.ipv6),
        client_port(node, origin.tls),
        node.address.bus_port
    );
    if !node.announced.hostname.is_empty() {
        let _ = write!(out, ",{}", node.announced.hostname);
    }
    append_node_fields(&mut out, state, node);
    out
}

/// Appends the part of a line after the address. The cluster configuration file contains it, too.
pub fn append_node_fields(out: &mut String, state: &ClusterState, node: &Node) {
    let is_me = node.flags.intersects(NodeFlags::MYSELF);
    let _ = write!(out, " {} ", node.flags);
    match node.primary {
        Some(primary) => out.push_str(primary.as_str()),
        None => out.push('-'),
    }
    let connected = is_me || node.link.is_some();
    let _ = write!(
        out,
        " {} {} {} {}",
        node.ping_sent_ms,
        node.pong_received_ms,
        state.epoch_of(node),
        if connected { "connected" } else { "disconnected" }
    );
    for (first, last) in node.slots.ranges() {
        let _ = match first == last {
            true => write!(out, " {first}"),
            false => write!(out, " {first}-{last}"),
        };
    }
    if is_me {
        let moving = state.migrating.iter().map(|(slot, node)| (slot, '>', node));
        let importing = state
            .importing
            .iter()
            .filter(|(slot, _)| !state.migrating.contains_key(slot));
        let mut moving: Vec<_> = moving.chain(importing.map(|(slot, node)| (slot, '<', node))).collect();
        moving.sort_unstable();
        for (slot, direction, node) in moving {
            let _ = write!(out, " [{slot}-{direction}-{node}]");
        }
    }
}

/// Returns the text of CLUSTER NODES.
pub fn nodes_text(state: &ClusterState, origin: RequesterInfo) -> String {
    let mut out = String::new();
    for node in state.nodes.values() {
        out.push_str(&node_line(state, node, origin));
        out.push('\n');
    }
    out
}

/// The numbers of slots and nodes by their state, as this node sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthCounts {
    /// The slots whose owners are reachable.
    pub slots_ok: usize,
    /// The slots whose owners do not reply to this node.
    pub slots_pfail: usize,
    /// The slots whose owners have failed.
    pub slots_fail: usize,
    /// The nodes that do not reply to this node.
    pub nodes_pfail: usize,
    /// The nodes that have failed.
    pub nodes_fail: usize,
}

impl HealthCounts {
    /// Counts the slots and nodes of a cluster.
    pub fn from_state(state: &ClusterState) -> HealthCounts {
        let mut counts = HealthCounts::default();
        for node in state.nodes.values() {
            let slots = node.slots.len();
            if node.has_failed() {
                counts.slots_fail += slots;
            } else if node.has_timed_out() {
                counts.slots_pfail += slots;
            } else {
                counts.slots_ok += slots;
            }
            counts.nodes_pfail += usize::from(node.has_timed_out());
            counts.nodes_fail += usize::from(node.has_failed());
        }
        counts
    }

    /// Returns the number of slots with an owner.
    pub fn slots_assigned(&self) -> usize {
        self.slots_ok + self.slots_pfail + self.slots_fail
    }
}

/// Returns the text of CLUSTER INFO. `up` is `true` if commands are accepted; a client that has read it may rely on it.
pub fn info_text(state: &ClusterState, up: bool) -> String {
    let mut out = String::new();
    let health = HealthCounts::from_state(state);
    let count = |wanted: &dyn Fn(&Node) -> bool| state.nodes.values().filter(|node| wanted(node)).count();
    let mut put = |name: &str, value: &dyn std::fmt::Display| {
        let _ = write!(out, "{name}:{value}\r\n");
    };
    put("cluster_state", &if up { "ok" } else { "fail" });
    put("cluster_slots_assigned", &health.slots_assigned());
    put("cluster_slots_ok", &health.slots_ok);
    put("cluster_slots_pfail", &health.slots_pfail);
    put("cluster_slots_fail", &health.slots_fail);
    put("cluster_nodes_pfail", &health.nodes_pfail);
    put("cluster_nodes_fail", &health.nodes_fail);
    put(
        "cluster_voting_nodes_pfail",
        &count(&|node| node.has_vote() && node.has_timed_out()),
    );
    put(
        "cluster_voting_nodes_fail",
        &count(&|node| node.has_vote() && node.has_failed()),
    );
    put("cluster_known_nodes", &state.nodes.len());
    put("cluster_size", &state.size);
    put("cluster_current_epoch", &state.current_epoch);
    put("cluster_my_epoch", &state.epoch_of(state.me()));
    let statistics = &state.statistics;
    for (direction, counts) in [("sent", &statistics.sent), ("received", &statistics.received)] {
        for (name, messages) in MESSAGE_NAMES.iter().zip(counts).filter(|(_, messages)| **messages > 0) {
            put(&format!("cluster_stats_messages_{name}_{direction}"), messages);
        }
        put(
            &format!("cluster_stats_messages_{direction}"),
            &counts.iter().sum::<u64>(),
        );
    }
    put("cluster_stats_bytes_sent", &statistics.bytes_sent);
    put("cluster_stats_bytes_received", &statistics.bytes_received);
    put("cluster_stats_pubsub_bytes_sent", &statistics.pubsub_bytes_sent);
    put("cluster_stats_pubsub_bytes_received", &statistics.pubsub_bytes_received);
    put("cluster_stats_module_bytes_sent", &statistics.module_bytes_sent);
    put("cluster_stats_module_bytes_received", &statistics.module_bytes_received);
    put(
        "total_cluster_links_buffer_limit_exceeded",
        &statistics.links_over_limit,
    );
    out
}
