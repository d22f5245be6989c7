//! The slots in migration, as recorded in the dump of a full synchronisation. A replica that takes over continues their
//! migration.
//!
//! The auxiliary field is a list of `slot<node,` for slots imported from a node, and `slot>node,` for slots migrating
//! to a node.

use weft_base::SlotIndex;

use super::node::NodeId;
use super::slot_in_migration::{MigrationDirection, SlotInMigration};
use super::state::ClusterState;

/// The name of the auxiliary field.
pub const AUX_FIELD: &str = "cluster-slot-states";

impl ClusterState {
    /// Returns the auxiliary field for the dump of a replica, or `None` if no slot is in migration.
    pub fn slots_in_migration_field(&self) -> Option<String> {
        let part = |mark: char| move |(slot, node): (&SlotIndex, &NodeId)| format!("{slot}{mark}{node},");
        let incoming = self.importing.iter().map(part('<'));
        let text: String = incoming.chain(self.migrating.iter().map(part('>'))).collect();
        (!text.is_empty()).then_some(text)
    }

    /// Applies the auxiliary field from the dump of this node's primary.
    pub fn apply_slots_in_migration(&mut self, note: &[u8]) {
        let text = String::from_utf8_lossy(note);
        for part in text.split_terminator(',') {
            match SlotInMigration::parse(part) {
                Some(open) => self.unapplied_migrations.push(open),
                None => log::warn!("Invalid entry about a migrating slot in the primary's dump: '{part}'"),
            }
        }
        self.apply_known_migrations();
    }

    /// Applies the recorded migrations whose nodes are known by now.
    pub(super) fn apply_known_migrations(&mut self) {
        if self.unapplied_migrations.is_empty() {
            return;
        }
        let (known, unknown): (Vec<SlotInMigration>, Vec<SlotInMigration>) =
            std::mem::take(&mut self.unapplied_migrations)
                .into_iter()
                .partition(|open| self.nodes.contains_key(&open.node));
        self.unapplied_migrations = unknown;
        for SlotInMigration { slot, way, node } in known {
            match way {
                MigrationDirection::Importing => self.set_importing(slot, Some(node)),
                MigrationDirection::Migrating => self.set_migrating(slot, Some(node)),
            }
            self.todo.save = true;
        }
    }
}

#[cfg(test)]
mod tests;
