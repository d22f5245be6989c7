//! Tests of votes, epochs and failovers, in simulated time.

use std::collections::BTreeMap;

use weft_base::SlotIndex;

use super::*;
use crate::manual_failover::FailoverMode;
use crate::message::decode;
use crate::receive::tests::SimulatedCluster;
use crate::state::BusAction;

/// Returns the nodes that are primaries with slots in their own view.
fn primaries(net: &SimulatedCluster) -> Vec<usize> {
    (0..net.nodes.len())
        .filter(|index| !net.unreachable.contains(index) && net.nodes[*index].me().has_vote())
        .collect()
}

/// Returns `true` if all reachable nodes agree on the owners of slots and on the primaries of replicas.
fn agree(net: &SimulatedCluster) -> bool {
    let speaking = (0..net.nodes.len()).filter(|index| !net.unreachable.contains(index));
    let seen: Vec<_> = speaking
        .map(|index| {
            let state = &net.nodes[index];
            let ties: Vec<_> = state.nodes.values().map(|node| (node.id, node.primary)).collect();
            (&state.owners, ties)
        })
        .collect();
    seen.windows(2).all(|pair| pair[0] == pair[1])
}

#[test]
fn a_replica_takes_over_and_the_old_primary_follows_it() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    assert!(agree(&net) && net.nodes[3].me().is_replica());
    let (old, new, slots) = (
        net.nodes[0].myself,
        net.nodes[3].myself,
        net.nodes[0].me().slots.clone(),
    );
    let epoch = net.nodes[0].me().config_epoch;
    net.unreachable.push(0);
    net.rounds(80);
    assert_eq!(primaries(&net), [1, 2, 3]);
    assert_eq!(net.nodes[3].me().slots, slots);
    assert!(net.nodes[3].me().config_epoch > epoch, "its slots have a newer version");
    assert!(net.nodes[1..].iter().all(|state| state.is_up) && agree(&net));
    net.unreachable.clear();
    net.rounds(60);
    assert_eq!(net.nodes[0].me().primary, Some(new));
    assert!(
        net.nodes[0].me().slots.is_empty() && !net.nodes[0].needs_full_sync,
        "it may go on where it was"
    );
    assert!(agree(&net));
    assert_eq!(net.nodes[0].me().shard, net.nodes[3].me().shard);
    assert!(!net.nodes[1].nodes[&old].has_failed());
}

#[test]
fn the_replica_with_the_greater_offset_takes_over_and_the_other_follows_it() {
    for better in [3, 4] {
        let mut net = SimulatedCluster::with_replicas(3, &[0, 0]);
        net.nodes[better].me_mut().offset = 100;
        net.rounds(20);
        net.unreachable.push(0);
        net.rounds(100);
        let other = 7 - better;
        assert!(net.nodes[better].me().has_vote(), "who is further on goes first");
        assert_eq!(net.nodes[other].me().primary, Some(net.nodes[better].myself));
        assert!(!net.nodes[other].needs_full_sync && agree(&net));
    }
}

#[test]
fn a_replica_without_permission_or_good_data_does_not_take_over() {
    type Spoil = fn(&mut ClusterState);
    let spoiled: [(&str, Spoil); 3] = [
        ("it may not", |state| state.settings.replica_no_failover = true),
        ("its data is on the way", |state| state.data.awaits_full_sync = true),
        ("its data is old", |state| state.data.age_ms = 60_000),
    ];
    for (name, spoil) in spoiled {
        let mut net = SimulatedCluster::with_replicas(3, &[0]);
        spoil(&mut net.nodes[3]);
        net.unreachable.push(0);
        net.rounds(150);
        assert_eq!(primaries(&net), [1, 2], "{name}");
        let now_ms = net.now_ms;
        net.nodes[3]
            .begin_failover(crate::manual_failover::FailoverMode::Force, "", now_ms)
            .expect("it is a replica");
        net.rounds(10);
        assert_eq!(primaries(&net), [1, 2, 3], "{name}, but somebody wants it");
    }
}

#[test]
fn a_minority_elects_no_primary() {
    let mut net = SimulatedCluster::with_replicas(3, &[0, 1]);
    net.unreachable.extend([0, 1]);
    net.rounds(200);
    assert_eq!(primaries(&net), [2], "one vote of three is not enough");
    assert!(!net.nodes[2].is_up);
}

#[test]
fn a_primary_votes_once_per_epoch_even_after_a_crash() {
    let mut net = SimulatedCluster::with_replicas(3, &[0, 0]);
    for index in [3, 4] {
        // They must not request votes by themselves.
        net.nodes[index].settings.replica_no_failover = true;
    }
    net.unreachable.push(0);
    net.rounds(40);
    let failed = net.nodes[0].myself;
    assert!(net.nodes[1].nodes[&failed].has_failed());
    let now_ms = net.now_ms;
    let votes = |net: &mut SimulatedCluster, from: usize, epoch: u64| {
        let header = Header {
            current_epoch: epoch,
            ..net.nodes[from].header()
        };
        let id = net.nodes[from].myself;
        let voter = &mut net.nodes[1];
        voter.current_epoch = voter.current_epoch.max(epoch);
        voter.actions.clear();
        voter.consider_vote(id, &header, now_ms);
        voter.actions.len() == 1
    };
    let epoch = net.nodes[1].current_epoch + 1;
    net.nodes[1].is_safe_to_vote = false;
    assert!(
        !votes(&mut net, 3, epoch),
        "a primary that starts may not know of later changes"
    );
    net.nodes[1].is_safe_to_vote = true;
    assert!(votes(&mut net, 3, epoch));
    assert!(net.nodes[1].todo.save && net.nodes[1].todo.sync, "first to the disk");
    assert!(!votes(&mut net, 4, epoch), "that epoch is spent");
    net.settle();
    net.restart(1);
    assert_eq!(net.nodes[1].last_vote_epoch, epoch);
    net.nodes[1].update_health(net.now_ms);
    assert!(!votes(&mut net, 4, epoch), "it is on the disk");
    assert!(!votes(&mut net, 4, epoch - 1));
}

#[test]
fn a_vote_counts_once_and_only_from_a_primary_with_slots() {
    let mut net = SimulatedCluster::with_replicas(5, &[0, 1]);
    net.unreachable.push(0);
    let now_ms = net.now_ms;
    let candidate = &mut net.nodes[5];
    candidate.schedule_election(now_ms);
    candidate.request_votes();
    candidate.actions.clear();
    let epoch = candidate.election.epoch;
    let vote = |net: &mut SimulatedCluster, from: usize, epoch: u64| {
        let header = Header {
            current_epoch: epoch,
            ..net.nodes[from].header()
        };
        let id = net.nodes[from].myself;
        net.nodes[5].count_vote(id, &header, now_ms);
        net.nodes[5].election.voters.len()
    };
    assert_eq!(vote(&mut net, 1, epoch - 1), 0, "a vote of an older election");
    assert_eq!(vote(&mut net, 6, epoch), 0, "a replica has no vote");
    assert_eq!(vote(&mut net, 1, epoch), 1);
    assert_eq!(vote(&mut net, 1, epoch), 1, "the same once more");
    assert_eq!(vote(&mut net, 2, epoch), 2);
}

#[test]
fn a_replica_with_an_old_config_epoch_gets_no_vote() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.nodes[3].settings.replica_no_failover = true;
    net.unreachable.push(0);
    net.rounds(40);
    let (id, failed) = (net.nodes[3].myself, net.nodes[0].myself);
    let (mut request, now_ms) = (net.nodes[3].header(), net.now_ms);
    let voter = &mut net.nodes[1];
    request.current_epoch = voter.current_epoch + 1;
    voter.current_epoch += 1;
    // Among primaries that began with the same epoch one keeps 0, and no replica can be behind that.
    let known = voter.nodes[&failed].config_epoch + 1;
    voter.nodes.get_mut(&failed).expect("is known").config_epoch = known;
    request.config_epoch = known - 1;
    let refusal = voter.vote_refusal(&voter.nodes[&id], &request).expect("it is refused");
    assert!(refusal.reason.contains("reqConfigEpoch"), "{}", refusal.reason);
    voter.consider_vote(id, &request, now_ms);
    net.settle();
    // It learns the epoch with the refusal.
    assert_eq!(net.nodes[3].nodes[&failed].config_epoch, known);
    let voter = &mut net.nodes[1];
    request.config_epoch = known;
    assert!(voter.vote_refusal(&voter.nodes[&id], &request).is_none());
}

/// Nodes fall silent, return, crash and lose messages. Under all of this no slot has two primaries in one epoch, and
/// once the faults end, all nodes agree.
#[test]
fn no_slot_has_two_primaries_in_one_epoch() {
    for seed in 0..6 {
        fastrand::seed(seed);
        let mut net = SimulatedCluster::with_replicas(3, &[0, 0, 1, 2]);
        let mut claims: BTreeMap<(u64, SlotIndex), NodeId> = BTreeMap::new();
        for _ in 0..60 {
            net.lost_per_thousand = fastrand::u64(..200);
            match fastrand::u8(..4) {
                0 if net.unreachable.len() < 2 => {
                    let index = fastrand::usize(..net.nodes.len());
                    net.unreachable.push(index);
                }
                1 => {
                    net.unreachable.pop();
                }
                2 => {
                    let index = fastrand::usize(..net.nodes.len());
                    net.restart(index);
                }
                _ => {}
            }
            net.rounds(fastrand::usize(5..20));
            for state in &net.nodes {
                let me = state.me();
                for slot in me.slots.iter().filter(|_| me.is_primary()).step_by(97) {
                    let first = *claims.entry((me.config_epoch, slot)).or_insert(me.id);
                    assert_eq!(first, me.id, "seed {seed}: slot {slot} in epoch {}", me.config_epoch);
                }
            }
        }
        (net.lost_per_thousand, net.unreachable) = (0, Vec::new());
        net.rounds(400);
        assert!(agree(&net), "seed {seed}");
        assert!(net.nodes.iter().all(|state| state.is_up), "seed {seed}");
        let slots: usize = net.nodes.iter().map(|state| state.me().slots.len()).sum();
        assert_eq!(slots, 16384, "seed {seed}");
    }
}

#[test]
fn a_replica_moves_to_a_primary_that_has_lost_its_own() {
    let mut net = SimulatedCluster::with_replicas(3, &[0, 0, 1]);
    net.unreachable.push(5);
    net.rounds(150);
    let orphan = net.nodes[1].myself;
    let moved: Vec<usize> = [3, 4]
        .into_iter()
        .filter(|index| net.nodes[*index].me().primary == Some(orphan))
        .collect();
    assert_eq!(moved.len(), 1, "one goes, one stays");
    let mover = &net.nodes[moved[0]];
    assert!(mover.needs_full_sync && mover.me().shard == net.nodes[1].me().shard);
    assert!(agree(&net));
}

#[test]
fn the_replicas_of_a_primary_that_lost_its_slots_follow_it() {
    use crate::changes::SlotChange;
    let mut net = SimulatedCluster::with_replicas(2, &[0]);
    let (from, to) = (net.nodes[0].myself, net.nodes[1].myself);
    let slots: Vec<SlotIndex> = net.nodes[0].me().slots.iter().collect();
    let name = to.as_bytes().to_vec();
    for slot in slots {
        net.nodes[1].set_importing(slot, Some(from));
        for index in [1, 0] {
            net.nodes[index]
                .change_slot(slot, &SlotChange::Node(name.clone()), 0)
                .expect("it has no keys");
        }
    }
    net.settle();
    net.rounds(60);
    assert_eq!(net.nodes[1].me().slots.len(), 16384);
    assert_eq!(
        net.nodes[2].me().primary,
        Some(to),
        "a replica does not stay with an empty primary"
    );
    assert!(net.nodes[2].needs_full_sync, "it needs all data");
}

#[test]
fn roles_survive_a_restart() {
    let mut net = SimulatedCluster::with_replicas(3, &[0, 1]);
    for index in 0..5 {
        net.restart(index);
    }
    net.rounds(60);
    assert!(agree(&net));
    assert_eq!(net.nodes[3].me().primary, Some(net.nodes[0].myself));
    assert_eq!(net.nodes[3].me().shard, net.nodes[0].me().shard);
    assert_eq!(net.nodes[3].primary_address(), Some(("127.0.0.1".into(), 7000)));
}

/// Returns the time between the moment at which a replica may start its election and the start, in milliseconds.
fn delay_ms(state: &mut ClusterState, now_ms: u64) -> u64 {
    state.election = Election::default();
    state.schedule_election(now_ms);
    state.election.starts_at_ms - now_ms
}

#[test]
fn the_best_replica_starts_its_election_at_once() {
    let mut net = SimulatedCluster::with_replicas(3, &[0, 0]);
    net.nodes[3].me_mut().offset = 100;
    net.nodes[4].me_mut().offset = 50;
    net.rounds(20);
    let now_ms = net.now_ms;
    let (best, other) = (net.nodes[3].myself, net.nodes[4].myself);
    let unit_ms = net.nodes[3].delay_unit_ms();
    assert!((1..=MAX_DELAY_UNIT_MS).contains(&unit_ms));
    // The other replica has not noticed the failure: its offset may still grow.
    let delay = delay_ms(&mut net.nodes[3], now_ms);
    assert!((unit_ms..2 * unit_ms).contains(&delay), "{delay}");
    net.nodes[3].adjust_election(now_ms + 1);
    assert_eq!(net.nodes[3].election.starts_at_ms, now_ms + delay);
    // It has noticed: while the election is scheduled, or before.
    let agreed = |state: &mut ClusterState, id| {
        state.nodes.get_mut(&id).expect("is known").flags |= NodeFlags::PRIMARY_FAILED;
    };
    agreed(&mut net.nodes[3], other);
    net.nodes[3].adjust_election(now_ms + 1);
    assert_eq!(net.nodes[3].election.starts_at_ms, now_ms + 1);
    assert_eq!(delay_ms(&mut net.nodes[3], now_ms), 0);
    // The other one has a lower rank, whatever the best one thinks.
    agreed(&mut net.nodes[4], best);
    let delay = delay_ms(&mut net.nodes[4], now_ms);
    assert!((3 * unit_ms..4 * unit_ms).contains(&delay), "{delay}");
    // Without data it knows little of the shard.
    net.nodes[3].me_mut().offset = 0;
    net.nodes[4].me_mut().offset = 0;
    assert!(delay_ms(&mut net.nodes[3], now_ms) >= NEW_REPLICA_DELAY_MS);
}

#[test]
fn failed_primaries_have_precedence_only_while_their_replicas_are_candidates() {
    let mut net = SimulatedCluster::with_replicas(4, &[0, 1]);
    let now_ms = net.now_ms;
    let first = usize::from(net.nodes[1].me().shard < net.nodes[0].me().shard);
    let (failed, replica) = (net.nodes[first].myself, 4 + (1 - first));
    let state = &mut net.nodes[replica];
    state.me_mut().offset = 100;
    assert_eq!(state.primary_rank(now_ms), 0);
    let node = state.nodes.get_mut(&failed).expect("is known");
    node.flags |= NodeFlags::FAIL;
    node.failed_ms = now_ms;
    assert_eq!(state.primary_rank(now_ms), 1);
    let unit_ms = state.delay_unit_ms();
    assert!(delay_ms(state, now_ms) >= 2 * unit_ms);
    let limit_ms = state.settings.node_timeout_ms * state.settings.validity_factor;
    assert_eq!(state.primary_rank(now_ms + limit_ms), 1);
    assert_eq!(state.primary_rank(now_ms + limit_ms + 1), 0);
    state.settings.validity_factor = 0;
    assert_eq!(state.primary_rank(now_ms + limit_ms + 1), 1);
}

#[test]
fn migrations_follow_a_failover_that_the_old_primary_tells() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    let (old, new) = (net.nodes[0].myself, net.nodes[3].myself);
    let slots = net.nodes[0].me().slots.clone();
    let state = &mut net.nodes[1];
    let (incoming, outgoing) = (SlotIndex::from_index(0), SlotIndex::from_index(6000));
    state.set_importing(incoming, Some(old));
    state.set_migrating(outgoing, Some(old));
    // The old primary is heard before the new one.
    let header = Header {
        sender: old,
        primary: Some(new),
        config_epoch: state.newest_epoch() + 1,
        slots: slots.clone(),
        ..state.header()
    };
    assert!(state.apply_announced_role_and_slots(old, &header));
    assert!(state.nodes[&old].is_replica() && state.nodes[&old].slots.is_empty());
    assert_eq!(state.nodes[&new].slots, slots);
    assert_eq!(state.importing.get(&incoming), Some(&new));
    assert_eq!(state.migrating.get(&outgoing), Some(&new));
}

#[test]
fn a_node_with_a_new_name_has_failed_under_its_old_one() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.nodes[3].settings.replica_no_failover = true;
    let old = net.nodes[0].myself;
    let now_ms = net.now_ms;
    net.nodes[0].reset(true, now_ms);
    net.rounds(60);
    for state in &net.nodes[1..] {
        let node = &state.nodes[&old];
        assert!(
            node.flags.contains(NodeFlags::NO_ADDRESS | NodeFlags::FAIL),
            "{}",
            node.flags
        );
        assert!(!state.is_up, "its slots are not served");
    }
    net.nodes[3].settings.replica_no_failover = false;
    net.rounds(80);
    assert!(net.nodes[1..].iter().all(|state| state.is_up));
    assert!(net.nodes[3].me().has_vote());
}

/// A node that was stopped may read an announcement of the time before a failover after one of the time behind it.
#[test]
fn a_late_announcement_of_a_replica_changes_nothing() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    let (old, new) = (net.nodes[0].myself, net.nodes[3].myself);
    let late = Header {
        config_epoch: net.nodes[0].me().config_epoch,
        ..net.nodes[3].header()
    };
    assert_eq!(late.primary, Some(old));
    let now_ms = net.now_ms;
    net.nodes[3]
        .begin_failover(FailoverMode::Takeover, "test", now_ms)
        .expect("it takes over");
    net.rounds(20);
    let state = &mut net.nodes[1];
    assert!(state.nodes[&new].is_primary() && state.nodes[&old].is_replica());
    let slots = state.nodes[&new].slots.clone();
    assert!(!slots.is_empty());
    assert!(!state.apply_announced_role_and_slots(new, &late));
    assert!(state.nodes[&new].is_primary());
    assert_eq!(state.nodes[&new].slots, slots);
}

/// A primary does not vote for some time after its start.
#[test]
fn a_primary_is_safe_to_vote_once_it_is_up_or_some_time_has_passed() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.rounds(20);
    assert!(net.nodes[1].is_safe_to_vote);
    net.settle();
    net.restart(1);
    let now_ms = net.now_ms;
    let voter = &mut net.nodes[1];
    voter.update_health(now_ms);
    assert!(!voter.is_safe_to_vote);
    voter.update_health(now_ms + 2000);
    assert!(voter.is_safe_to_vote);
}

/// The primary resumes writes some time after the replica's deadline.
#[test]
fn a_manual_failover_is_not_won_after_its_time() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.unreachable.extend([1, 2]);
    let now_ms = net.now_ms;
    let begun = net.nodes[3].begin_failover(FailoverMode::Force, "", now_ms);
    begun.expect("it is a replica");
    net.rounds(2);
    let voters = vec![net.nodes[1].myself, net.nodes[2].myself];
    let node = &mut net.nodes[3];
    assert!(node.election.votes_requested);
    node.manual.end_ms = net.now_ms + 50;
    node.election.voters = voters;
    node.advance_failover(net.now_ms + 51);
    assert!(node.me().is_replica(), "too late");
    node.advance_failover(net.now_ms + 50);
    assert!(node.me().is_primary());
}

/// The synchronization begins after the replica has reached the offset of its primary.
#[test]
fn a_coordinated_failover_is_not_won_during_a_full_synchronization() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.unreachable.extend([1, 2]);
    let now_ms = net.now_ms;
    let begun = net.nodes[3].begin_failover(FailoverMode::Coordinated, "", now_ms);
    begun.expect("it is a replica");
    net.settle();
    net.rounds(2);
    let (voters, now_ms) = (vec![net.nodes[1].myself, net.nodes[2].myself], net.now_ms);
    let node = &mut net.nodes[3];
    assert!(node.election.votes_requested);
    node.election.voters = voters;
    node.data.awaits_full_sync = true;
    node.advance_failover(now_ms);
    assert!(node.me().is_replica(), "its data is about to be replaced");
    node.data.awaits_full_sync = false;
    node.advance_failover(now_ms);
    assert!(node.me().is_primary());
}

/// A voter may not have heard yet that the primary has failed.
#[test]
fn the_best_replica_requests_votes_although_its_primary_may_seem_to_be_up() {
    for (offset, is_forced) in [(100, true), (0, false)] {
        let mut net = SimulatedCluster::with_replicas(3, &[0]);
        let (now_ms, state) = (net.now_ms, &mut net.nodes[3]);
        state.me_mut().offset = offset;
        state.schedule_election(now_ms);
        state.actions.clear();
        state.request_votes();
        let requests: Vec<u8> = state
            .actions
            .iter()
            .filter_map(|action| match action {
                BusAction::Send(_, bytes) => decode(bytes).ok(),
                _ => None,
            })
            .filter_map(|message| match message {
                BusMessage::VoteRequest(header) => Some(header.switches),
                _ => None,
            })
            .collect();
        assert!(!requests.is_empty());
        for switches in requests {
            assert_eq!(switches & switch::FORCED != 0, is_forced, "with the offset {offset}");
        }
    }
}

#[test]
fn a_primary_may_lose_an_election_until_it_is_decided_or_over() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    let (old, new) = (net.nodes[0].myself, net.nodes[3].myself);
    let may_lose = |net: &SimulatedCluster, primary: NodeId| net.nodes[1].may_lose_election(primary, net.now_ms);
    assert!(!may_lose(&net, old));
    // The replica requests votes, and nobody answers in time.
    net.nodes[3].request_votes();
    net.nodes[3].settings.replica_no_failover = true;
    net.settle();
    assert!(may_lose(&net, old) && !may_lose(&net, new));
    let timeout_ms = net.nodes[1].election_timeout_ms();
    assert!(!net.nodes[1].may_lose_election(old, net.now_ms + timeout_ms));
    // Both fail over to one another.
    net.nodes[3].settings.replica_no_failover = false;
    for (from, to, candidate) in [(old, new, 3), (new, old, 0)] {
        let now_ms = net.now_ms;
        let begun = net.nodes[candidate].begin_failover(FailoverMode::Force, "", now_ms);
        begun.expect("it is a replica");
        net.settle();
        net.rounds(20);
        assert!(net.nodes[candidate].me().has_vote());
        assert!(!may_lose(&net, to), "it has won");
        assert_eq!(net.nodes[1].nodes[&from].primary, Some(to));
    }
}
