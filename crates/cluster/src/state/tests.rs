//! Tests of slots, epochs and health without a network.

use weft_base::SlotIndex;

use super::*;
use crate::changes::SlotChange;
use crate::links::LinkAddresses;
use crate::message::{BusMessage, Header, MessageType};
use crate::refusal::ClusterRefusal;

fn slot(number: u16) -> SlotIndex {
    SlotIndex::new(number).expect("there is such a slot")
}

fn single_node_state() -> ClusterState {
    let settings = ClusterSettings {
        requires_full_coverage: true,
        node_timeout_ms: 15_000,
        forget_s: 60,
        ..ClusterSettings::default()
    };
    ClusterState::new(settings, 1)
}

fn two_node_state() -> (ClusterState, NodeId) {
    let mut state = single_node_state();
    let other = NodeId::random();
    state.nodes.insert(other, Node::new(other, NodeFlags::PRIMARY, 1));
    (state, other)
}

#[test]
fn slots_are_added_and_deleted_all_or_none() {
    let mut state = single_node_state();
    assert_eq!(
        state.change_slots(&[(slot(0), slot(5)), (slot(9), slot(9))], false),
        Ok(())
    );
    assert_eq!(state.me().slots.ranges(), [(slot(0), slot(5)), (slot(9), slot(9))]);
    let busy = state.change_slots(&[(slot(100), slot(101)), (slot(5), slot(5))], false);
    assert_eq!(busy, Err(ClusterRefusal::SlotBusy(slot(5))));
    assert_eq!(state.owner(slot(100)), None, "nothing has changed");
    let twice = state.change_slots(&[(slot(0), slot(1)), (slot(1), slot(2))], true);
    assert_eq!(twice, Err(ClusterRefusal::SlotRepeated(slot(1))));
    assert_eq!(state.change_slots(&[(slot(0), slot(1))], true), Ok(()));
    assert_eq!(state.me().slots.len(), 5);
}

#[test]
fn a_slot_migrates_in_steps() {
    let (mut state, other) = two_node_state();
    let name = other.as_bytes().to_vec();
    state.change_slots(&[(slot(0), slot(9))], false).expect("they are free");
    state
        .change_slot(slot(3), &SlotChange::Migrating(name.clone()), 2)
        .expect("it is mine");
    assert_eq!(state.migrating.get(&slot(3)), Some(&other));
    assert!(
        state.change_slot(slot(3), &SlotChange::Node(name.clone()), 2).is_err(),
        "keys are left"
    );
    state
        .change_slot(slot(3), &SlotChange::Node(name.clone()), 0)
        .expect("none is left");
    assert_eq!((state.owner(slot(3)), state.migrating.len()), (Some(other), 0));
    state
        .change_slot(slot(3), &SlotChange::Importing(name), 0)
        .expect("it is another's");
    let mine = state.myself.as_bytes().to_vec();
    state
        .change_slot(slot(3), &SlotChange::Node(mine), 0)
        .expect("it comes back");
    assert_eq!((state.owner(slot(3)), state.importing.len()), (Some(state.myself), 0));
    assert_eq!(
        state.me().config_epoch,
        1,
        "whoever takes a slot in has the newest version"
    );
}

#[test]
fn epochs_rise_only_when_necessary() {
    let mut state = single_node_state();
    assert!(state.bump_epoch() && !state.bump_epoch());
    assert!(state.set_config_epoch(7).is_err(), "it has one");
    state.reset(true, 5);
    assert_eq!((state.current_epoch, state.me().config_epoch), (0, 0));
    assert_eq!(state.set_config_epoch(7), Ok(()));
    assert_eq!(state.current_epoch, 7);
}

#[test]
fn a_cluster_is_up_when_all_slots_are_served_for_a_while() {
    let mut state = single_node_state();
    state.update_health(1000);
    state
        .change_slots(&[(slot(0), slot(16383))], false)
        .expect("they are free");
    state.update_health(1001);
    assert!(!state.is_up, "it has just been started");
    state.update_health(9000);
    assert!(state.is_up);
    state.change_slots(&[(slot(7), slot(7))], true).expect("it is mine");
    state.update_health(9001);
    assert!(!state.is_up);
    state.settings.requires_full_coverage = false;
    state.update_health(9002);
    assert!(state.is_up, "a slot may be missing");
}

#[test]
fn a_minority_accepts_no_commands() {
    let (mut state, other) = two_node_state();
    state
        .change_slots(&[(slot(0), slot(8191))], false)
        .expect("they are free");
    for slot in 8192..16384 {
        state.add_slot(other, SlotIndex::from_index(slot));
    }
    state.update_health(1);
    state.update_health(9000);
    assert!(state.is_up);
    state
        .nodes
        .get_mut(&other)
        .expect("it is known")
        .flags
        .set(NodeFlags::PFAIL, true);
    state.update_health(9001);
    assert!(!state.is_up, "one of two is no majority");
}

#[test]
fn a_forgotten_node_stays_away_for_a_while() {
    let (mut state, other) = two_node_state();
    state.add_slot(other, slot(5));
    assert_eq!(state.forget_node(other.as_bytes(), 1000), Ok(()));
    assert_eq!(state.owner(slot(5)), None);
    assert!(state.is_forgotten(&other, 60_999) && !state.is_forgotten(&other, 61_000));
    let mine = *state.myself.as_bytes();
    assert!(state.forget_node(&mine, 1000).is_err());
    assert!(
        state.forget_node(other.as_bytes(), 62_000).is_err(),
        "it is unknown by now"
    );
}

/// Creates a state with a node in handshake, whose ID is returned.
fn state_with_handshake() -> (ClusterState, NodeId) {
    let mut state = single_node_state();
    state.begin_handshake("127.0.0.1", 7001, 0, 17001, NodeFlags::HANDSHAKE, 1);
    let other = state.nodes.keys().copied().find(|id| *id != state.myself);
    (state, other.expect("the node in handshake"))
}

#[test]
fn a_node_in_handshake_gets_no_slots_and_no_replicas_from_commands() {
    let (mut state, other) = state_with_handshake();
    let name = other.as_bytes();
    state.change_slots(&[(slot(0), slot(0))], false).expect("it is free");
    for change in [SlotChange::Node(name.to_vec()), SlotChange::Migrating(name.to_vec())] {
        assert!(state.change_slot(slot(0), &change, 0).is_err(), "{change:?}");
    }
    assert!(!state.add_slot(other, slot(1)));
    assert_eq!((state.owner(slot(0)), state.owner(slot(1))), (Some(state.myself), None));
    state.change_slots(&[(slot(0), slot(0))], true).expect("it is mine");
    assert_eq!(
        state.replicate(name, false, 1),
        Err(ClusterRefusal::UnknownNode(other.to_string()))
    );
    assert!(state.forget_node(name, 1).is_ok());
}

#[test]
fn a_node_in_handshake_gets_no_slots_from_messages() {
    let (mut state, other) = state_with_handshake();
    let mut header: Header = state.header();
    (header.sender, header.config_epoch) = (other, 9);
    header.slots.set(slot(7), true);
    let update = BusMessage::Update {
        header: header.clone(),
        id: other,
        config_epoch: 9,
        slots: header.slots.clone(),
    };
    let ping = |kind| BusMessage::Ping {
        kind,
        header: header.clone(),
        gossip: Vec::new(),
        extensions: Default::default(),
    };
    for message in [
        ping(MessageType::Ping),
        ping(MessageType::Meet),
        ping(MessageType::Ping),
        update,
    ] {
        state.on_link_made(1, None, 1);
        state.receive(1, message, &LinkAddresses::default(), 1);
        assert_eq!(state.owner(slot(7)), None);
        assert!(state.nodes[&other].slots.is_empty());
    }
}

/// A replica may have been elected while the bus made no progress.
#[test]
fn a_primary_whose_bus_is_late_accepts_no_commands() {
    let mut state = single_node_state();
    state
        .change_slots(&[(slot(0), slot(16383))], false)
        .expect("they are free");
    state.update_health(1);
    state.update_health(9000);
    assert!(state.is_up);
    state.todo.publish = false;
    state.suspend(10_000);
    assert!(!state.is_up && state.todo.publish && state.is_suspended());
    // Other threads change the state, too.
    state.update_health(60_000);
    assert!(!state.is_up, "however long it takes");
    state.end_suspension(60_100);
    assert!(!state.is_suspended());
    state.update_health(65_099);
    assert!(!state.is_up, "it hears of a failover meanwhile");
    state.update_health(65_100);
    assert!(state.is_up);
}

/// Replies to earlier writes must not wait for slots of other nodes.
#[test]
fn a_primary_knows_that_it_was_not_replaced_even_if_the_cluster_stays_down() {
    let mut state = single_node_state();
    state
        .change_slots(&[(slot(0), slot(16382))], false)
        .expect("they are free");
    state.update_health(1);
    state.update_health(9000);
    assert!(!state.is_up && !state.awaits_news());
    state.suspend(10_000);
    state.end_suspension(60_000);
    state.todo.publish = false;
    state.update_health(64_999);
    assert!(state.awaits_news() && !state.todo.publish);
    state.update_health(65_000);
    assert!(!state.is_up && !state.awaits_news() && state.todo.publish);
}
