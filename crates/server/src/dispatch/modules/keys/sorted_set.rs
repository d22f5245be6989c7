//! Access of modules to sorted sets.

use std::ops::Range;

use weft_modules::session::keys::{
    MemberPosition, MemberRemoval, RangeEnd, ScoreChange, ScoreUpdate, SessionKey, SortedSetRange, SortedSetSession,
};
use weft_values::listpack::DECIMAL_MAX_BYTES;
use weft_values::sorted_set::{
    DetachedSortedSet, LexEnd, LexRange, ScoreRange, SortedSetLimits, SortedSetView, UpsertOutcome,
};

use super::ModuleSession;
use crate::commands::sorted_set::{SortedSetEditor, edit_sorted_set, store_sorted_set, value_as_sorted_set};
use crate::keyspace::access::ExpiryUpdate;
use crate::keyspace::encoding_limits::EncodingParameters;

fn lex_end(end: &RangeEnd) -> LexEnd<'_> {
    match end {
        RangeEnd::Lowest => LexEnd::Lowest,
        RangeEnd::Highest => LexEnd::Highest,
        RangeEnd::Inclusive(member) => LexEnd::Inclusive(member),
        RangeEnd::Exclusive(member) => LexEnd::Exclusive(member),
    }
}

/// Returns the ranks of the members in a range.
fn ranks_of(range: &SortedSetRange, view: &SortedSetView<'_>) -> Range<usize> {
    match range {
        SortedSetRange::Scores(range) => view.ranks_of_scores(range),
        SortedSetRange::Members { min, max } => view.ranks_of_lex(&LexRange {
            min: lex_end(min),
            max: lex_end(max),
        }),
    }
}

/// Returns `true` if a member is beyond the end of a range, or before its start if the walk goes backward.
fn is_outside(range: &SortedSetRange, position: &MemberPosition, is_backward: bool) -> bool {
    match range {
        SortedSetRange::Scores(range) if is_backward => range.is_before_start(position.score),
        SortedSetRange::Scores(range) => !range.is_before_end(position.score),
        SortedSetRange::Members { min, max } => {
            let range = LexRange {
                min: lex_end(min),
                max: lex_end(max),
            };
            match is_backward {
                true => range.is_before_start(&position.member),
                false => !range.is_before_end(&position.member),
            }
        }
    }
}

/// Returns the member with a rank.
fn member_at(view: &SortedSetView<'_>, rank: usize) -> Option<MemberPosition> {
    if rank >= view.len() {
        return None;
    }
    let (member, score) = view.iter_ranks(rank..rank + 1, false).next()?;
    Some(MemberPosition {
        rank,
        score,
        member: member.to_vec(),
    })
}

/// Returns the number of members before a score and member, and `true` if that member has this score.
fn seek(view: &SortedSetView<'_>, from: &MemberPosition) -> (usize, bool) {
    let mut scratch = [0; DECIMAL_MAX_BYTES];
    let mut is_there = |rank: usize| {
        let found = view.iter_ranks(rank..rank + 1, false).next();
        found.is_some_and(|(member, score)| score == from.score && member.text(&mut scratch) == from.member)
    };
    if from.rank < view.len() && is_there(from.rank) {
        return (from.rank, true);
    }
    let same_score = view.ranks_of_scores(&ScoreRange {
        min: from.score,
        min_exclusive: false,
        max: from.score,
        max_exclusive: false,
    });
    let (mut low, mut high) = (same_score.start, same_score.end);
    while low < high {
        let middle = low + (high - low) / 2;
        match member_at(view, middle) {
            Some(found) if found.member < from.member => low = middle + 1,
            _ => high = middle,
        }
    }
    (low, low < same_score.end && is_there(low))
}

/// Applies a change to a set.
fn apply(set: &mut SortedSetEditor<'_>, member: &[u8], change: ScoreChange, limits: SortedSetLimits) -> ScoreUpdate {
    let mut update = ScoreUpdate::Forbidden;
    let outcome = set.upsert(member, limits, |before| {
        let conditions = change.conditions;
        let Some(before) = before else {
            if conditions.if_present {
                return None;
            }
            update = ScoreUpdate::Added(change.score);
            return Some(change.score);
        };
        if conditions.if_missing {
            return None;
        }
        let score = match change.is_increment {
            true => before + change.score,
            false => change.score,
        };
        if score.is_nan() {
            update = ScoreUpdate::NotANumber;
            return None;
        }
        if conditions.if_less && score >= before || conditions.if_greater && score <= before {
            return None;
        }
        update = ScoreUpdate::Same(score);
        Some(score)
    });
    match (outcome, update) {
        (UpsertOutcome::Changed, ScoreUpdate::Same(score)) => ScoreUpdate::Changed(score),
        (_, update) => update,
    }
}

impl ModuleSession<'_, '_> {
    fn with_sorted_set<R>(
        &mut self,
        key: SessionKey<'_>,
        run: impl FnOnce(SortedSetView<'_>) -> Option<R>,
    ) -> Option<R> {
        self.with_stored(key, |entry| value_as_sorted_set(entry.value()).ok().and_then(run))?
    }
}

impl SortedSetSession for ModuleSession<'_, '_> {
    fn change_score(&mut self, key: SessionKey<'_>, member: &[u8], change: ScoreChange) -> ScoreUpdate {
        if change.score.is_nan() {
            return ScoreUpdate::NotANumber;
        }
        let update = self.edit_key(key, |write, context| {
            let limits = context.server.config.sorted_set_limits();
            let copy = |packed: &[u8]| DetachedSortedSet::from_packed_with_more(packed, 1, member.len(), limits);
            let edit = |mut set: SortedSetEditor<'_>| {
                if let SortedSetEditor::InPlace(set) = &mut set {
                    set.prepare_for_members(1, member.len(), limits);
                }
                let update = apply(&mut set, member, change, limits);
                let has_changed = matches!(update, ScoreUpdate::Added(_) | ScoreUpdate::Changed(_));
                (update, has_changed)
            };
            match edit_sorted_set(write, copy, edit) {
                Ok(Some(edited)) => edited.result,
                Ok(None) if change.conditions.if_present => ScoreUpdate::Forbidden,
                Ok(None) => {
                    let mut draft = DetachedSortedSet::new(1, member.len(), limits);
                    let update = apply(&mut SortedSetEditor::Detached(&mut draft), member, change, limits);
                    store_sorted_set(write, draft, ExpiryUpdate::Remove);
                    update
                }
                Err(_) => ScoreUpdate::WrongType,
            }
        });
        update.unwrap_or(ScoreUpdate::WrongType)
    }

    fn read_score(&mut self, key: SessionKey<'_>, member: &[u8]) -> Option<f64> {
        self.with_sorted_set(key, |view| view.score(member))
    }

    fn remove_member(&mut self, key: SessionKey<'_>, member: &[u8]) -> MemberRemoval {
        let removal = self.edit_key(key, |write, _| {
            let edited = edit_sorted_set(write, DetachedSortedSet::from_packed, |mut set| {
                let removed = set.remove(member);
                (removed, removed)
            });
            match edited {
                Ok(Some(edited)) if edited.result && edited.is_emptied => MemberRemoval::Emptied,
                Ok(Some(edited)) if edited.result => MemberRemoval::Removed,
                _ => MemberRemoval::Missing,
            }
        });
        removal.unwrap_or(MemberRemoval::Missing)
    }

    fn member_in_range(
        &mut self,
        key: SessionKey<'_>,
        range: &SortedSetRange,
        is_last: bool,
    ) -> Option<MemberPosition> {
        self.with_sorted_set(key, |view| {
            let ranks = ranks_of(range, &view);
            if ranks.is_empty() {
                return None;
            }
            member_at(&view, if is_last { ranks.end - 1 } else { ranks.start })
        })
    }

    fn neighbor_in_range(
        &mut self,
        key: SessionKey<'_>,
        range: &SortedSetRange,
        from: &MemberPosition,
        is_backward: bool,
    ) -> Option<MemberPosition> {
        self.with_sorted_set(key, |view| {
            let rank = match (seek(&view, from), is_backward) {
                ((rank, _), true) => rank.checked_sub(1)?,
                ((rank, is_there), false) => rank + usize::from(is_there),
            };
            member_at(&view, rank).filter(|position| !is_outside(range, position, is_backward))
        })
    }
}
