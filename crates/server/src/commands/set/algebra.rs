//! Unions, intersections and differences of sets.
//!
//! A result for a reply is written while it is computed, wherever its members need not be remembered. A result to be
//! stored is a separate set until it is complete, because the destination key may be one of the sources. Stored results
//! have the same encodings as in Valkey, which depend on the order in which members are added.

use std::cmp::Reverse;
use std::ops::Range;

use weft_resp::number::parse_i64;
use weft_values::listpack::Element;
use weft_values::set::{Set, SetLimits, SetView};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::set::{REPLY_MEMBER_NS, reply_member, reply_members, store_set, value_as_set};
use crate::keyspace::access::{ExpiryUpdate, Keys};
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::notify::keyspace_event::KeyspaceEvent;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("sdiff", leased(sdiff)),
    ("sdiffstore", leased(sdiffstore)),
    ("sinter", leased(sinter)),
    ("sintercard", leased(sintercard)),
    ("sinterstore", leased(sinterstore)),
    ("sunion", leased(sunion)),
    ("sunionstore", leased(sunionstore)),
];

/// The time for adding a member to a result, or for removing it from the result, in nanoseconds.
const COLLECT_MEMBER_NS: u64 = 100;

/// Returns the sets of some keys, in the order of the keys; `None` for a missing key.
///
/// # Errors
/// `WRONGTYPE` if one of the keys holds another type.
fn read_sets<'k>(keys: &'k mut Keys<'_, '_>, indices: Range<usize>) -> Result<Vec<Option<SetView<'k>>>, CommandError> {
    for index in indices.clone() {
        keys.prefetch_ahead(index);
        if let Some(entry) = keys.read(index) {
            value_as_set(entry.value())?;
        }
    }
    let keys = &*keys;
    indices
        .map(|index| keys.peek(index).map(|entry| value_as_set(entry.value())).transpose())
        .collect()
}

/// Stores a result under the first key, or deletes the key if the result is empty.
fn store_result(ctx: &mut Context<'_, '_>, result: Set, event: &'static str) {
    let members = result.len();
    let mut key = ctx.keys.write_destination(0, members == 0);
    if members > 0 {
        store_set(&mut key, result, ExpiryUpdate::Remove);
        key.changed(KeyspaceEvent::set(event));
    } else if key.delete() {
        key.changed(KeyspaceEvent::generic("del"));
    }
    ctx.reply.integer(members as i64);
}

/// The intersection of some sets.
struct Intersection<'a> {
    smallest: SetView<'a>,
    others: Vec<SetView<'a>>,
}

impl<'a> Intersection<'a> {
    /// Returns `None` if the intersection is empty because one of the sets is missing.
    fn new(sets: Vec<Option<SetView<'a>>>) -> Option<Self> {
        let mut sets: Vec<SetView<'a>> = sets.into_iter().collect::<Option<_>>()?;
        sets.sort_by_key(SetView::len);
        let smallest = *sets.first()?;
        sets.remove(0);
        Some(Intersection { smallest, others: sets })
    }

    fn estimated_ns(&self) -> u64 {
        let search_ns: u64 = self.others.iter().map(SetView::estimate_search_ns).sum();
        self.smallest.len() as u64 * (REPLY_MEMBER_NS + search_ns)
    }

    fn members(&self) -> impl Iterator<Item = Element<'a>> {
        let in_all = |member: &Element<'a>| self.others.iter().all(|set| set.contains_element(*member));
        self.smallest.iter().filter(in_all)
    }

    fn collect_members(&self, limits: SetLimits) -> Set {
        let mut result = match self.smallest {
            SetView::Integers(_) => Set::new_integers(),
            _ => Set::new_run(),
        };
        self.members().for_each(|member| result.add_new(member, limits));
        result.convert_to_integers_if_possible(limits);
        result
    }
}

fn sinter(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let keys = ctx.keys.len();
    let sets = read_sets(&mut ctx.keys, 0..keys)?;
    let Some(intersection) = Intersection::new(sets) else {
        ctx.reply.set(0);
        return Ok(());
    };
    if intersection.estimated_ns() > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let begun = ctx.reply.begin_set();
    let mut members = 0;
    for member in intersection.members() {
        reply_member(&mut ctx.reply, member);
        members += 1;
    }
    ctx.reply.end_set(begun, members);
    Ok(())
}

fn sinterstore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let limits = ctx.server.config.set_limits();
    let keys = ctx.keys.len();
    let intersection = Intersection::new(read_sets(&mut ctx.keys, 1..keys)?);
    if intersection
        .as_ref()
        .is_some_and(|found| found.estimated_ns() > in_place_ns)
    {
        ctx.detach();
        return Ok(());
    }
    let result = intersection.map_or_else(Set::new_integers, |found| found.collect_members(limits));
    store_result(ctx, result, "sinterstore");
    Ok(())
}

/// Parses the number of keys and the limit of SINTERCARD. A limit of 0 stands for no limit.
fn parse_intercard_options(ctx: &Context<'_, '_>) -> Result<(usize, usize), CommandError> {
    let keys = parse_i64(ctx.arg(1))
        .and_then(|keys| usize::try_from(keys).ok())
        .filter(|keys| *keys > 0)
        .ok_or(CommandError::constant("ERR numkeys should be greater than 0"))?;
    if keys > ctx.argc() - 2 {
        return Err(CommandError::constant(
            "ERR Number of keys can't be greater than number of args",
        ));
    }
    let mut limit = 0;
    let mut index = 2 + keys;
    while index < ctx.argc() {
        if !ctx.arg(index).eq_ignore_ascii_case(b"LIMIT") || index + 1 == ctx.argc() {
            return Err(CommandError::SYNTAX);
        }
        limit = parse_i64(ctx.arg(index + 1))
            .and_then(|limit| usize::try_from(limit).ok())
            .ok_or(CommandError::constant("ERR LIMIT can't be negative"))?;
        index += 2;
    }
    Ok((keys, limit))
}

fn sintercard(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (keys, limit) = parse_intercard_options(ctx)?;
    let in_place_ns = ctx.max_worker_ns();
    let sets = read_sets(&mut ctx.keys, 0..keys)?;
    let Some(intersection) = Intersection::new(sets) else {
        ctx.reply.integer(0);
        return Ok(());
    };
    if intersection.estimated_ns() > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let limit = if limit == 0 { usize::MAX } else { limit };
    let members = intersection.members().take(limit).count();
    ctx.reply.integer(members as i64);
    Ok(())
}

/// Returns an empty set for members of these sets that are only written to a reply. Its encoding is fast to search.
fn new_set_for_reply(sets: &[SetView<'_>]) -> Set {
    match largest(sets) {
        Some(largest) if !sets.iter().all(|set| matches!(set, SetView::Integers(_))) => {
            Set::new_table(largest.len(), largest.max_text_bytes())
        }
        _ => Set::new_integers(),
    }
}

/// Returns an empty set for storing the union of these sets. It begins as a set of integers, unless it is certain to
/// become a table.
fn new_set_for_union(sets: &[SetView<'_>], limits: SetLimits) -> Set {
    match largest(sets) {
        Some(largest) if largest.len() > limits.integers.max(limits.run_members) => {
            Set::new_table(largest.len(), largest.max_text_bytes())
        }
        _ => Set::new_integers(),
    }
}

fn largest<'a>(sets: &[SetView<'a>]) -> Option<SetView<'a>> {
    sets.iter().copied().max_by_key(SetView::len)
}

fn compute_union(mut result: Set, sets: &[SetView<'_>], limits: SetLimits) -> Set {
    let [first, others @ ..] = sets else { return result };
    first.iter().for_each(|member| result.add_new(member, limits));
    for set in others {
        for member in set.iter() {
            result.add_element(member, limits);
        }
    }
    result.shrink();
    result
}

fn total_members(sets: &[SetView<'_>]) -> u64 {
    sets.iter().map(|set| set.len() as u64).sum()
}

fn sunion(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let keys = ctx.keys.len();
    let sets: Vec<SetView<'_>> = read_sets(&mut ctx.keys, 0..keys)?.into_iter().flatten().collect();
    if total_members(&sets) * COLLECT_MEMBER_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let limits = ctx.server.config.set_limits();
    let reply = &mut ctx.reply;
    let collected;
    let result = match *sets {
        [only] => only,
        _ => {
            collected = compute_union(new_set_for_reply(&sets), &sets, limits);
            collected.view()
        }
    };
    reply.set(result.len());
    reply_members(reply, result);
    Ok(())
}

fn sunionstore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let limits = ctx.server.config.set_limits();
    let keys = ctx.keys.len();
    let sets: Vec<SetView<'_>> = read_sets(&mut ctx.keys, 1..keys)?.into_iter().flatten().collect();
    if total_members(&sets) * COLLECT_MEMBER_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let result = compute_union(new_set_for_union(&sets, limits), &sets, limits);
    store_result(ctx, result, "sunionstore");
    Ok(())
}

/// The members of one set that are in none of the other sets.
struct Difference<'a> {
    first: SetView<'a>,
    others: Vec<SetView<'a>>,
}

impl<'a> Difference<'a> {
    /// Returns `None` if the difference is empty because the first set is missing or is also one of the others.
    fn from_keys(keys: &'a mut Keys<'_, '_>, indices: Range<usize>) -> Result<Option<Self>, CommandError> {
        let name = keys.name(indices.start);
        let others = indices.start + 1..indices.end;
        let repeated = others.into_iter().any(|index| keys.name(index) == name);
        let mut sets = read_sets(keys, indices)?.into_iter();
        let first = sets.next().flatten().filter(|_| !repeated);
        Ok(first.map(|first| {
            let mut others: Vec<SetView<'a>> = sets.flatten().collect();
            others.sort_by_key(|set| Reverse(set.len()));
            Difference { first, others }
        }))
    }

    /// Returns `true` if each of the first set's members should be looked up in all other sets, and `false` if all sets
    /// should be iterated. The estimate favours lookups by a factor of two, because they often end early and need no
    /// memory.
    fn should_use_lookups(&self) -> bool {
        let (first, sets) = (self.first.len() as u64, 1 + self.others.len() as u64);
        first * sets / 2 <= first + total_members(&self.others)
    }

    fn estimated_ns(&self) -> u64 {
        if self.should_use_lookups() {
            let search_ns: u64 = self.others.iter().map(SetView::estimate_search_ns).sum();
            self.first.len() as u64 * (COLLECT_MEMBER_NS + search_ns)
        } else {
            (self.first.len() as u64 + total_members(&self.others)) * COLLECT_MEMBER_NS
        }
    }

    fn members(&self) -> impl Iterator<Item = Element<'a>> {
        let in_none = |member: &Element<'a>| !self.others.iter().any(|set| set.contains_element(*member));
        self.first.iter().filter(in_none)
    }

    /// Adds the difference to `result`, which must be empty, and returns it.
    fn collect_into(&self, mut result: Set, limits: SetLimits) -> Set {
        if self.should_use_lookups() {
            self.members().for_each(|member| result.add_new(member, limits));
            return result;
        }
        self.first.iter().for_each(|member| result.add_new(member, limits));
        for set in &self.others {
            for member in set.iter() {
                result.remove_element(member);
            }
            if result.is_empty() {
                break;
            }
        }
        result
    }
}

fn sdiff(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let limits = ctx.server.config.set_limits();
    let keys = ctx.keys.len();
    let Some(difference) = Difference::from_keys(&mut ctx.keys, 0..keys)? else {
        ctx.reply.set(0);
        return Ok(());
    };
    if difference.estimated_ns() > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let reply = &mut ctx.reply;
    if !difference.should_use_lookups() {
        let result = difference.collect_into(new_set_for_reply(&[difference.first]), limits);
        reply.set(result.len());
        reply_members(reply, result.view());
        return Ok(());
    }
    let begun = reply.begin_set();
    let mut members = 0;
    for member in difference.members() {
        reply_member(reply, member);
        members += 1;
    }
    reply.end_set(begun, members);
    Ok(())
}

fn sdiffstore(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let limits = ctx.server.config.set_limits();
    let keys = ctx.keys.len();
    let difference = Difference::from_keys(&mut ctx.keys, 1..keys)?;
    if difference
        .as_ref()
        .is_some_and(|found| found.estimated_ns() > in_place_ns)
    {
        ctx.detach();
        return Ok(());
    }
    let result = match difference {
        Some(difference) => difference.collect_into(Set::new_integers(), limits),
        None => Set::new_integers(),
    };
    store_result(ctx, result, "sdiffstore");
    Ok(())
}
