//! Tests of nodes that communicate without a network.

use std::collections::BTreeMap;

use super::*;
use crate::message::{GossipEntry, MessageType, decode, encode};
use crate::nodes_conf;
use crate::settings::ClusterSettings;
use weft_base::SlotIndex;
use weft_base::slots::SLOTS;

/// A simulated network of nodes. A link `(node, link)` at one end is `(node, link)` at the other.
pub struct SimulatedCluster {
    pub nodes: Vec<ClusterState>,
    wires: BTreeMap<(usize, LinkId), (usize, LinkId)>,
    next_link: LinkId,
    pub now_ms: u64,
    /// The nodes that neither send nor receive.
    pub unreachable: Vec<usize>,
    /// The cluster configuration file of each node. It is written before anything is sent.
    pub node_files: Vec<String>,
    /// The number of lost messages per thousand.
    pub lost_per_thousand: u64,
    /// Set for each node that has paused writes.
    pub writes_paused: Vec<bool>,
    /// The messages that the modules of each node have got.
    pub delivered: Vec<Vec<Vec<u8>>>,
}

impl SimulatedCluster {
    pub fn new(count: u16) -> SimulatedCluster {
        let settings = |index: u16| ClusterSettings {
            node_timeout_ms: 1000,
            gossip_percent: 10,
            requires_full_coverage: true,
            forget_s: 60,
            allows_replica_migration: true,
            migration_barrier: 1,
            validity_factor: 10,
            manual_failover_ms: 5000,
            tcp_port: 7000 + index,
            bus_port: 17000 + index,
            ..ClusterSettings::default()
        };
        SimulatedCluster {
            nodes: (0..count).map(|index| ClusterState::new(settings(index), 1)).collect(),
            wires: BTreeMap::new(),
            next_link: 0,
            now_ms: 10_000,
            unreachable: Vec::new(),
            node_files: vec![String::new(); usize::from(count)],
            lost_per_thousand: 0,
            writes_paused: vec![false; usize::from(count)],
            delivered: vec![Vec::new(); usize::from(count)],
        }
    }

    /// Restarts a node with its cluster configuration file.
    pub fn restart(&mut self, index: usize) {
        let links: Vec<LinkId> = self.nodes[index].links.keys().copied().collect();
        for link in links {
            self.act(index, BusAction::Close(link));
        }
        let settings = self.nodes[index].settings.clone();
        self.nodes[index] = nodes_conf::parse(&self.node_files[index], settings, self.now_ms).expect("it wrote that");
    }

    /// Writes the cluster configuration file, as the bus does before it sends.
    fn write_node_file(&mut self, index: usize) {
        let state = &mut self.nodes[index];
        if std::mem::take(&mut state.todo.save) {
            self.node_files[index] = nodes_conf::nodes_file_text(state);
        }
    }

    /// Performs the actions of the nodes until there are no more.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            let mut quiet = true;
            for from in 0..self.nodes.len() {
                let actions = std::mem::take(&mut self.nodes[from].actions);
                self.write_node_file(from);
                for action in actions {
                    quiet = false;
                    self.act(from, action);
                }
            }
            if quiet {
                return;
            }
        }
        panic!("the nodes do not stop talking");
    }

    fn act(&mut self, from: usize, action: BusAction) {
        match action {
            BusAction::Connect { node, port, .. } => {
                let to = usize::from(port - 17000);
                if self.unreachable.contains(&to) || self.unreachable.contains(&from) {
                    if let Some(node) = self.nodes[from]
                        .nodes
                        .get_mut(&node)
                        .filter(|node| node.ping_sent_ms == 0)
                    {
                        node.ping_sent_ms = self.now_ms;
                    }
                    return;
                }
                let (here, there) = (self.next_link, self.next_link + 1);
                self.next_link += 2;
                self.wires.insert((from, here), (to, there));
                self.wires.insert((to, there), (from, here));
                self.nodes[to].on_link_made(there, None, self.now_ms);
                self.nodes[from].on_link_made(here, Some(node), self.now_ms);
            }
            BusAction::Send(link, bytes) => {
                let Some((to, there)) = self.wires.get(&(from, link)).copied() else {
                    return;
                };
                let lost = fastrand::u64(..1000) < self.lost_per_thousand;
                if !lost && !self.unreachable.contains(&to) && !self.unreachable.contains(&from) {
                    let message = decode(&bytes).expect("it was written by a node");
                    let ends = LinkAddresses {
                        peer: "127.0.0.1".into(),
                        local: "127.0.0.1".into(),
                    };
                    self.nodes[to].receive(there, message, &ends, self.now_ms);
                }
            }
            BusAction::Close(link) => {
                if let Some((to, there)) = self.wires.remove(&(from, link)) {
                    self.wires.remove(&(to, there));
                    self.nodes[to].on_link_lost(there);
                }
            }
            BusAction::PauseWrites(_) => {
                self.writes_paused[from] = true;
                let now_ms = self.now_ms;
                self.nodes[from].record_writes_stopped(now_ms);
            }
            BusAction::ResumeWrites => self.writes_paused[from] = false,
            BusAction::Publish { .. } => {}
            BusAction::DeliverToModule { payload, .. } => self.delivered[from].push(payload),
        }
    }

    pub fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.now_ms += 100;
            for index in 0..self.nodes.len() {
                if !self.unreachable.contains(&index) {
                    self.nodes[index].run_round(self.now_ms);
                }
                if self.nodes[index].is_stopping() {
                    self.nodes[index].record_writes_stopped(self.now_ms);
                }
            }
            self.settle();
        }
    }

    /// Creates primaries, followed by a replica for each index in `of`.
    pub fn with_replicas(primaries: u16, of: &[usize]) -> SimulatedCluster {
        let count = primaries + of.len() as u16;
        let mut net = SimulatedCluster::new(count);
        net.form(primaries, count);
        for (number, primary) in of.iter().enumerate() {
            let id = *net.nodes[*primary].myself.as_bytes();
            let now_ms = net.now_ms;
            net.nodes[usize::from(primaries) + number]
                .replicate(&id, false, now_ms)
                .expect("it is a primary");
        }
        net.rounds(30);
        for state in &mut net.nodes {
            // They have the data of their primaries by now.
            state.needs_full_sync = false;
        }
        net
    }

    /// Creates nodes that know each other and share the slots evenly.
    pub fn formed(count: u16) -> SimulatedCluster {
        let mut net = SimulatedCluster::new(count);
        net.form(count, count);
        net
    }

    fn form(&mut self, primaries: u16, count: u16) {
        for index in 0..count {
            let (first, last) = (
                u32::from(index) * 16384 / u32::from(primaries),
                (u32::from(index) + 1) * 16384 / u32::from(primaries),
            );
            if index < primaries {
                self.nodes[usize::from(index)]
                    .change_slots(
                        &[(
                            SlotIndex::from_index(first as usize),
                            SlotIndex::from_index(last as usize - 1),
                        )],
                        false,
                    )
                    .expect("they are free");
            }
            if index > 0 {
                let now_ms = self.now_ms;
                assert!(self.nodes[0].meet("127.0.0.1", 7000 + index, 17000 + index, now_ms));
            }
        }
        self.rounds(100);
    }
}

#[test]
fn nodes_that_meet_form_a_cluster() {
    let net = SimulatedCluster::formed(4);
    for state in &net.nodes {
        assert_eq!(state.nodes.len(), 4);
        assert!(state.is_up && state.size == 4);
        assert!(
            state.nodes.values().all(|node| !node.is_in_handshake()),
            "all names are known"
        );
        assert_eq!(state.nodes.values().map(|node| node.slots.len()).sum::<usize>(), 16384);
        assert_eq!(state.me().address.ip, "127.0.0.1", "others have told");
    }
    let mut epochs: Vec<u64> = net.nodes.iter().map(|state| state.me().config_epoch).collect();
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), 4, "no two primaries have one version");
}

#[test]
fn messages_of_modules_reach_one_node_or_all() {
    let mut net = SimulatedCluster::formed(3);
    let (now_ms, target) = (net.now_ms, net.nodes[2].myself);
    assert!(net.nodes[0].send_module_message(None, 7, 1, b"all", now_ms));
    assert!(net.nodes[0].send_module_message(Some(target), 7, 1, b"one", now_ms));
    assert!(!net.nodes[0].send_module_message(Some(NodeId::random()), 7, 1, b"none", now_ms));
    net.rounds(1);
    let (all, one) = (b"all".to_vec(), b"one".to_vec());
    assert_eq!(net.delivered, [vec![], vec![all.clone()], vec![all, one]]);
    let sent = net.nodes[0].statistics.module_bytes_sent;
    let received: u64 = net.nodes.iter().map(|node| node.statistics.module_bytes_received).sum();
    assert!(sent > 0 && sent == received);
}

#[test]
fn a_silent_node_is_marked_as_failing_and_comes_back() {
    let mut net = SimulatedCluster::formed(3);
    let id = net.nodes[2].myself;
    net.unreachable.push(2);
    net.rounds(60);
    for state in &net.nodes[..2] {
        assert!(state.nodes[&id].has_failed() && !state.is_up);
    }
    net.unreachable.clear();
    net.rounds(100);
    for state in &net.nodes {
        assert!(!state.nodes[&id].has_failed() && state.is_up);
    }
}

#[test]
fn a_slot_that_changes_hands_is_known_to_all() {
    use crate::changes::SlotChange;
    let mut net = SimulatedCluster::formed(3);
    let (from, to) = (net.nodes[0].myself, net.nodes[1].myself);
    let name = |id: NodeId| id.as_bytes().to_vec();
    net.nodes[0]
        .change_slot(SlotIndex::from_index(5), &SlotChange::Migrating(name(to)), 0)
        .expect("it is mine");
    net.nodes[1]
        .change_slot(SlotIndex::from_index(5), &SlotChange::Importing(name(from)), 0)
        .expect("it is not mine");
    net.nodes[1]
        .change_slot(SlotIndex::from_index(5), &SlotChange::Node(name(to)), 0)
        .expect("it comes");
    net.settle();
    net.rounds(30);
    for state in &net.nodes {
        assert_eq!(state.owner(SlotIndex::from_index(5)), Some(to));
        assert!(state.migrating.is_empty() && state.importing.is_empty());
    }
}

/// A replica that is promoted before its primary has deleted all keys of a slot goes on with that. A slot that only
/// comes to the other one of the shard keeps its keys.
#[test]
fn a_node_and_its_replica_know_the_slots_that_have_left_their_shard() {
    use crate::changes::SlotChange;
    let mut net = SimulatedCluster::with_replicas(3, &[0, 0]);
    let (from, to) = (net.nodes[0].myself, net.nodes[1].myself);
    let slot = SlotIndex::from_index(5);
    let name = |id: NodeId| id.as_bytes().to_vec();
    net.nodes[1]
        .change_slot(slot, &SlotChange::Importing(name(from)), 0)
        .expect("it is not mine");
    net.nodes[1]
        .change_slot(slot, &SlotChange::Node(name(to)), 0)
        .expect("it comes");
    net.settle();
    net.rounds(30);
    for (node, state) in net.nodes.iter().enumerate() {
        let left: Vec<SlotIndex> = state.leftover.iter().collect();
        let expected: &[SlotIndex] = if [0, 3, 4].contains(&node) { &[slot] } else { &[] };
        assert_eq!(left, expected, "node {node}");
    }
    let now_ms = net.now_ms;
    let begun = net.nodes[3].begin_failover(crate::manual_failover::FailoverMode::Takeover, "", now_ms);
    begun.expect("it is a replica");
    net.settle();
    net.rounds(30);
    assert!(net.nodes[3].me().has_vote() && net.nodes[0].me().is_replica());
    let left: Vec<SlotIndex> = net.nodes[4].leftover.iter().collect();
    assert_eq!(left, [slot], "the slots have stayed in the shard");
}

#[test]
fn a_forgotten_node_is_forgotten_by_all() {
    let mut net = SimulatedCluster::formed(3);
    let id = *net.nodes[2].myself.as_bytes();
    net.unreachable.push(2);
    let now_ms = net.now_ms;
    net.nodes[0].forget_node(&id, now_ms).expect("it is known");
    net.rounds(40);
    for state in &net.nodes[..2] {
        assert_eq!(state.nodes.len(), 2);
    }
}

#[test]
fn damaged_messages_do_no_harm() {
    let mut net = SimulatedCluster::formed(3);
    let mut sent: Vec<Vec<u8>> = Vec::new();
    for _ in 0..20 {
        net.now_ms += 100;
        let now_ms = net.now_ms;
        net.nodes[0].run_round(now_ms);
        let actions = std::mem::take(&mut net.nodes[0].actions);
        sent.extend(actions.into_iter().filter_map(|action| match action {
            BusAction::Send(_, bytes) => Some(bytes),
            _ => None,
        }));
        let link = net.nodes[0].links.keys().copied().next().expect("there is a link");
        net.nodes[0].send_ping(link, MessageType::Pong, now_ms);
    }
    sent.push(encode(&BusMessage::Fail(net.nodes[0].header(), net.nodes[2].myself)));
    let ends = LinkAddresses::default();
    for _ in 0..3000 {
        let mut bytes = sent[fastrand::usize(..sent.len())].clone();
        for _ in 0..fastrand::usize(1..40) {
            let place = fastrand::usize(..bytes.len());
            bytes[place] = fastrand::u8(..);
        }
        if let Ok(message) = decode(&bytes) {
            let links: Vec<LinkId> = net.nodes[1].links.keys().copied().collect();
            let link = links
                .get(fastrand::usize(..links.len().max(1)))
                .copied()
                .unwrap_or(9999);
            let now_ms = net.now_ms;
            net.nodes[1].receive(link, message, &ends, now_ms);
            net.nodes[1].actions.clear();
        }
    }
    let state = &mut net.nodes[1];
    state.run_round(99_999);
    assert_eq!(state.owners.len(), SLOTS);
}

#[test]
fn a_node_that_is_known_on_one_side_alone_is_met_again() {
    let mut net = SimulatedCluster::formed(2);
    let (first, second) = (net.nodes[0].myself, net.nodes[1].myself);
    net.nodes[1].delete_node(first);
    net.rounds(1);
    assert!(net.nodes[0].nodes.contains_key(&second) && !net.nodes[1].nodes.contains_key(&first));
    net.rounds(40);
    for state in &net.nodes {
        assert!(state.nodes.values().all(|node| !node.is_in_handshake()));
        assert!(state.nodes.contains_key(&first) && state.nodes.contains_key(&second));
        assert!(state.nodes.values().all(|node| !node.flags.intersects(NodeFlags::MEET)));
        let others = state.nodes.values().filter(|node| node.id != state.myself);
        assert!(others.clone().count() == 1 && others.clone().all(|node| node.inbound_link.is_some()));
    }
    let meets = |net: &SimulatedCluster| net.nodes[0].statistics.sent[MessageType::Meet.number()];
    let before = meets(&net);
    net.rounds(60);
    assert_eq!(meets(&net), before, "nodes that know each other send no MEET");
}

#[test]
fn a_meet_of_a_known_node_renews_the_link_to_it() {
    let mut net = SimulatedCluster::formed(2);
    let second = net.nodes[1].myself;
    let link_of = |net: &SimulatedCluster| net.nodes[0].nodes[&second].link;
    let before = link_of(&net);
    let first = net.nodes[0].myself;
    let to_first = net.nodes[1].nodes[&first].link.expect("it is connected");
    let now_ms = net.now_ms;
    net.nodes[1].send_ping(to_first, MessageType::Meet, now_ms);
    net.settle();
    assert_eq!(link_of(&net), None);
    net.rounds(2);
    assert!(link_of(&net).is_some() && link_of(&net) != before);
    assert_eq!(net.nodes[0].nodes.len(), 2, "a further MEET adds no node");
}

#[test]
fn dropped_messages_are_named_by_numbers() {
    use crate::state::DroppedMessages;
    let meet = MessageType::Meet.number();
    for (number, drops_ping, drops_meet) in [(-2, true, true), (-1, false, false), (2, false, true), (0, true, false)] {
        let dropped = DroppedMessages::from_number(number);
        assert_eq!(dropped.includes(0), drops_ping, "{number}");
        assert_eq!(dropped.includes(meet), drops_meet, "{number}");
    }
}

#[test]
fn a_new_configuration_epoch_is_announced_at_once() {
    let mut net = SimulatedCluster::formed(3);
    let id = net.nodes[0].myself;
    net.nodes[1].bump_epoch();
    net.rounds(30);
    assert!(net.nodes[0].bump_epoch());
    net.rounds(1);
    let epoch = net.nodes[0].me().config_epoch;
    for state in &net.nodes {
        assert_eq!(state.nodes[&id].config_epoch, epoch);
    }
}

#[test]
fn the_end_of_an_import_that_was_missed_is_announced_at_once() {
    use crate::changes::SlotChange;
    let mut net = SimulatedCluster::formed(3);
    let (from, to) = (net.nodes[0].myself, net.nodes[1].myself);
    let slot = SlotIndex::from_index(5);
    net.nodes[1].set_importing(slot, Some(from));
    net.nodes[0]
        .change_slot(slot, &SlotChange::Node(to.as_bytes().to_vec()), 0)
        .expect("it has no keys");
    let now_ms = net.now_ms;
    net.nodes[0].broadcast_pong(now_ms);
    net.settle();
    for state in &net.nodes {
        assert_eq!(state.owner(slot), Some(to), "as {} sees it", state.myself);
    }
}

#[test]
fn a_primary_that_notices_a_failure_counts_earlier_reports() {
    let mut net = SimulatedCluster::formed(3);
    let (reporter, failing) = (net.nodes[1].myself, net.nodes[2].myself);
    net.unreachable = vec![1, 2];
    let reported_ms = net.now_ms + 1000;
    let node = net.nodes[0].nodes.get_mut(&failing).expect("is known");
    node.failure_reports.push((reporter, reported_ms));
    net.rounds(25);
    let state = &net.nodes[0];
    assert!(state.nodes[&failing].has_failed(), "this node and the other one agree");
    assert!(state.nodes[&reporter].has_timed_out(), "only this node says so");
}

/// A node that has just been started has not counted the voters yet.
#[test]
fn a_node_that_is_started_again_declares_no_node_failed_alone() {
    let mut net = SimulatedCluster::formed(3);
    net.unreachable = vec![1, 2];
    net.restart(0);
    assert_eq!((net.nodes[0].size, net.nodes[0].quorum()), (0, 2));
    // It counts them after two seconds.
    net.rounds(18);
    let state = &net.nodes[0];
    for other in state.nodes.values().filter(|node| node.id != state.myself) {
        assert!(
            other.has_timed_out() && !other.has_failed(),
            "one of three is no majority"
        );
    }
}

/// Returns a cluster of three nodes and what its second node reports about the third: it is up.
fn cluster_with_good_news() -> (SimulatedCluster, GossipEntry) {
    let net = SimulatedCluster::formed(3);
    let node = &net.nodes[0].nodes[&net.nodes[2].myself];
    let entry = GossipEntry {
        id: node.id,
        ping_sent_s: 0,
        pong_received_s: (net.now_ms / 1000) as u32,
        ip: node.address.ip.clone(),
        port: node.address.tcp_port,
        other_port: node.address.tls_port,
        bus_port: node.address.bus_port,
        flags: NodeFlags::PRIMARY,
    };
    (net, entry)
}

#[test]
fn a_node_that_has_lost_its_vote_takes_its_report_back() {
    let (mut net, entry) = cluster_with_good_news();
    let (reporter, id, now_ms) = (net.nodes[1].myself, entry.id, net.now_ms);
    let state = &mut net.nodes[0];
    let node = state.nodes.get_mut(&id).expect("is known");
    node.failure_reports.push((reporter, now_ms));
    state.delete_slots_of(reporter);
    state.process_gossip(Some(reporter), &[entry], false, now_ms);
    assert!(state.nodes[&id].failure_reports.is_empty());
}

#[test]
fn the_answers_of_a_failed_node_to_other_nodes_do_not_count() {
    let (mut net, entry) = cluster_with_good_news();
    let (reporter, now_ms) = (net.nodes[1].myself, net.now_ms);
    for (flag, counts) in [
        (NodeFlags::FAIL, false),
        (NodeFlags::PFAIL, false),
        (NodeFlags::default(), true),
    ] {
        let state = &mut net.nodes[0];
        let node = state.nodes.get_mut(&entry.id).expect("is known");
        node.flags = NodeFlags::PRIMARY | flag;
        (node.ping_sent_ms, node.pong_received_ms) = (0, 1);
        state.process_gossip(Some(reporter), std::slice::from_ref(&entry), false, now_ms);
        assert_eq!(state.nodes[&entry.id].pong_received_ms > 1, counts, "{flag}");
    }
}

#[test]
fn no_failure_report_is_recorded_about_a_node_that_has_failed() {
    let (mut net, mut entry) = cluster_with_good_news();
    let (reporter, now_ms) = (net.nodes[1].myself, net.now_ms);
    entry.flags = NodeFlags::PRIMARY | NodeFlags::FAIL;
    for (flag, reports) in [(NodeFlags::FAIL, 0), (NodeFlags::default(), 1)] {
        let state = &mut net.nodes[0];
        let node = state.nodes.get_mut(&entry.id).expect("is known");
        node.flags = NodeFlags::PRIMARY | flag;
        node.failure_reports.clear();
        state.process_gossip(Some(reporter), std::slice::from_ref(&entry), false, now_ms);
        assert_eq!(state.nodes[&entry.id].failure_reports.len(), reports, "{flag}");
    }
}
