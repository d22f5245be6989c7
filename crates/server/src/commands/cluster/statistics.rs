//! CLUSTER SLOT-STATS: how many keys the slots of this node have.

use weft_resp::number::parse_i64;

use super::{cluster_of, slot_of, wrong_words};
use crate::commands::context::{After, CommandResult, Context};
use crate::commands::error::CommandError;
use crate::keyspace::walk::Reach;
use crate::keyspace::{SLOTS, slot_drop};

/// Which slots are shown, and in what order.
enum Wanted {
    /// These, by number.
    Range(u16, u16),
    /// So many with the most keys, or the fewest.
    Ordered { limit: usize, descending: bool },
}

pub(super) fn slot_stats(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cluster = cluster_of(ctx)?;
    let is = |name: &str| ctx.arg(2).eq_ignore_ascii_case(name.as_bytes());
    let wanted = if is("slotsrange") && ctx.argc() == 5 {
        let (first, last) = (slot_of(ctx.arg(3))?, slot_of(ctx.arg(4))?);
        if first > last {
            return Err(CommandError::text(format!(
                "ERR Start slot number {first} is greater than end slot number {last}"
            )));
        }
        Wanted::Range(first, last)
    } else if is("orderby") && ctx.argc() >= 4 {
        order(ctx)?
    } else {
        return Err(wrong_words(ctx));
    };
    let view = cluster.view();
    let reach = Reach::of(&ctx.keys.held, ctx.pass);
    let mut figures: Vec<(u16, usize)> = Vec::new();
    for slot in (0..SLOTS as u16).filter(|slot| view.is_of_my_shard(*slot)) {
        let keys = match reach.header(usize::from(slot)).may_hold_any() {
            false => Some(0),
            true => reach.view(usize::from(slot), slot_drop::count),
        };
        let Some(keys) = keys else {
            ctx.after = After::Defer;
            return Ok(());
        };
        figures.push((slot, keys));
    }
    match wanted {
        Wanted::Range(first, last) => figures.retain(|(slot, _)| (first..=last).contains(slot)),
        Wanted::Ordered { limit, descending } => {
            figures.sort_by_key(|(slot, keys)| (if descending { -(*keys as i64) } else { *keys as i64 }, *slot));
            figures.truncate(limit);
        }
    }
    let reply = &mut ctx.reply;
    reply.array(figures.len());
    for (slot, keys) in figures {
        reply.array(2);
        reply.integer(slot.into());
        reply.map(1);
        reply.bulk(b"key-count");
        reply.integer(keys as i64);
    }
    Ok(())
}

fn order(ctx: &Context<'_, '_>) -> Result<Wanted, CommandError> {
    if !ctx.arg(3).eq_ignore_ascii_case(b"key-count") {
        return Err(CommandError::constant("ERR Unrecognized sort metric for ORDERBY."));
    }
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
    Ok(Wanted::Ordered {
        limit: limit.unwrap_or(SLOTS),
        descending: descending.unwrap_or(true),
    })
}
