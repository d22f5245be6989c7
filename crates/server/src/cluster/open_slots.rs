//! The slots in migration, as recorded in the dump of a full synchronisation. A replica that takes over continues their
//! migration.
//!
//! The auxiliary field is a list of `slot<node,` for slots imported from a node, and `slot>node,` for slots migrating
//! to a node.

use super::node::NodeId;
use super::state::State;
use crate::keyspace::SLOTS;
use crate::observability::log;

/// The name of the auxiliary field.
pub const NOTE: &str = "cluster-slot-states";

/// The direction of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MigrationDirection {
    In,
    Out,
}

/// A slot in migration from or to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSlot {
    slot: u16,
    way: MigrationDirection,
    node: NodeId,
}

impl OpenSlot {
    /// Parses one entry: `609<` or `609>` and a node ID.
    fn of(text: &str) -> Option<OpenSlot> {
        let at = text.find(['<', '>'])?;
        let (slot, rest) = text.split_at(at);
        let (mark, node) = rest.split_at(1);
        Some(OpenSlot {
            slot: slot.parse().ok().filter(|slot| usize::from(*slot) < SLOTS)?,
            way: if mark == "<" {
                MigrationDirection::In
            } else {
                MigrationDirection::Out
            },
            node: NodeId::of(node.as_bytes())?,
        })
    }
}

impl State {
    /// Returns the auxiliary field for the dump of a replica, or `None` if no slot is in migration.
    pub fn open_slots_note(&self) -> Option<String> {
        let part = |mark: char| move |(slot, node): (&u16, &NodeId)| format!("{slot}{mark}{node},");
        let incoming = self.importing.iter().map(part('<'));
        let text: String = incoming.chain(self.migrating.iter().map(part('>'))).collect();
        (!text.is_empty()).then_some(text)
    }

    /// Applies the auxiliary field from the dump of this node's primary.
    pub fn take_open_slots(&mut self, note: &[u8]) {
        let text = String::from_utf8_lossy(note);
        for part in text.split_terminator(',') {
            match OpenSlot::of(part) {
                Some(open) => self.unopened.push(open),
                None => log::warning!("The primary's dump tells of slots on their way what makes no sense: '{part}'"),
            }
        }
        self.open_slots();
    }

    /// Applies the recorded migrations whose nodes are known by now.
    pub(super) fn open_slots(&mut self) {
        if self.unopened.is_empty() {
            return;
        }
        let (known, unknown): (Vec<OpenSlot>, Vec<OpenSlot>) = std::mem::take(&mut self.unopened)
            .into_iter()
            .partition(|open| self.nodes.contains_key(&open.node));
        self.unopened = unknown;
        for OpenSlot { slot, way, node } in known {
            match way {
                MigrationDirection::In => self.set_importing(slot, Some(node)),
                MigrationDirection::Out => self.set_migrating(slot, Some(node)),
            }
            self.todo.save = true;
        }
    }
}

#[cfg(test)]
mod tests;
