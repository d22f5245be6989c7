//! The commands on lists that wait for an element: BLPOP, BRPOP, BLMOVE, BRPOPLPUSH, BLMPOP.

use weft_base::DbIndex;
use weft_resp::Reply;
use weft_values::list::ListEnd;

use crate::clients_waiting::blocking::{BlockingOperation, WaitKey, Waiter};
use crate::commands::blocked::{WaiterKeyAccess, parse_deadline_ms, wait_for_keys, wait_key};
use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::list::pop::{
    ListMoveKeys, MultiPopArguments, move_element, parse_list_end, parse_multi_pop, pop_first_of, pop_many, pop_one,
    propagate_pop,
};
use crate::commands::list::stored::{ListSettings, entry_as_list};
use crate::keyspace::access::KeyWrite;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("blmove", leased(blmove)),
    ("blmpop", leased(blmpop)),
    ("blpop", leased(blpop)),
    ("brpop", leased(brpop)),
    ("brpoplpush", leased(brpoplpush)),
];

fn blpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    pop_or_wait(ctx, ListEnd::Head)
}

fn brpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    pop_or_wait(ctx, ListEnd::Tail)
}

fn pop_or_wait(ctx: &mut Context<'_, '_>, end: ListEnd) -> CommandResult {
    let deadline_ms = parse_deadline_ms(ctx.arg(ctx.argc() - 1), ctx.now_ms)?;
    let rules = ListSettings::from_config(&ctx.server.config);
    for index in 0..ctx.keys.len() {
        let name = ctx.keys.name(index);
        let mut key = ctx.keys.write(index);
        match entry_as_list(key.entry()).map(|list| list.is_some()) {
            Err(error) => {
                return Err(error);
            }
            Ok(false) => {}
            Ok(true) => {
                ctx.reply.array(2);
                ctx.reply.bulk(name);
                propagate_pop(&mut key, end, None);
                pop_one(key, end, rules, &mut ctx.reply);
                return Ok(());
            }
        }
    }
    let keys = 0..ctx.keys.len();
    wait_for_keys(ctx, BlockingOperation::ListPop(end), keys, deadline_ms);
    Ok(())
}

fn blmpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    let pop = parse_multi_pop(ctx, 2)?;
    let deadline_ms = parse_deadline_ms(ctx.arg(1), ctx.now_ms)?;
    if !pop_first_of(ctx, pop)? {
        let MultiPopArguments { end, count } = pop;
        let keys = 0..ctx.keys.len();
        wait_for_keys(ctx, BlockingOperation::ListPopMany(end, count), keys, deadline_ms);
    }
    Ok(())
}

fn blmove(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (from, to) = (parse_list_end(ctx.arg(3))?, parse_list_end(ctx.arg(4))?);
    move_or_wait(ctx, from, to, 5)
}

fn brpoplpush(ctx: &mut Context<'_, '_>) -> CommandResult {
    move_or_wait(ctx, ListEnd::Tail, ListEnd::Head, 3)
}

/// Moves an element, or waits for one. `timeout_index` is the index of that argument.
fn move_or_wait(
    ctx: &mut Context<'_, '_>,
    source_end: ListEnd,
    destination_end: ListEnd,
    timeout_index: usize,
) -> CommandResult {
    let deadline_ms = parse_deadline_ms(ctx.arg(timeout_index), ctx.now_ms)?;
    let rules = ListSettings::from_config(&ctx.server.config);
    let (source, target) = (ctx.arg(1), ctx.arg(2));
    if move_element(&mut ctx.keys, source_end, destination_end, rules, &mut ctx.reply)? {
        match timeout_index {
            3 => ctx.keys.effects.log_instead(&[b"RPOPLPUSH", source, target]),
            _ => ctx
                .keys
                .effects
                .log_instead(&[b"LMOVE", source, target, ctx.arg(3), ctx.arg(4)]),
        }
    } else {
        let destination = wait_key(ctx, 1);
        let end_words = match timeout_index {
            3 => None,
            _ => Some([ctx.arg(3).into(), ctx.arg(4).into()]),
        };
        wait_for_keys(
            ctx,
            BlockingOperation::ListMove {
                source_end,
                destination_end,
                destination,
                end_words,
            },
            0..1,
            deadline_ms,
        );
    }
    Ok(())
}

/// Serves a waiter from `key`, which holds a list.
///
/// # Errors
/// If the destination of a move is not a list.
pub fn perform(
    waiter: &Waiter,
    key: &WaitKey,
    access: &mut dyn WaiterKeyAccess,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let rules = ListSettings::from_config(access.config());
    match &waiter.operation {
        BlockingOperation::ListPop(end) => {
            reply.array(2);
            reply.bulk(&key.name);
            let mut key = access.open_for_write(waiter.db, key);
            propagate_pop(&mut key, *end, None);
            pop_one(key, *end, rules, reply);
        }
        BlockingOperation::ListPopMany(end, count) => {
            reply.array(2);
            reply.bulk(&key.name);
            let mut key = access.open_for_write(waiter.db, key);
            propagate_pop(&mut key, *end, Some(*count));
            pop_many(key, *end, *count, rules, reply);
        }
        BlockingOperation::ListMove {
            source_end: from,
            destination_end: to,
            destination,
            end_words,
        } => {
            let mut keys = BlockedMove {
                keys: access,
                db: waiter.db,
                source: key,
                destination,
            };
            move_element(&mut keys, *from, *to, rules, reply)?;
            let (source, target) = (&key.name, &destination.name);
            match end_words {
                None => access.effects().log_instead(&[b"RPOPLPUSH", source, target]),
                Some([from, to]) => access.effects().log_instead(&[b"LMOVE", source, target, from, to]),
            }
        }
        _ => unreachable!("only who waits for a list is served from one"),
    }
    Ok(())
}

/// The keys of a BLMOVE that has waited.
struct BlockedMove<'w> {
    keys: &'w mut dyn WaiterKeyAccess,
    db: DbIndex,
    source: &'w WaitKey,
    destination: &'w WaitKey,
}

impl ListMoveKeys for BlockedMove<'_> {
    fn are_same(&self) -> bool {
        self.source.name == self.destination.name
    }

    fn source(&mut self) -> KeyWrite<'_> {
        self.keys.open_for_write(self.db, self.source)
    }

    fn destination(&mut self) -> KeyWrite<'_> {
        self.keys.open_for_write(self.db, self.destination)
    }
}
