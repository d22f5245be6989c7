//! COMMANDLOG, and SLOWLOG, the older command for one of its logs.

use weft_resp::number::parse_i64;

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::{CommandError, printable_name};
use crate::observability::commandlog::CommandLogKind;

/// The subcommands of COMMANDLOG and SLOWLOG.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("commandlog|get", leased(get)),
    ("commandlog|help", leased(help)),
    ("commandlog|len", leased(len)),
    ("commandlog|reset", leased(reset)),
    ("slowlog|get", leased(slow_get)),
    ("slowlog|help", leased(slow_help)),
    ("slowlog|len", leased(slow_len)),
    ("slowlog|reset", leased(slow_reset)),
];

/// The default number of entries of SLOWLOG GET.
const DEFAULT_ENTRY_COUNT: usize = 10;

fn parse_kind(ctx: &Context<'_, '_>, index: usize) -> Result<CommandLogKind, CommandError> {
    CommandLogKind::named(ctx.arg(index)).ok_or(CommandError::constant(
        "ERR type should be one of the following: slow, large-request, large-reply",
    ))
}

/// Returns the number of entries that the client requests: all of them for -1.
fn parse_entry_count(ctx: &Context<'_, '_>) -> Result<usize, CommandError> {
    match parse_i64(ctx.arg(2)) {
        Some(-1) => Ok(usize::MAX),
        Some(count) if count >= 0 => Ok(count as usize),
        _ => Err(CommandError::constant(
            "ERR count should be greater than or equal to -1",
        )),
    }
}

fn get(ctx: &mut Context<'_, '_>) -> CommandResult {
    let count = parse_entry_count(ctx)?;
    let kind = parse_kind(ctx, 3)?;
    reply_entries(ctx, kind, count)
}

fn slow_get(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc() > 3 {
        return Err(CommandError::with_word(
            "ERR unknown subcommand or wrong number of arguments for '",
            printable_name(ctx.arg(1)),
            "'. Try SLOWLOG HELP.",
        ));
    }
    let count = if ctx.argc() > 2 {
        parse_entry_count(ctx)?
    } else {
        DEFAULT_ENTRY_COUNT
    };
    reply_entries(ctx, CommandLogKind::Slow, count)
}

fn reply_entries(ctx: &mut Context<'_, '_>, kind: CommandLogKind, count: usize) -> CommandResult {
    let entries = ctx.server.stats.history.commandlog.newest(kind, count);
    let reply = &mut ctx.reply;
    reply.array(entries.len());
    for entry in entries {
        reply.array(6);
        reply.integer(entry.id as i64);
        reply.integer(entry.unix_s as i64);
        reply.integer(entry.size as i64);
        reply.array(entry.subject.arguments.len());
        for argument in &entry.subject.arguments {
            reply.bulk(argument);
        }
        reply.bulk(entry.subject.address.as_bytes());
        reply.bulk(&entry.subject.name);
    }
    Ok(())
}

fn len(ctx: &mut Context<'_, '_>) -> CommandResult {
    let kind = parse_kind(ctx, 2)?;
    reply_len(ctx, kind)
}

fn slow_len(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_len(ctx, CommandLogKind::Slow)
}

fn reply_len(ctx: &mut Context<'_, '_>, kind: CommandLogKind) -> CommandResult {
    ctx.reply.integer(ctx.server.stats.history.commandlog.len(kind) as i64);
    Ok(())
}

fn reset(ctx: &mut Context<'_, '_>) -> CommandResult {
    let kind = parse_kind(ctx, 2)?;
    reset_log(ctx, kind)
}

fn slow_reset(ctx: &mut Context<'_, '_>) -> CommandResult {
    reset_log(ctx, CommandLogKind::Slow)
}

fn reset_log(ctx: &mut Context<'_, '_>, kind: CommandLogKind) -> CommandResult {
    ctx.server.stats.history.commandlog.reset(kind);
    ctx.reply.ok();
    Ok(())
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    super::reply_with_help(
        ctx,
        "COMMANDLOG",
        &[
            (
                "GET <count> <type>",
                "Show the newest <count> entries of the log <type>: slow, large-request or large-reply (-1: all).\n\
                 An entry is: id, time, microseconds (slow) or bytes (the others), arguments,\n\
                 address of the client, name of the client.",
            ),
            ("LEN <type>", "Tell how many entries the log <type> has."),
            ("RESET <type>", "Empty the log <type>."),
        ],
    )
}

fn slow_help(ctx: &mut Context<'_, '_>) -> CommandResult {
    super::reply_with_help(
        ctx,
        "SLOWLOG",
        &[
            (
                "GET [<count>]",
                "Show the newest <count> entries (default: 10, -1: all). An entry is:\n\
                 id, time, microseconds, arguments, address of the client, name of the client.",
            ),
            ("LEN", "Tell how many entries there are."),
            ("RESET", "Empty the log."),
        ],
    )
}
