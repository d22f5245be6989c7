//! XINFO: describes a stream, its groups and their consumers.

use weft_resp::Reply;
use weft_values::stream::{ConsumerGroup, NEVER_ACTIVE, Stream, StreamConsumer, StreamId};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::stream::arguments::{
    bad_subcommand_error, entry_as_stream, is_word, no_group_in_key_error, parse_integer, range_cost_ns, reply_entry,
    reply_id,
};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("xinfo|consumers", leased(consumers)),
    ("xinfo|groups", leased(groups)),
    ("xinfo|help", leased(help)),
    ("xinfo|stream", leased(stream)),
];

/// The number of entries that FULL shows by default, and of pending entries for each group and consumer.
const FULL_COUNT: usize = 10;
/// The times for counting the nodes of a block, for writing a group or consumer to a reply, and for writing a pending
/// entry, in nanoseconds.
const BLOCK_NS: u64 = 10;
const DESCRIBE_GROUP_NS: u64 = 400;
const PENDING_NS: u64 = 100;

fn stream(ctx: &mut Context<'_, '_>) -> CommandResult {
    let found = entry_as_stream(ctx.keys.read(0))?.is_some();
    if !found {
        return Err(CommandError::NO_SUCH_KEY);
    }
    let full = parse_full_count(ctx)?;
    let in_place_ns = ctx.max_worker_ns();
    let Some(stream) = entry_as_stream(ctx.keys.peek(0))? else {
        return Err(CommandError::NO_SUCH_KEY);
    };
    if cost_ns(stream, full) > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let reply = &mut ctx.reply;
    match full {
        None => {
            reply.map(10);
            reply_counters(reply, stream);
            reply_brief(reply, stream);
        }
        Some(count) => {
            reply.map(9);
            reply_counters(reply, stream);
            reply_full(reply, stream, count);
        }
    }
    Ok(())
}

/// Returns the number of entries that FULL shows; `None` without FULL.
fn parse_full_count(ctx: &Context<'_, '_>) -> Result<Option<usize>, CommandError> {
    let refusal = || bad_subcommand_error("XINFO", ctx.arg(1));
    match ctx.argc() {
        3 => return Ok(None),
        4 | 6 if is_word(ctx.arg(3), "FULL") => {}
        _ => return Err(refusal()),
    }
    if ctx.argc() == 4 {
        return Ok(Some(FULL_COUNT));
    }
    if !is_word(ctx.arg(4), "COUNT") {
        return Err(refusal());
    }
    Ok(Some(match parse_integer(ctx.arg(5))? {
        0 => usize::MAX,
        count @ 1.. => usize::try_from(count).unwrap_or(usize::MAX),
        _ => FULL_COUNT,
    }))
}

fn cost_ns(stream: &Stream, full: Option<usize>) -> u64 {
    let nodes = stream.blocks().len() as u64 * BLOCK_NS;
    let entries_ns = |count, is_reverse| range_cost_ns(stream, StreamId::MIN, StreamId::MAX, count, is_reverse);
    let Some(count) = full else {
        return nodes + entries_ns(1, false) + entries_ns(1, true);
    };
    let groups: u64 = stream
        .groups()
        .map(|group| {
            let described = 1 + group.consumers().len() as u64;
            // Each pending entry is shown with its group and with its consumer.
            let pending = group.pending().len().min(count.saturating_mul(described as usize)) as u64;
            described * DESCRIBE_GROUP_NS + 2 * pending * PENDING_NS
        })
        .sum();
    nodes + groups + entries_ns(count as u64, false)
}

fn reply_counters(reply: &mut Reply<'_>, stream: &Stream) {
    let counters = stream.metadata();
    reply.bulk(b"length");
    reply.integer(counters.length as i64);
    reply.bulk(b"radix-tree-keys");
    reply.integer(stream.blocks().len() as i64);
    reply.bulk(b"radix-tree-nodes");
    reply.integer(stream.radix_nodes() as i64);
    reply.bulk(b"last-generated-id");
    reply_id(reply, counters.last_id);
    reply.bulk(b"max-deleted-entry-id");
    reply_id(reply, counters.max_deleted_id);
    reply.bulk(b"entries-added");
    reply.integer(counters.entries_added as i64);
    reply.bulk(b"recorded-first-entry-id");
    reply_id(reply, counters.first_id);
}

fn reply_brief(reply: &mut Reply<'_>, stream: &Stream) {
    reply.bulk(b"groups");
    reply.integer(stream.groups().len() as i64);
    let (start, end) = (StreamId::MIN, StreamId::MAX);
    let first = stream.entries(start, end).next();
    let last = stream.entries_backwards(start, end).next();
    for (name, entry) in [(&b"first-entry"[..], first), (b"last-entry", last)] {
        reply.bulk(name);
        match entry {
            Some(entry) => reply_entry(reply, &entry),
            None => reply.null(),
        }
    }
}

fn reply_full(reply: &mut Reply<'_>, stream: &Stream, count: usize) {
    reply.bulk(b"entries");
    let begun = reply.begin_array();
    let mut sent = 0;
    for entry in stream.entries(StreamId::MIN, StreamId::MAX).take(count) {
        reply_entry(reply, &entry);
        sent += 1;
    }
    reply.end_array(begun, sent);
    reply.bulk(b"groups");
    reply.array(stream.groups().len());
    for group in stream.groups() {
        reply_group_full(reply, stream, group, count);
    }
}

fn reply_group_full(reply: &mut Reply<'_>, stream: &Stream, group: &ConsumerGroup, count: usize) {
    reply.map(7);
    reply.bulk(b"name");
    reply.bulk(group.name());
    reply_progress(reply, stream, group);
    reply.bulk(b"pel-count");
    reply.integer(group.pending().len() as i64);
    reply.bulk(b"pending");
    reply.array(group.pending().len().min(count));
    for (id, pending) in group.pending().iter().take(count) {
        reply.array(4);
        reply_id(reply, *id);
        reply.bulk(group.consumer(pending.consumer).name());
        reply.integer(pending.delivered_ms);
        reply.integer(pending.deliveries as i64);
    }
    reply.bulk(b"consumers");
    reply.array(group.consumers().len());
    for (_, consumer) in group.consumers() {
        reply_consumer_full(reply, group, consumer, count);
    }
}

fn reply_consumer_full(reply: &mut Reply<'_>, group: &ConsumerGroup, consumer: &StreamConsumer, count: usize) {
    reply.map(5);
    reply.bulk(b"name");
    reply.bulk(consumer.name());
    reply.bulk(b"seen-time");
    reply.integer(consumer.seen_ms);
    reply.bulk(b"active-time");
    reply.integer(consumer.active_ms);
    reply.bulk(b"pel-count");
    reply.integer(consumer.pending().len() as i64);
    reply.bulk(b"pending");
    reply.array(consumer.pending().len().min(count));
    for id in consumer.pending().iter().take(count) {
        let pending = group.pending().get(id);
        reply.array(3);
        reply_id(reply, *id);
        reply.integer(pending.map_or(0, |pending| pending.delivered_ms));
        reply.integer(pending.map_or(0, |pending| pending.deliveries as i64));
    }
}

/// Writes a group's position in the stream.
fn reply_progress(reply: &mut Reply<'_>, stream: &Stream, group: &ConsumerGroup) {
    reply.bulk(b"last-delivered-id");
    reply_id(reply, group.last_id);
    reply.bulk(b"entries-read");
    reply_integer_or_null(reply, group.entries_read);
    reply.bulk(b"lag");
    reply_integer_or_null(reply, stream.metadata().lag(group));
}

fn reply_integer_or_null(reply: &mut Reply<'_>, number: Option<i64>) {
    match number {
        Some(number) => reply.integer(number),
        None => reply.null(),
    }
}

fn groups(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let Some(stream) = entry_as_stream(ctx.keys.read(0))? else {
        return Err(CommandError::NO_SUCH_KEY);
    };
    let group_count = stream.groups().len();
    if group_count as u64 * DESCRIBE_GROUP_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let reply = &mut ctx.reply;
    reply.array(group_count);
    for group in stream.groups() {
        reply.map(6);
        reply.bulk(b"name");
        reply.bulk(group.name());
        reply.bulk(b"consumers");
        reply.integer(group.consumers().len() as i64);
        reply.bulk(b"pending");
        reply.integer(group.pending().len() as i64);
        reply_progress(reply, stream, group);
    }
    Ok(())
}

fn consumers(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (key, name, now_ms) = (ctx.arg(2), ctx.arg(3), ctx.now_ms as i64);
    let in_place_ns = ctx.max_worker_ns();
    let Some(stream) = entry_as_stream(ctx.keys.read(0))? else {
        return Err(CommandError::NO_SUCH_KEY);
    };
    let group = stream.group(name).ok_or_else(|| no_group_in_key_error(key, name))?;
    if group.consumers().len() as u64 * DESCRIBE_GROUP_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let reply = &mut ctx.reply;
    reply.array(group.consumers().len());
    for (_, consumer) in group.consumers() {
        reply.map(4);
        reply.bulk(b"name");
        reply.bulk(consumer.name());
        reply.bulk(b"pending");
        reply.integer(consumer.pending().len() as i64);
        reply.bulk(b"idle");
        reply.integer(now_ms.wrapping_sub(consumer.seen_ms).max(0));
        reply.bulk(b"inactive");
        reply.integer(match consumer.active_ms {
            NEVER_ACTIVE => NEVER_ACTIVE,
            active_ms => now_ms.wrapping_sub(active_ms),
        });
    }
    Ok(())
}

const HELP: &[&str] = &[
    "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CONSUMERS <key> <groupname>",
    "    Show consumers of <groupname>.",
    "GROUPS <key>",
    "    Show the stream consumer groups.",
    "STREAM <key> [FULL [COUNT <count>]",
    "    Show information about the stream.",
    "HELP",
    "    Print this help.",
];

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_lines(HELP)
}
