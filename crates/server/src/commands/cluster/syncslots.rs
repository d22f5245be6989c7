//! CLUSTER SYNCSLOTS: begins an import on the request of the source, and follows the imports of this node's primary.
//! All other messages of the migration protocol are for connections that the migration thread owns.

use std::sync::Arc;

use weft_base::SlotIndex;

use super::migrations::{RequestedSlots, SET_SLOT_UNDER_WAY, check_may_begin, is_word, parse_slots, slots_of};
use super::{require_cluster, with_state};
use crate::commands::context::{CommandResult, Context, NextStep};
use crate::commands::error::CommandError;
use crate::net::client::ClientFlags;
use crate::net::connection::Connection;
use crate::observability::log;
use crate::propagation::LogTarget;
use crate::slot_migration::job::{
    CONNECTION_LOST, JobKind, JobName, JobNodes, JobProgress, JobState, MigrationJob, SlotRanges,
};
use crate::state::{ConnectionReceiver, Server, SlotMigrationCommand};
use weft_cluster::node::NodeId;
use weft_cluster::state::ClusterState;

/// The messages of an established migration.
const MESSAGES: [&str; 6] = [
    "snapshot-eof",
    "request-pause",
    "paused",
    "request-failover",
    "failover-granted",
    "ack",
];

pub(super) fn sync_slots(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let subcommand = ctx.arg(2);
    if is_word(subcommand, "establish") {
        return establish(ctx);
    }
    if is_word(subcommand, "finish") {
        return finish(ctx);
    }
    if ctx.client.flags.contains(ClientFlags::PRIMARY) {
        return Ok(());
    }
    if is_word(subcommand, "capa") {
        // As in Valkey, it has no reply: the source of a migration reads the reply to ESTABLISH next. Transactions and
        // scripts need one.
        if !ctx.may_block {
            ctx.reply.ok();
        }
        return Ok(());
    }
    let message = MESSAGES.into_iter().find(|name| is_word(subcommand, name));
    Err(message.map_or(CommandError::SYNTAX, |name| {
        CommandError::from_text(format!(
            "ERR CLUSTER SYNCSLOTS {} should only be used by slot migration clients",
            name.to_ascii_uppercase()
        ))
    }))
}

/// Returns `true` if the command comes from this node's primary or the append-only file.
fn is_replayed(ctx: &Context<'_, '_>) -> bool {
    ctx.client
        .flags
        .intersects(ClientFlags::PRIMARY.union(ClientFlags::REPLAY))
}

fn parse_name(word: &[u8]) -> Result<JobName, CommandError> {
    JobName::try_from(word).map_err(|_| CommandError::SYNTAX)
}

// ---- the beginning ----------------------------------------------------------------------------------------

/// The options of ESTABLISH.
#[derive(Default)]
struct EstablishRequest {
    source: Option<NodeId>,
    name: Option<JobName>,
    slots: Option<RequestedSlots>,
}

fn establish(ctx: &mut Context<'_, '_>) -> CommandResult {
    let is_tracked = is_replayed(ctx);
    if !is_tracked && !ctx.may_block {
        return Err(CommandError::constant(
            "ERR CLUSTER SYNCSLOTS ESTABLISH is not allowed in a transaction or script",
        ));
    }
    let job = with_state(ctx, |state| {
        if !is_tracked {
            check_may_begin(state)?;
        }
        let request = parse_establish(ctx, state, is_tracked)?;
        create_job(ctx, state, request, is_tracked)
    })??;
    log::notice!("New slot import job created: {}.", job.description());
    let (progress, slots) = (job.progress.clone(), job.slots.clone());
    let mut jobs = ctx.server.slot_migrations.lock();
    if !is_tracked && jobs.is_start_excluded() {
        return Err(SET_SLOT_UNDER_WAY);
    }
    // Another source may have been faster.
    if slots.iter().any(|slot| jobs.is_moving(JobKind::Import, slot)) {
        return Err(ALREADY_IMPORTING);
    }
    jobs.add(job);
    drop(jobs);
    ctx.keys.effects.log_for(LogTarget::all());
    if is_tracked {
        mark_slots(ctx.server, slots.iter(), true);
        // If this node becomes a primary, it cleans the import up, and older keys with it.
        let cluster = require_cluster(ctx)?;
        cluster.lock(&ctx.server.config).forget_leftover(&slots);
        ctx.reply.ok();
        return Ok(());
    }
    // The migration thread marks the slots, and answers.
    let import = ArrivingImport {
        server: ctx.server.clone(),
        progress,
        has_arrived: false,
    };
    let take: ConnectionReceiver = Box::new(move |connection| import.hand_over(connection));
    ctx.next_step = NextStep::TakeConnection(Box::new((ctx.permission_check(), take)));
    Ok(())
}

/// An import whose source is on its way to the migration thread. The import fails if the source is closed before it
/// arrives there: its slots could not be imported again for long.
struct ArrivingImport {
    server: Arc<Server>,
    progress: Arc<JobProgress>,
    has_arrived: bool,
}

impl ArrivingImport {
    /// Gives the connection of the source to the migration thread.
    fn hand_over(mut self, mut connection: Box<Connection>) {
        connection.client.flags.set(ClientFlags::SLOT_IMPORT, true);
        self.has_arrived = true;
        let progress = self.progress.clone();
        self.server.hand_over(connection, |connection| {
            let order = SlotMigrationCommand::AdoptSource(connection, progress);
            self.server.background.send_to_migration_thread(order);
        });
    }
}

impl Drop for ArrivingImport {
    fn drop(&mut self) {
        if self.has_arrived {
            return;
        }
        let is_replica = self.server.replication.is_replica();
        let mut jobs = self.server.slot_migrations.lock();
        let is_meant =
            |job: &&mut MigrationJob| Arc::ptr_eq(&job.progress, &self.progress) && job.state.is_in_progress();
        if let Some(job) = jobs.iter_mut().find(is_meant) {
            job.fail(CONNECTION_LOST, is_replica);
        }
        drop(jobs);
        self.server.background.wake_migration_thread();
    }
}

const ALREADY_IMPORTING: CommandError =
    CommandError::constant("ERR Slot is already being imported on the target by a different migration");

fn parse_establish(
    ctx: &Context<'_, '_>,
    state: &ClusterState,
    is_tracked: bool,
) -> Result<EstablishRequest, CommandError> {
    let mut request = EstablishRequest::default();
    let mut index = 3;
    while index < ctx.argc() {
        let is = |name: &str| is_word(ctx.arg(index), name);
        let has_value = index + 1 < ctx.argc();
        if is("slotsrange") && request.slots.is_none() {
            // An import that is replayed may have ended later, and its slots may have come to several nodes.
            let slots = parse_slots(ctx, (!is_tracked).then_some(state), index + 1)?;
            let jobs = ctx.server.slot_migrations.lock();
            if slots_of(&slots.ranges).any(|slot| jobs.is_moving(JobKind::Import, slot)) {
                return Err(ALREADY_IMPORTING);
            }
            index = slots.end;
            request.slots = Some(slots);
            continue;
        }
        if is("source") && request.source.is_none() && has_value {
            let word = ctx.arg(index + 1);
            parse_name(word)?;
            if !is_tracked {
                request.source = Some(parse_source(state, word)?);
            }
        } else if is("name") && request.name.is_none() && has_value {
            request.name = Some(parse_name(ctx.arg(index + 1))?);
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 2;
    }
    Ok(request)
}

fn parse_source(state: &ClusterState, word: &[u8]) -> Result<NodeId, CommandError> {
    match NodeId::parse(word).filter(|id| state.nodes.contains_key(id)) {
        None => Err(CommandError::constant("ERR Target node does not know the source node")),
        Some(id) if id == state.myself => Err(CommandError::constant("ERR Source node is target node itself")),
        Some(id) => Ok(id),
    }
}

fn create_job(
    ctx: &Context<'_, '_>,
    state: &ClusterState,
    request: EstablishRequest,
    is_tracked: bool,
) -> Result<MigrationJob, CommandError> {
    let (Some(name), Some(slots)) = (request.name, request.slots) else {
        return Err(CommandError::SYNTAX);
    };
    let ranges: SlotRanges = slots.ranges;
    if is_tracked {
        return Ok(MigrationJob::new(name, JobKind::Import, ranges, None));
    }
    let source = request.source.ok_or(CommandError::SYNTAX)?;
    if Some(source) != slots.owner {
        return Err(CommandError::constant(
            "ERR Target node does not agree about current slot ownership",
        ));
    }
    debug_assert!(ctx.may_block, "the connection leaves its worker");
    let nodes = JobNodes {
        source,
        target: state.myself,
        other_name: state
            .nodes
            .get(&source)
            .map(|node| node.announced.human_name.clone())
            .unwrap_or_default(),
    };
    Ok(MigrationJob::new(name, JobKind::Import, ranges, Some(nodes)))
}

fn mark_slots(server: &Server, slots: impl Iterator<Item = SlotIndex>, is_importing: bool) {
    for slot in slots {
        server.keyspace.slots.header(slot.index()).set_importing(is_importing);
    }
}

// ---- the end ----------------------------------------------------------------------------------------------

fn finish(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (mut state, mut name, mut message) = (None, None, None);
    let mut index = 3;
    while index < ctx.argc() {
        let is = |word: &str| is_word(ctx.arg(index), word);
        let value = (index + 1 < ctx.argc())
            .then(|| ctx.arg(index + 1))
            .ok_or(CommandError::SYNTAX)?;
        if is("state") && state.is_none() {
            state = Some(value);
        } else if is("name") && name.is_none() {
            name = Some(parse_name(value)?);
        } else if is("message") && message.is_none() {
            message = Some(String::from_utf8_lossy(value).into_owned());
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 2;
    }
    let (Some(state), Some(name)) = (state, name) else {
        return Err(CommandError::SYNTAX);
    };
    let state = match state.to_ascii_lowercase().as_slice() {
        b"success" => JobState::Success,
        b"failed" => JobState::Failed,
        _ => return Err(CommandError::SYNTAX),
    };
    let mut jobs = ctx.server.slot_migrations.lock();
    // Only the node that performs an import ends it.
    let job = jobs
        .find_in_progress(JobKind::Import, &name)
        .filter(|_| is_replayed(ctx));
    let Some(job) = job else {
        if is_replayed(ctx) {
            // The primary has begun the import before this node followed it.
            return Ok(());
        }
        return Err(CommandError::constant("ERR No such slot migration job"));
    };
    job.finish(state, message.as_deref(), false);
    let slots = job.slots.clone();
    drop(jobs);
    mark_slots(ctx.server, slots.iter(), false);
    // This node may have heard only meanwhile that its primary had lost the slots before.
    let cluster = require_cluster(ctx)?;
    cluster.lock(&ctx.server.config).forget_leftover(&slots);
    ctx.keys.effects.log_for(LogTarget::all());
    ctx.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests;
