//! ZADD and ZINCRBY.

use weft_resp::number::parse_f64;
use weft_values::sorted_set::{Draft, LONGEST_MEMBER_BYTES, Limits, Upsert};

use super::{CHANGE_NS, Edited, Editing, edit, store};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::keyspace::access::Expiry;
use crate::keyspace::event::Event;

const NOT_A_NUMBER: CommandError = CommandError::constant("ERR resulting score is not a number (NaN)");

/// The options of ZADD.
#[derive(Clone, Copy, Default)]
struct Options {
    if_missing: bool,
    if_present: bool,
    if_greater: bool,
    if_less: bool,
    count_changed: bool,
    increment: bool,
}

impl Options {
    /// The score that a member shall have; `None` if the options forbid any change.
    fn decide(&self, before: Option<f64>, given: f64) -> Option<f64> {
        let Some(before) = before else {
            return (!self.if_present).then_some(given);
        };
        let score = if self.increment { before + given } else { given };
        let forbidden = self.if_missing || (self.if_less && score >= before) || (self.if_greater && score <= before);
        (!forbidden).then_some(score)
    }
}

/// What a command did.
#[derive(Default)]
struct Tally {
    added: u64,
    changed: u64,
    /// The last score that was set, for the commands that increment.
    score: Option<f64>,
    /// Whether an increment led to no number.
    not_a_number: bool,
}

/// ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member [score member ...]
pub fn zadd(ctx: &mut Context<'_, '_>) -> CommandResult {
    add(ctx, Options::default())
}

/// ZINCRBY key increment member
pub fn zincrby(ctx: &mut Context<'_, '_>) -> CommandResult {
    let increment = Options {
        increment: true,
        ..Options::default()
    };
    add(ctx, increment)
}

/// Parses options from the third argument on; returns the index behind them.
fn parse_options(ctx: &Context<'_, '_>, options: &mut Options) -> usize {
    let mut index = 2;
    while index < ctx.argc() {
        let word = ctx.arg(index);
        // No option is longer: most first words are scores.
        if word.len() > 4 {
            break;
        }
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        let flag = match word.first().map(u8::to_ascii_lowercase) {
            Some(b'n') if is(b"nx") => &mut options.if_missing,
            Some(b'x') if is(b"xx") => &mut options.if_present,
            Some(b'c') if is(b"ch") => &mut options.count_changed,
            Some(b'i') if is(b"incr") => &mut options.increment,
            Some(b'g') if is(b"gt") => &mut options.if_greater,
            Some(b'l') if is(b"lt") => &mut options.if_less,
            _ => break,
        };
        *flag = true;
        index += 1;
    }
    index
}

fn check_options(options: &Options, pairs: usize) -> CommandResult {
    let Options {
        if_missing,
        if_present,
        if_greater,
        if_less,
        increment,
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

/// The pairs of score and member that a command gives.
struct Pairs {
    scores: Vec<f64>,
    /// Index of the first score among the arguments.
    first: usize,
    longest_bytes: usize,
}

fn parse_pairs(ctx: &Context<'_, '_>, first: usize, pairs: usize) -> Result<Pairs, CommandError> {
    let mut scores = Vec::with_capacity(pairs);
    let mut longest_bytes = 0;
    for index in (first..ctx.argc()).step_by(2) {
        scores.push(parse_f64(ctx.arg(index)).ok_or(CommandError::NOT_A_FLOAT)?);
        longest_bytes = longest_bytes.max(ctx.arg(index + 1).len());
    }
    if longest_bytes > LONGEST_MEMBER_BYTES {
        return Err(CommandError::STRING_TOO_LONG);
    }
    Ok(Pairs {
        scores,
        first,
        longest_bytes,
    })
}

fn add(ctx: &mut Context<'_, '_>, mut options: Options) -> CommandResult {
    let first = parse_options(ctx, &mut options);
    let words = ctx.argc() - first;
    if words == 0 || words % 2 == 1 {
        return Err(CommandError::SYNTAX);
    }
    let pairs = words / 2;
    check_options(&options, pairs)?;
    let pairs = parse_pairs(ctx, first, pairs)?;
    if ctx.leaves_worker(pairs.scores.len() as u64 * CHANGE_NS) {
        return Ok(());
    }
    let tally = put(ctx, &options, &pairs)?;
    if options.increment {
        match tally.score {
            Some(score) => ctx.reply.double(score),
            None => ctx.reply.null(),
        }
    } else {
        let changed = if options.count_changed { tally.changed } else { 0 };
        ctx.reply.integer((tally.added + changed) as i64);
    }
    Ok(())
}

fn put(ctx: &mut Context<'_, '_>, options: &Options, pairs: &Pairs) -> Result<Tally, CommandError> {
    let limits = ctx.server.config.sorted_set_limits();
    let args = ctx.args;
    let members = pairs.scores.len();
    let mut key = ctx.keys.write(0);
    let change = |mut set: Editing<'_>| {
        if let Editing::InPlace(set) = &mut set {
            set.expect(members, pairs.longest_bytes, limits);
        }
        let tally = upsert_all(
            &mut set,
            options,
            limits,
            |index| (args.at(pairs.first + 2 * index + 1), pairs.scores[index]),
            members,
        );
        let changed = tally.added + tally.changed > 0;
        (tally, changed)
    };
    let copy = |packed: &[u8]| Draft::of_packed(packed, members, pairs.longest_bytes, limits);
    let edited = match edit(&mut key, copy, change) {
        Ok(edited) => edited,
        Err(error) => {
            key.unchanged();
            return Err(error);
        }
    };
    let tally = match edited {
        Some(Edited { result, .. }) => result,
        None if options.if_present => Tally::default(),
        None => {
            let mut draft = Draft::new(members, pairs.longest_bytes, limits);
            let (tally, _) = change(Editing::Draft(&mut draft));
            store(&mut key, draft, Expiry::Never);
            tally
        }
    };
    let changes = tally.added + tally.changed;
    if changes > 0 {
        let event = Event::sorted_set(if options.increment { "zincr" } else { "zadd" });
        key.changed_times(event, changes);
    } else {
        key.unchanged();
    }
    if tally.not_a_number {
        return Err(NOT_A_NUMBER);
    }
    Ok(tally)
}

fn upsert_all<'m>(
    set: &mut Editing<'_>,
    options: &Options,
    limits: Limits,
    pair: impl Fn(usize) -> (&'m [u8], f64),
    pairs: usize,
) -> Tally {
    let mut tally = Tally::default();
    for index in 0..pairs {
        let (member, given) = pair(index);
        let upsert = set.upsert(member, limits, |before| {
            let score = options.decide(before, given)?;
            if score.is_nan() {
                tally.not_a_number = true;
                return None;
            }
            tally.score = Some(score);
            Some(score)
        });
        match upsert {
            Upsert::Added => tally.added += 1,
            Upsert::Changed => tally.changed += 1,
            Upsert::Left => {}
        }
    }
    tally
}
