//! WAIT and WAITAOF: the progress of a client's writes.
//!
//! The log sequence number of the client's last write determines the offset that a replica must have. A client that
//! must wait is parked; the thread that serves replicas replies when enough of them have that offset
//! (`replication::primary`).

use weft_resp::number::parse_i64;

use crate::commands::context::{Binding, CommandResult, Context, NextStep, leased};
use crate::commands::error::CommandError;
use crate::replication::RequiredAcks;
use crate::state::{LogWait, Server};
use weft_config::id;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("wait", leased(wait)), ("waitaof", leased(waitaof))];

/// Returns the end of a wait of this many milliseconds, in milliseconds since the Unix epoch; 0 for no end.
fn parse_deadline_ms(argument: &[u8], now_ms: u64) -> Result<u64, CommandError> {
    let timeout = parse_i64(argument).ok_or(CommandError::constant("ERR timeout is not an integer or out of range"))?;
    let timeout_ms = u64::try_from(timeout).map_err(|_| CommandError::constant("ERR timeout is negative"))?;
    if timeout_ms == 0 {
        return Ok(u64::MAX);
    }
    now_ms
        .checked_add(timeout_ms)
        .filter(|at_ms| i64::try_from(*at_ms).is_ok())
        .ok_or(CommandError::constant("ERR timeout is out of range"))
}

fn wait(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.server.config.primary().is_some() {
        return Err(CommandError::constant(
            "ERR WAIT cannot be used with replica instances. Please also note that if a replica is configured to be \
             writable (which is not the default) writes to replicas are just local and are not propagated.",
        ));
    }
    let replicas = parse_i64(ctx.arg(1)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let at_ms = parse_deadline_ms(ctx.arg(2), ctx.now_ms)?;
    await_replicas(ctx, at_ms, replicas, None);
    Ok(())
}

/// Returns the reply: the progress of replicas, and of the disk, for a client.
pub fn build_reply(server: &Server, required: &RequiredAcks) -> Vec<u8> {
    let (local, replicas) = acknowledged_counts(server, required);
    match required.local_disks {
        None => format!(":{replicas}\r\n"),
        Some(_) => format!("*2\r\n:{local}\r\n:{replicas}\r\n"),
    }
    .into_bytes()
}

/// Returns the numbers of local disks and of replicas that have acknowledged the writes.
fn acknowledged_counts(server: &Server, required: &RequiredAcks) -> (i64, i64) {
    let replicas = &server.replication.replicas;
    let having = match required.local_disks {
        None => replicas.acknowledged_sequence_count(required.log_sequence),
        Some(_) => replicas.synced_sequence_count(required.log_sequence),
    };
    (server.is_on_disk(required.log_sequence).into(), having)
}

fn await_replicas(ctx: &mut Context<'_, '_>, deadline_ms: u64, replicas: i64, required_local_fsyncs: Option<i64>) {
    let required = RequiredAcks {
        log_sequence: ctx.client.last_write_sequence,
        replicas,
        local_disks: required_local_fsyncs,
    };
    let (local, having) = acknowledged_counts(ctx.server, &required);
    if (having >= replicas && local >= required_local_fsyncs.unwrap_or(0)) || !ctx.may_block {
        let bytes = build_reply(ctx.server, &required);
        ctx.reply.out.extend_from_slice(&bytes);
    } else {
        ctx.next_step = NextStep::AwaitReplicas(Box::new((deadline_ms, required)));
    }
}

fn waitaof(ctx: &mut Context<'_, '_>) -> CommandResult {
    let local = parse_i64(ctx.arg(1)).ok_or(CommandError::NOT_AN_INTEGER)?;
    if !(0..=1).contains(&local) {
        return Err(CommandError::constant(
            "ERR value is out of range, value must between 0 and 1",
        ));
    }
    let replicas = parse_i64(ctx.arg(2))
        .filter(|replicas| *replicas >= 0)
        .ok_or(CommandError::constant("ERR value is out of range, must be positive"))?;
    let at_ms = parse_deadline_ms(ctx.arg(3), ctx.now_ms)?;
    let config = &ctx.server.config;
    if config.primary().is_some() {
        return Err(CommandError::constant(
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just local \
             and are not propagated.",
        ));
    }
    if local > 0 && !config.boolean(id::APPENDONLY) {
        return Err(CommandError::constant(
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        ));
    }
    if replicas > 0 {
        await_replicas(ctx, at_ms, replicas, Some(local));
        return Ok(());
    }
    let sequence = ctx.client.last_write_sequence;
    let is_there = ctx.server.is_on_disk(sequence);
    let enough = local == 0 || is_there;
    if enough || !ctx.may_block {
        ctx.reply.array(2);
        ctx.reply.integer(is_there.into());
        ctx.reply
            .integer(ctx.server.replication.replicas.synced_sequence_count(sequence));
    } else {
        ctx.next_step = NextStep::AwaitLog(Box::new(LogWait {
            sequence,
            needs_replicas: replicas > 0,
            deadline_ms: at_ms,
        }));
    }
    Ok(())
}
