//! The subcommands of atomic slot migration, which this server does not support: the arguments are checked, and the
//! command is refused.

use weft_base::SlotIndex;
use weft_resp::number::parse_i64;

use super::{parse_slot, require_cluster, with_state};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use weft_cluster::node::NodeId;
use weft_cluster::state::ClusterState;

const ATOMIC_MIGRATION_UNSUPPORTED: CommandError =
    CommandError::constant("ERR Slots cannot be moved as a whole, use SETSLOT and MIGRATE");

pub(super) fn list(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    ctx.reply.array(0);
    Ok(())
}

pub(super) fn cancel(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    Err(CommandError::constant("ERR No migrations ongoing"))
}

pub(super) fn sync(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    match ctx.arg(2).eq_ignore_ascii_case(b"establish") {
        true => Err(ATOMIC_MIGRATION_UNSUPPORTED),
        // All other subcommands belong to an established stream.
        false => Err(CommandError::SYNTAX),
    }
}

pub(super) fn migrate(ctx: &mut Context<'_, '_>) -> CommandResult {
    with_state(ctx, |state| check_request(ctx, state))??;
    Err(ATOMIC_MIGRATION_UNSUPPORTED)
}

/// Returns the first error in a request.
fn check_request(ctx: &Context<'_, '_>, state: &ClusterState) -> Result<(), CommandError> {
    let is = |index: usize, name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
    let mut index = 2;
    while index < ctx.argc() {
        if !is(index, "slotsrange") {
            return Err(CommandError::SYNTAX);
        }
        index += 1;
        let first_range = index;
        while index + 1 < ctx.argc() && !is(index, "node") && parse_i64(ctx.arg(index)).is_some() {
            check_range(state, parse_slot(ctx.arg(index))?, parse_slot(ctx.arg(index + 1))?)?;
            index += 2;
        }
        if index == first_range {
            return Err(CommandError::constant("ERR No slot ranges specified"));
        }
        if index + 1 >= ctx.argc() || !is(index, "node") {
            return Err(CommandError::SYNTAX);
        }
        check_target(state, ctx.arg(index + 1))?;
        index += 2;
    }
    Ok(())
}

fn check_range(state: &ClusterState, first: SlotIndex, last: SlotIndex) -> Result<(), CommandError> {
    if first > last {
        return Err(CommandError::from_text(format!(
            "ERR Start slot number {first} is greater than end slot number {last}."
        )));
    }
    for slot in first.to(last) {
        match state.owner(slot) {
            None => return Err(CommandError::from_text(format!("ERR Slot {slot} has no node served."))),
            Some(owner) if owner != state.myself => {
                return Err(CommandError::constant("ERR Slots are not served by myself."));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn check_target(state: &ClusterState, word: &[u8]) -> Result<(), CommandError> {
    let Some(id) = NodeId::parse(word) else {
        return Err(CommandError::with_word("ERR Invalid node id: ", word, ""));
    };
    match state.nodes.get(&id) {
        None => Err(CommandError::with_word("ERR Unknown node id: ", word, "")),
        Some(node) if node.is_replica() => Err(CommandError::constant("ERR Target node is not a primary")),
        Some(_) if id == state.myself => Err(CommandError::constant("ERR Target node can not be this node")),
        Some(_) => Ok(()),
    }
}
