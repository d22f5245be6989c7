//! Parsing of range arguments, and their conversion to ranks of a sorted set.

use std::ops::Range;

use weft_resp::number::{parse_i64, parse_score_bound};
use weft_values::sorted_set::{LexEnd, LexRange, ScoreRange, SortedSetEncoding, SortedSetView};

use crate::commands::context::Context;
use crate::commands::error::CommandError;

const INVALID_SCORE_RANGE: CommandError = CommandError::constant("ERR min or max is not a float");
const INVALID_LEX_RANGE: CommandError = CommandError::constant("ERR min or max not valid string range item");

/// Parses a range of scores. Each end is a number, with a `(` before it if it is exclusive.
///
/// # Errors
/// If one of the ends has another form.
pub fn parse_score_range(min: &[u8], max: &[u8]) -> Result<ScoreRange, CommandError> {
    let end = |text: &[u8]| {
        let (number, exclusive) = match text {
            [b'(', number @ ..] => (number, true),
            number => (number, false),
        };
        parse_score_bound(number).map(|number| (number, exclusive))
    };
    let (min, min_exclusive) = end(min).ok_or(INVALID_SCORE_RANGE)?;
    let (max, max_exclusive) = end(max).ok_or(INVALID_SCORE_RANGE)?;
    Ok(ScoreRange {
        min,
        min_exclusive,
        max,
        max_exclusive,
    })
}

/// Parses a range of members. Each end is `-`, `+`, `[member` or `(member`.
///
/// # Errors
/// If one of the ends has another form.
pub fn parse_lex_range<'a>(min: &'a [u8], max: &'a [u8]) -> Result<LexRange<'a>, CommandError> {
    let end = |text: &'a [u8]| match text {
        [b'-'] | [b'-', 0, ..] => Ok(LexEnd::Lowest),
        [b'+'] | [b'+', 0, ..] => Ok(LexEnd::Highest),
        [b'[', member @ ..] => Ok(LexEnd::Inclusive(member)),
        [b'(', member @ ..] => Ok(LexEnd::Exclusive(member)),
        _ => Err(INVALID_LEX_RANGE),
    };
    Ok(LexRange {
        min: end(min)?,
        max: end(max)?,
    })
}

/// The kind of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// A range of ranks, which may count from the end.
    Rank,
    /// A range of scores.
    Score,
    /// A range of members that have the same score.
    Lex,
}

#[derive(Clone, Copy, Debug)]
enum RangeBounds<'a> {
    Ranks(i64, i64),
    Scores(ScoreRange),
    Members(LexRange<'a>),
}

/// The range arguments of a command.
#[derive(Clone, Copy, Debug)]
pub struct RangeQuery<'a> {
    bounds: RangeBounds<'a>,
    /// `true` if the range goes from high to low.
    pub is_reverse: bool,
    /// `true` if the reply has scores.
    pub should_reply_scores: bool,
    offset: i64,
    /// The largest number of members; negative for no limit.
    limit: i64,
}

/// The parts of the grammar in which the range commands differ.
#[derive(Clone, Copy, Debug)]
pub struct RangeGrammar {
    /// The kind of the range; `None` if BYSCORE and BYLEX select it.
    pub kind: Option<RangeKind>,
    /// The direction; `None` if REV selects it.
    pub is_reverse: Option<bool>,
    /// `true` if WITHSCORES is an option.
    pub allows_scores: bool,
}

impl<'a> RangeQuery<'a> {
    /// Parses a range whose ends are argument `first` and the next, and the options after them.
    ///
    /// # Errors
    /// If an argument is invalid.
    pub fn parse(ctx: &Context<'a, '_>, first: usize, grammar: RangeGrammar) -> Result<Self, CommandError> {
        let RangeGrammar {
            kind: mut by,
            is_reverse: mut reverse,
            ..
        } = grammar;
        let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
        let mut index = first + 2;
        while index < ctx.argc() {
            let word = ctx.arg(index);
            let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
            if grammar.allows_scores && is(b"withscores") {
                with_scores = true;
            } else if is(b"limit") && index + 2 < ctx.argc() {
                offset = parse_i64(ctx.arg(index + 1)).ok_or(CommandError::NOT_AN_INTEGER)?;
                limit = parse_i64(ctx.arg(index + 2)).ok_or(CommandError::NOT_AN_INTEGER)?;
                index += 2;
            } else if grammar.is_reverse.is_none() && is(b"rev") && reverse.is_none() {
                reverse = Some(true);
            } else if by.is_none() && is(b"bylex") {
                by = Some(RangeKind::Lex);
            } else if by.is_none() && is(b"byscore") {
                by = Some(RangeKind::Score);
            } else {
                return Err(CommandError::SYNTAX);
            }
            index += 1;
        }
        let (by, reverse) = (by.unwrap_or(RangeKind::Rank), reverse.unwrap_or(false));
        if limit != -1 && by == RangeKind::Rank {
            return Err(CommandError::constant(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if with_scores && by == RangeKind::Lex {
            return Err(CommandError::constant(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        Ok(Self {
            bounds: Self::parse_bounds(by, reverse, ctx.arg(first), ctx.arg(first + 1))?,
            is_reverse: reverse,
            should_reply_scores: with_scores,
            offset,
            limit,
        })
    }

    fn parse_bounds(
        kind: RangeKind,
        is_reverse: bool,
        first: &'a [u8],
        second: &'a [u8],
    ) -> Result<RangeBounds<'a>, CommandError> {
        let (min, max) = if is_reverse { (second, first) } else { (first, second) };
        Ok(match kind {
            RangeKind::Rank => {
                let start = parse_i64(first).ok_or(CommandError::NOT_AN_INTEGER)?;
                let end = parse_i64(second).ok_or(CommandError::NOT_AN_INTEGER)?;
                RangeBounds::Ranks(start, end)
            }
            RangeKind::Score => RangeBounds::Scores(parse_score_range(min, max)?),
            RangeKind::Lex => RangeBounds::Members(parse_lex_range(min, max)?),
        })
    }

    /// Returns the ranks of the range in a sorted set, with offset and limit applied.
    pub fn ranks(&self, view: &SortedSetView<'_>) -> Range<usize> {
        let all = match &self.bounds {
            RangeBounds::Ranks(start, end) => return self.ranks_between(*start, *end, view.len()),
            RangeBounds::Scores(range) => view.ranks_of_scores(range),
            RangeBounds::Members(range) => view.ranks_of_lex(range),
        };
        self.apply_limit(all, view)
    }

    fn ranks_between(&self, start: i64, end: i64, len: usize) -> Range<usize> {
        let range = clamp_ranks(start, end, len);
        if self.is_reverse {
            len - range.end..len - range.start
        } else {
            range
        }
    }

    fn apply_limit(&self, all: Range<usize>, view: &SortedSetView<'_>) -> Range<usize> {
        let most = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let Ok(offset) = usize::try_from(self.offset) else {
            return self.apply_negative_offset(all, most, view);
        };
        if self.is_reverse {
            let end = all.end.saturating_sub(offset).max(all.start);
            end - most.min(end - all.start)..end
        } else {
            let start = all.start.saturating_add(offset).min(all.end);
            start..start + most.min(all.end - start)
        }
    }

    /// Applies a negative offset: in a skiplist it counts from the other end of the range, otherwise the result is
    /// empty.
    fn apply_negative_offset(&self, all: Range<usize>, max_count: usize, view: &SortedSetView<'_>) -> Range<usize> {
        let skiplist = matches!(view, SortedSetView::Large(set) if set.encoding() == SortedSetEncoding::Skiplist);
        let back = usize::try_from(self.offset.unsigned_abs()).unwrap_or(usize::MAX);
        if !skiplist || back > all.len() {
            return all.start..all.start;
        }
        if self.is_reverse {
            let end = all.start + back;
            end - max_count.min(back)..end
        } else {
            let start = all.end - back;
            start..start + max_count.min(back)
        }
    }
}

/// Returns the ranks from `start` to `end` inclusive. Negative ranks count from the end.
pub fn clamp_ranks(start: i64, end: i64, len: usize) -> Range<usize> {
    let from_end = |rank: i64| {
        if rank < 0 {
            rank.saturating_add(len as i64)
        } else {
            rank
        }
    };
    let (start, end) = (from_end(start).max(0), from_end(end).min(len as i64 - 1));
    if start > end {
        return 0..0;
    }
    start as usize..end as usize + 1
}
