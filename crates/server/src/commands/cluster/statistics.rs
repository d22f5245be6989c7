//! CLUSTER SLOT-STATS: how many keys the slots of this node's shard have, and what they cost.

use weft_resp::number::parse_i64;

use super::{cluster_of, slot_of, wrong_words};
use crate::commands::context::{CommandResult, Context, NextStep};
use crate::commands::error::CommandError;
use crate::keyspace::slot_drop;
use crate::keyspace::walk::WalkAccess;
use crate::observability::slot_stats::SlotFigure;
use weft_base::slots::SLOTS;
use weft_cluster::view::ClusterView;
use weft_config::id;

/// A metric of a slot, by which slots may be ordered.
#[derive(Clone, Copy)]
enum Metric {
    Keys,
    Cost(SlotFigure),
}

/// All there is, in the order of the reply. Those behind the first are counted only if a parameter says so.
const METRICS: [(&str, Metric); 4] = [
    ("key-count", Metric::Keys),
    ("cpu-usec", Metric::Cost(SlotFigure::CpuUs)),
    ("network-bytes-in", Metric::Cost(SlotFigure::BytesIn)),
    ("network-bytes-out", Metric::Cost(SlotFigure::BytesOut)),
];

/// The slots that are shown, and their order.
enum SlotSelection {
    /// These, by number.
    Range(u16, u16),
    /// So many with the most of something, or the least.
    Ordered { by: Metric, limit: usize, descending: bool },
}

pub(super) fn slot_stats(ctx: &mut Context<'_, '_>) -> CommandResult {
    let view = cluster_of(ctx)?.view();
    let shown = match ctx.server.config.boolean(id::CLUSTER_SLOT_STATS_ENABLED) {
        true => &METRICS[..],
        false => &METRICS[..1],
    };
    let wanted = wanted(ctx, shown)?;
    let Some(slots) = chosen(ctx, &view, &wanted) else {
        ctx.after = NextStep::Defer;
        return Ok(());
    };
    let mut rows = Vec::with_capacity(slots.len());
    for slot in slots {
        let mut row = Vec::with_capacity(shown.len());
        for (name, metric) in shown {
            let Some(figure) = figure(ctx, slot, *metric) else {
                ctx.after = NextStep::Defer;
                return Ok(());
            };
            row.push((*name, figure));
        }
        rows.push((slot, row));
    }
    let reply = &mut ctx.reply;
    reply.array(rows.len());
    for (slot, row) in rows {
        reply.array(2);
        reply.integer(slot.into());
        reply.map(row.len());
        for (name, figure) in row {
            reply.bulk(name.as_bytes());
            reply.integer(figure as i64);
        }
    }
    Ok(())
}

/// Returns a metric of a slot, or `None` if another thread writes the slot at the moment.
fn figure(ctx: &Context<'_, '_>, slot: u16, metric: Metric) -> Option<u64> {
    match metric {
        Metric::Cost(figure) => Some(ctx.server.stats.slots.sum(slot, figure)),
        Metric::Keys => {
            let reach = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
            match reach.header(usize::from(slot)).may_hold_any() {
                false => Some(0),
                true => reach
                    .read_slot(usize::from(slot), slot_drop::count_keys_of_slot)
                    .map(|keys| keys as u64),
            }
        }
    }
}

/// Returns the slots that are shown, in order, or `None` if another thread writes one of them at the moment.
fn chosen(ctx: &Context<'_, '_>, view: &ClusterView, wanted: &SlotSelection) -> Option<Vec<u16>> {
    let of_shard = |slot: &u16| view.is_of_my_shard(*slot);
    match *wanted {
        SlotSelection::Range(first, last) => Some((first..=last).filter(of_shard).collect()),
        SlotSelection::Ordered { by, limit, descending } => {
            let slots = (0..SLOTS as u16).filter(of_shard);
            let figures: Option<Vec<(u64, u16)>> = slots.map(|slot| Some((figure(ctx, slot, by)?, slot))).collect();
            let mut figures = figures?;
            figures.sort_by_key(|(figure, slot)| (if descending { u64::MAX - figure } else { *figure }, *slot));
            Some(figures.into_iter().take(limit).map(|(_, slot)| slot).collect())
        }
    }
}

fn wanted(ctx: &Context<'_, '_>, shown: &[(&str, Metric)]) -> Result<SlotSelection, CommandError> {
    let is = |name: &str| ctx.arg(2).eq_ignore_ascii_case(name.as_bytes());
    if is("slotsrange") && ctx.argc() == 5 {
        let (first, last) = (slot_of(ctx.arg(3))?, slot_of(ctx.arg(4))?);
        if first > last {
            return Err(CommandError::text(format!(
                "ERR Start slot number {first} is greater than end slot number {last}"
            )));
        }
        return Ok(SlotSelection::Range(first, last));
    }
    if is("orderby") && ctx.argc() >= 4 {
        return order(ctx, shown);
    }
    Err(wrong_words(ctx))
}

fn order(ctx: &Context<'_, '_>, shown: &[(&str, Metric)]) -> Result<SlotSelection, CommandError> {
    let named = |(name, _): &&(&str, Metric)| ctx.arg(3).eq_ignore_ascii_case(name.as_bytes());
    let (_, by) = shown
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
    Ok(SlotSelection::Ordered {
        by: *by,
        limit: limit.unwrap_or(SLOTS),
        descending: descending.unwrap_or(true),
    })
}
