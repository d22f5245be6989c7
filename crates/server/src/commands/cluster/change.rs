//! The subcommands of CLUSTER that change this node's state: arguments here, rules in [`weft_cluster::changes`].

use std::sync::Arc;
use std::time::Duration;

use weft_resp::Protocol;
use weft_resp::number::parse_i64;

use super::{cluster_of, slot_of, wrong_words};
use crate::cluster_node::topology;
use crate::cluster_node::topology::SlotKeyCounts;
use crate::commands::context::{CommandResult, Context, NextStep, reply_bytes};
use crate::commands::error::CommandError;
use crate::keyspace::Seat;
use crate::net::client::ClientFlags;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::state::{Message, QueryOrigin, Server};
use weft_cluster::Cluster;
use weft_cluster::changes::{ClusterRefusal, SlotChange};
use weft_cluster::manual_failover::FailoverMode;
use weft_cluster::state::ClusterState;

/// Makes a change in the background and answers with OK, or with why not.
fn change(
    ctx: &mut Context<'_, '_>,
    change: impl FnOnce(&mut ClusterState, &SlotKeyCounts<'_, '_>) -> Result<(), ClusterRefusal> + Send + 'static,
) -> CommandResult {
    answer(ctx, |state, keys| change(state, keys).map(|()| "OK".to_owned()))
}

/// Like [`change`], with a reply of its own.
fn answer(
    ctx: &mut Context<'_, '_>,
    change: impl FnOnce(&mut ClusterState, &SlotKeyCounts<'_, '_>) -> Result<String, ClusterRefusal> + Send + 'static,
) -> CommandResult {
    cluster_of(ctx)?;
    ctx.in_background(move |server, seat| {
        let Some(cluster) = &server.cluster else {
            unreachable!("cluster mode does not end");
        };
        let result = topology::change_state(server, cluster, seat, change);
        reply_bytes(Protocol::Resp2, |reply| match &result {
            Ok(text) => reply.simple(text),
            Err(refusal) => reply.error_bytes(&[b"ERR ", refusal.as_bytes()].concat()),
        })
    });
    Ok(())
}

// ---- slots ------------------------------------------------------------------------------------------------

fn change_slots(ctx: &mut Context<'_, '_>, ranges: Vec<(u16, u16)>, delete: bool) -> CommandResult {
    change(ctx, move |state, _| state.change_slots(&ranges, delete))
}

fn single_slots(ctx: &Context<'_, '_>) -> Result<Vec<(u16, u16)>, CommandError> {
    cluster_of(ctx)?;
    (2..ctx.argc())
        .map(|index| slot_of(ctx.arg(index)).map(|slot| (slot, slot)))
        .collect()
}

pub(super) fn add_slots(ctx: &mut Context<'_, '_>) -> CommandResult {
    let slots = single_slots(ctx)?;
    change_slots(ctx, slots, false)
}

pub(super) fn delete_slots(ctx: &mut Context<'_, '_>) -> CommandResult {
    let slots = single_slots(ctx)?;
    change_slots(ctx, slots, true)
}

pub(super) fn add_slots_range(ctx: &mut Context<'_, '_>) -> CommandResult {
    change_ranges(ctx, false)
}

pub(super) fn delete_slots_range(ctx: &mut Context<'_, '_>) -> CommandResult {
    change_ranges(ctx, true)
}

fn change_ranges(ctx: &mut Context<'_, '_>, delete: bool) -> CommandResult {
    cluster_of(ctx)?;
    if ctx.argc() % 2 == 1 {
        return Err(CommandError::text(format!(
            "ERR wrong number of arguments for '{}' command",
            ctx.command.full_name
        )));
    }
    let mut ranges = Vec::new();
    for index in (2..ctx.argc()).step_by(2) {
        let (first, last) = (slot_of(ctx.arg(index))?, slot_of(ctx.arg(index + 1))?);
        if first > last {
            return Err(CommandError::text(format!(
                "ERR start slot number {first} is greater than end slot number {last}"
            )));
        }
        ranges.push((first, last));
    }
    change_slots(ctx, ranges, delete)
}

pub(super) fn flush_slots(ctx: &mut Context<'_, '_>) -> CommandResult {
    cluster_of(ctx)?;
    let counts = ctx.server.clone();
    change(ctx, move |state, _| {
        if counts.keyspace.counts.keys(0) > 0 {
            return Err("DB must be empty to perform CLUSTER FLUSHSLOTS.".into());
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
    cluster_of(ctx)?;
    let slot = slot_of(ctx.arg(2))?;
    let is = |name: &str| ctx.arg(3).eq_ignore_ascii_case(name.as_bytes());
    let named = (ctx.argc() >= 5).then(|| ctx.arg(4).to_vec());
    let (slot_change, options) = match named {
        _ if is("stable") => (SlotChange::Stable, 4),
        Some(node) if is("migrating") => (SlotChange::Migrating(node), 5),
        Some(node) if is("importing") => (SlotChange::Importing(node), 5),
        Some(node) if is("node") => (SlotChange::Node(node), 5),
        _ => return Err(INVALID),
    };
    let timeout = timeout_of(ctx, options);
    if ctx.client.flags.contains(ClientFlags::PRIMARY) {
        return change(ctx, move |state, keys| {
            state.apply_propagated_slot_change(slot, &slot_change, keys.count_in_slot(slot))
        });
    }
    let words: Vec<Vec<u8>> = (0..ctx.argc()).map(|index| ctx.arg(index).to_vec()).collect();
    let order = SlotOrder {
        slot,
        change: slot_change,
        words,
        timeout,
    };
    if !ctx.may_block {
        // In a transaction or a script the reply is awaited in place.
        ctx.in_background(move |server, seat| match order.check(server, seat) {
            Err(error) => error_bytes(&error),
            Ok(patience) => {
                let known = topology::propagate_and_wait(server, seat, &order.words(), patience);
                order.finish(server, seat, known)
            }
        });
        return Ok(());
    }
    let command = ctx.command.id as usize;
    ctx.after = NextStep::Detached(Box::new(Box::new(move |origin| {
        Box::new(move |server, seat| {
            let patience = match order.check(server, seat) {
                Ok(patience) => patience,
                Err(error) => return answer_late(server, seat, (origin, command), error_bytes(&error)),
            };
            let words = order.words.clone();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            topology::propagate_then(server, seat, &words, patience, move |known| {
                Box::new(move |server, seat| {
                    let bytes = order.finish(server, seat, known);
                    answer_late(server, seat, (origin, command), bytes);
                })
            });
        })
    })));
    Ok(())
}

/// A SETSLOT under way: it is checked, then sent to the replicas, and then carried out on this node.
struct SlotOrder {
    slot: u16,
    change: SlotChange,
    /// The words that the client sent.
    words: Vec<Vec<u8>>,
    timeout: Result<Duration, ClusterRefusal>,
}

impl SlotOrder {
    fn words(&self) -> Vec<&[u8]> {
        self.words.iter().map(Vec::as_slice).collect()
    }

    /// Checks the order. Returns the time that replicas may take.
    fn check(&self, server: &Arc<Server>, seat: &mut Seat) -> Result<Duration, String> {
        let SlotOrder { slot, change, .. } = self;
        let checked = topology::change_state(server, cluster_in(server), seat, |state, keys| {
            state.check_slot_change(*slot, change, keys.count_in_slot(*slot))?;
            // The words about the timeout are looked at last, when all else is right.
            self.timeout.clone()
        });
        checked.map_err(|refusal| format!("ERR {refusal}"))
    }

    /// Carries it out, if the replicas know of it; returns the reply.
    fn finish(&self, server: &Arc<Server>, seat: &mut Seat, replicas_know: bool) -> Vec<u8> {
        if !replicas_know {
            return error_bytes(UNSAFE);
        }
        let SlotOrder { slot, change, .. } = self;
        let result = topology::change_state(server, cluster_in(server), seat, |state, keys| {
            state.change_slot(*slot, change, keys.count_in_slot(*slot))
        });
        match result {
            Ok(()) => reply_bytes(Protocol::Resp2, |reply| reply.ok()),
            Err(refusal) => error_bytes(&format!("ERR {refusal}")),
        }
    }
}

fn cluster_in(server: &Server) -> &Cluster {
    match &server.cluster {
        Some(cluster) => cluster,
        None => unreachable!("cluster mode does not end"),
    }
}

fn error_bytes(error: &str) -> Vec<u8> {
    reply_bytes(Protocol::Resp2, |reply| reply.error(error))
}

/// Answers a client that waits for the end of a command which counts as done already; an error is added to its figures.
fn answer_late(
    server: &Server,
    seat: &Seat,
    ((worker, client, ticket), command): (QueryOrigin, usize),
    bytes: Vec<u8>,
) {
    if let Some(error) = bytes.strip_prefix(b"-") {
        let code = error.split(|byte| matches!(byte, b' ' | b'\r')).next();
        server.stats.metrics.record_failure(seat.index(), command);
        server.stats.metrics.add(seat.index(), Counter::ErrorReplies, 1);
        server.stats.errors.count(code.unwrap_or_default());
    }
    server.workers[worker].send(Message::Reply {
        client,
        ticket,
        bytes,
        log_ticket: 0,
    });
}

/// The error of a change that the replicas have not got in time.
const UNSAFE: &str = "NOREPLICAS Not enough good replicas to write.";

/// The default time that replicas may take.
const PATIENCE: Duration = Duration::from_millis(2000);

/// TIMEOUT is for replicas to acknowledge; words that are no options are passed over, as in Valkey.
fn timeout_of(ctx: &Context<'_, '_>, from: usize) -> Result<Duration, ClusterRefusal> {
    let mut patience = PATIENCE;
    for index in from..ctx.argc() {
        if !ctx.arg(index).eq_ignore_ascii_case(b"timeout") {
            continue;
        }
        if index + 1 >= ctx.argc() {
            return Err("Missing timeout value".into());
        }
        patience = match parse_i64(ctx.arg(index + 1)) {
            None => return Err("timeout is not an integer or out of range".into()),
            Some(timeout) if timeout < 0 => return Err("timeout is negative".into()),
            Some(0) => PATIENCE,
            Some(timeout_ms) => Duration::from_millis(timeout_ms as u64),
        };
    }
    Ok(patience)
}

// ---- epochs -----------------------------------------------------------------------------------------------

pub(super) fn bump_epoch(ctx: &mut Context<'_, '_>) -> CommandResult {
    answer(ctx, |state, _| {
        let word = if state.bump_epoch() { "BUMPED" } else { "STILL" };
        Ok(format!("{word} {}", state.me().config_epoch))
    })
}

pub(super) fn set_config_epoch(ctx: &mut Context<'_, '_>) -> CommandResult {
    cluster_of(ctx)?;
    let epoch = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    change(ctx, move |state, _| state.set_config_epoch(epoch))
}

pub(super) fn save_config(ctx: &mut Context<'_, '_>) -> CommandResult {
    cluster_of(ctx)?;
    ctx.off_worker(|server| {
        let saved = server.cluster.as_ref().map_or(Ok(()), |cluster| cluster.save(true));
        reply_bytes(Protocol::Resp2, |reply| match &saved {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(&format!("ERR error saving the cluster node config: {error}")),
        })
    })
}

// ---- nodes ------------------------------------------------------------------------------------------------

pub(super) fn meet(ctx: &mut Context<'_, '_>) -> CommandResult {
    cluster_of(ctx)?;
    if ctx.argc() > 5 {
        return Err(wrong_words(ctx));
    }
    let port = parse_i64(ctx.arg(3))
        .ok_or_else(|| CommandError::about("ERR Invalid base port specified: ", ctx.arg(3), ""))?;
    let bus_port = match ctx.argc() {
        4 => port.saturating_add(weft_cluster::settings::BUS_PORT_OFFSET.into()),
        _ => parse_i64(ctx.arg(4))
            .ok_or_else(|| CommandError::about("ERR Invalid bus port specified: ", ctx.arg(4), ""))?,
    };
    let out_of_range = |text: &'static str| CommandError::constant(text);
    let port = u16::try_from(port).map_err(|_| out_of_range("ERR Port number is out of range"))?;
    let bus_port = u16::try_from(bus_port).map_err(|_| out_of_range("ERR Cluster bus port number is out of range"))?;
    let (word, now_ms) = (String::from_utf8_lossy(ctx.arg(2)).into_owned(), ctx.now_ms);
    let shown = String::from_utf8_lossy(ctx.arg(3)).into_owned();
    change(ctx, move |state, _| match state.meet(&word, port, bus_port, now_ms) {
        true => Ok(()),
        false => Err(format!("Invalid node address specified: {word}:{shown}")),
    })
}

pub(super) fn forget(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (word, now_ms) = (ctx.arg(2).to_vec(), ctx.now_ms);
    change(ctx, move |state, _| state.forget_node(&word, now_ms))
}

pub(super) fn reset(ctx: &mut Context<'_, '_>) -> CommandResult {
    cluster_of(ctx)?;
    let is = |name: &str| ctx.arg(2).eq_ignore_ascii_case(name.as_bytes());
    let hard = match ctx.argc() {
        2 => false,
        3 if is("hard") => true,
        3 if is("soft") => false,
        3 => return Err(CommandError::SYNTAX),
        _ => return Err(wrong_words(ctx)),
    };
    let (server, db, now_ms) = (ctx.server.clone(), ctx.client.db, ctx.now_ms);
    let client = who(ctx);
    change(ctx, move |state, keys| {
        if state.me().is_primary() && server.keyspace.counts.keys(db) > 0 {
            return Err("CLUSTER RESET can't be called with master nodes containing keys".into());
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
fn who(ctx: &Context<'_, '_>) -> String {
    format!("id={} addr={}", ctx.client.id, ctx.client.address)
}

pub(super) fn replicate(ctx: &mut Context<'_, '_>) -> CommandResult {
    cluster_of(ctx)?;
    let now_ms = ctx.now_ms;
    let no_one = ctx.argc() == 4 && ctx.arg(2).eq_ignore_ascii_case(b"no") && ctx.arg(3).eq_ignore_ascii_case(b"one");
    if no_one {
        return change(ctx, move |state, keys| {
            if state.replicate_no_one(now_ms) {
                keys.request_flush();
            }
            Ok(())
        });
    }
    if ctx.argc() != 3 {
        return Err(wrong_words(ctx));
    }
    let (server, word) = (ctx.server.clone(), ctx.arg(2).to_vec());
    change(ctx, move |state, _| {
        let counts = &server.keyspace.counts;
        let has_keys = (0..counts.databases()).any(|db| counts.keys(db) > 0);
        state.replicate(&word, has_keys, now_ms)
    })
}

pub(super) fn failover(ctx: &mut Context<'_, '_>) -> CommandResult {
    cluster_of(ctx)?;
    let is = |name: &str| ctx.arg(2).eq_ignore_ascii_case(name.as_bytes());
    let from_primary = ctx.client.flags.contains(ClientFlags::PRIMARY);
    let manner = match ctx.argc() {
        5 if from_primary && is("force") && ctx.arg(3).eq_ignore_ascii_case(b"replicaid") => {
            return take_over_at_end(ctx);
        }
        2 => FailoverMode::Coordinated,
        3 if is("force") => FailoverMode::Force,
        3 if is("takeover") => FailoverMode::Takeover,
        _ => return Err(CommandError::SYNTAX),
    };
    let (client, now_ms) = (who(ctx), ctx.now_ms);
    change(ctx, move |state, _| state.begin_failover(manner, &client, now_ms))
}

/// Handles the request of a primary that is about to end, so that one of its replicas takes over.
fn take_over_at_end(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (word, now_ms) = (ctx.arg(4).to_vec(), ctx.now_ms);
    change(ctx, move |state, _| match state.node_by_id(&word) {
        Some(node) if node.id == state.myself => state.begin_failover(FailoverMode::Force, "my primary", now_ms),
        _ => Ok(()),
    })
}
