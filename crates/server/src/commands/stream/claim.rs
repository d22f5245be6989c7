//! XCLAIM and XAUTOCLAIM: move pending entries from one consumer to another.

use std::ops::Bound;

use weft_resp::{Protocol, Reply};
use weft_values::stream::{ConsumerGroup, ConsumerNumber, PendingEntry, StreamEntry, StreamId};

use crate::commands::context::{Binding, CommandResult, Context, build_reply, leased};
use crate::commands::error::CommandError;
use crate::commands::stream::arguments::{
    StreamEdit, edit_stream, is_word, no_group_error, parse_exact_id, parse_integer_or, parse_leading_ids,
    parse_range_start, reply_entry, reply_id,
};

use crate::commands::stream::log::GroupPropagation;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("xautoclaim", leased(xautoclaim)), ("xclaim", leased(xclaim))];

/// The time for claiming an entry, in nanoseconds.
const CLAIM_ENTRY_NS: u64 = 500;

/// The options of XCLAIM.
struct XclaimOptions {
    is_forced: bool,
    is_just_id: bool,
    /// The delivery time to record, in milliseconds since the Unix epoch.
    delivered_ms: i64,
    delivery_count: Option<u64>,
    last_id: StreamId,
}

impl XclaimOptions {
    fn parse(ctx: &Context<'_, '_>, first: usize) -> Result<Self, CommandError> {
        let now_ms = ctx.now_ms as i64;
        let mut options = XclaimOptions {
            is_forced: false,
            is_just_id: false,
            delivered_ms: NOT_GIVEN,
            delivery_count: None,
            last_id: StreamId::MIN,
        };
        let mut index = first;
        while index < ctx.argc() {
            let word = ctx.arg(index);
            let more = index + 1 < ctx.argc();
            let value = ctx.arg(index + 1);
            index += 2;
            if is_word(word, "FORCE") {
                options.is_forced = true;
                index -= 1;
            } else if is_word(word, "JUSTID") {
                options.is_just_id = true;
                index -= 1;
            } else if more && is_word(word, "IDLE") {
                let idle_ms = parse_integer_or(value, "ERR Invalid IDLE option argument for XCLAIM")?;
                options.delivered_ms = now_ms.wrapping_sub(idle_ms);
            } else if more && is_word(word, "TIME") {
                options.delivered_ms = parse_integer_or(value, "ERR Invalid TIME option argument for XCLAIM")?;
            } else if more && is_word(word, "RETRYCOUNT") {
                let deliveries = parse_integer_or(value, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                options.delivery_count = u64::try_from(deliveries).ok();
            } else if more && is_word(word, "LASTID") {
                options.last_id = parse_exact_id(value, 0)?;
            } else {
                return Err(CommandError::with_word("ERR Unrecognized XCLAIM option '", word, "'"));
            }
        }
        // A time in the future or before the epoch is replaced by the current time.
        if !(0..=now_ms).contains(&options.delivered_ms) {
            options.delivered_ms = now_ms;
        }
        Ok(options)
    }
}

/// Stands for a delivery time that is not specified.
const NOT_GIVEN: i64 = -1;

fn xclaim(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.detach_if_long(ctx.argc() as u64 * CLAIM_ENTRY_NS) {
        return Ok(());
    }
    let (key, name, consumer) = (ctx.arg(1), ctx.arg(2), ctx.arg(3));
    // As in Valkey, a missing group takes precedence over invalid arguments, and the command changes nothing before it
    // has parsed all arguments.
    let parsed = XclaimArguments::parse(ctx);
    let now_ms = ctx.now_ms as i64;
    let mut log = GroupPropagation::new(ctx.keys.effects.is_logging());
    let keeps_expired = ctx.keeps_expired();
    if ctx.keys.misses_kept_key(0, keeps_expired) {
        return Err(no_group_error(key, name));
    }
    let reply = &mut ctx.reply;
    let claimed = edit_stream(ctx.keys.write(0).counted(), |stream| {
        let (group, mut entries) = stream
            .group_and_entries(name)
            .ok_or_else(|| no_group_error(key, name))?;
        let XclaimArguments {
            min_idle_ms,
            ids,
            options,
        } = parsed?;
        let mut moved_on = options.last_id > group.last_id;
        if moved_on {
            group.last_id = options.last_id;
        }
        let (number, created) = group.find_or_create_consumer(consumer, now_ms);
        group.consumer_mut(number).seen_ms = now_ms;
        let begun = reply.begin_array();
        let (mut sent, mut changes) = (0, 0);
        for id in ids {
            let pending = group.pending().get(&id).copied();
            let Some(entry) = entries.find(id) else {
                if let Some(pending) = pending {
                    let owner = group.consumer(pending.consumer).name();
                    log.add_claim(owner, id, pending, group.last_id);
                }
                if group.acknowledge(id) {
                    changes += 1;
                    moved_on = false;
                }
                continue;
            };
            let idle_enough = pending.map_or(options.is_forced, |pending| {
                min_idle_ms == 0 || now_ms.wrapping_sub(pending.delivered_ms) >= min_idle_ms
            });
            if !idle_enough {
                continue;
            }
            // An entry that is claimed with FORCE counts as delivered once already.
            let before = pending.map_or(1, |pending| pending.deliveries);
            let claimed = PendingEntry {
                delivered_ms: options.delivered_ms,
                deliveries: options
                    .delivery_count
                    .unwrap_or(before + u64::from(!options.is_just_id)),
                consumer: number,
            };
            claim_entry(group, reply, &entry, claimed, options.is_just_id);
            log.add_claim(consumer, id, claimed, group.last_id);
            group.consumer_mut(number).active_ms = now_ms;
            sent += 1;
            changes += 1;
            moved_on = false;
        }
        reply.end_array(begun, sent);
        if moved_on {
            log.set_last_delivered(group);
        }
        Ok(((), StreamEdit::with_consumer(created, changes + u64::from(moved_on))))
    })?;
    log.propagate(ctx.keys.effects, ctx.keys.db, key, name);
    claimed.ok_or_else(|| no_group_error(key, name))
}

/// The arguments of XCLAIM.
struct XclaimArguments {
    min_idle_ms: i64,
    ids: Vec<StreamId>,
    options: XclaimOptions,
}

impl XclaimArguments {
    fn parse(ctx: &Context<'_, '_>) -> Result<Self, CommandError> {
        let min_idle_ms = parse_integer_or(ctx.arg(4), "ERR Invalid min-idle-time argument for XCLAIM")?.max(0);
        let ids = parse_leading_ids(ctx.args.iter().skip(5));
        let options = XclaimOptions::parse(ctx, 5 + ids.len())?;
        Ok(XclaimArguments {
            min_idle_ms,
            ids,
            options,
        })
    }
}

fn claim_entry(
    group: &mut ConsumerGroup,
    reply: &mut Reply<'_>,
    entry: &StreamEntry<'_>,
    pending: PendingEntry,
    just_id: bool,
) {
    group.set_pending(entry.id, pending);
    if just_id {
        reply_id(reply, entry.id);
    } else {
        reply_entry(reply, entry);
    }
}

/// The number of pending entries that XAUTOCLAIM examines for each one that it may claim.
const SCANNED_ENTRIES_PER_CLAIM: usize = 10;
/// The largest COUNT that XAUTOCLAIM accepts.
const MAX_COUNT: i64 = i64::MAX / 16;
/// The number of entries that XAUTOCLAIM claims without a COUNT.
const DEFAULT_COUNT: i64 = 100;
/// The count from which on the command fails for lack of memory. Valkey allocates memory for the IDs of deleted entries
/// beforehand, which would be 64 GiB here, and its allocator refuses this.
const MIN_REFUSED_COUNT: i64 = 1 << 32;

/// The arguments of XAUTOCLAIM.
struct AutoClaimScan {
    min_idle_ms: i64,
    start: StreamId,
    count: i64,
    is_just_id: bool,
    now_ms: i64,
}

impl AutoClaimScan {
    fn parse(ctx: &Context<'_, '_>) -> Result<Self, CommandError> {
        let min_idle_ms = parse_integer_or(ctx.arg(4), "ERR Invalid min-idle-time argument for XAUTOCLAIM")?.max(0);
        let mut scan = AutoClaimScan {
            min_idle_ms,
            start: parse_range_start(ctx.arg(5))?,
            count: DEFAULT_COUNT,
            is_just_id: false,
            now_ms: ctx.now_ms as i64,
        };
        let mut index = 6;
        while index < ctx.argc() {
            let word = ctx.arg(index);
            if is_word(word, "COUNT") && index + 1 < ctx.argc() {
                index += 1;
                scan.count = match parse_integer_or(ctx.arg(index), "ERR COUNT must be > 0")? {
                    count @ 1..=MAX_COUNT => count,
                    _ => return Err(CommandError::constant("ERR COUNT must be > 0")),
                };
            } else if is_word(word, "JUSTID") {
                scan.is_just_id = true;
            } else {
                return Err(CommandError::SYNTAX);
            }
            index += 1;
        }
        Ok(scan)
    }

    fn cost_ns(&self, group: &ConsumerGroup) -> u64 {
        let claims = group.pending().len().min(self.count as usize) as u64;
        claims * CLAIM_ENTRY_NS
    }
}

/// The result of XAUTOCLAIM's scan.
struct AutoClaimResult {
    /// The claimed entries as the reply shows them.
    claimed: Vec<u8>,
    claimed_count: usize,
    /// The IDs that were pending although their entries are deleted.
    deleted: Vec<StreamId>,
    /// The ID at which the next scan begins.
    next_start: StreamId,
}

fn xautoclaim(ctx: &mut Context<'_, '_>) -> CommandResult {
    let parsed = AutoClaimScan::parse(ctx);
    let (key, name, consumer) = (ctx.arg(1), ctx.arg(2), ctx.arg(3));
    let (in_place_ns, protocol) = (ctx.max_worker_ns(), ctx.reply.protocol);
    let mut log = GroupPropagation::new(ctx.keys.effects.is_logging());
    // The key is looked up before the arguments are checked, and its type afterwards.
    let keeps_expired = ctx.keeps_expired();
    if ctx.keys.misses_kept_key(0, keeps_expired) {
        parsed?;
        return Err(no_group_error(key, name));
    }
    let stream_key = ctx.keys.write(0).counted();
    let scan = parsed?;
    let scanned = edit_stream(stream_key, |stream| {
        let (group, mut entries) = stream
            .group_and_entries(name)
            .ok_or_else(|| no_group_error(key, name))?;
        if scan.count >= MIN_REFUSED_COUNT {
            return Err(CommandError::constant(
                "ERR Insufficient memory, failed allocating transient memory, COUNT too high.",
            ));
        }
        if scan.cost_ns(group) > in_place_ns {
            return Ok((None, StreamEdit::UNCHANGED));
        }
        let (number, created) = group.find_or_create_consumer(consumer, scan.now_ms);
        group.consumer_mut(number).seen_ms = scan.now_ms;
        let scanned = scan.scan_and_claim(group, number, protocol, &mut log, |id| entries.find(id));
        let changes = (scanned.claimed_count + scanned.deleted.len()) as u64;
        Ok((Some(scanned), StreamEdit::with_consumer(created, changes)))
    })?;
    if matches!(scanned, Some(Some(_))) {
        log.propagate(ctx.keys.effects, ctx.keys.db, key, name);
    }
    match scanned.ok_or_else(|| no_group_error(key, name))? {
        None => ctx.detach(),
        Some(scanned) => {
            let reply = &mut ctx.reply;
            reply.array(3);
            reply_id(reply, scanned.next_start);
            reply.array(scanned.claimed_count);
            reply.raw(&scanned.claimed);
            reply.array(scanned.deleted.len());
            for id in scanned.deleted {
                reply_id(reply, id);
            }
        }
    }
    Ok(())
}

impl AutoClaimScan {
    fn scan_and_claim<'e>(
        &self,
        group: &mut ConsumerGroup,
        consumer: ConsumerNumber,
        protocol: Protocol,
        log: &mut GroupPropagation,
        mut find: impl FnMut(StreamId) -> Option<StreamEntry<'e>>,
    ) -> AutoClaimResult {
        let (mut claims, mut deleted) = (0, Vec::new());
        let mut left = self.count as usize;
        let mut from = Bound::Included(self.start);
        let next_pending = |group: &ConsumerGroup, from| {
            let mut behind = group.pending().range((from, Bound::Unbounded));
            behind.next().map(|(id, pending)| (*id, *pending))
        };
        let claimed = build_reply(protocol, |reply| {
            let mut looks = left.saturating_mul(SCANNED_ENTRIES_PER_CLAIM);
            while looks > 0
                && left > 0
                && let Some((id, pending)) = next_pending(group, from)
            {
                looks -= 1;
                from = Bound::Excluded(id);
                let Some(entry) = find(id) else {
                    log.add_claim(group.consumer(pending.consumer).name(), id, pending, group.last_id);
                    group.acknowledge(id);
                    deleted.push(id);
                    left -= 1;
                    continue;
                };
                if self.min_idle_ms > 0 && self.now_ms.wrapping_sub(pending.delivered_ms) < self.min_idle_ms {
                    continue;
                }
                let claimed = PendingEntry {
                    delivered_ms: self.now_ms,
                    deliveries: pending.deliveries + u64::from(!self.is_just_id),
                    consumer,
                };
                claim_entry(group, reply, &entry, claimed, self.is_just_id);
                log.add_claim(group.consumer(consumer).name(), id, claimed, group.last_id);
                group.consumer_mut(consumer).active_ms = self.now_ms;
                claims += 1;
                left -= 1;
            }
        });
        AutoClaimResult {
            claimed,
            claimed_count: claims,
            deleted,
            next_start: next_pending(group, from).map_or(StreamId::MIN, |(id, _)| id),
        }
    }
}
