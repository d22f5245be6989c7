//! ZRANDMEMBER.

use std::collections::HashSet;

use weft_resp::number::parse_i64;
use weft_resp::{Protocol, Reply};
use weft_values::sorted_set::SortedSetView;

use super::range::reply_members;
use super::{REPLY_MEMBER_NS, reply_member, value_as_sorted_set};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::commands::reply_limit::{ELEMENTS_PER_CHECK, ReplyLimit};

/// The time for finding a member by its rank, in nanoseconds.
const DRAW_MEMBER_NS: u64 = 150;
/// If more than one in this many members is wanted, the set is iterated from end to end.
const MAX_SPARSE_FRACTION: usize = 8;

/// ZRANDMEMBER key [count [WITHSCORES]]
pub fn zrandmember(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc() == 2 {
        return reply_random_member(ctx);
    }
    let (count, with_scores) = parse_count(ctx)?;
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let in_place_ns = ctx.max_worker_ns();
    let Some(entry) = ctx.keys.read(0) else {
        ctx.reply.array(0);
        return Ok(());
    };
    let view = value_as_sorted_set(entry.value())?;
    let size = view.len();
    let cost = if count > 0 && wanted > size / MAX_SPARSE_FRACTION {
        size as u64 * REPLY_MEMBER_NS
    } else {
        (wanted as u64).saturating_mul(DRAW_MEMBER_NS)
    };
    if cost > in_place_ns {
        ctx.detach();
    } else if count < 0 {
        let limit = ReplyLimit::for_client(ctx.server, ctx.client);
        reply_with_repetition(&mut ctx.reply, &view, wanted, with_scores, &limit);
    } else if wanted >= size {
        reply_members(&mut ctx.reply, size, view.iter(), with_scores);
    } else {
        reply_distinct_members(&mut ctx.reply, &view, wanted, with_scores);
    }
    Ok(())
}

fn parse_count(ctx: &Context<'_, '_>) -> Result<(i64, bool), CommandError> {
    let count = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    if count == i64::MIN {
        return Err(CommandError::constant(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    match ctx.argc() {
        3 => Ok((count, false)),
        4 if ctx.arg(3).eq_ignore_ascii_case(b"withscores") => {
            if !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
                return Err(CommandError::constant("ERR value is out of range"));
            }
            Ok((count, true))
        }
        _ => Err(CommandError::SYNTAX),
    }
}

fn reply_random_member(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some(entry) = ctx.keys.read(0) else {
        ctx.reply.null();
        return Ok(());
    };
    let view = value_as_sorted_set(entry.value())?;
    let rank = fastrand::usize(..view.len());
    match view.iter_ranks(rank..rank + 1, false).next() {
        Some((member, _)) => reply_member(&mut ctx.reply, member),
        None => ctx.reply.null(),
    }
    Ok(())
}

fn reply_with_repetition(
    reply: &mut Reply<'_>,
    view: &SortedSetView<'_>,
    count: usize,
    with_scores: bool,
    limit: &ReplyLimit,
) {
    let pairs = with_scores && reply.protocol == Protocol::Resp3;
    let flat = with_scores && !pairs;
    reply.array(if flat { count * 2 } else { count });
    for drawn in 0..count {
        if drawn % ELEMENTS_PER_CHECK == 0 && limit.is_exceeded(reply.out.len()) {
            return;
        }
        let rank = fastrand::usize(..view.len());
        for (member, score) in view.iter_ranks(rank..rank + 1, false) {
            if pairs {
                reply.array(2);
            }
            reply_member(reply, member);
            if with_scores {
                reply.double(score);
            }
        }
    }
}

/// Writes `count` different members. The set must have more.
fn reply_distinct_members(reply: &mut Reply<'_>, view: &SortedSetView<'_>, count: usize, with_scores: bool) {
    let size = view.len();
    if count > size / MAX_SPARSE_FRACTION {
        // Each member is chosen with a probability such that exactly `count` are chosen in the end.
        let mut wanted = count;
        let chosen = view.iter().enumerate().filter_map(|(rank, found)| {
            let taken = fastrand::usize(..size - rank) < wanted;
            wanted -= usize::from(taken);
            taken.then_some(found)
        });
        reply_members(reply, count, chosen, with_scores);
        return;
    }
    let mut ranks = HashSet::with_capacity(count);
    while ranks.len() < count {
        ranks.insert(fastrand::usize(..size));
    }
    let chosen = ranks
        .into_iter()
        .flat_map(|rank| view.iter_ranks(rank..rank + 1, false));
    reply_members(reply, count, chosen, with_scores);
}
