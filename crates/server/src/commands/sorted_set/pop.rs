//! Commands that pop members from either end: ZPOPMIN, ZPOPMAX and ZMPOP, and the functions that they share with the
//! blocking commands.

use weft_resp::number::parse_i64;
use weft_resp::{Protocol, Reply};
use weft_values::sorted_set::DetachedSortedSet;

use super::{REMOVE_MEMBER_NS, edit_sorted_set, reply_member, value_as_sorted_set};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::keyspace::access::KeyWrite;
use crate::notify::keyspace_event::KeyspaceEvent;

const NOT_POSITIVE_ERROR: CommandError = CommandError::constant("ERR value is out of range, must be positive");

/// The end of a sorted set from which members are popped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopEnd {
    /// The end with the lowest scores.
    Min,
    /// The end with the highest scores.
    Max,
}

impl PopEnd {
    /// Returns the end that an argument of ZMPOP or BZMPOP names.
    pub fn parse(word: &[u8]) -> Option<Self> {
        if word.eq_ignore_ascii_case(b"min") {
            Some(PopEnd::Min)
        } else if word.eq_ignore_ascii_case(b"max") {
            Some(PopEnd::Max)
        } else {
            None
        }
    }

    const fn event(self) -> KeyspaceEvent {
        match self {
            PopEnd::Min => KeyspaceEvent::sorted_set("zpopmin"),
            PopEnd::Max => KeyspaceEvent::sorted_set("zpopmax"),
        }
    }
}

/// The form of a reply with popped members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopReplyFormat<'k> {
    /// Alternating members and scores: ZPOPMIN.
    Flat,
    /// Pairs of member and score: ZPOPMIN with a count, in RESP3.
    Pairs,
    /// The key, then alternating members and scores: BZPOPMIN.
    KeyFlat(&'k [u8]),
    /// The key and an array of pairs: ZMPOP.
    KeyPairs(&'k [u8]),
}

impl PopReplyFormat<'_> {
    fn begin_reply(self, reply: &mut Reply<'_>, count: usize) {
        match self {
            PopReplyFormat::Flat => reply.array(count * 2),
            PopReplyFormat::Pairs => reply.array(count),
            PopReplyFormat::KeyFlat(key) => {
                reply.array(count * 2 + 1);
                reply.bulk(key);
            }
            PopReplyFormat::KeyPairs(key) => {
                reply.array(2);
                reply.bulk(key);
                reply.array(count);
            }
        }
    }

    const fn has_pairs(self) -> bool {
        matches!(self, PopReplyFormat::Pairs | PopReplyFormat::KeyPairs(_))
    }
}

/// Pops up to `count` (at least 1) members of a key's sorted set, writes them to the reply, and closes the key. If the
/// key is missing, returns `false` and writes nothing.
///
/// # Errors
/// `WRONGTYPE` if the value is not a sorted set. The key is closed in this case, too.
pub fn pop_members(
    mut key: KeyWrite<'_>,
    reply: &mut Reply<'_>,
    end: PopEnd,
    count: usize,
    format: PopReplyFormat<'_>,
) -> Result<bool, CommandError> {
    let change = |mut set: super::SortedSetEditor<'_>| {
        let view = set.view();
        let len = view.len();
        let popped = count.min(len);
        let reverse = end == PopEnd::Max;
        let ranks = if reverse { len - popped..len } else { 0..popped };
        format.begin_reply(reply, popped);
        for (member, score) in view.iter_ranks(ranks.clone(), reverse) {
            if format.has_pairs() {
                reply.array(2);
            }
            reply_member(reply, member);
            reply.double(score);
        }
        set.remove_ranks(ranks);
        (popped, popped > 0)
    };
    match edit_sorted_set(&mut key, DetachedSortedSet::from_packed, change) {
        Err(error) => Err(error),
        Ok(None) => Ok(false),
        Ok(Some(edited)) => {
            let times = edited.result as u64;
            propagate_pop(&mut key, end, format, times);
            if edited.is_emptied {
                key.record_event(end.event());
                key.changed_times(KeyspaceEvent::generic("del"), times);
            } else {
                key.changed_times(end.event(), times);
            }
            Ok(true)
        }
    }
}

/// Propagates the pop as ZPOPMIN or ZPOPMAX, if the command is one that searches its keys or may block.
fn propagate_pop(key: &mut KeyWrite<'_>, end: PopEnd, format: PopReplyFormat<'_>, popped: u64) {
    if !key.effects().is_logging() {
        return;
    }
    let word: &[u8] = match end {
        PopEnd::Min => b"ZPOPMIN",
        PopEnd::Max => b"ZPOPMAX",
    };
    let mut digits = itoa::Buffer::new();
    match format {
        PopReplyFormat::Flat | PopReplyFormat::Pairs => {}
        PopReplyFormat::KeyFlat(name) => key.log_instead(&[word, name]),
        PopReplyFormat::KeyPairs(name) => key.log_instead(&[word, name, digits.format(popped).as_bytes()]),
    }
}

/// ZPOPMIN key [count]
pub fn zpopmin(ctx: &mut Context<'_, '_>) -> CommandResult {
    pop_one_key(ctx, PopEnd::Min)
}

/// ZPOPMAX key [count]
pub fn zpopmax(ctx: &mut Context<'_, '_>) -> CommandResult {
    pop_one_key(ctx, PopEnd::Max)
}

fn pop_one_key(ctx: &mut Context<'_, '_>, end: PopEnd) -> CommandResult {
    let given = match ctx.argc() {
        2 => None,
        3 => {
            let count = parse_i64(ctx.arg(2)).ok_or(NOT_POSITIVE_ERROR)?;
            Some(usize::try_from(count).map_err(|_| NOT_POSITIVE_ERROR)?)
        }
        _ => return Err(CommandError::SYNTAX),
    };
    let shape = match (given, ctx.reply.protocol) {
        (Some(_), Protocol::Resp3) => PopReplyFormat::Pairs,
        _ => PopReplyFormat::Flat,
    };
    let count = given.unwrap_or(1);
    match decide_pop(ctx, 0, count)? {
        PopDecision::Pop if count > 0 => {
            pop_members(ctx.keys.write(0).opened_again(), &mut ctx.reply, end, count, shape)?;
        }
        PopDecision::Pop | PopDecision::Missing => ctx.reply.array(0),
        PopDecision::Detach => ctx.detach(),
    }
    Ok(())
}

/// The decision on a key from which members may be popped.
enum PopDecision {
    Missing,
    Pop,
    Detach,
}

/// Decides if `count` members can be popped from the n-th key on this worker.
///
/// # Errors
/// `WRONGTYPE` if the key holds another type.
fn decide_pop(ctx: &mut Context<'_, '_>, index: usize, count: usize) -> Result<PopDecision, CommandError> {
    let in_place_ns = ctx.max_worker_ns();
    let key = ctx.keys.write(index);
    let found = key
        .entry()
        .map(|entry| value_as_sorted_set(entry.value()).map(|view| view.len()));
    match found.transpose()? {
        None => Ok(PopDecision::Missing),
        Some(len) if len.min(count) as u64 * REMOVE_MEMBER_NS > in_place_ns => Ok(PopDecision::Detach),
        Some(_) => Ok(PopDecision::Pop),
    }
}

/// ZMPOP numkeys key [key ...] MIN|MAX [COUNT count]
pub fn zmpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    let arguments = ZmpopArguments::parse(ctx, 1)?;
    if !pop_first_of(ctx, arguments)? {
        ctx.reply.null_array();
    }
    Ok(())
}

/// Pops from the first key that exists, and replies or moves to a background thread. Returns `false` if no key exists.
///
/// # Errors
/// `WRONGTYPE` if an earlier key holds another type.
pub fn pop_first_of(ctx: &mut Context<'_, '_>, arguments: ZmpopArguments) -> Result<bool, CommandError> {
    let ZmpopArguments {
        key_count: keys,
        end,
        count,
    } = arguments;
    for index in 0..keys {
        match decide_pop(ctx, index, count)? {
            PopDecision::Missing => {}
            PopDecision::Detach => {
                ctx.detach();
                return Ok(true);
            }
            PopDecision::Pop => {
                let name = ctx.keys.name(index);
                let shape = PopReplyFormat::KeyPairs(name);
                pop_members(ctx.keys.write(index).opened_again(), &mut ctx.reply, end, count, shape)?;
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The arguments that ZMPOP and BZMPOP share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZmpopArguments {
    /// The number of keys.
    pub key_count: usize,
    /// The end from which members are popped.
    pub end: PopEnd,
    /// The largest number of members to pop; at least 1.
    pub count: usize,
}

impl ZmpopArguments {
    /// Parses the number of keys, which is argument `first`, and the arguments after it.
    ///
    /// # Errors
    /// If an argument is invalid.
    pub fn parse(ctx: &Context<'_, '_>, first: usize) -> Result<Self, CommandError> {
        let positive = |word: &[u8]| {
            let number = parse_i64(word).filter(|number| *number > 0);
            number.and_then(|number| usize::try_from(number).ok())
        };
        let no_keys = CommandError::constant("ERR numkeys should be greater than 0");
        let keys = positive(ctx.arg(first)).ok_or(no_keys)?;
        let at = first.saturating_add(keys).saturating_add(1);
        if at >= ctx.argc() {
            return Err(CommandError::SYNTAX);
        }
        let end = PopEnd::parse(ctx.arg(at)).ok_or(CommandError::SYNTAX)?;
        let count = match ctx.argc() - at - 1 {
            0 => 1,
            more if more >= 2 && ctx.arg(at + 1).eq_ignore_ascii_case(b"count") => {
                let no_count = CommandError::constant("ERR count should be greater than 0");
                let count = positive(ctx.arg(at + 2)).ok_or(no_count)?;
                if more > 2 {
                    return Err(CommandError::SYNTAX);
                }
                count
            }
            _ => return Err(CommandError::SYNTAX),
        };
        Ok(Self {
            key_count: keys,
            end,
            count,
        })
    }
}
