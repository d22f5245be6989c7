//! CLUSTER SLOTS, SHARDS and LINKS.

use std::collections::BTreeMap;

use weft_base::SlotIndex;
use weft_resp::Reply;

use super::{requester_info, require_cluster};
use crate::commands::context::{CommandResult, Context};
use weft_cluster::node::{Node, NodeId};
use weft_cluster::settings::EndpointType;
use weft_cluster::state::{ClusterState, LinkInfo};
use weft_cluster::view::{RequesterInfo, client_ip, client_port, endpoint_text};

pub(super) fn slots(ctx: &mut Context<'_, '_>) -> CommandResult {
    let origin = requester_info(ctx.client);
    let cluster = require_cluster(ctx)?;
    let state = crate::cluster_node::topology::lock_state(ctx.server, cluster);
    let ranges = owned_ranges(&state);
    let reply = &mut ctx.reply;
    reply.array(ranges.len());
    for (first, last, owner) in ranges {
        let replicas: Vec<&Node> = state
            .replicas(owner.id)
            .filter(|node| !node.has_failed() && state.announced_offset(node) != 0)
            .collect();
        reply.array(3 + replicas.len());
        reply.integer(first.get().into());
        reply.integer(last.get().into());
        for node in std::iter::once(owner).chain(replicas) {
            reply_slot_node(reply, &state, node, origin);
        }
    }
    Ok(())
}

fn owned_ranges(state: &ClusterState) -> Vec<(SlotIndex, SlotIndex, &Node)> {
    let mut ranges: Vec<(SlotIndex, SlotIndex, &Node)> = Vec::new();
    for (slot, owner) in state.owners.iter().enumerate() {
        let Some(owner) = owner else {
            continue;
        };
        let slot = SlotIndex::from_index(slot);
        match ranges.last_mut() {
            Some((_, last, node)) if node.id == *owner && last.is_before(slot) => *last = slot,
            _ => ranges.extend(state.nodes.get(owner).map(|node| (slot, slot, node))),
        }
    }
    ranges
}

/// Writes a node of a range in CLUSTER SLOTS.
fn reply_slot_node(reply: &mut Reply<'_>, state: &ClusterState, node: &Node, origin: RequesterInfo) {
    let kind = state.settings.endpoint_type;
    let (ip, hostname, zone) = (
        client_ip(node, origin.ipv6),
        &node.announced.hostname,
        &node.announced.availability_zone,
    );
    reply.array(4);
    match kind {
        EndpointType::Unknown => reply.null(),
        _ => reply.bulk(endpoint_text(kind, ip, hostname).as_bytes()),
    }
    reply.integer(client_port(node, origin.tls).into());
    reply.bulk(node.id.as_bytes());
    let mut metadata: Vec<(&str, &str)> = Vec::new();
    if kind != EndpointType::Ip {
        metadata.push(("ip", ip));
    }
    if kind != EndpointType::Hostname && !hostname.is_empty() {
        metadata.push(("hostname", hostname));
    }
    if !zone.is_empty() {
        metadata.push(("availability-zone", zone));
    }
    reply.map(metadata.len());
    for (name, value) in metadata {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

pub(super) fn shards(ctx: &mut Context<'_, '_>) -> CommandResult {
    let origin = requester_info(ctx.client);
    let cluster = require_cluster(ctx)?;
    let state = crate::cluster_node::topology::lock_state(ctx.server, cluster);
    let mut shards: BTreeMap<NodeId, Vec<&Node>> = BTreeMap::new();
    for node in state.nodes.values().filter(|node| !node.is_in_handshake()) {
        shards.entry(node.shard).or_default().push(node);
    }
    let reply = &mut ctx.reply;
    reply.array(shards.len());
    for (shard, nodes) in shards {
        reply.map(3);
        reply.bulk(b"slots");
        let with_slots = nodes.iter().find(|node| !node.slots.is_empty());
        let ranges = with_slots.map(|node| node.slots.ranges()).unwrap_or_default();
        reply.array(ranges.len() * 2);
        for (first, last) in ranges {
            reply.integer(first.get().into());
            reply.integer(last.get().into());
        }
        reply.bulk(b"nodes");
        reply.array(nodes.len());
        for node in nodes {
            reply_shard_node(reply, &state, node, origin);
        }
        reply.bulk(b"id");
        reply.bulk(shard.as_bytes());
    }
    Ok(())
}

/// Writes a node of a shard in CLUSTER SHARDS.
fn reply_shard_node(reply: &mut Reply<'_>, state: &ClusterState, node: &Node, origin: RequesterInfo) {
    let map = reply.begin_map();
    let mut fields = 0;
    let mut name = |reply: &mut Reply<'_>, name: &str| {
        reply.bulk(name.as_bytes());
        fields += 1;
    };
    let ip = client_ip(node, origin.ipv6);
    name(reply, "id");
    reply.bulk(node.id.as_bytes());
    for (word, tls) in [("port", false), ("tls-port", true)] {
        let port = client_port(node, tls);
        let offered = if tls {
            node.address.tls_port
        } else {
            node.address.tcp_port
        };
        if offered != 0 {
            name(reply, word);
            reply.integer(port.into());
        }
    }
    name(reply, "ip");
    reply.bulk(ip.as_bytes());
    name(reply, "endpoint");
    reply.bulk(endpoint_text(state.settings.endpoint_type, ip, &node.announced.hostname).as_bytes());
    if !node.announced.hostname.is_empty() {
        name(reply, "hostname");
        reply.bulk(node.announced.hostname.as_bytes());
    }
    name(reply, "role");
    reply.bulk(if node.is_replica() { b"replica" } else { b"master" });
    name(reply, "replication-offset");
    reply.integer(state.announced_offset(node) as i64);
    name(reply, "health");
    reply.bulk(if node.has_failed() {
        b"fail"
    } else if node.is_replica() && state.announced_offset(node) == 0 {
        b"loading"
    } else {
        b"online"
    });
    if !node.announced.availability_zone.is_empty() {
        name(reply, "availability-zone");
        reply.bulk(node.announced.availability_zone.as_bytes());
    }
    reply.end_map(map, fields);
}

pub(super) fn links(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cluster = require_cluster(ctx)?;
    let mut links: Vec<LinkInfo> = {
        let state = cluster.lock(&ctx.server.config);
        let known = state.links.values().filter(|link| link.node.is_some());
        known.cloned().collect()
    };
    // Clients rely on the two links of a node being adjacent, the outbound one first.
    links.sort_unstable_by_key(|link| (link.node.map(|node| *node.as_bytes()), link.is_inbound));
    let reply = &mut ctx.reply;
    reply.array(links.len());
    for link in links {
        let text = |reply: &mut Reply<'_>, name: &str, value: &[u8]| {
            reply.bulk(name.as_bytes());
            reply.bulk(value);
        };
        reply.map(6);
        text(reply, "direction", if link.is_inbound { b"from" } else { b"to" });
        let node = link.node.map(|node| *node.as_bytes()).unwrap_or([0; 40]);
        text(reply, "node", &node);
        reply.bulk(b"create-time");
        reply.integer(link.created_ms as i64);
        text(reply, "events", if link.is_blocked { b"rw" } else { b"r" });
        for name in ["send-buffer-allocated", "send-buffer-used"] {
            reply.bulk(name.as_bytes());
            reply.integer(link.queued_bytes as i64);
        }
    }
    Ok(())
}
