//! Slots on their way, as the dump of a full synchronisation tells them: a replica that takes over goes on with them.
//!
//! The note is a list of `slot<node,` for slots that come from a node, and `slot>node,` for those that go to one.

use super::node::NodeId;
use super::state::State;
use crate::keyspace::SLOTS;
use crate::observability::log;

/// The name of the note.
pub const NOTE: &str = "cluster-slot-states";

/// Which way a slot goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MigrationDirection {
    In,
    Out,
}

/// A slot on its way, from a node or to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSlot {
    slot: u16,
    way: MigrationDirection,
    node: NodeId,
}

impl OpenSlot {
    /// `609<` and a node's name.
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
    /// What a dump for a replica tells; `None` if there is nothing to tell.
    pub fn open_slots_note(&self) -> Option<String> {
        let part = |mark: char| move |(slot, node): (&u16, &NodeId)| format!("{slot}{mark}{node},");
        let incoming = self.importing.iter().map(part('<'));
        let text: String = incoming.chain(self.migrating.iter().map(part('>'))).collect();
        (!text.is_empty()).then_some(text)
    }

    /// Takes over what the dump of this node's primary tells.
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

    /// Opens slots of which the dump told, once their nodes are known here.
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
