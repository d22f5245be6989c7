//! Ranges of members: ZRANGE, ZRANGESTORE, and the older range commands.

use weft_resp::{Protocol, Reply};
use weft_values::listpack::Element;
use weft_values::sorted_set::{DetachedSortedSet, MemberBuilder};

use super::range_query::{RangeGrammar, RangeKind, RangeQuery};
use super::{CHANGE_MEMBER_NS, REPLY_MEMBER_NS, reply_member, store_sorted_set, value_as_sorted_set};
use crate::commands::context::{CommandResult, Context};
use crate::keyspace::access::{ExpiryUpdate, Keys};
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::notify::keyspace_event::KeyspaceEvent;

/// The typical size of a member, its score and their headers in a reply, in bytes.
const TYPICAL_REPLY_BYTES: usize = 32;

/// ZRANGE key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]
pub fn zrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_range(ctx, None, None)
}

/// ZREVRANGE key start stop [WITHSCORES]
pub fn zrevrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_range(ctx, Some(RangeKind::Rank), Some(true))
}

/// ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]
pub fn zrangebyscore(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_range(ctx, Some(RangeKind::Score), Some(false))
}

/// ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]
pub fn zrevrangebyscore(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_range(ctx, Some(RangeKind::Score), Some(true))
}

/// ZRANGEBYLEX key min max [LIMIT offset count]
pub fn zrangebylex(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_range(ctx, Some(RangeKind::Lex), Some(false))
}

/// ZREVRANGEBYLEX key max min [LIMIT offset count]
pub fn zrevrangebylex(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_range(ctx, Some(RangeKind::Lex), Some(true))
}

fn reply_range(ctx: &mut Context<'_, '_>, kind: Option<RangeKind>, is_reverse: Option<bool>) -> CommandResult {
    let grammar = RangeGrammar {
        kind,
        is_reverse,
        allows_scores: true,
    };
    let query = RangeQuery::parse(ctx, 2, grammar)?;
    let in_place_ns = ctx.max_worker_ns();
    let Some(entry) = ctx.keys.read(0) else {
        ctx.reply.array(0);
        return Ok(());
    };
    let view = value_as_sorted_set(entry.value())?;
    let ranks = query.ranks(&view);
    if ranks.len() as u64 * REPLY_MEMBER_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let members = view.iter_ranks(ranks.clone(), query.is_reverse);
    reply_members(&mut ctx.reply, ranks.len(), members, query.should_reply_scores);
    Ok(())
}

/// Writes an array of members. With scores, the reply has a pair for each member in RESP3, and one flat array in RESP2.
pub fn reply_members<'m>(
    reply: &mut Reply<'_>,
    count: usize,
    members: impl Iterator<Item = (Element<'m>, f64)>,
    with_scores: bool,
) {
    reply
        .out
        .reserve(count.saturating_mul(TYPICAL_REPLY_BYTES).min(1 << 20));
    if !with_scores {
        reply.array(count);
        members.for_each(|(member, _)| reply_member(reply, member));
        return;
    }
    let pairs = reply.protocol == Protocol::Resp3;
    reply.array(if pairs { count } else { count * 2 });
    for (member, score) in members {
        if pairs {
            reply.array(2);
        }
        reply_member(reply, member);
        reply.double(score);
    }
}

/// ZRANGESTORE destination source start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count]
pub fn zrangestore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let grammar = RangeGrammar {
        kind: None,
        is_reverse: None,
        allows_scores: false,
    };
    let query = RangeQuery::parse(ctx, 3, grammar)?;
    let limits = ctx.server.config.sorted_set_limits();
    let in_place_ns = ctx.max_worker_ns();
    let mut draft = None;
    if let Some(entry) = ctx.keys.read(1) {
        let view = value_as_sorted_set(entry.value())?;
        let ranks = query.ranks(&view);
        if ranks.len() as u64 * CHANGE_MEMBER_NS > in_place_ns {
            ctx.detach();
            return Ok(());
        }
        if !ranks.is_empty() {
            let mut part = MemberBuilder::with_capacity(ranks.len());
            view.iter_ranks(ranks, false)
                .for_each(|(member, score)| part.push_element(member, score));
            draft = Some(part.build(limits));
        }
    }
    let count = store_result(&mut ctx.keys, 0, draft, "zrangestore");
    ctx.reply.integer(count as i64);
    Ok(())
}

/// Stores the result of a command under the n-th key, or deletes the key if the result is empty. Returns the length of
/// the result.
pub fn store_result(
    keys: &mut Keys<'_, '_>,
    index: usize,
    result: Option<DetachedSortedSet>,
    event: &'static str,
) -> usize {
    store_result_with_changes(keys, index, result, event, 1)
}

/// Stores a result like [`store_result`]. A non-empty result counts as `changes` changes.
pub fn store_result_with_changes(
    keys: &mut Keys<'_, '_>,
    index: usize,
    result: Option<DetachedSortedSet>,
    event: &'static str,
    changes: u64,
) -> usize {
    let mut key = keys.write_destination(index, result.is_none());
    let Some(draft) = result else {
        if key.delete() {
            key.changed(KeyspaceEvent::generic("del"));
        }
        return 0;
    };
    let count = draft.view().len();
    store_sorted_set(&mut key, draft, ExpiryUpdate::Remove);
    key.changed_times(KeyspaceEvent::sorted_set(event), changes);
    count
}
