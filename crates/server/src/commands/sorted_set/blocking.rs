//! The commands that wait for members of sorted sets: BZPOPMIN, BZPOPMAX, BZMPOP.

use weft_resp::Reply;

use crate::clients_waiting::blocking::{BlockingOperation, ScoreEnd, WaitKey, Waiter};
use crate::commands::blocked::{WaiterKeyAccess, parse_deadline_ms, wait_for_keys};
use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::sorted_set::{PopEnd, PopReplyFormat, ZmpopArguments, pop_first_of, pop_members};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("bzmpop", leased(bzmpop)),
    ("bzpopmax", leased(bzpopmax)),
    ("bzpopmin", leased(bzpopmin)),
];

fn bzpopmin(ctx: &mut Context<'_, '_>) -> CommandResult {
    pop_or_wait(ctx, ScoreEnd::Min)
}

fn bzpopmax(ctx: &mut Context<'_, '_>) -> CommandResult {
    pop_or_wait(ctx, ScoreEnd::Max)
}

fn pop_or_wait(ctx: &mut Context<'_, '_>, end: ScoreEnd) -> CommandResult {
    let deadline_ms = parse_deadline_ms(ctx.arg(ctx.argc() - 1), ctx.now_ms)?;
    for index in 0..ctx.keys.len() {
        let shape = PopReplyFormat::KeyFlat(ctx.keys.name(index));
        if pop_members(ctx.keys.write(index), &mut ctx.reply, PopEnd::from(end), 1, shape)? {
            return Ok(());
        }
    }
    let keys = 0..ctx.keys.len();
    wait_for_keys(ctx, BlockingOperation::SortedSetPop(end), keys, deadline_ms);
    Ok(())
}

fn bzmpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    let arguments = ZmpopArguments::parse(ctx, 2)?;
    let deadline_ms = parse_deadline_ms(ctx.arg(1), ctx.now_ms)?;
    if !pop_first_of(ctx, arguments)? {
        let end = match arguments.end {
            PopEnd::Min => ScoreEnd::Min,
            PopEnd::Max => ScoreEnd::Max,
        };
        let keys = 0..ctx.keys.len();
        wait_for_keys(
            ctx,
            BlockingOperation::SortedSetPopMany(end, arguments.count),
            keys,
            deadline_ms,
        );
    }
    Ok(())
}

impl From<ScoreEnd> for PopEnd {
    fn from(end: ScoreEnd) -> Self {
        match end {
            ScoreEnd::Min => PopEnd::Min,
            ScoreEnd::Max => PopEnd::Max,
        }
    }
}

/// Serves a waiting client from `key`, which holds a sorted set. Pops up to `count` members and replies with them and
/// the key.
///
/// # Errors
/// Never, because the key has the right type.
pub fn perform(waiter: &Waiter, key: &WaitKey, keys: &mut dyn WaiterKeyAccess, reply: &mut Reply<'_>) -> CommandResult {
    let (end, count, shape) = match &waiter.operation {
        BlockingOperation::SortedSetPop(end) => (*end, 1, PopReplyFormat::KeyFlat(&key.name)),
        BlockingOperation::SortedSetPopMany(end, count) => (*end, *count, PopReplyFormat::KeyPairs(&key.name)),
        _ => unreachable!("only who waits for a sorted set is served from one"),
    };
    pop_members(
        keys.open_for_write(waiter.db, key),
        reply,
        PopEnd::from(end),
        count,
        shape,
    )?;
    Ok(())
}
