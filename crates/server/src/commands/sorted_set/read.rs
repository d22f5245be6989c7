//! Commands that read single members and counts: ZCARD, ZCOUNT, ZLEXCOUNT, ZSCORE, ZMSCORE, ZRANK, ZREVRANK.

use weft_values::sorted_set::SortedSetView;

use super::range_query::{parse_lex_range, parse_score_range};
use super::{CHANGE_MEMBER_NS, value_as_sorted_set};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;

/// ZCARD key
pub fn zcard(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_count(ctx, |view| view.len())
}

/// ZCOUNT key min max
pub fn zcount(ctx: &mut Context<'_, '_>) -> CommandResult {
    let range = parse_score_range(ctx.arg(2), ctx.arg(3))?;
    reply_count(ctx, |view| view.ranks_of_scores(&range).len())
}

/// ZLEXCOUNT key min max
pub fn zlexcount(ctx: &mut Context<'_, '_>) -> CommandResult {
    let range = parse_lex_range(ctx.arg(2), ctx.arg(3))?;
    reply_count(ctx, |view| view.ranks_of_lex(&range).len())
}

fn reply_count(ctx: &mut Context<'_, '_>, count: impl FnOnce(&SortedSetView<'_>) -> usize) -> CommandResult {
    let count = match ctx.keys.read(0) {
        Some(entry) => count(&value_as_sorted_set(entry.value())?),
        None => 0,
    };
    ctx.reply.integer(count as i64);
    Ok(())
}

/// ZSCORE key member
pub fn zscore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let member = ctx.arg(2);
    let score = match ctx.keys.read(0) {
        Some(entry) => value_as_sorted_set(entry.value())?.score(member),
        None => None,
    };
    match score {
        Some(score) => ctx.reply.double(score),
        None => ctx.reply.null(),
    }
    Ok(())
}

/// ZMSCORE key member [member ...]
pub fn zmscore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let count = ctx.argc() - 2;
    if ctx.detach_if_long(count as u64 * CHANGE_MEMBER_NS) {
        return Ok(());
    }
    let (args, reply) = (ctx.args, &mut ctx.reply);
    let view = match ctx.keys.read(0) {
        Some(entry) => Some(value_as_sorted_set(entry.value())?),
        None => None,
    };
    reply.array(count);
    for member in args.iter().skip(2) {
        match view.and_then(|view| view.score(member)) {
            Some(score) => reply.double(score),
            None => reply.null(),
        }
    }
    Ok(())
}

/// ZRANK key member [WITHSCORE]
pub fn zrank(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_rank(ctx, false)
}

/// ZREVRANK key member [WITHSCORE]
pub fn zrevrank(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_rank(ctx, true)
}

fn reply_rank(ctx: &mut Context<'_, '_>, is_reverse: bool) -> CommandResult {
    let with_score = match ctx.argc() {
        3 => false,
        4 if ctx.arg(3).eq_ignore_ascii_case(b"withscore") => true,
        4 => return Err(CommandError::SYNTAX),
        _ => {
            let name = ctx.command.full_name;
            return Err(CommandError::from_text(format!(
                "ERR wrong number of arguments for '{name}' command"
            )));
        }
    };
    let member = ctx.arg(2);
    let found = match ctx.keys.read(0) {
        Some(entry) => {
            let view = value_as_sorted_set(entry.value())?;
            view.rank(member).map(|(rank, score)| {
                let rank = if is_reverse { view.len() - 1 - rank } else { rank };
                (rank, score)
            })
        }
        None => None,
    };
    let reply = &mut ctx.reply;
    match found {
        Some((rank, score)) if with_score => {
            reply.array(2);
            reply.integer(rank as i64);
            reply.double(score);
        }
        Some((rank, _)) => reply.integer(rank as i64),
        None if with_score => reply.null_array(),
        None => reply.null(),
    }
    Ok(())
}
