//! Tests of the manual failover, in simulated time.

use super::*;
use crate::links::LinkAddresses;
use crate::message::Extensions;
use crate::receive::tests::SimulatedCluster;

fn begin(net: &mut SimulatedCluster, index: usize, manner: FailoverMode) {
    let now_ms = net.now_ms;
    net.nodes[index]
        .begin_failover(manner, "", now_ms)
        .expect("it is a replica");
    net.settle();
}

#[test]
fn a_replica_waits_for_the_offset_of_its_primary() {
    let mut net = SimulatedCluster::with_replicas(3, &[0, 0]);
    net.nodes[0].me_mut().offset = 500;
    net.nodes[3].me_mut().offset = 400;
    begin(&mut net, 3, FailoverMode::Coordinated);
    net.rounds(10);
    assert!(
        net.writes_paused[0] && net.nodes[0].me().is_primary(),
        "nothing is written, nothing has changed hands"
    );
    assert_eq!(net.nodes[3].manual.primary_offset, Some(500));
    net.nodes[3].me_mut().offset = 500;
    net.rounds(10);
    assert!(net.nodes[3].me().has_vote());
    assert!(!net.writes_paused[0], "whoever waits is sent to the new primary");
    for index in [0, 4] {
        assert_eq!(net.nodes[index].me().primary, Some(net.nodes[3].myself));
        assert!(!net.nodes[index].needs_full_sync);
    }
}

#[test]
fn a_replica_may_be_ahead_of_the_offset_of_its_primary() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.nodes[0].me_mut().offset = 500;
    begin(&mut net, 3, FailoverMode::Coordinated);
    assert!(net.nodes[0].is_handing_over());
    net.rounds(10);
    // The primary has deleted an expired key meanwhile.
    net.nodes[3].me_mut().offset = 540;
    net.rounds(10);
    assert!(net.nodes[3].me().has_vote() && net.nodes[0].me().is_replica());
    assert!(!net.nodes[0].is_handing_over());
}

#[test]
fn both_sides_time_out_if_the_offset_is_never_reached() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.nodes[0].me_mut().offset = 500;
    begin(&mut net, 3, FailoverMode::Coordinated);
    net.rounds(60);
    assert_eq!(net.nodes[3].manual.end_ms, 0);
    assert!(
        net.writes_paused[0],
        "the replica may have won an election at the last moment"
    );
    net.rounds(50);
    assert!(net.nodes[0].me().is_primary() && !net.writes_paused[0]);
    assert_eq!(net.nodes[0].manual.end_ms, 0);
    net.nodes[3].me_mut().offset = 500;
    net.rounds(20);
    assert!(net.nodes[3].me().is_replica(), "too late");
}

#[test]
fn force_requests_votes_and_takeover_does_not() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.nodes[0].me_mut().offset = 500;
    begin(&mut net, 3, FailoverMode::Force);
    net.rounds(5);
    assert!(net.nodes[3].me().has_vote() && net.nodes[0].me().is_replica());

    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.unreachable.extend([0, 1, 2]);
    net.rounds(30);
    begin(&mut net, 3, FailoverMode::Takeover);
    assert!(net.nodes[3].me().has_vote(), "nobody was asked");
    net.unreachable.clear();
    net.rounds(80);
    assert_eq!(net.nodes[0].me().primary, Some(net.nodes[3].myself));
    assert_eq!(net.nodes[1].nodes[&net.nodes[3].myself].slots, net.nodes[3].me().slots);
}

#[test]
fn only_a_replica_may_request_a_manual_failover() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    let now_ms = net.now_ms;
    let refusal = net.nodes[0].begin_failover(FailoverMode::Coordinated, "", now_ms);
    assert_eq!(refusal, Err(ClusterRefusal::FailoverOfPrimary));
    net.unreachable.push(0);
    net.rounds(14);
    net.nodes[3].settings.replica_no_failover = true;
    net.rounds(15);
    let refusal = net.nodes[3].begin_failover(FailoverMode::Coordinated, "", net.now_ms);
    assert!(refusal == Err(ClusterRefusal::PrimaryDown));
    let stranger = net.nodes[1].myself;
    net.nodes[2].pause_for_replica(stranger, net.now_ms);
    assert!(
        net.nodes[2].manual.replica.is_none(),
        "only its own replicas may stop a primary"
    );
}

#[test]
fn an_offset_of_zero_can_be_reached() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    begin(&mut net, 3, FailoverMode::Coordinated);
    net.rounds(10);
    assert!(
        net.nodes[3].me().has_vote(),
        "an offset of 0 is one that can be reached"
    );
}

#[test]
fn a_takeover_by_another_replica_ends_a_manual_failover() {
    let mut net = SimulatedCluster::with_replicas(3, &[0, 0]);
    net.nodes[0].me_mut().offset = 500;
    begin(&mut net, 3, FailoverMode::Coordinated);
    net.rounds(10);
    assert!(net.nodes[0].is_handing_over() && net.writes_paused[0]);
    begin(&mut net, 4, FailoverMode::Takeover);
    net.rounds(10);
    assert!(net.nodes[4].me().has_vote());
    assert!(!net.nodes[0].is_handing_over() && !net.writes_paused[0]);
    // The replica that waited for the offset does not go on.
    net.nodes[3].me_mut().offset = 500;
    net.rounds(60);
    for index in [0, 3] {
        assert_eq!(net.nodes[index].me().primary, Some(net.nodes[4].myself));
    }
    assert_eq!(net.nodes[3].manual.end_ms, 0);
}

#[test]
fn a_primary_that_hands_over_votes_for_the_replica_of_another_one() {
    let mut net = SimulatedCluster::with_replicas(3, &[0, 1]);
    net.nodes[0].me_mut().offset = 500;
    begin(&mut net, 3, FailoverMode::Coordinated);
    net.unreachable = vec![1];
    // Two votes of three are needed: those of the first and the third node.
    net.rounds(50);
    assert!(net.nodes[4].me().has_vote(), "it was elected");
    assert!(
        net.nodes[0].is_handing_over() && net.writes_paused[0],
        "the hand-over goes on"
    );
}

/// The replica may have received the offset already: what was written in between would be lost.
#[test]
fn a_repeated_request_does_not_resume_writes() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.nodes[0].me_mut().offset = 500;
    begin(&mut net, 3, FailoverMode::Coordinated);
    assert!(net.writes_paused[0] && net.nodes[0].manual.has_stopped);
    let (replica, now_ms) = (net.nodes[3].myself, net.now_ms + 1000);
    let primary = &mut net.nodes[0];
    let end_ms = primary.manual.end_ms;
    primary.pause_for_replica(replica, now_ms);
    assert_eq!(primary.actions, [BusAction::PauseWrites(end_ms + 1000)]);
    assert!(primary.is_stopping(), "the offset is determined again");
    // A shorter timeout does not shorten the pause that the first request relies on.
    primary.settings.manual_failover_ms = 1;
    primary.pause_for_replica(replica, now_ms);
    assert_eq!(primary.manual.end_ms, end_ms + 1000);
}

#[test]
fn no_message_says_that_writes_are_paused_once_they_may_resume() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.nodes[0].me_mut().offset = 500;
    begin(&mut net, 3, FailoverMode::Coordinated);
    let replica = net.nodes[3].myself;
    let primary = &mut net.nodes[0];
    let end_ms = primary.manual.end_ms;
    let link = primary.nodes[&replica].link.expect("has a link");
    for (now_ms, is_paused) in [(end_ms - 1, true), (end_ms, false)] {
        primary.send_ping(link, MessageType::Pong, now_ms);
        assert_eq!(primary.header().switches & switch::PAUSED != 0, is_paused);
        assert_eq!(primary.pause_end_ms().is_some(), is_paused);
    }
    assert!(primary.actions.contains(&BusAction::ResumeWrites));
    primary.record_writes_stopped(end_ms);
    assert!(!primary.manual.has_stopped, "workers write again");
}

/// A turn of the bus may take longer than the pause, and the pause may end or begin anew within the turn.
#[test]
fn queued_messages_remember_the_pause_that_they_mention() {
    let changes: [fn(&mut ClusterState, u64); 3] = [
        |_, _| {},
        |state, end_ms| state.end_overdue_hand_over(end_ms),
        |state, end_ms| {
            let replica = state.manual.replica.expect("has requested it");
            state.pause_for_replica(replica, end_ms - 1);
        },
    ];
    for change in changes {
        let mut net = SimulatedCluster::with_replicas(3, &[0]);
        net.nodes[0].me_mut().offset = 500;
        begin(&mut net, 3, FailoverMode::Coordinated);
        let now_ms = net.now_ms;
        let primary = &mut net.nodes[0];
        primary.take_actions();
        let end_ms = primary.manual.end_ms;
        primary.broadcast_pong(now_ms);
        change(primary, end_ms);
        let (actions, paused_until_ms) = primary.take_actions();
        assert!(actions.iter().any(|action| matches!(action, BusAction::Send(..))));
        assert_eq!(paused_until_ms, Some(end_ms));
        assert_eq!(primary.take_actions(), (Vec::new(), None));
    }
}

/// The replica was stopped for longer than the pause. It reads what has come meanwhile after the next request is made.
#[test]
fn a_late_message_that_writes_are_paused_does_not_count() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    net.nodes[0].me_mut().offset = 500;
    begin(&mut net, 3, FailoverMode::Coordinated);
    assert!(net.nodes[0].manual.has_stopped);
    let paused = net.nodes[0].header();
    let late = |kind| BusMessage::Ping {
        kind,
        header: paused.clone(),
        gossip: Vec::new(),
        extensions: Extensions::default(),
    };
    net.rounds(110);
    assert!(
        net.nodes[0].me().is_primary() && !net.writes_paused[0],
        "the pause is over"
    );
    net.nodes[0].me_mut().offset = 900;
    let (now_ms, primary) = (net.now_ms, net.nodes[0].myself);
    let replica = &mut net.nodes[3];
    replica.me_mut().offset = 500;
    let node = &replica.nodes[&primary];
    let (link, inbound) = (node.link.expect("has a link"), node.inbound_link.expect("has a link"));
    // The answer to this PING is one of the late messages.
    replica.send_ping(link, MessageType::Ping, now_ms);
    replica.actions.clear();
    let begun = replica.begin_failover(FailoverMode::Coordinated, "", now_ms);
    begun.expect("it is a replica");
    let request = std::mem::take(&mut replica.actions);
    for (link, kind) in [(inbound, MessageType::Ping), (link, MessageType::Pong)] {
        replica.receive(link, late(kind), &LinkAddresses::default(), now_ms);
        assert_eq!(replica.manual.primary_offset, None, "{kind:?}");
        assert!(!replica.manual.can_start && replica.me().is_replica(), "{kind:?}");
    }
    replica.actions.extend(request);
    net.settle();
    assert_eq!(net.nodes[3].manual.primary_offset, Some(900));
    net.rounds(10);
    assert!(net.writes_paused[0] && net.nodes[3].me().is_replica());
    net.nodes[3].me_mut().offset = 900;
    net.rounds(10);
    assert!(net.nodes[3].me().has_vote() && net.nodes[0].me().is_replica());
}

#[test]
fn a_request_that_is_lost_with_its_link_is_repeated() {
    let mut net = SimulatedCluster::with_replicas(3, &[0]);
    let (now_ms, primary) = (net.now_ms, net.nodes[0].myself);
    let replica = &mut net.nodes[3];
    let begun = replica.begin_failover(FailoverMode::Coordinated, "", now_ms);
    begun.expect("it is a replica");
    replica.actions.clear();
    let link = replica.nodes[&primary].link.expect("has a link");
    replica.close_link(link);
    net.settle();
    assert!(!net.writes_paused[0]);
    net.rounds(20);
    assert!(net.nodes[3].me().has_vote() && net.nodes[0].me().is_replica());
}

/// Without data the replica has the offset 0, and so may its primary.
#[test]
fn a_replica_without_data_takes_over_only_by_force() {
    let changes: [fn(&mut ClusterState, bool); 2] = [
        |state, lacks_data| state.data.awaits_full_sync = lacks_data,
        |state, lacks_data| state.needs_full_sync = lacks_data,
    ];
    for (change, is_forced) in changes.into_iter().flat_map(|change| [(change, false), (change, true)]) {
        let mut net = SimulatedCluster::with_replicas(3, &[0]);
        change(&mut net.nodes[3], true);
        begin(&mut net, 3, FailoverMode::Coordinated);
        net.rounds(20);
        assert_eq!(net.nodes[3].manual.primary_offset, Some(0));
        assert!(net.nodes[3].me().is_replica() && !net.nodes[3].manual.can_start);
        match is_forced {
            // The primary still sends its offset.
            true => begin(&mut net, 3, FailoverMode::Force),
            false => change(&mut net.nodes[3], false),
        }
        net.rounds(10);
        assert!(net.nodes[3].me().has_vote(), "it is forced, or the data has come");
    }
}
