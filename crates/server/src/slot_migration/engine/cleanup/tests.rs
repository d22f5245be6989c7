//! Tests of the deletion of the keys of failed imports.

use weft_cluster::node::{Node, NodeFlags};
use weft_table::{Blob, NewValue};

use super::*;
use crate::cluster_node::topology::change_state;
use crate::cluster_node::topology::tests::{NodesConf, start_node};
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::publish_header;

/// Adds a key and returns its slot.
fn add_key(server: &Arc<Server>, seat: &mut Seat, name: &[u8]) -> SlotIndex {
    let keyspace = &server.keyspace;
    let hash = keyspace.hasher.hash(name);
    let pass = seat.enter();
    let mut lease = pass
        .try_write(KeyHasher::slot(hash))
        .expect("no other thread holds a lease");
    let (header, slot) = lease.parts_mut();
    let value = NewValue::Blob(Blob::from_slice(b"value"));
    drop(slot.table_mut(DbIndex::FIRST).insert(hash, name, value, None, 0));
    publish_header(header, slot);
    SlotIndex::from_index(KeyHasher::slot(hash))
}

#[test]
fn the_keys_of_a_tracked_import_stay_in_a_slot_that_its_source_has_given_up() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let [claimed, unclaimed] = ["{a}", "{b}"].map(|name| add_key(&server, &mut seat, name.as_bytes()));
    let mut slots = SlotSet::default();
    for slot in [claimed, unclaimed] {
        slots.set(slot, true);
    }
    let [source, other] = [(); 2].map(|()| Node::new(NodeId::random(), NodeFlags::PRIMARY, 1));
    let (source_id, other_id) = (source.id, other.id);
    change_state(&server, cluster, &mut seat, |state, _| {
        for node in [source, other] {
            state.nodes.insert(node.id, node);
        }
        for slot in slots.iter() {
            assert!(state.add_slot(source_id, slot));
            server.keyspace.slots.header(slot.index()).set_importing(true);
        }
        state.unclaimed.set(unclaimed, true);
    });
    let holds_any = |slot: SlotIndex| server.keyspace.slots.header(slot.index()).may_hold_any();
    let mut delete = |is_tracked_only| {
        let mut cleanup = ImportCleanup {
            progress: Arc::default(),
            slots: Arc::new(slots.clone()),
            name: [b'0'; 40],
            next_slot: 0,
            is_tracked_only,
        };
        let until = Instant::now() + Duration::from_secs(600);
        assert!(delete_imported_keys(&server, cluster, &mut seat, &mut cleanup, until));
    };
    delete(true);
    assert!(
        !holds_any(claimed) && holds_any(unclaimed),
        "these may be the only keys"
    );
    let is_importing = |slot: SlotIndex| server.keyspace.slots.header(slot.index()).is_importing();
    assert!(slots.iter().all(|slot| !is_importing(slot)));
    // Another shard claims the slot. The bus deletes the keys.
    let mut given_up = SlotSet::default();
    given_up.set(unclaimed, true);
    assert!(cluster.lock(&server.config).leftover.is_empty());
    cluster.lock(&server.config).update_slots(other_id, 10, &given_up);
    assert!(cluster.lock(&server.config).leftover.iter().eq([unclaimed]));
    // What this node has imported itself was never the only copy.
    cluster.lock(&server.config).unclaimed.set(unclaimed, true);
    delete(false);
    assert!(!holds_any(unclaimed));
    drop(seat);
}
