//! CLIENT: attributes of the calling connection, and queries about other clients.
//!
//! A client belongs to the worker that serves its connection. A command that concerns only the caller runs in place. A
//! command about other clients is a query to all workers, and the caller waits for their answers.

use weft_base::ClientId;
use weft_resp::number::parse_i64;

use crate::commands::context::{Binding, CommandResult, Context, NextStep, build_reply, exclusive, leased};
use crate::commands::error::CommandError;
use crate::net::client::{BufferFigures, Client, ClientFlags};
use crate::state::{ClientVisitor, PauseReason, WorkerAnswer, WorkerQuery};
use filter::{ClientFilter, FilterContext};

pub mod attributes;
mod filter;
mod help;
mod tracking;

/// The subcommands of CLIENT and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("client|caching", leased(tracking::caching)),
    ("client|capa", leased(attributes::capa)),
    ("client|getname", leased(attributes::name)),
    ("client|getredir", leased(tracking::redirection)),
    ("client|help", leased(help::help)),
    ("client|id", leased(id)),
    ("client|import-source", leased(attributes::import_source)),
    ("client|info", leased(info).with_worker_query()),
    ("client|kill", leased(kill).with_worker_query()),
    ("client|list", leased(list).with_worker_query()),
    ("client|no-evict", leased(attributes::no_evict)),
    ("client|no-touch", leased(attributes::no_touch)),
    ("client|pause", exclusive(pause).with_pause()),
    ("client|reply", leased(reply)),
    ("client|setinfo", leased(attributes::set_info)),
    ("client|setname", leased(attributes::set_name)),
    ("client|tracking", leased(tracking::tracking)),
    ("client|trackinginfo", leased(tracking::info)),
    ("client|unblock", leased(unblock).with_worker_query()),
    ("client|unpause", leased(unpause)),
];

fn id(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.integer(ctx.client.id.get() as i64);
    Ok(())
}

fn reply(ctx: &mut Context<'_, '_>) -> CommandResult {
    let mode = ctx.arg(2);
    let flags = &mut ctx.client.flags;
    if mode.eq_ignore_ascii_case(b"on") {
        flags.set(ClientFlags::REPLY_OFF.union(ClientFlags::REPLY_SKIP), false);
        ctx.reply.ok();
    } else if mode.eq_ignore_ascii_case(b"off") {
        flags.set(ClientFlags::REPLY_OFF, true);
    } else if mode.eq_ignore_ascii_case(b"skip") {
        let off = flags.contains(ClientFlags::REPLY_OFF);
        flags.set(ClientFlags::REPLY_SKIP_NEXT, !off);
    } else {
        return Err(CommandError::SYNTAX);
    }
    Ok(())
}

// ---- pause ------------------------------------------------------------------------------------------------

fn pause(ctx: &mut Context<'_, '_>) -> CommandResult {
    // As in Valkey, one extra word is accepted: the mode is only read if it is the last word.
    let all = match ctx.argc() {
        4 if ctx.arg(3).eq_ignore_ascii_case(b"write") => false,
        4 if !ctx.arg(3).eq_ignore_ascii_case(b"all") => {
            return Err(CommandError::constant("ERR CLIENT PAUSE mode must be WRITE or ALL"));
        }
        _ => true,
    };
    let until_ms = pause_end_ms(ctx.arg(2), ctx.now_ms)?;
    ctx.server.pause_clients(PauseReason::Client, ctx.now_ms, until_ms, all);
    ctx.reply.ok();
    Ok(())
}

fn pause_end_ms(timeout: &[u8], now_ms: u64) -> Result<u64, CommandError> {
    let timeout_ms =
        parse_i64(timeout).ok_or(CommandError::constant("ERR timeout is not an integer or out of range"))?;
    if timeout_ms < 0 {
        return Err(CommandError::constant("ERR timeout is negative"));
    }
    timeout_ms
        .checked_add(now_ms as i64)
        .map(|until_ms| until_ms as u64)
        .ok_or(CommandError::constant("ERR timeout is out of range"))
}

fn unpause(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.server.unpause_clients(PauseReason::Client);
    ctx.reply.ok();
    Ok(())
}

// ---- questions about all clients --------------------------------------------------------------------------

/// Parks the caller and queries all workers. `query` gets the caller's ID; `combine` turns the parts into the reply.
fn query_all_workers(
    ctx: &mut Context<'_, '_>,
    query: impl Fn(ClientId, &mut dyn ClientVisitor) -> WorkerAnswer + Send + Sync + 'static,
    combine: impl Fn(Vec<WorkerAnswer>) -> Vec<u8> + Send + Sync + 'static,
) {
    let caller = ctx.client.id;
    ctx.next_step = NextStep::QueryWorkers(Box::new(WorkerQuery {
        task: Box::new(move |clients| query(caller, clients)),
        combine: Box::new(combine),
        awaits_killed_commands: false,
    }));
}

fn list(ctx: &mut Context<'_, '_>) -> CommandResult {
    let filter = parse_filter(ctx, false)?;
    reply_with_client_lines(ctx, filter);
    Ok(())
}

fn parse_filter(ctx: &Context<'_, '_>, skip_caller: bool) -> Result<ClientFilter, CommandError> {
    let server = ctx.server;
    let scene = FilterContext {
        databases: server.config.databases() as i64,
        is_user: &|name| server.acl.account(name).is_some(),
    };
    ClientFilter::parse(ctx.args, scene, skip_caller)
}

fn info(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_client_lines(ctx, ClientFilter::with_id(ctx.client.id));
    Ok(())
}

/// Replies with a line for each client that passes the filter.
fn reply_with_client_lines(ctx: &mut Context<'_, '_>, filter: ClientFilter) {
    let now_ms = ctx.now_ms;
    let protocol = ctx.client.protocol;
    let argument_bytes = (0..ctx.argc()).map(|index| ctx.arg(index).len()).sum();
    let ask = move |caller: ClientId, clients: &mut dyn ClientVisitor| {
        let mut lines = Vec::new();
        clients.visit_clients(&mut |client: &mut Client, mut buffers: BufferFigures| {
            if !filter.matches(client, caller, now_ms) {
                return;
            }
            if client.id == caller {
                // The running command is the caller's own.
                buffers.arguments = argument_bytes;
                buffers.total += argument_bytes;
            }
            lines.extend_from_slice(&client.list_line(now_ms, buffers));
            lines.push(b'\n');
        });
        lines
    };
    query_all_workers(ctx, ask, move |parts| {
        let lines = merge_by_id(&parts);
        build_reply(protocol, |reply| reply.verbatim("txt", &lines))
    });
}

/// Merges the lines of all workers, ordered by the number with which each line begins (`id=`).
fn merge_by_id(parts: &[WorkerAnswer]) -> Vec<u8> {
    let mut lines: Vec<(u64, &[u8])> = parts
        .iter()
        .flat_map(|part| part.split_inclusive(|byte| *byte == b'\n'))
        .map(|line| (parse_line_id(line), line))
        .collect();
    // A connection that moved between two workers may be in both answers.
    lines.sort_by_key(|(id, _)| *id);
    lines.dedup_by_key(|(id, _)| *id);
    lines.into_iter().flat_map(|(_, line)| line).copied().collect()
}

fn parse_line_id(line: &[u8]) -> u64 {
    line.iter()
        .skip(b"id=".len())
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |id, digit| id * 10 + u64::from(digit - b'0'))
}

fn kill(ctx: &mut Context<'_, '_>) -> CommandResult {
    let by_address = ctx.argc() == 3;
    let filter = if by_address {
        ClientFilter::with_address(ctx.arg(2))
    } else {
        parse_filter(ctx, true)?
    };
    let now_ms = ctx.now_ms;
    let protocol = ctx.client.protocol;
    let ask = move |caller: ClientId, clients: &mut dyn ClientVisitor| {
        let mut killed: u64 = 0;
        let mut kill = |client: &mut Client| {
            if client.flags.contains(ClientFlags::CLOSE_ASAP) || !filter.matches(client, caller, now_ms) {
                return;
            }
            killed += 1;
            match client.id == caller {
                true => client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true),
                false => client.kill(),
            }
        };
        clients.visit_clients(&mut |client: &mut Client, _: BufferFigures| kill(client));
        clients.visit_sessions(&mut kill);
        killed.to_le_bytes().to_vec()
    };
    query_all_workers(ctx, ask, move |parts| {
        let killed = sum_counts(&parts);
        build_reply(protocol, |reply| match (by_address, killed) {
            (true, 0) => reply.error("ERR No such client"),
            (true, _) => reply.ok(),
            (false, killed) => reply.integer(killed as i64),
        })
    });
    if let NextStep::QueryWorkers(query) = &mut ctx.next_step {
        query.awaits_killed_commands = true;
    }
    Ok(())
}

fn unblock(ctx: &mut Context<'_, '_>) -> CommandResult {
    // As in Valkey, one extra word is accepted.
    let with_error = match ctx.argc() {
        4 if ctx.arg(3).eq_ignore_ascii_case(b"error") => true,
        4 if !ctx.arg(3).eq_ignore_ascii_case(b"timeout") => {
            return Err(CommandError::constant(
                "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR",
            ));
        }
        _ => false,
    };
    let id = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let Ok(id) = u64::try_from(id).map(ClientId::new) else {
        ctx.reply.integer(0);
        return Ok(());
    };
    let protocol = ctx.client.protocol;
    let ask = move |_: ClientId, clients: &mut dyn ClientVisitor| {
        let unblocked = u64::from(clients.unblock_client(id, with_error));
        unblocked.to_le_bytes().to_vec()
    };
    query_all_workers(ctx, ask, move |parts| {
        build_reply(protocol, |reply| reply.integer(sum_counts(&parts).min(1) as i64))
    });
    Ok(())
}

/// Returns the sum of parts that are counts.
fn sum_counts(parts: &[WorkerAnswer]) -> u64 {
    parts
        .iter()
        .filter_map(|part| Some(u64::from_le_bytes(part.as_slice().try_into().ok()?)))
        .sum()
}

#[cfg(test)]
mod tests;
