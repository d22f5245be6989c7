//! The subcommands of atomic slot migration: they check requests, and create, show and end jobs. The thread of
//! [`crate::slot_migration`] performs the jobs.

use std::sync::Arc;

use weft_base::SlotIndex;
use weft_resp::number::parse_i64;

use super::change::describe_client;
use super::{parse_slot, require_cluster, with_state};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::{CommandError, c_string_prefix};
use crate::observability::log;
use crate::slot_migration::job::{JobKind, JobNodes, JobState, MigrationJob, SlotRanges};
use weft_cluster::node::NodeId;
use weft_cluster::state::ClusterState;
use weft_modules::module::loading::loaded;
use weft_modules::module::{Module, options};
use weft_os::atomic::Ordering;

/// The error of a migration that would begin while a CLUSTER SETSLOT is under way.
pub(super) const SET_SLOT_UNDER_WAY: CommandError =
    CommandError::constant("ERR A CLUSTER SETSLOT has not taken effect yet on this node.");

/// The slots named in a request.
pub(super) struct RequestedSlots {
    /// The ranges.
    pub ranges: SlotRanges,
    /// The node that owns all of them; `None` if the owners were not checked.
    pub owner: Option<NodeId>,
    /// The index of the argument behind the ranges.
    pub end: usize,
}

/// Parses the slot ranges that begin with argument `start`. They end before the first argument that is not a number.
/// With the cluster state, it checks that one node owns all slots.
pub(super) fn parse_slots(
    ctx: &Context<'_, '_>,
    state: Option<&ClusterState>,
    start: usize,
) -> Result<RequestedSlots, CommandError> {
    let (mut ranges, mut owner, mut index) = (SlotRanges::new(), None, start);
    while index < ctx.argc() && parse_i64(ctx.arg(index)).is_some() {
        let first = parse_slot(ctx.arg(index))?;
        if index + 1 >= ctx.argc() {
            return Err(CommandError::constant("ERR No end slot for final slot range"));
        }
        let last = parse_slot(ctx.arg(index + 1))?;
        if first > last {
            return Err(CommandError::from_text(format!(
                "ERR Start slot number {first} is greater than end slot number {last}."
            )));
        }
        if let Some(state) = state {
            check_owner(state, &mut owner, first, last)?;
        }
        if let Some((other_first, other_last)) = ranges.iter().find(|(from, to)| last >= *from && first <= *to) {
            return Err(CommandError::from_text(format!(
                "ERR Slot range {first}-{last} overlaps with previous range {other_first}-{other_last}."
            )));
        }
        ranges.push((first, last));
        index += 2;
    }
    if ranges.is_empty() {
        return Err(CommandError::constant("ERR No slot ranges specified"));
    }
    Ok(RequestedSlots {
        ranges,
        owner,
        end: index,
    })
}

/// Checks that one node owns all slots of a range and those before.
fn check_owner(
    state: &ClusterState,
    owner: &mut Option<NodeId>,
    first: SlotIndex,
    last: SlotIndex,
) -> Result<(), CommandError> {
    for slot in first.to(last) {
        match (state.owner(slot), *owner) {
            (None, _) => return Err(CommandError::from_text(format!("ERR Slot {slot} has no node served."))),
            (Some(node), Some(known)) if node != known => {
                return Err(CommandError::constant("ERR Requested slots span multiple shards"));
            }
            (Some(node), _) => *owner = Some(node),
        }
    }
    Ok(())
}

/// Checks if this node may begin a migration.
pub(super) fn check_may_begin(state: &ClusterState) -> Result<(), CommandError> {
    let handles = |module: &Arc<Module>| module.has_option(options::HANDLE_ATOMIC_SLOT_MIGRATION);
    if let Some(module) = loaded().iter().find(|module| !handles(module)) {
        return Err(CommandError::from_text(format!(
            "ERR The module {} does not support atomic slot migrations. Please ensure all modules have declared support \
             for atomic slot migration and try again",
            module.name()
        )));
    }
    let refused = if state.me().is_replica() {
        "ERR Slot migration can only be used on primary nodes."
    } else if !state.importing.is_empty() {
        "ERR Slots are being manually imported"
    } else if !state.migrating.is_empty() {
        "ERR Slots are being manually migrated"
    } else {
        return Ok(());
    };
    Err(CommandError::constant(refused))
}

/// Returns `true` if an argument is this word in any case. As in Valkey, it ends at its first zero byte: `valkey-cli`
/// sends one behind SLOTSRANGE.
pub(super) fn is_word(argument: &[u8], word: &str) -> bool {
    c_string_prefix(argument).eq_ignore_ascii_case(word.as_bytes())
}

/// Returns the slots of some ranges.
pub(super) fn slots_of(ranges: &SlotRanges) -> impl Iterator<Item = SlotIndex> {
    ranges.iter().flat_map(|(first, last)| first.to(*last))
}

pub(super) fn migrate(ctx: &mut Context<'_, '_>) -> CommandResult {
    let jobs = with_state(ctx, |state| parse_request(ctx, state))??;
    let client = describe_client(ctx);
    let mut locked = ctx.server.slot_migrations.lock();
    if locked.is_start_excluded() {
        return Err(SET_SLOT_UNDER_WAY);
    }
    for slot in jobs.iter().flat_map(|job| slots_of(&job.ranges)) {
        // Another client may have been faster.
        if locked.is_moving(JobKind::Export, slot) {
            return Err(already_migrating(slot));
        }
    }
    for job in jobs {
        log::notice!(
            "Slot migration initiated through CLUSTER MIGRATESLOTS command: {} (user request from '{client}')",
            job.description()
        );
        locked.add(job);
    }
    drop(locked);
    ctx.server.background.wake_migration_thread();
    ctx.reply.ok();
    Ok(())
}

fn already_migrating(slot: SlotIndex) -> CommandError {
    CommandError::from_text(format!("ERR I am already migrating slot {slot}."))
}

/// Returns the jobs of a request.
fn parse_request(ctx: &Context<'_, '_>, state: &ClusterState) -> Result<Vec<MigrationJob>, CommandError> {
    check_may_begin(state)?;
    let is = |index: usize, name: &str| is_word(ctx.arg(index), name);
    let (mut jobs, mut index): (Vec<MigrationJob>, usize) = (Vec::new(), 2);
    while index < ctx.argc() {
        if !is(index, "slotsrange") {
            return Err(CommandError::SYNTAX);
        }
        let requested = parse_slots(ctx, Some(state), index + 1)?;
        if requested.owner != Some(state.myself) {
            return Err(CommandError::constant("ERR Slots are not served by this node."));
        }
        let locked = ctx.server.slot_migrations.lock();
        if let Some(slot) = slots_of(&requested.ranges).find(|slot| locked.is_moving(JobKind::Export, *slot)) {
            return Err(already_migrating(slot));
        }
        drop(locked);
        let is_taken = |slot| jobs.iter().any(|job| job.slots.contains(slot));
        if slots_of(&requested.ranges).any(is_taken) {
            return Err(CommandError::constant("ERR Slot ranges in migrations overlap"));
        }
        index = requested.end;
        if index + 1 >= ctx.argc() || !is(index, "node") {
            return Err(CommandError::SYNTAX);
        }
        let nodes = parse_target(state, ctx.arg(index + 1))?;
        let name = *NodeId::random().as_bytes();
        jobs.push(MigrationJob::new(name, JobKind::Export, requested.ranges, Some(nodes)));
        index += 2;
    }
    Ok(jobs)
}

fn parse_target(state: &ClusterState, word: &[u8]) -> Result<JobNodes, CommandError> {
    if word.len() != crate::slot_migration::job::JOB_NAME_BYTES {
        return Err(CommandError::with_word("ERR Invalid node name: ", word, ""));
    }
    let Some(node) = NodeId::parse(word).and_then(|id| state.nodes.get(&id)) else {
        return Err(CommandError::with_word("ERR Unknown node name: ", word, ""));
    };
    if node.id == state.myself {
        return Err(CommandError::constant("ERR Target node can not be this node."));
    }
    Ok(JobNodes {
        source: state.myself,
        target: node.id,
        other_name: node.announced.human_name.clone(),
    })
}

pub(super) fn cancel(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    if !ctx.server.slot_migrations.has_exports() {
        return Err(CommandError::constant("ERR No migrations ongoing"));
    }
    for job in ctx.server.slot_migrations.lock().iter_mut() {
        if job.kind == JobKind::Export && job.state.is_in_progress() {
            job.finish(JobState::Cancelled, None, false);
        }
    }
    let client = describe_client(ctx);
    log::notice!("Canceled all in progress slot migrations (user request from '{client}')");
    ctx.server.background.wake_migration_thread();
    ctx.reply.ok();
    Ok(())
}

pub(super) fn list(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let jobs = ctx.server.slot_migrations.lock();
    let reply = &mut ctx.reply;
    reply.array(jobs.iter().len());
    for job in jobs.iter() {
        reply.map(if job.is_tracked_only { 10 } else { 12 });
        let operation: &[u8] = match job.kind {
            JobKind::Import => b"IMPORT",
            JobKind::Export => b"EXPORT",
        };
        let ranges = job.ranges_text();
        for (field, text) in [
            ("name", &job.name[..]),
            ("operation", operation),
            ("slot_ranges", ranges.as_bytes()),
        ] {
            reply.bulk(field.as_bytes());
            reply.bulk(text);
        }
        if !job.is_tracked_only {
            for (field, node) in [("target_node", job.target), ("source_node", job.source)] {
                reply.bulk(field.as_bytes());
                reply.bulk(node.as_ref().map_or(&[][..], |node| node.as_bytes()));
            }
        }
        for (field, time_s) in [
            ("create_time", job.created_s),
            ("last_update_time", job.updated_s),
            ("last_ack_time", job.acknowledged_s),
        ] {
            reply.bulk(field.as_bytes());
            reply.integer(time_s as i64);
        }
        for (field, text) in [
            ("state", job.state.as_str()),
            ("message", job.message.as_deref().unwrap_or_default()),
        ] {
            reply.bulk(field.as_bytes());
            reply.bulk(text.as_bytes());
        }
        for (field, bytes) in [
            ("cow_size", &job.progress.before_image_bytes),
            ("remaining_repl_size", &job.progress.unsent_bytes),
        ] {
            reply.bulk(field.as_bytes());
            reply.integer(bytes.load(Ordering::Relaxed) as i64);
        }
    }
    Ok(())
}
