//! Finding elements by their value: LPOS and LREM.

use std::ops::ControlFlow;

use weft_resp::number::parse_i64;
use weft_values::list::ElementAction;
use weft_values::list::{Direction, ListRef};
use weft_values::listpack::{Element, Needle};

use super::stored::{ListSettings, change_list, entry_as_list, shrink_layout};
use super::{ListRefusal, READ_ELEMENT_NS, list_length};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::notify::keyspace_event::KeyspaceEvent;

/// Returns the index of the first element that equals a string.
pub(super) fn first_equal(list: ListRef<'_>, needle: &Needle<'_>) -> Option<usize> {
    let mut found = None;
    let mut index = 0;
    list.visit(0, Direction::Forward, |element| {
        if needle.matches(element) {
            found = Some(index);
            return ControlFlow::Break(());
        }
        index += 1;
        ControlFlow::Continue(())
    });
    found
}

/// The options of LPOS.
struct PositionSearch {
    direction: Direction,
    /// The first match that counts, from 1.
    rank: u64,
    /// The number of matches, 0 for all; without COUNT the reply is not an array.
    count: Option<u64>,
    /// The number of elements to compare, 0 for all.
    max_comparisons: u64,
}

/// Parses a number from -(2^63 - 1) to 2^63 - 1.
fn parse_symmetric_integer(argument: &[u8]) -> Result<i64, CommandError> {
    let number = parse_i64(argument).ok_or(CommandError::NOT_AN_INTEGER)?;
    if number == i64::MIN {
        return Err(CommandError::constant(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    Ok(number)
}

fn parse_search(ctx: &Context<'_, '_>) -> Result<PositionSearch, CommandError> {
    let mut search = PositionSearch {
        direction: Direction::Forward,
        rank: 1,
        count: None,
        max_comparisons: 0,
    };
    let natural = |argument, error| {
        parse_i64(argument)
            .and_then(|number| u64::try_from(number).ok())
            .ok_or(CommandError::constant(error))
    };
    let mut index = 3;
    while index < ctx.argc() {
        let option = ctx.arg(index);
        if index + 1 >= ctx.argc() {
            return Err(CommandError::SYNTAX);
        }
        let value = ctx.arg(index + 1);
        if option.eq_ignore_ascii_case(b"rank") {
            let rank = parse_symmetric_integer(value)?;
            if rank == 0 {
                return Err(CommandError::constant(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative \
                     to start from the end of the list",
                ));
            }
            search.rank = rank.unsigned_abs();
            search.direction = if rank < 0 {
                Direction::Backward
            } else {
                Direction::Forward
            };
        } else if option.eq_ignore_ascii_case(b"count") {
            search.count = Some(natural(value, "ERR COUNT can't be negative")?);
        } else if option.eq_ignore_ascii_case(b"maxlen") {
            search.max_comparisons = natural(value, "ERR MAXLEN can't be negative")?;
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 2;
    }
    Ok(search)
}

impl PositionSearch {
    /// Calls `report` with the index of every match that counts.
    fn find_matches(&self, list: ListRef<'_>, needle: &Needle<'_>, mut report: impl FnMut(usize)) {
        let length = list.len();
        let start = match self.direction {
            Direction::Forward => 0,
            Direction::Backward => length - 1,
        };
        let most = if self.max_comparisons == 0 {
            u64::MAX
        } else {
            self.max_comparisons
        };
        // Without COUNT the first match is enough; with 0 all are wanted.
        let wanted = match self.count {
            None => 1,
            Some(0) => u64::MAX,
            Some(count) => count,
        };
        let (mut seen, mut matches) = (0, 0);
        list.visit(start, self.direction, |element| {
            if seen as u64 == most {
                return ControlFlow::Break(());
            }
            if needle.matches(element) {
                matches += 1;
                if matches >= self.rank {
                    report(match self.direction {
                        Direction::Forward => seen,
                        Direction::Backward => length - 1 - seen,
                    });
                    if matches - self.rank + 1 >= wanted {
                        return ControlFlow::Break(());
                    }
                }
            }
            seen += 1;
            ControlFlow::Continue(())
        });
    }
}

pub(super) fn lpos(ctx: &mut Context<'_, '_>) -> CommandResult {
    let search = parse_search(ctx)?;
    let needle = Needle::new(ctx.arg(2));
    let in_place_ns = ctx.max_worker_ns();
    let Some(list) = entry_as_list(ctx.keys.read(0))? else {
        match search.count {
            Some(_) => ctx.reply.array(0),
            None => ctx.reply.null(),
        }
        return Ok(());
    };
    if list.len() as u64 * READ_ELEMENT_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let reply = &mut ctx.reply;
    if search.count.is_some() {
        let begun = reply.begin_array();
        let mut found = 0;
        search.find_matches(list, &needle, |index| {
            reply.integer(index as i64);
            found += 1;
        });
        reply.end_array(begun, found);
    } else {
        let mut found = None;
        search.find_matches(list, &needle, |index| found = Some(index));
        match found {
            Some(index) => reply.integer(index as i64),
            None => reply.null(),
        }
    }
    Ok(())
}

pub(super) fn lrem(ctx: &mut Context<'_, '_>) -> CommandResult {
    let count = parse_symmetric_integer(ctx.arg(2))?;
    let needle = Needle::new(ctx.arg(3));
    let rules = ListSettings::from_config(&ctx.server.config);
    let in_place_ns = ctx.max_worker_ns();
    let mut key = ctx.keys.write(0);
    let refused = match list_length(&key) {
        Ok(length) if length as u64 * READ_ELEMENT_NS > in_place_ns => Some(ListRefusal::TooLong),
        Ok(_) => None,
        Err(refused) => Some(refused),
    };
    if let Some(refused) = refused {
        drop(key);
        return refused.reply(ctx, |reply| reply.integer(0));
    }
    let direction = if count < 0 {
        Direction::Backward
    } else {
        Direction::Forward
    };
    let mut left = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    let pick = |element: Element<'_>| {
        if !needle.matches(element) {
            return ElementAction::Keep;
        }
        left -= 1;
        if left == 0 {
            ElementAction::RemoveAndStop
        } else {
            ElementAction::Remove
        }
    };
    let removed = change_list(&mut key, |list| list.remove_if(direction, pick));
    if removed > 0 {
        let emptied = shrink_layout(&mut key, rules);
        if emptied {
            key.record_event(KeyspaceEvent::list("lrem"));
        }
        let event = if emptied {
            KeyspaceEvent::generic("del")
        } else {
            KeyspaceEvent::list("lrem")
        };
        key.changed_times(event, removed as u64);
    }
    ctx.reply.integer(removed as i64);
    Ok(())
}
