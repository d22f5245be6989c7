//! The commands that wait for members of sorted sets: BZPOPMIN, BZPOPMAX, BZMPOP.

use weft_resp::Reply;

use crate::clients_waiting::blocking::{Operation, ScoreEnd, WaitKey, Waiter};
use crate::commands::blocked::{KeyAccess, deadline_ms, wait};
use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::sorted_set::{End, PopArguments, PopShape, pop, pop_first_of};

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
    let deadline_ms = deadline_ms(ctx.arg(ctx.argc() - 1), ctx.now_ms)?;
    for index in 0..ctx.keys.len() {
        let shape = PopShape::KeyFlat(ctx.keys.name(index));
        if pop(ctx.keys.write(index), &mut ctx.reply, End::from(end), 1, shape)? {
            return Ok(());
        }
    }
    let keys = 0..ctx.keys.len();
    wait(ctx, Operation::SortedSetPop(end), keys, deadline_ms);
    Ok(())
}

fn bzmpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    let arguments = PopArguments::parse(ctx, 2)?;
    let deadline_ms = deadline_ms(ctx.arg(1), ctx.now_ms)?;
    if !pop_first_of(ctx, arguments)? {
        let end = match arguments.end {
            End::Min => ScoreEnd::Min,
            End::Max => ScoreEnd::Max,
        };
        let keys = 0..ctx.keys.len();
        wait(
            ctx,
            Operation::SortedSetPopMany(end, arguments.count),
            keys,
            deadline_ms,
        );
    }
    Ok(())
}

impl From<ScoreEnd> for End {
    fn from(end: ScoreEnd) -> Self {
        match end {
            ScoreEnd::Min => End::Min,
            ScoreEnd::Max => End::Max,
        }
    }
}

/// Serves a waiting client from `key`, which holds a sorted set. Pops up to `count` members and replies with them and
/// the key.
///
/// # Errors
/// None, because the key has the right type.
pub fn perform(waiter: &Waiter, key: &WaitKey, reach: &mut dyn KeyAccess, reply: &mut Reply<'_>) -> CommandResult {
    let (end, count, shape) = match &waiter.operation {
        Operation::SortedSetPop(end) => (*end, 1, PopShape::KeyFlat(&key.name)),
        Operation::SortedSetPopMany(end, count) => (*end, *count, PopShape::KeyPairs(&key.name)),
        _ => unreachable!("only who waits for a sorted set is served from one"),
    };
    pop(reach.write(waiter.db, key), reply, End::from(end), count, shape)?;
    Ok(())
}
