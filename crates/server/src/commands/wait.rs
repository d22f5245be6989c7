//! WAIT and WAITAOF: how far a client's writes have come. There are no replicas: who asks for some is answered after the
//! timeout.

use weft_resp::number::parse_i64;

use super::context::{After, Binding, CommandResult, Context, leased};
use super::error::CommandError;
use crate::config::id;
use crate::journal::Milestone;
use crate::state::LogWait;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("wait", leased(wait)), ("waitaof", leased(waitaof))];

/// When a wait of so many milliseconds ends, in ms since the epoch; 0 waits for ever.
fn deadline_ms(argument: &[u8], now_ms: u64) -> Result<u64, CommandError> {
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
    let at_ms = deadline_ms(ctx.arg(2), ctx.now_ms)?;
    if replicas <= 0 || !ctx.may_block {
        ctx.reply.integer(0);
    } else {
        ctx.after = After::ReplyAt(Box::new((at_ms, b":0\r\n".to_vec())));
    }
    Ok(())
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
    let at_ms = deadline_ms(ctx.arg(3), ctx.now_ms)?;
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
    let ticket = ctx.client.log_ticket;
    let logs = config.boolean(id::APPENDONLY);
    let is_there = logs && ctx.server.journal.reached(Milestone::Synced) >= ticket;
    let enough = replicas == 0 && (local == 0 || is_there);
    if enough || !ctx.may_block {
        ctx.reply.array(2);
        ctx.reply.integer(is_there.into());
        ctx.reply.integer(0);
    } else {
        ctx.after = After::AwaitLog(Box::new(LogWait {
            ticket,
            replicas: replicas > 0,
            at_ms,
        }));
    }
    Ok(())
}
