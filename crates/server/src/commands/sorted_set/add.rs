//! ZADD and ZINCRBY.

use weft_resp::number::parse_f64;
use weft_values::sorted_set::{DetachedSortedSet, MAX_MEMBER_BYTES, SortedSetLimits, UpsertOutcome};

use super::{CHANGE_MEMBER_NS, EditOutcome, SortedSetEditor, edit_sorted_set, store_sorted_set};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::keyspace::access::ExpiryUpdate;
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::notify::keyspace_event::KeyspaceEvent;

const NOT_A_NUMBER: CommandError = CommandError::constant("ERR resulting score is not a number (NaN)");

/// The options of ZADD.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZaddOptions {
    /// `true` if existing members are not changed (NX).
    pub if_missing: bool,
    /// `true` if no members are added (XX).
    pub if_present: bool,
    /// `true` if a score is only changed to a greater one (GT).
    pub if_greater: bool,
    /// `true` if a score is only changed to a smaller one (LT).
    pub if_less: bool,
    /// `true` if the reply also counts changed scores (CH).
    pub should_count_changed: bool,
    /// `true` if the given score is added to the current one (INCR).
    pub is_increment: bool,
}

impl ZaddOptions {
    /// Returns the new score of a member; `None` if the options forbid the change.
    fn new_score(&self, before: Option<f64>, given: f64) -> Option<f64> {
        let Some(before) = before else {
            return (!self.if_present).then_some(given);
        };
        let score = if self.is_increment { before + given } else { given };
        let forbidden = self.if_missing || (self.if_less && score >= before) || (self.if_greater && score <= before);
        (!forbidden).then_some(score)
    }
}

/// The effects of a command.
#[derive(Default)]
struct AddResult {
    added: u64,
    changed: u64,
    /// The last score that was set, for commands that increment.
    score: Option<f64>,
    /// `true` if an increment resulted in NaN.
    is_not_a_number: bool,
}

/// ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member [score member ...]
pub fn zadd(ctx: &mut Context<'_, '_>) -> CommandResult {
    add_members(ctx, ZaddOptions::default())
}

/// ZINCRBY key increment member
pub fn zincrby(ctx: &mut Context<'_, '_>) -> CommandResult {
    let increment = ZaddOptions {
        is_increment: true,
        ..ZaddOptions::default()
    };
    add_members(ctx, increment)
}

/// Parses the options, which begin at argument 2. Returns the index of the first argument after them.
fn parse_options(ctx: &Context<'_, '_>, options: &mut ZaddOptions) -> usize {
    let mut index = 2;
    while index < ctx.argc() {
        let word = ctx.arg(index);
        // No option is longer than this. Most first words are scores.
        if word.len() > 4 {
            break;
        }
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let flag = match word.first().map(u8::to_ascii_lowercase) {
            Some(b'n') if is(b"nx") => &mut options.if_missing,
            Some(b'x') if is(b"xx") => &mut options.if_present,
            Some(b'c') if is(b"ch") => &mut options.should_count_changed,
            Some(b'i') if is(b"incr") => &mut options.is_increment,
            Some(b'g') if is(b"gt") => &mut options.if_greater,
            Some(b'l') if is(b"lt") => &mut options.if_less,
            _ => break,
        };
        *flag = true;
        index += 1;
    }
    index
}

fn check_options(options: &ZaddOptions, pairs: usize) -> CommandResult {
    let ZaddOptions {
        if_missing,
        if_present,
        if_greater,
        if_less,
        is_increment: increment,
        ..
    } = *options;
    if if_missing && if_present {
        return Err(CommandError::constant(
            "ERR XX and NX options at the same time are not compatible",
        ));
    }
    if (if_greater || if_less) && if_missing || if_greater && if_less {
        return Err(CommandError::constant(
            "ERR GT, LT, and/or NX options at the same time are not compatible",
        ));
    }
    if increment && pairs > 1 {
        return Err(CommandError::constant(
            "ERR INCR option supports a single increment-element pair",
        ));
    }
    Ok(())
}

/// The members that a command specifies, with their scores.
struct ScoredMemberArguments {
    scores: Vec<f64>,
    /// The index of the first member among the arguments.
    first_member: usize,
    /// The distance between neighbouring members, in arguments.
    stride: usize,
    max_member_bytes: usize,
}

impl ScoredMemberArguments {
    fn new(ctx: &Context<'_, '_>, scores: Vec<f64>, first_member: usize, stride: usize) -> Result<Self, CommandError> {
        let members = (first_member..ctx.argc()).step_by(stride);
        let longest_bytes = members.map(|index| ctx.arg(index).len()).max().unwrap_or(0);
        if longest_bytes > MAX_MEMBER_BYTES {
            return Err(CommandError::STRING_TOO_LONG);
        }
        Ok(Self {
            scores,
            first_member,
            stride,
            max_member_bytes: longest_bytes,
        })
    }
}

fn add_members(ctx: &mut Context<'_, '_>, mut options: ZaddOptions) -> CommandResult {
    let first = parse_options(ctx, &mut options);
    let words = ctx.argc() - first;
    if words == 0 || words % 2 == 1 {
        return Err(CommandError::SYNTAX);
    }
    check_options(&options, words / 2)?;
    let scores: Option<Vec<f64>> = (first..ctx.argc())
        .step_by(2)
        .map(|index| parse_f64(ctx.arg(index)))
        .collect();
    add_scores(ctx, options, scores.ok_or(CommandError::NOT_A_FLOAT)?, first + 1, 2)
}

/// Sets the scores of the members among the arguments, and replies. The first member is at `first_member`, the others
/// follow at distances of `stride`.
///
/// # Errors
/// If the key is not a sorted set, a member is too long, or an increment results in NaN.
pub fn add_scores(
    ctx: &mut Context<'_, '_>,
    options: ZaddOptions,
    scores: Vec<f64>,
    first_member: usize,
    stride: usize,
) -> CommandResult {
    if ctx.detach_if_long(scores.len() as u64 * CHANGE_MEMBER_NS) {
        return Ok(());
    }
    let given = ScoredMemberArguments::new(ctx, scores, first_member, stride)?;
    let tally = add_to_key(ctx, &options, &given)?;
    if options.is_increment {
        match tally.score {
            Some(score) => ctx.reply.double(score),
            None => ctx.reply.null(),
        }
    } else {
        let changed = if options.should_count_changed { tally.changed } else { 0 };
        ctx.reply.integer((tally.added + changed) as i64);
    }
    Ok(())
}

fn add_to_key(
    ctx: &mut Context<'_, '_>,
    options: &ZaddOptions,
    given: &ScoredMemberArguments,
) -> Result<AddResult, CommandError> {
    let limits = ctx.server.config.sorted_set_limits();
    let args = ctx.args;
    let members = given.scores.len();
    let mut key = ctx.keys.write(0);
    let change = |mut set: SortedSetEditor<'_>| {
        if let SortedSetEditor::InPlace(set) = &mut set {
            set.prepare_for_members(members, given.max_member_bytes, limits);
        }
        let named = given.scores.iter().enumerate();
        let named = named.map(|(index, score)| (args.argument(given.first_member + index * given.stride), *score));
        let tally = upsert_all(&mut set, options, limits, named);
        let changed = tally.added + tally.changed > 0;
        (tally, changed)
    };
    let copy =
        |packed: &[u8]| DetachedSortedSet::from_packed_with_more(packed, members, given.max_member_bytes, limits);
    let edited = edit_sorted_set(&mut key, copy, change)?;
    let tally = match edited {
        Some(EditOutcome { result, .. }) => result,
        None if options.if_present => AddResult::default(),
        None => {
            let mut draft = DetachedSortedSet::new(members, given.max_member_bytes, limits);
            let (tally, _) = change(SortedSetEditor::Detached(&mut draft));
            store_sorted_set(&mut key, draft, ExpiryUpdate::Remove);
            tally
        }
    };
    let changes = tally.added + tally.changed;
    if changes > 0 {
        let event = KeyspaceEvent::sorted_set(if options.is_increment { "zincr" } else { "zadd" });
        key.changed_times(event, changes);
    }
    if tally.is_not_a_number {
        return Err(NOT_A_NUMBER);
    }
    Ok(tally)
}

fn upsert_all<'m>(
    set: &mut SortedSetEditor<'_>,
    options: &ZaddOptions,
    limits: SortedSetLimits,
    members: impl Iterator<Item = (&'m [u8], f64)>,
) -> AddResult {
    let mut tally = AddResult::default();
    for (member, given) in members {
        let upsert = set.upsert(member, limits, |before| {
            let score = options.new_score(before, given)?;
            if score.is_nan() {
                tally.is_not_a_number = true;
                return None;
            }
            tally.score = Some(score);
            Some(score)
        });
        match upsert {
            UpsertOutcome::Added => tally.added += 1,
            UpsertOutcome::Changed => tally.changed += 1,
            UpsertOutcome::Unchanged => {}
        }
    }
    tally
}
