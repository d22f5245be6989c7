//! XGROUP, which manages consumer groups, and XACK.

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::{CommandError, c_string_prefix};
use crate::commands::stream::arguments::{
    StreamEdit, bad_subcommand_error, edit_or_create_stream, edit_stream, is_word, no_group_in_key_error,
    parse_exact_id, parse_id, parse_ids, parse_integer,
};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("xack", leased(xack)),
    ("xgroup|create", leased(create)),
    ("xgroup|createconsumer", leased(createconsumer)),
    ("xgroup|delconsumer", leased(delconsumer)),
    ("xgroup|destroy", leased(destroy)),
    ("xgroup|help", leased(help)),
    ("xgroup|setid", leased(setid)),
];

const NO_KEY_ERROR: CommandError = CommandError::constant(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option \
     to create an empty stream automatically.",
);

/// The time for creating or freeing a pending entry, in nanoseconds.
const PENDING_NS: u64 = 100;

/// The options of XGROUP CREATE and SETID.
#[derive(Default)]
struct GroupOptions {
    creates_stream: bool,
    entries_read: Option<i64>,
}

impl GroupOptions {
    fn parse(ctx: &Context<'_, '_>, may_create_stream: bool) -> Result<Self, CommandError> {
        let mut options = GroupOptions::default();
        let mut index = 5;
        while index < ctx.argc() {
            let word = ctx.arg(index);
            if may_create_stream && is_word(word, "MKSTREAM") {
                options.creates_stream = true;
            } else if is_word(word, "ENTRIESREAD") && index + 1 < ctx.argc() {
                index += 1;
                options.entries_read = match parse_integer(ctx.arg(index))? {
                    -1 => None,
                    read @ 0.. => Some(read),
                    _ => {
                        return Err(CommandError::constant(
                            "ERR value for ENTRIESREAD must be positive or -1",
                        ));
                    }
                };
            } else {
                return Err(bad_subcommand_error("XGROUP", ctx.arg(1)));
            }
            index += 1;
        }
        Ok(options)
    }
}

fn create(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = GroupOptions::parse(ctx, true)?;
    let (subcommand, name, word) = (ctx.arg(1), ctx.arg(3), ctx.arg(4));
    let too_many = ctx.argc() > 8;
    let created = edit_or_create_stream(ctx.keys.write(0), options.creates_stream, |stream| {
        if too_many {
            return Err(bad_subcommand_error("XGROUP", subcommand));
        }
        let id = match c_string_prefix(word) {
            b"$" => stream.last_id(),
            _ => parse_exact_id(word, 0)?,
        };
        match stream.create_group(name, id, options.entries_read) {
            Some(_) => Ok(((), StreamEdit::with_event("xgroup-create").without_watches())),
            None => Err(CommandError::constant("BUSYGROUP Consumer Group name already exists")),
        }
    })?;
    match created {
        Some(()) => ctx.reply.ok(),
        None => return Err(NO_KEY_ERROR),
    }
    Ok(())
}

fn setid(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = GroupOptions::parse(ctx, false)?;
    let (subcommand, key, name, word) = (ctx.arg(1), ctx.arg(2), ctx.arg(3), ctx.arg(4));
    let arguments = ctx.argc();
    let set = edit_stream(ctx.keys.write(0), |stream| {
        let last = stream.last_id();
        let group = stream.group_mut(name).ok_or_else(|| no_group_in_key_error(key, name))?;
        if !matches!(arguments, 5 | 7) {
            return Err(bad_subcommand_error("XGROUP", subcommand));
        }
        group.last_id = match c_string_prefix(word) {
            b"$" => last,
            _ => parse_id(word, 0)?,
        };
        group.entries_read = options.entries_read;
        Ok(((), StreamEdit::with_event("xgroup-setid").without_waiters()))
    })?;
    match set {
        Some(()) => ctx.reply.ok(),
        None => return Err(NO_KEY_ERROR),
    }
    Ok(())
}

fn destroy(ctx: &mut Context<'_, '_>) -> CommandResult {
    let name = ctx.arg(3);
    let in_place_ns = ctx.max_worker_ns();
    let destroyed = edit_stream(ctx.keys.write(0), |stream| {
        let pending = stream.group(name).map_or(0, |group| group.pending().len() as u64);
        if pending * PENDING_NS > in_place_ns {
            return Ok((None, StreamEdit::UNCHANGED));
        }
        let destroyed = stream.destroy_group(name);
        let edited = if destroyed {
            StreamEdit::with_event("xgroup-destroy").without_watches()
        } else {
            StreamEdit::UNCHANGED
        };
        Ok((Some(destroyed), edited))
    })?;
    match destroyed.ok_or(NO_KEY_ERROR)? {
        Some(destroyed) => ctx.reply.integer(i64::from(destroyed)),
        None => ctx.detach(),
    }
    Ok(())
}

fn createconsumer(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (key, name, consumer, now_ms) = (ctx.arg(2), ctx.arg(3), ctx.arg(4), ctx.now_ms as i64);
    let created = edit_stream(ctx.keys.write(0), |stream| {
        let group = stream.group_mut(name).ok_or_else(|| no_group_in_key_error(key, name))?;
        let (_, created) = group.find_or_create_consumer(consumer, now_ms);
        Ok((created, StreamEdit::with_consumer(created, 0)))
    })?;
    ctx.reply.integer(i64::from(created.ok_or(NO_KEY_ERROR)?));
    Ok(())
}

fn delconsumer(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (key, name, consumer) = (ctx.arg(2), ctx.arg(3), ctx.arg(4));
    let in_place_ns = ctx.max_worker_ns();
    let removed = edit_stream(ctx.keys.write(0), |stream| {
        let group = stream.group_mut(name).ok_or_else(|| no_group_in_key_error(key, name))?;
        let pending = group
            .find_consumer(consumer)
            .map_or(0, |number| group.consumer(number).pending().len() as u64);
        if pending * PENDING_NS > in_place_ns {
            return Ok((None, StreamEdit::UNCHANGED));
        }
        Ok(match group.remove_consumer(consumer) {
            Some(pending) => (
                Some(pending),
                StreamEdit::with_event("xgroup-delconsumer").without_watches(),
            ),
            None => (Some(0), StreamEdit::UNCHANGED),
        })
    })?;
    match removed.ok_or(NO_KEY_ERROR)? {
        Some(pending) => ctx.reply.integer(pending as i64),
        None => ctx.detach(),
    }
    Ok(())
}

fn xack(ctx: &mut Context<'_, '_>) -> CommandResult {
    let name = ctx.arg(2);
    if ctx.detach_if_long(ctx.argc() as u64 * PENDING_NS) {
        return Ok(());
    }
    let (words, keeps_expired) = (ctx.args.iter(), ctx.keeps_expired());
    if ctx.keys.misses_kept_key(0, keeps_expired) {
        ctx.reply.integer(0);
        return Ok(());
    }
    let acknowledged = edit_stream(ctx.keys.write(0).counted(), |stream| {
        let Some(group) = stream.group_mut(name) else {
            return Ok((0, StreamEdit::UNCHANGED));
        };
        let ids = parse_ids(words.skip(3))?;
        let released = ids.into_iter().filter(|id| group.acknowledge(*id)).count() as u64;
        Ok((released, StreamEdit::without_event(released)))
    })?;
    ctx.reply.integer(acknowledged.unwrap_or(0) as i64);
    Ok(())
}

const HELP: &[&str] = &[
    "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CREATE <key> <groupname> <id|$> [option]",
    "    Create a new consumer group. Options are:",
    "    * MKSTREAM",
    "      Create the empty stream if it does not exist.",
    "    * ENTRIESREAD entries_read",
    "      Set the group's entries_read counter (internal use).",
    "CREATECONSUMER <key> <groupname> <consumer>",
    "    Create a new consumer in the specified group.",
    "DELCONSUMER <key> <groupname> <consumer>",
    "    Remove the specified consumer.",
    "DESTROY <key> <groupname>",
    "    Remove the specified group.",
    "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
    "    Set the current group ID and entries_read counter.",
    "HELP",
    "    Print this help.",
];

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_lines(HELP)
}
