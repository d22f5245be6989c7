//! CLUSTER, READONLY, READWRITE and ASKING. The cluster's logic is in [`weft_cluster`]. Changes are made on a
//! background thread, because the configuration file is written before the reply.

use weft_base::SlotIndex;
use weft_resp::Reply;
use weft_resp::number::parse_i64;

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use crate::net::client::{Client, ClientFlags};
use weft_base::slots::cluster_slot;
use weft_cluster::Cluster;
use weft_cluster::node::{Node, NodeFlags};
use weft_cluster::view::RequesterInfo;
use weft_cluster::{nodes_text, state::ClusterState};

mod change;
mod flush;
mod help;
mod migrations;
mod scan;
mod statistics;
mod syncslots;
mod topology;

/// The commands of this module and its submodules, with their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("asking", leased(asking)),
    ("cluster|addslots", leased(change::add_slots)),
    ("cluster|addslotsrange", leased(change::add_slots_range)),
    ("cluster|bumpepoch", leased(change::bump_epoch)),
    ("cluster|cancelslotmigrations", leased(migrations::cancel)),
    ("cluster|count-failure-reports", leased(count_failure_reports)),
    (
        "cluster|countkeysinslot",
        leased(count_keys_in_slot).with_undeclared_keys(),
    ),
    ("cluster|delslots", leased(change::delete_slots)),
    ("cluster|delslotsrange", leased(change::delete_slots_range)),
    ("cluster|failover", leased(change::failover)),
    ("cluster|flushslot", super::context::exclusive(flush::flush_slot)),
    ("cluster|flushslots", leased(change::flush_slots)),
    ("cluster|forget", leased(change::forget)),
    ("cluster|getkeysinslot", leased(keys_in_slot).with_undeclared_keys()),
    ("cluster|getslotmigrations", leased(migrations::list)),
    ("cluster|help", leased(help::help)),
    ("cluster|info", leased(info)),
    ("cluster|keyslot", leased(key_slot)),
    ("cluster|links", leased(topology::links)),
    ("cluster|meet", leased(change::meet)),
    ("cluster|migrateslots", leased(migrations::migrate)),
    ("cluster|myid", leased(my_id)),
    ("cluster|myshardid", leased(my_shard_id)),
    ("cluster|nodes", leased(nodes)),
    ("cluster|replicas", leased(replicas)),
    ("cluster|replicate", leased(change::replicate)),
    ("cluster|reset", leased(change::reset)),
    ("cluster|saveconfig", leased(change::save_config)),
    ("cluster|set-config-epoch", leased(change::set_config_epoch)),
    ("cluster|setslot", leased(change::set_slot)),
    ("cluster|shards", leased(topology::shards)),
    ("cluster|slaves", leased(replicas)),
    (
        "cluster|slot-stats",
        leased(statistics::slot_stats).with_undeclared_keys(),
    ),
    ("cluster|slots", leased(topology::slots)),
    ("cluster|syncslots", leased(syncslots::sync_slots)),
    ("clusterscan", leased(scan::cluster_scan).with_undeclared_keys()),
    ("readonly", leased(read_only)),
    ("readwrite", leased(read_write)),
];

/// The error of commands that need a cluster.
pub(super) const CLUSTER_DISABLED: CommandError =
    CommandError::constant("ERR This instance has cluster support disabled");

/// Returns the cluster, or the error without one.
fn require_cluster<'a>(ctx: &Context<'a, '_>) -> Result<&'a Cluster, CommandError> {
    ctx.server.cluster.as_ref().ok_or(CLUSTER_DISABLED)
}

/// Runs `read` on the state.
fn with_state<R>(ctx: &Context<'_, '_>, read: impl FnOnce(&ClusterState) -> R) -> Result<R, CommandError> {
    let cluster = require_cluster(ctx)?;
    Ok(read(&crate::cluster_node::topology::lock_state(ctx.server, cluster)))
}

/// Parses the number of a slot.
fn parse_slot(word: &[u8]) -> Result<SlotIndex, CommandError> {
    parse_i64(word)
        .and_then(SlotIndex::parse)
        .ok_or(CommandError::constant("ERR Invalid or out of range slot"))
}

/// Returns the error of a subcommand with too many or too few words where the metadata permits them.
fn wrong_argument_count(ctx: &Context<'_, '_>) -> CommandError {
    CommandError::with_word(
        "ERR unknown subcommand or wrong number of arguments for '",
        ctx.arg(1),
        "'. Try CLUSTER HELP.",
    )
}

/// Returns the parts of a client on which the addresses of nodes depend.
fn requester_info(client: &Client) -> RequesterInfo {
    RequesterInfo {
        ipv6: client.local_address.starts_with('['),
        tls: client.flags.contains(ClientFlags::TLS),
    }
}

// ---- connections ------------------------------------------------------------------------------------------

fn set_client_flag(ctx: &mut Context<'_, '_>, flag: ClientFlags, on: bool) -> CommandResult {
    ctx.client.flags.set(flag, on);
    ctx.reply.ok();
    Ok(())
}

fn asking(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    set_client_flag(ctx, ClientFlags::ASKING, true)
}

fn read_only(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_client_flag(ctx, ClientFlags::READONLY, true)
}

fn read_write(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_client_flag(ctx, ClientFlags::READONLY, false)
}

// ---- looking ----------------------------------------------------------------------------------------------

fn info(ctx: &mut Context<'_, '_>) -> CommandResult {
    let up = require_cluster(ctx)?.view().is_up;
    let text = with_state(ctx, |state| nodes_text::info_text(state, up))?;
    ctx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn nodes(ctx: &mut Context<'_, '_>) -> CommandResult {
    let origin = requester_info(ctx.client);
    let text = with_state(ctx, |state| nodes_text::nodes_text(state, origin))?;
    ctx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn my_id(ctx: &mut Context<'_, '_>) -> CommandResult {
    let id = with_state(ctx, |state| state.myself)?;
    ctx.reply.bulk(id.as_bytes());
    Ok(())
}

fn my_shard_id(ctx: &mut Context<'_, '_>) -> CommandResult {
    let shard = with_state(ctx, |state| state.me().shard)?;
    ctx.reply.bulk(shard.as_bytes());
    Ok(())
}

/// Clients that only compute slots may use any server, so this is the only subcommand that works without a cluster.
fn key_slot(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.integer(cluster_slot(ctx.arg(2)).get().into());
    Ok(())
}

fn unknown_node_error(word: &[u8]) -> CommandError {
    CommandError::with_word("ERR Unknown node ", word, "")
}

fn replicas(ctx: &mut Context<'_, '_>) -> CommandResult {
    let origin = requester_info(ctx.client);
    let lines = with_state(ctx, |state| {
        let node = state
            .node_by_id(ctx.arg(2))
            .ok_or_else(|| unknown_node_error(ctx.arg(2)))?;
        if node.is_replica() {
            return Err(CommandError::constant("ERR The specified node is not a master"));
        }
        let line = |replica: &Node| nodes_text::node_line(state, replica, origin);
        Ok(state.replicas(node.id).map(line).collect::<Vec<String>>())
    })??;
    ctx.reply.array(lines.len());
    for line in lines {
        ctx.reply.bulk(line.as_bytes());
    }
    Ok(())
}

fn count_failure_reports(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.now_ms;
    let count = with_state(ctx, |state| {
        let node = state
            .node_by_id(ctx.arg(2))
            .ok_or_else(|| unknown_node_error(ctx.arg(2)))?;
        if node.flags.intersects(NodeFlags::FAIL) {
            return Ok::<usize, CommandError>(0);
        }
        Ok(state.failure_reports(node, now_ms))
    })??;
    ctx.reply.integer(count as i64);
    Ok(())
}

// ---- keys of a slot ---------------------------------------------------------------------------------------

/// Passes a slot to `visit`. Returns `None` if another thread is writing it; the command is then put off.
fn read_slot<R>(
    ctx: &mut Context<'_, '_>,
    slot: SlotIndex,
    visit: impl FnOnce(&crate::keyspace::Slot) -> R,
) -> Option<R> {
    let access = crate::keyspace::walk::WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    let seen = access.read_slot(slot.index(), visit);
    if seen.is_none() {
        ctx.defer_until_free(slot);
    }
    seen
}

fn count_keys_in_slot(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let slot = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let slot = SlotIndex::parse(slot).ok_or(CommandError::constant("ERR Invalid slot"))?;
    let db = ctx.keys.db;
    let count = |slot: &crate::keyspace::Slot| slot.table(db).map_or(0, |table| table.len());
    if let Some(keys) = read_slot(ctx, slot, count) {
        ctx.reply.integer(keys as i64);
    }
    Ok(())
}

fn keys_in_slot(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let slot = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let count = parse_i64(ctx.arg(3)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let invalid = CommandError::constant("ERR Invalid slot or number of keys");
    let slot = SlotIndex::parse(slot).ok_or(invalid.clone())?;
    let count = usize::try_from(count).map_err(|_| invalid)?;
    let (db, protocol) = (ctx.keys.db, ctx.reply.protocol);
    let found = read_slot(ctx, slot, |slot| {
        let (mut bytes, mut found) = (Vec::new(), 0);
        for entry in slot.table(db).iter().flat_map(|table| table.iter()).take(count) {
            Reply::new(&mut bytes, protocol).bulk(entry.key());
            found += 1;
        }
        (bytes, found)
    });
    if let Some((bytes, found)) = found {
        ctx.reply.array(found);
        ctx.reply.raw(&bytes);
    }
    Ok(())
}
