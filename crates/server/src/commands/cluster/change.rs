//! The subcommands of CLUSTER that change this node's state. This module parses arguments; the rules are in
//! [`weft_cluster::changes`].

use std::sync::Arc;
use std::time::Duration;

use weft_base::{ClientId, DbIndex, LogSequence, ParkedClient, SlotIndex, ThreadIndex};
use weft_resp::Protocol;
use weft_resp::number::parse_i64;

use super::{parse_slot, require_cluster, wrong_argument_count};
use crate::cluster_node::topology;
use crate::cluster_node::topology::{AwaitedCommand, PropagatedCommand, SlotKeyCounts};
use crate::commands::context::{BackgroundStep, CommandResult, Context, NextStep, build_reply, count_late_error};
use crate::commands::error::CommandError;
use crate::commands::scripting::script::busy_reply_of_run;
use crate::keyspace::Seat;
use crate::net::client::ClientFlags;
use crate::observability::log;
use crate::slot_migration::MigrationExclusion;
use crate::state::{BackgroundJob, Message, PermissionLoss, Server};
use weft_cluster::Cluster;
use weft_cluster::changes::SlotChange;
use weft_cluster::manual_failover::FailoverMode;
use weft_cluster::refusal::ClusterRefusal;
use weft_cluster::state::ClusterState;
use weft_config::id;

/// The reason for which a subcommand is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ChangeRefusal {
    /// The cluster state refuses the change.
    #[error(transparent)]
    State(#[from] ClusterRefusal),
    /// This node has keys.
    #[error("DB must be empty to perform CLUSTER FLUSHSLOTS.")]
    FlushSlotsWithKeys,
    /// This primary has keys.
    #[error("CLUSTER RESET can't be called with master nodes containing keys")]
    ResetWithKeys,
    /// MEET names an address that is none.
    #[error("Invalid node address specified: {ip}:{port}")]
    InvalidAddress {
        /// The IP address as the client wrote it.
        ip: String,
        /// The port as the client wrote it.
        port: String,
    },
    /// A slot is being imported as a whole.
    #[error("Slot import in progress.")]
    ImportInProgress,
    /// A slot is being exported as a whole.
    #[error("Slot export in progress.")]
    ExportInProgress,
    /// Nothing follows the word TIMEOUT.
    #[error("Missing timeout value")]
    MissingTimeout,
    /// The timeout is not a number.
    #[error("timeout is not an integer or out of range")]
    InvalidTimeout,
    /// The timeout is negative.
    #[error("timeout is negative")]
    NegativeTimeout,
    /// The timeout ends after the last time that 64 bits can express.
    #[error("timeout is out of range")]
    TimeoutOutOfRange,
}

/// Makes a change in the background and answers with OK, or with why not.
fn change_cluster(
    ctx: &mut Context<'_, '_>,
    change: impl FnOnce(&mut ClusterState, &SlotKeyCounts<'_, '_>) -> Result<(), ChangeRefusal> + Send + 'static,
) -> CommandResult {
    change_cluster_with_reply(ctx, |state, keys| change(state, keys).map(|()| "OK".to_owned()))
}

/// Like [`change_cluster`], with a custom reply.
fn change_cluster_with_reply(
    ctx: &mut Context<'_, '_>,
    change: impl FnOnce(&mut ClusterState, &SlotKeyCounts<'_, '_>) -> Result<String, ChangeRefusal> + Send + 'static,
) -> CommandResult {
    require_cluster(ctx)?;
    // This node must do what its primary has done.
    let is_replicated = ctx.client.flags.contains(ClientFlags::PRIMARY);
    ctx.reply_from_background(move |server, seat| {
        let cluster = cluster_of_server(server);
        let changed = match is_replicated {
            true => Ok(topology::change_state(server, cluster, seat, change)),
            false => topology::change_state_for_client(server, cluster, seat, change),
        };
        match changed {
            Ok(Ok(text)) => build_reply(Protocol::Resp2, |reply| reply.simple(&text)),
            Ok(Err(refusal)) => refusal_bytes(&refusal),
            Err(run) => busy_reply_of_run(&server.config, &run),
        }
    });
    Ok(())
}

// ---- slots ------------------------------------------------------------------------------------------------

fn change_slots(ctx: &mut Context<'_, '_>, ranges: Vec<(SlotIndex, SlotIndex)>, delete: bool) -> CommandResult {
    change_cluster(ctx, move |state, _| Ok(state.change_slots(&ranges, delete)?))
}

fn parse_slots(ctx: &Context<'_, '_>) -> Result<Vec<(SlotIndex, SlotIndex)>, CommandError> {
    require_cluster(ctx)?;
    (2..ctx.argc())
        .map(|index| parse_slot(ctx.arg(index)).map(|slot| (slot, slot)))
        .collect()
}

pub(super) fn add_slots(ctx: &mut Context<'_, '_>) -> CommandResult {
    let slots = parse_slots(ctx)?;
    change_slots(ctx, slots, false)
}

pub(super) fn delete_slots(ctx: &mut Context<'_, '_>) -> CommandResult {
    let slots = parse_slots(ctx)?;
    change_slots(ctx, slots, true)
}

pub(super) fn add_slots_range(ctx: &mut Context<'_, '_>) -> CommandResult {
    change_ranges(ctx, false)
}

pub(super) fn delete_slots_range(ctx: &mut Context<'_, '_>) -> CommandResult {
    change_ranges(ctx, true)
}

fn change_ranges(ctx: &mut Context<'_, '_>, delete: bool) -> CommandResult {
    require_cluster(ctx)?;
    if ctx.argc() % 2 == 1 {
        return Err(CommandError::from_text(format!(
            "ERR wrong number of arguments for '{}' command",
            ctx.command.full_name
        )));
    }
    let mut ranges = Vec::new();
    for index in (2..ctx.argc()).step_by(2) {
        let (first, last) = (parse_slot(ctx.arg(index))?, parse_slot(ctx.arg(index + 1))?);
        if first > last {
            return Err(CommandError::from_text(format!(
                "ERR start slot number {first} is greater than end slot number {last}"
            )));
        }
        ranges.push((first, last));
    }
    change_slots(ctx, ranges, delete)
}

pub(super) fn flush_slots(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let server = ctx.server.clone();
    change_cluster(ctx, move |state, _| {
        let counts = &server.keyspace.counts;
        if DbIndex::all(counts.databases()).any(|db| counts.keys(db) > 0) {
            return Err(ChangeRefusal::FlushSlotsWithKeys);
        }
        let myself = state.myself;
        state.delete_slots_of(myself);
        state.todo.save = true;
        Ok(())
    })
}

pub(super) fn set_slot(ctx: &mut Context<'_, '_>) -> CommandResult {
    const INVALID: CommandError =
        CommandError::constant("ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP");
    require_cluster(ctx)?;
    let is_replicated = ctx.client.flags.contains(ClientFlags::PRIMARY);
    if !is_replicated && ctx.server.replication.is_replica() {
        return Err(CommandError::constant("ERR Please use SETSLOT only with masters."));
    }
    if !is_replicated && let Err(refusal) = check_no_migration(ctx.server) {
        return Err(CommandError::from_text(format!("ERR {refusal}")));
    }
    let slot = parse_slot(ctx.arg(2))?;
    let is = |name: &str| ctx.arg(3).eq_ignore_ascii_case(name.as_bytes());
    let named = (ctx.argc() >= 5).then(|| ctx.arg(4).to_vec());
    let (slot_change, options) = match named {
        _ if is("stable") => (SlotChange::Stable, 4),
        Some(node) if is("migrating") => (SlotChange::Migrating(node), 5),
        Some(node) if is("importing") => (SlotChange::Importing(node), 5),
        Some(node) if is("node") => (SlotChange::Node(node), 5),
        _ => return Err(INVALID),
    };
    let timeout = parse_timeout(ctx, options);
    if ctx.client.flags.contains(ClientFlags::PRIMARY) {
        return change_cluster(ctx, move |state, keys| {
            Ok(state.apply_propagated_slot_change(slot, &slot_change, keys.count_in_slot(slot))?)
        });
    }
    let words: Vec<Vec<u8>> = (0..ctx.argc()).map(|index| ctx.arg(index).to_vec()).collect();
    let set_slot = SetSlotRequest {
        slot,
        change: slot_change,
        arguments: words,
        timeout,
    };
    if !ctx.may_block {
        // In a transaction or a script the command waits for the reply.
        let client = ctx.client.id;
        ctx.run_in_background(Box::new(move |server, seat| {
            set_slot.propagate_and_apply(server, seat, client)
        }));
        return Ok(());
    }
    let command = ctx.command.id as usize;
    let mut check_permission = ctx.permission_check();
    ctx.next_step = NextStep::AwaitBackground(Box::new(Box::new(move |requester| {
        Box::new(move |server, seat| {
            match check_permission(server, ThreadIndex::new(seat.index())) {
                Ok(()) => {}
                Err(PermissionLoss::Denied(bytes)) => return server.send_reply(requester, bytes, LogSequence::NONE),
                Err(PermissionLoss::ClientEnds) => return,
            }
            let CheckedSetSlot { patience, exclusion } = match set_slot.check_request(server, seat) {
                Ok(checked) => checked,
                Err(bytes) => {
                    return send_delayed_reply(server, seat, requester, command, (bytes, LogSequence::NONE));
                }
            };
            let words = set_slot.arguments.clone();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let begun = topology::propagate_then(server, seat, &words, patience, requester.client, move |propagated| {
                // The replicas have executed the command, so this node does too, even if the client was killed or has
                // lost its permission meanwhile. The reply to a client that was killed is dropped.
                set_slot.into_apply_job(propagated, exclusion, requester, command)
            });
            if let Err(run) = begun {
                let reply = (busy_reply_of_run(&server.config, &run), LogSequence::NONE);
                send_delayed_reply(server, seat, requester, command, reply);
            }
        })
    })));
    Ok(())
}

/// A CLUSTER SETSLOT in progress: it is checked, then sent to the replicas, and then applied on this node.
struct SetSlotRequest {
    slot: SlotIndex,
    change: SlotChange,
    /// The words that the client sent.
    arguments: Vec<Vec<u8>>,
    timeout: Result<Duration, ChangeRefusal>,
}

/// A CLUSTER SETSLOT that was checked.
struct CheckedSetSlot {
    /// The time that replicas may take.
    patience: Duration,
    /// Keeps migrations of whole slots from beginning until the command has taken effect here.
    exclusion: MigrationExclusion,
}

impl SetSlotRequest {
    fn arguments(&self) -> Vec<&[u8]> {
        self.arguments.iter().map(Vec::as_slice).collect()
    }

    /// Checks the order.
    ///
    /// # Errors
    /// The error reply.
    fn check_request(&self, server: &Arc<Server>, seat: &mut Seat) -> Result<CheckedSetSlot, Vec<u8>> {
        let SetSlotRequest { slot, change, .. } = self;
        let checked = topology::change_state_for_client(server, cluster_of_server(server), seat, |state, keys| {
            let exclusion = exclude_migrations(server)?;
            state.check_slot_change(*slot, change, keys.count_in_slot(*slot))?;
            // The arguments of the timeout are checked last, when everything else is valid.
            let patience = self.timeout.clone()?;
            let can_get_keys = match change {
                SlotChange::Importing(_) => true,
                SlotChange::Node(word) => **word == *state.myself.as_bytes(),
                SlotChange::Migrating(_) | SlotChange::Stable => false,
            };
            if can_get_keys {
                // New keys may come. The replicas must have deleted the older ones by the time they hear of that.
                keys.request_emptying(state, *slot);
            }
            Ok::<_, ChangeRefusal>(CheckedSetSlot { patience, exclusion })
        });
        let checked = checked.map_err(|run| busy_reply_of_run(&server.config, &run))?;
        checked.map_err(|refusal| refusal_bytes(&refusal))
    }

    /// Checks the request, sends it to the replicas, waits for them, and applies it. While it waits, other long
    /// commands have the thread.
    fn propagate_and_apply(self, server: &Arc<Server>, seat: &mut Seat, client: ClientId) -> BackgroundStep {
        let CheckedSetSlot { patience, exclusion } = match self.check_request(server, seat) {
            Ok(checked) => checked,
            Err(bytes) => return BackgroundStep::reply(bytes),
        };
        let awaited = topology::propagate(server, seat, &self.arguments(), patience, Some(client));
        match awaited {
            Ok(awaited) => self.await_replicas(server, seat, awaited, exclusion),
            Err(run) => BackgroundStep::reply(busy_reply_of_run(&server.config, &run)),
        }
    }

    /// Applies the request once the replicas have acknowledged it.
    fn await_replicas(
        self,
        server: &Arc<Server>,
        seat: &mut Seat,
        mut awaited: AwaitedCommand,
        exclusion: MigrationExclusion,
    ) -> BackgroundStep {
        let Some(propagated) = awaited.poll(server) else {
            weft_os::thread::sleep(RETRY_PAUSE);
            return BackgroundStep::Continue(Box::new(move |server, seat| {
                self.await_replicas(server, seat, awaited, exclusion)
            }));
        };
        self.apply_as_step(server, seat, propagated, exclusion)
    }

    /// Applies the request, at once or after other work of the thread.
    fn apply_as_step(
        self,
        server: &Arc<Server>,
        seat: &mut Seat,
        propagated: PropagatedCommand,
        exclusion: MigrationExclusion,
    ) -> BackgroundStep {
        let Some((bytes, first_write)) = self.try_apply(server, seat, propagated) else {
            weft_os::thread::sleep(RETRY_PAUSE);
            return BackgroundStep::Continue(Box::new(move |server, seat| {
                self.apply_as_step(server, seat, propagated, exclusion)
            }));
        };
        drop(exclusion);
        BackgroundStep::Reply { bytes, first_write }
    }

    /// Returns a job that applies the request and replies, at once or after other work of the thread.
    fn into_apply_job(
        self,
        propagated: PropagatedCommand,
        exclusion: MigrationExclusion,
        requester: ParkedClient,
        command: usize,
    ) -> BackgroundJob {
        Box::new(move |server, seat| {
            let Some(reply) = self.try_apply(server, seat, propagated) else {
                weft_os::thread::sleep(RETRY_PAUSE);
                let job = self.into_apply_job(propagated, exclusion, requester, command);
                // Sending fails only while the process ends.
                let _ = server.background.long_commands.send(job);
                return;
            };
            drop(exclusion);
            send_delayed_reply(server, seat, requester, command, reply);
        })
    }

    /// Applies the request if the replicas have acknowledged it. Returns the reply, and the position in the log on
    /// which the reply depends, or none. What replicas may have executed takes effect here, even if that has to wait
    /// for the end of a script that is overdue: `None` is returned then, and the caller tries again later, since the
    /// script may never end.
    fn try_apply(
        &self,
        server: &Arc<Server>,
        seat: &mut Seat,
        propagated: PropagatedCommand,
    ) -> Option<(Vec<u8>, LogSequence)> {
        if !propagated.is_acknowledged {
            return Some((error_bytes(NOT_ACKNOWLEDGED), LogSequence::NONE));
        }
        let cluster = cluster_of_server(server);
        let changed = topology::change_state_for_client(server, cluster, seat, |state, keys| {
            self.change_state(server, state, keys)
        });
        match changed {
            Ok(Ok(())) => Some((
                build_reply(Protocol::Resp2, |reply| reply.ok()),
                propagated.log_sequence,
            )),
            Ok(Err(refusal)) => Some((refusal_bytes(&refusal), LogSequence::NONE)),
            Err(run) if propagated.log_sequence.is_none() => {
                Some((busy_reply_of_run(&server.config, &run), LogSequence::NONE))
            }
            Err(_) => None,
        }
    }

    /// Makes the change in the state of the cluster.
    fn change_state(
        &self,
        server: &Server,
        state: &mut ClusterState,
        keys: &SlotKeyCounts<'_, '_>,
    ) -> Result<(), ChangeRefusal> {
        // This node may have been a replica meanwhile, and have an import of its primary to clean up.
        check_no_migration(server)?;
        Ok(state.change_slot(self.slot, &self.change, keys.count_in_slot(self.slot))?)
    }
}

/// Checks that no slots move as a whole at the moment, and keeps it so.
fn exclude_migrations(server: &Server) -> Result<MigrationExclusion, ChangeRefusal> {
    let jobs = server.slot_migrations.lock();
    check_no_migration(server)?;
    Ok(jobs.exclude_start())
}

/// Checks that no slots move as a whole at the moment.
fn check_no_migration(server: &Server) -> Result<(), ChangeRefusal> {
    let migrations = &server.slot_migrations;
    if migrations.has_imports() {
        return Err(ChangeRefusal::ImportInProgress);
    }
    match migrations.has_exports() {
        true => Err(ChangeRefusal::ExportInProgress),
        false => Ok(()),
    }
}

fn cluster_of_server(server: &Server) -> &Cluster {
    match &server.cluster {
        Some(cluster) => cluster,
        None => unreachable!("cluster mode does not end"),
    }
}

fn error_bytes(error: &str) -> Vec<u8> {
    build_reply(Protocol::Resp2, |reply| reply.error(error))
}

fn refusal_bytes(refusal: &ChangeRefusal) -> Vec<u8> {
    error_bytes(&format!("ERR {refusal}"))
}

/// Answers a client that waits for the end of a command which counts as done already; an error is added to its figures.
/// The reply comes with the position in the log of the change that it acknowledges, or none.
fn send_delayed_reply(
    server: &Server,
    seat: &Seat,
    requester: ParkedClient,
    command: usize,
    (bytes, first_write): (Vec<u8>, LogSequence),
) {
    if let Some(error) = bytes.strip_prefix(b"-") {
        let code = error.split(|byte| matches!(byte, b' ' | b'\r')).next();
        let thread_index = ThreadIndex::new(seat.index());
        count_late_error(server, thread_index, command, code.unwrap_or_default());
    }
    server.worker(requester.worker).send(Message::Reply {
        client: requester.client,
        park_id: requester.park_id,
        bytes,
        first_write,
        log_sequence: first_write,
    });
}

/// The pause before a change that waits for replicas, or for a script that is overdue, is attempted again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// The error of a change that the replicas have not acknowledged in time.
const NOT_ACKNOWLEDGED: &str = "NOREPLICAS Not enough good replicas to write.";

/// The default time that replicas have.
const DEFAULT_ACK_TIMEOUT: Duration = Duration::from_millis(2000);
/// The longest time that replicas may take, for TIMEOUT 0.
const NO_ACK_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 86_400);

/// TIMEOUT is for replicas to acknowledge; words that are no options are passed over, as in Valkey.
fn parse_timeout(ctx: &Context<'_, '_>, from: usize) -> Result<Duration, ChangeRefusal> {
    let mut patience = DEFAULT_ACK_TIMEOUT;
    for index in from..ctx.argc() {
        if !ctx.arg(index).eq_ignore_ascii_case(b"timeout") {
            continue;
        }
        if index + 1 >= ctx.argc() {
            return Err(ChangeRefusal::MissingTimeout);
        }
        patience = match parse_i64(ctx.arg(index + 1)) {
            None => return Err(ChangeRefusal::InvalidTimeout),
            Some(timeout) if timeout < 0 => return Err(ChangeRefusal::NegativeTimeout),
            Some(0) => NO_ACK_TIMEOUT,
            Some(timeout) if timeout > i64::MAX - ctx.now_ms as i64 => return Err(ChangeRefusal::TimeoutOutOfRange),
            Some(timeout_ms) => Duration::from_millis(timeout_ms as u64).min(NO_ACK_TIMEOUT),
        };
    }
    Ok(patience)
}

// ---- epochs -----------------------------------------------------------------------------------------------

pub(super) fn bump_epoch(ctx: &mut Context<'_, '_>) -> CommandResult {
    change_cluster_with_reply(ctx, |state, _| {
        let word = if state.bump_epoch() { "BUMPED" } else { "STILL" };
        Ok(format!("{word} {}", state.me().config_epoch))
    })
}

pub(super) fn set_config_epoch(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let epoch = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    change_cluster(ctx, move |state, _| Ok(state.set_config_epoch(epoch)?))
}

pub(super) fn save_config(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    ctx.run_without_keys(|server| {
        let saved = server.cluster.as_ref().map_or(Ok(()), |cluster| cluster.save(true));
        build_reply(Protocol::Resp2, |reply| match &saved {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(&format!("ERR error saving the cluster node config: {error}")),
        })
    })
}

// ---- nodes ------------------------------------------------------------------------------------------------

pub(super) fn meet(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    if ctx.argc() > 5 {
        return Err(wrong_argument_count(ctx));
    }
    // No server listens on port 0.
    let port_number = |number: i64| u16::try_from(number).ok().filter(|port| *port > 0);
    let port = parse_i64(ctx.arg(3))
        .ok_or_else(|| CommandError::with_word("ERR Invalid base port specified: ", ctx.arg(3), ""))?;
    let port = port_number(port).ok_or(CommandError::constant("ERR Port number is out of range"))?;
    let bus_port = match ctx.argc() {
        4 => i64::from(port) + i64::from(weft_cluster::settings::BUS_PORT_OFFSET),
        _ => parse_i64(ctx.arg(4))
            .ok_or_else(|| CommandError::with_word("ERR Invalid bus port specified: ", ctx.arg(4), ""))?,
    };
    let bus_port =
        port_number(bus_port).ok_or(CommandError::constant("ERR Cluster bus port number is out of range"))?;
    let (word, now_ms) = (String::from_utf8_lossy(ctx.arg(2)).into_owned(), ctx.now_ms);
    let shown = String::from_utf8_lossy(ctx.arg(3)).into_owned();
    let client = describe_client(ctx);
    change_cluster(ctx, move |state, _| match state.meet(&word, port, bus_port, now_ms) {
        true => {
            log::notice!("Cluster meet {word}:{port} (user request from '{client}').");
            Ok(())
        }
        false => Err(ChangeRefusal::InvalidAddress { ip: word, port: shown }),
    })
}

pub(super) fn forget(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (word, now_ms) = (ctx.arg(2).to_vec(), ctx.now_ms);
    let client = describe_client(ctx);
    change_cluster(ctx, move |state, _| {
        // A node that is known no more has been forgotten already.
        let is_known = state.node_by_id(&word).is_some();
        state.forget_node(&word, now_ms)?;
        if is_known {
            log::notice!(
                "Cluster forget {} (user request from '{client}').",
                String::from_utf8_lossy(&word)
            );
        }
        Ok(())
    })
}

pub(super) fn reset(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let is = |name: &str| ctx.arg(2).eq_ignore_ascii_case(name.as_bytes());
    let hard = match ctx.argc() {
        2 => false,
        3 if is("hard") => true,
        3 if is("soft") => false,
        3 => return Err(CommandError::SYNTAX),
        _ => return Err(wrong_argument_count(ctx)),
    };
    let (server, now_ms) = (ctx.server.clone(), ctx.now_ms);
    let client = describe_client(ctx);
    change_cluster(ctx, move |state, keys| {
        let counts = &server.keyspace.counts;
        let has_keys = || DbIndex::all(counts.databases()).any(|db| counts.keys(db) > 0);
        if state.me().is_primary() && has_keys() {
            return Err(ChangeRefusal::ResetWithKeys);
        }
        log::notice!("Cluster reset (user request from '{client}').");
        if state.me().is_replica() {
            keys.request_flush();
        }
        state.reset(hard, now_ms);
        Ok(())
    })
}

/// Returns the client's description for the log.
pub(super) fn describe_client(ctx: &Context<'_, '_>) -> String {
    let hides_user_data = ctx.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
    ctx.client.short_log_line(hides_user_data)
}

pub(super) fn replicate(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let now_ms = ctx.now_ms;
    let no_one = ctx.argc() == 4 && ctx.arg(2).eq_ignore_ascii_case(b"no") && ctx.arg(3).eq_ignore_ascii_case(b"one");
    if no_one {
        return change_cluster(ctx, move |state, keys| {
            if state.replicate_no_one(now_ms) {
                keys.request_flush();
            }
            Ok(())
        });
    }
    if ctx.argc() != 3 {
        return Err(wrong_argument_count(ctx));
    }
    let (server, word) = (ctx.server.clone(), ctx.arg(2).to_vec());
    change_cluster(ctx, move |state, _| {
        let counts = &server.keyspace.counts;
        let has_keys = DbIndex::all(counts.databases()).any(|db| counts.keys(db) > 0);
        Ok(state.replicate(&word, has_keys, now_ms)?)
    })
}

pub(super) fn failover(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let from_primary = ctx.client.flags.contains(ClientFlags::PRIMARY);
    let mut manner = FailoverMode::Coordinated;
    let mut replica = None;
    let mut words = (2..ctx.argc()).map(|index| ctx.arg(index));
    while let Some(word) = words.next() {
        match word.to_ascii_lowercase().as_slice() {
            b"force" if manner == FailoverMode::Coordinated => manner = FailoverMode::Force,
            b"force" => {}
            b"takeover" => manner = FailoverMode::Takeover,
            b"replicaid" if from_primary => replica = Some(words.next().ok_or(CommandError::SYNTAX)?.to_vec()),
            _ => return Err(CommandError::SYNTAX),
        }
    }
    if from_primary && manner == FailoverMode::Force {
        manner = FailoverMode::ForcedByPrimary;
    }
    let (client, now_ms) = (describe_client(ctx), ctx.now_ms);
    change_cluster(ctx, move |state, _| {
        // A primary that shuts down names the replica that takes over.
        let is_named = |id: &Vec<u8>| state.node_by_id(id).is_some_and(|node| node.id == state.myself);
        match replica.as_ref().is_none_or(is_named) {
            true => Ok(state.begin_failover(manner, &client, now_ms)?),
            false => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests;
