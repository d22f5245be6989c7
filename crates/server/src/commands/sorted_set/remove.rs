//! Commands that remove members: ZREM, ZREMRANGEBYRANK, ZREMRANGEBYSCORE, ZREMRANGEBYLEX.

use std::ops::Range;

use weft_resp::number::parse_i64;
use weft_values::sorted_set::{DetachedSortedSet, SortedSetView};

use super::range_query::{clamp_ranks, parse_lex_range, parse_score_range};
use super::{CHANGE_MEMBER_NS, REMOVE_MEMBER_NS, SortedSetEditor, edit_sorted_set, value_as_sorted_set};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::notify::keyspace_event::KeyspaceEvent;

/// ZREM key member [member ...]
pub fn zrem(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.detach_if_long((ctx.argc() - 2) as u64 * CHANGE_MEMBER_NS) {
        return Ok(());
    }
    let args = ctx.args;
    let mut key = ctx.keys.write(0);
    let change = |mut set: SortedSetEditor<'_>| {
        let removed = args.iter().skip(2).filter(|member| set.remove(member)).count();
        (removed, removed > 0)
    };
    let edited = edit_sorted_set(&mut key, DetachedSortedSet::from_packed, change)?;
    let removed = edited.as_ref().map_or(0, |edited| edited.result);
    if removed > 0 {
        close_removal(key, "zrem", removed, edited.is_some_and(|edited| edited.is_emptied));
    }
    ctx.reply.integer(removed as i64);
    Ok(())
}

fn close_removal(
    mut key: crate::keyspace::access::KeyWrite<'_>,
    event: &'static str,
    removed: usize,
    is_emptied: bool,
) {
    if is_emptied {
        key.record_event(KeyspaceEvent::sorted_set(event));
        key.changed_times(KeyspaceEvent::generic("del"), removed as u64);
    } else {
        key.changed_times(KeyspaceEvent::sorted_set(event), removed as u64);
    }
}

/// ZREMRANGEBYRANK key start stop
pub fn zremrangebyrank(ctx: &mut Context<'_, '_>) -> CommandResult {
    let start = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let end = parse_i64(ctx.arg(3)).ok_or(CommandError::NOT_AN_INTEGER)?;
    remove_range(ctx, "zremrangebyrank", |view| clamp_ranks(start, end, view.len()))
}

/// ZREMRANGEBYSCORE key min max
pub fn zremrangebyscore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let range = parse_score_range(ctx.arg(2), ctx.arg(3))?;
    remove_range(ctx, "zremrangebyscore", |view| view.ranks_of_scores(&range))
}

/// ZREMRANGEBYLEX key min max
pub fn zremrangebylex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let range = parse_lex_range(ctx.arg(2), ctx.arg(3))?;
    remove_range(ctx, "zremrangebylex", |view| view.ranks_of_lex(&range))
}

fn remove_range(
    ctx: &mut Context<'_, '_>,
    event: &'static str,
    ranks: impl FnOnce(&SortedSetView<'_>) -> Range<usize>,
) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let mut key = ctx.keys.write(0);
    let ranks = match key.entry().map(|entry| value_as_sorted_set(entry.value())) {
        Some(Ok(view)) => ranks(&view),
        None => 0..0,
        Some(Err(error)) => {
            return Err(error);
        }
    };
    let count = ranks.len();
    if count == 0 {
    } else if count as u64 * REMOVE_MEMBER_NS > in_place_ns {
        drop(key);
        ctx.detach();
        return Ok(());
    } else {
        let edited = edit_sorted_set(&mut key, DetachedSortedSet::from_packed, |mut set| {
            set.remove_ranks(ranks);
            ((), true)
        });
        close_removal(key, event, count, edited?.is_some_and(|edited| edited.is_emptied));
    }
    ctx.reply.integer(count as i64);
    Ok(())
}
