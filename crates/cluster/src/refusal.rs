//! The reasons for which a change of the cluster state is refused, in Valkey's words without the error code.

use weft_base::SlotIndex;

/// The reason for which a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterRefusal {
    /// A slot to delete has no owner.
    #[error("Slot {0} is already unassigned")]
    SlotUnassigned(SlotIndex),
    /// A slot to add has an owner.
    #[error("Slot {0} is already busy")]
    SlotBusy(SlotIndex),
    /// A slot is named twice.
    #[error("Slot {0} specified multiple times")]
    SlotRepeated(SlotIndex),
    /// This node is a replica.
    #[error("Please use SETSLOT only with masters.")]
    SetSlotOnReplica,
    /// A slot that shall leave this node belongs to another one.
    #[error("I'm not the owner of hash slot {0}")]
    SlotNotMine(SlotIndex),
    /// A slot that shall come to this node is here.
    #[error("I'm already the owner of hash slot {0}")]
    SlotMine(SlotIndex),
    /// This node still has keys of the slot.
    #[error("Can't assign hashslot {0} to a different node while I still hold keys for this hash slot.")]
    SlotHasKeys(SlotIndex),
    /// The other node of a migration is not known here.
    #[error("I don't know about node {0}")]
    TargetNotKnown(String),
    /// The other node of a migration is this one.
    #[error("Target node is myself")]
    TargetIsMyself,
    /// The named node is a replica.
    #[error("Target node is not a master")]
    TargetIsReplica,
    /// The named node is not known here.
    #[error("Unknown node {0}")]
    UnknownNode(String),
    /// The primary to follow is this node.
    #[error("Can't replicate myself")]
    ReplicatesMyself,
    /// The primary to follow is a replica.
    #[error("I can only replicate a master, not a replica.")]
    ReplicatesReplica,
    /// This node has slots or keys.
    #[error("To set a master the node must be empty and without assigned slots.")]
    NodeNotEmpty,
    /// The epoch is negative.
    #[error("Invalid config epoch specified: {0}")]
    InvalidEpoch(i64),
    /// The node is no longer alone.
    #[error("The user can assign a config epoch only when the node does not know any other node.")]
    KnowsOtherNodes,
    /// The node has an epoch.
    #[error("Node config epoch is already non-zero")]
    EpochIsSet,
    /// The node to forget is this one.
    #[error("I tried hard but I can't forget myself...")]
    ForgetsMyself,
    /// The node to forget is the primary of this one.
    #[error("Can't forget my master!")]
    ForgetsPrimary,
    /// This node is a primary, and nothing takes over from it.
    #[error("You should send CLUSTER FAILOVER to a replica")]
    FailoverOfPrimary,
    /// The primary of this replica is not known here.
    #[error("I'm a replica but my master is unknown to me")]
    PrimaryUnknown,
    /// The primary cannot take part in the failover.
    #[error("Master is down or failed, please use CLUSTER FAILOVER FORCE")]
    PrimaryDown,
}
