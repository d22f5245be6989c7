//! One entry of a replica's dump about a slot in migration.

use weft_base::SlotIndex;

use super::node::NodeId;

/// The direction of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MigrationDirection {
    Importing,
    Migrating,
}

/// A slot in migration from or to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInMigration {
    pub(super) slot: SlotIndex,
    pub(super) way: MigrationDirection,
    pub(super) node: NodeId,
}

impl SlotInMigration {
    /// Parses one entry: `609<` or `609>` and a node ID.
    pub(super) fn parse(text: &str) -> Option<SlotInMigration> {
        let at = text.find(['<', '>'])?;
        let (slot, rest) = text.split_at(at);
        let (mark, node) = rest.split_at(1);
        Some(SlotInMigration {
            slot: slot.parse().ok().and_then(SlotIndex::new)?,
            way: if mark == "<" {
                MigrationDirection::Importing
            } else {
                MigrationDirection::Migrating
            },
            node: NodeId::parse(node.as_bytes())?,
        })
    }
}
