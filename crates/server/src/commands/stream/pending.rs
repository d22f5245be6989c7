//! XPENDING: lists the entries that a group's consumers have not acknowledged.

use weft_resp::Reply;
use weft_values::stream::{ConsumerGroup, StreamId};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::stream::arguments::{
    entry_as_stream, is_word, no_group_error, parse_integer, parse_range_end, parse_range_start, reply_id,
};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("xpending", leased(xpending))];

/// The arguments of the extended form.
struct PendingFilter<'a> {
    min_idle_ms: i64,
    start: StreamId,
    end: StreamId,
    count: usize,
    consumer: Option<&'a [u8]>,
    now_ms: i64,
}

impl<'a> PendingFilter<'a> {
    fn parse(ctx: &Context<'a, '_>) -> Result<Self, CommandError> {
        let mut first = 3;
        let mut min_idle_ms = 0;
        if is_word(ctx.arg(3), "IDLE") {
            min_idle_ms = parse_integer(ctx.arg(4))?;
            if ctx.argc() < 8 {
                return Err(CommandError::SYNTAX);
            }
            first = 5;
        }
        let count = parse_integer(ctx.arg(first + 2))?.max(0);
        Ok(PendingFilter {
            min_idle_ms,
            start: parse_range_start(ctx.arg(first))?,
            end: parse_range_end(ctx.arg(first + 1))?,
            count: usize::try_from(count).unwrap_or(usize::MAX),
            consumer: (first + 3 < ctx.argc()).then(|| ctx.arg(first + 3)),
            now_ms: ctx.now_ms as i64,
        })
    }
}

/// The times for examining a pending entry and for writing one to a reply, in nanoseconds.
const SCAN_ENTRY_NS: u64 = 20;
const REPLY_ENTRY_NS: u64 = 100;

fn xpending(ctx: &mut Context<'_, '_>) -> CommandResult {
    let filter = match ctx.argc() {
        3 => None,
        6..=9 => Some(PendingFilter::parse(ctx)?),
        _ => return Err(CommandError::SYNTAX),
    };
    let (key, name) = (ctx.arg(1), ctx.arg(2));
    let in_place_ns = ctx.max_worker_ns();
    let group = entry_as_stream(ctx.keys.read(0))?.and_then(|stream| stream.group(name));
    let Some(group) = group else {
        return Err(no_group_error(key, name));
    };
    let cost_ns = match &filter {
        None => group.consumers().len() as u64 * REPLY_ENTRY_NS,
        Some(filter) => {
            let pending = group.pending().len();
            let looks = if filter.min_idle_ms > 0 { pending } else { 0 };
            looks as u64 * SCAN_ENTRY_NS + pending.min(filter.count) as u64 * REPLY_ENTRY_NS
        }
    };
    if cost_ns > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    match filter {
        None => reply_summary(&mut ctx.reply, group),
        Some(filter) => reply_filtered(&mut ctx.reply, group, &filter),
    }
    Ok(())
}

fn reply_summary(reply: &mut Reply<'_>, group: &ConsumerGroup) {
    let pending = group.pending();
    reply.array(4);
    reply.integer(pending.len() as i64);
    let (Some((first, _)), Some((last, _))) = (pending.first_key_value(), pending.last_key_value()) else {
        reply.null();
        reply.null();
        reply.null_array();
        return;
    };
    reply_id(reply, *first);
    reply_id(reply, *last);
    let busy = || {
        let consumers = group.consumers().map(|(_, consumer)| consumer);
        consumers.filter(|consumer| !consumer.pending().is_empty())
    };
    reply.array(busy().count());
    for consumer in busy() {
        reply.array(2);
        reply.bulk(consumer.name());
        reply.bulk_integer(consumer.pending().len() as i64);
    }
}

fn reply_filtered(reply: &mut Reply<'_>, group: &ConsumerGroup, filter: &PendingFilter<'_>) {
    let begun = reply.begin_array();
    let mut sent = 0;
    let mut left = filter.count;
    let mut show = |id: StreamId| {
        if left == 0 {
            return false;
        }
        if let Some(pending) = group.pending().get(&id) {
            let idle_ms = filter.now_ms.wrapping_sub(pending.delivered_ms);
            if filter.min_idle_ms == 0 || idle_ms >= filter.min_idle_ms {
                left -= 1;
                sent += 1;
                reply.array(4);
                reply_id(reply, id);
                reply.bulk(group.consumer(pending.consumer).name());
                reply.integer(idle_ms.max(0));
                reply.integer(pending.deliveries as i64);
            }
        }
        true
    };
    if filter.start <= filter.end {
        let range = filter.start..=filter.end;
        match filter.consumer {
            None => {
                let _ = group.pending().range(range).all(|(id, _)| show(*id));
            }
            Some(name) => {
                let consumer = group.find_consumer(name).map(|number| group.consumer(number));
                let _ = consumer.is_none_or(|consumer| consumer.pending().range(range).all(|id| show(*id)));
            }
        }
    }
    reply.end_array(begun, sent);
}
