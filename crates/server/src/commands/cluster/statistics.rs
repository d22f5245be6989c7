//! CLUSTER SLOT-STATS: the number of keys in the slots of this node's shard, and the resources they used.

use weft_base::SlotIndex;
use weft_resp::number::parse_i64;

use super::{parse_slot, require_cluster, wrong_argument_count};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::keyspace::slot_drop;
use crate::keyspace::walk::WalkAccess;
use crate::observability::slot_stats::SlotFigure;
use weft_base::slots::SLOTS;
use weft_cluster::view::ClusterView;
use weft_config::id;

/// A metric of a slot, by which slots may be ordered.
#[derive(Clone, Copy)]
enum SlotMetric {
    Keys,
    Cost(SlotFigure),
}

/// The metrics in the order of the reply. All except the first are counted only if a parameter enables them.
const METRICS: [(&str, SlotMetric); 4] = [
    ("key-count", SlotMetric::Keys),
    ("cpu-usec", SlotMetric::Cost(SlotFigure::CpuUs)),
    ("network-bytes-in", SlotMetric::Cost(SlotFigure::BytesIn)),
    ("network-bytes-out", SlotMetric::Cost(SlotFigure::BytesOut)),
];

/// The slots that are shown, and their order.
enum SlotStatsQuery {
    /// The slots in this range.
    Range(SlotIndex, SlotIndex),
    /// This number of slots with the highest or lowest value of a metric.
    Ordered {
        by: SlotMetric,
        limit: usize,
        descending: bool,
    },
}

pub(super) fn slot_stats(ctx: &mut Context<'_, '_>) -> CommandResult {
    let view = require_cluster(ctx)?.view();
    let shown = match ctx.server.config.boolean(id::CLUSTER_SLOT_STATS_ENABLED) {
        true => &METRICS[..],
        false => &METRICS[..1],
    };
    let query = parse_query(ctx, shown)?;
    let slots = match select_slots(ctx, &view, &query) {
        Ok(slots) => slots,
        Err(held) => {
            ctx.defer_until_free(held);
            return Ok(());
        }
    };
    let mut rows = Vec::with_capacity(slots.len());
    for slot in slots {
        let mut figures = Vec::with_capacity(shown.len());
        for (name, metric) in shown {
            match slot_metric(ctx, slot, *metric) {
                Ok(figure) => figures.push((*name, figure)),
                Err(held) => {
                    ctx.defer_until_free(held);
                    return Ok(());
                }
            }
        }
        rows.push((slot, figures));
    }
    let reply = &mut ctx.reply;
    reply.array(rows.len());
    for (slot, row) in rows {
        reply.array(2);
        reply.integer(slot.get().into());
        reply.map(row.len());
        for (name, figure) in row {
            reply.bulk(name.as_bytes());
            reply.integer(figure as i64);
        }
    }
    Ok(())
}

/// Returns a metric of a slot.
///
/// # Errors
/// The slot, if another thread is writing it.
fn slot_metric(ctx: &Context<'_, '_>, slot: SlotIndex, metric: SlotMetric) -> Result<u64, SlotIndex> {
    match metric {
        SlotMetric::Cost(figure) => Ok(ctx.server.stats.slots.sum(slot, figure)),
        SlotMetric::Keys => {
            let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
            match access.header(slot.index()).may_hold_any() {
                false => Ok(0),
                true => {
                    let keys = access.read_slot(slot.index(), slot_drop::count_keys_of_slot);
                    keys.map(|keys| keys as u64).ok_or(slot)
                }
            }
        }
    }
}

/// Returns the slots that are shown, in order.
///
/// # Errors
/// A slot that another thread is writing.
fn select_slots(
    ctx: &Context<'_, '_>,
    view: &ClusterView,
    query: &SlotStatsQuery,
) -> Result<Vec<SlotIndex>, SlotIndex> {
    let of_shard = |slot: &SlotIndex| view.is_of_my_shard(*slot);
    match *query {
        SlotStatsQuery::Range(first, last) => Ok(first.to(last).filter(of_shard).collect()),
        SlotStatsQuery::Ordered { by, limit, descending } => {
            let slots = SlotIndex::all().filter(of_shard);
            let figures: Result<Vec<(u64, SlotIndex)>, SlotIndex> =
                slots.map(|slot| Ok((slot_metric(ctx, slot, by)?, slot))).collect();
            let mut figures = figures?;
            figures.sort_by_key(|(figure, slot)| (if descending { u64::MAX - figure } else { *figure }, *slot));
            Ok(figures.into_iter().take(limit).map(|(_, slot)| slot).collect())
        }
    }
}

fn parse_query(ctx: &Context<'_, '_>, metrics: &[(&str, SlotMetric)]) -> Result<SlotStatsQuery, CommandError> {
    let is = |name: &str| ctx.arg(2).eq_ignore_ascii_case(name.as_bytes());
    if is("slotsrange") && ctx.argc() == 5 {
        let (first, last) = (parse_slot(ctx.arg(3))?, parse_slot(ctx.arg(4))?);
        if first > last {
            return Err(CommandError::from_text(format!(
                "ERR Start slot number {first} is greater than end slot number {last}"
            )));
        }
        return Ok(SlotStatsQuery::Range(first, last));
    }
    if is("orderby") && ctx.argc() >= 4 {
        return parse_order_by(ctx, metrics);
    }
    Err(wrong_argument_count(ctx))
}

fn parse_order_by(ctx: &Context<'_, '_>, metrics: &[(&str, SlotMetric)]) -> Result<SlotStatsQuery, CommandError> {
    let named = |(name, _): &&(&str, SlotMetric)| ctx.arg(3).eq_ignore_ascii_case(name.as_bytes());
    let (_, by) = metrics
        .iter()
        .find(named)
        .ok_or(CommandError::constant("ERR Unrecognized sort metric for ORDERBY."))?;
    let (mut limit, mut descending) = (None, None);
    let mut index = 4;
    let twice = CommandError::constant("ERR Multiple filters of the same type are disallowed.");
    while index < ctx.argc() {
        let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
        if is("limit") && index + 1 < ctx.argc() {
            let number = parse_i64(ctx.arg(index + 1)).filter(|number| (1..=SLOTS as i64).contains(number));
            let number = number.ok_or(CommandError::constant(
                "ERR Limit has to lie in between 1 and 16384 (maximum number of slots).",
            ))?;
            if limit.replace(number as usize).is_some() {
                return Err(twice);
            }
            index += 1;
        } else if is("asc") || is("desc") {
            if descending.replace(is("desc")).is_some() {
                return Err(twice);
            }
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 1;
    }
    Ok(SlotStatsQuery::Ordered {
        by: *by,
        limit: limit.unwrap_or(SLOTS),
        descending: descending.unwrap_or(true),
    })
}
