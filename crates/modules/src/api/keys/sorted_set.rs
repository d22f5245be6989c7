//! Functions on sorted sets.

use std::ffi::c_int;
use std::ptr::null_mut;

use weft_values::sorted_set::ScoreRange;

use super::key_of_kind;
use crate::api::{ERR, Functions, OK};
use crate::functions;
use crate::objects::key::{KeyCursor, KeyMode, ModuleKey, SortedSetCursor};
use crate::objects::string::ModuleString;
use crate::session::keys::{
    KeyKind, MemberRemoval, RangeEnd, ScoreChange, ScoreConditions, ScoreUpdate, SortedSetRange,
};

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("ZsetAdd", zset_add),
    ("ZsetIncrby", zset_incrby),
    ("ZsetScore", zset_score),
    ("ZsetRem", zset_rem),
    ("ZsetRangeStop", zset_range_stop),
    ("ZsetRangeEndReached", zset_range_end_reached),
    ("ZsetFirstInScoreRange", zset_first_in_score_range),
    ("ZsetLastInScoreRange", zset_last_in_score_range),
    ("ZsetFirstInLexRange", zset_first_in_lex_range),
    ("ZsetLastInLexRange", zset_last_in_lex_range),
    ("ZsetRangeCurrentElement", zset_range_current_element),
    ("ZsetRangeNext", zset_range_next),
    ("ZsetRangePrev", zset_range_prev),
];

bitflags::bitflags! {
    /// The flags of `ZsetAdd` and `ZsetIncrby` (`VALKEYMODULE_ZADD_...`).
    #[derive(Clone, Copy)]
    struct ZaddFlags: c_int {
        const IF_PRESENT = 1;
        const IF_MISSING = 1 << 1;
        const ADDED = 1 << 2;
        const UPDATED = 1 << 3;
        const NOTHING = 1 << 4;
        const IF_GREATER = 1 << 5;
        const IF_LESS = 1 << 6;
    }
}

impl ZaddFlags {
    fn conditions(self) -> ScoreConditions {
        ScoreConditions {
            if_missing: self.contains(ZaddFlags::IF_MISSING),
            if_present: self.contains(ZaddFlags::IF_PRESENT),
            if_greater: self.contains(ZaddFlags::IF_GREATER),
            if_less: self.contains(ZaddFlags::IF_LESS),
        }
    }
}

/// Changes the score of a member, and stores the result.
///
/// # Safety
/// The arguments are an open key, a string, and places for numbers, which may be null (rule 1).
unsafe fn change_score(
    key: *mut ModuleKey,
    score: f64,
    member: *mut ModuleString,
    flags: *mut c_int,
    new_score: Option<*mut f64>,
) -> c_int {
    // SAFETY: the caller promises it; the string is not changed during this call.
    let (key, member, flags) = unsafe {
        let key = ModuleKey::from_pointer(key);
        (key, ModuleString::bytes_of(member), flags.as_mut())
    };
    let may_be_set = |key: &&ModuleKey| matches!(key.kind(), KeyKind::SortedSet | KeyKind::Empty);
    let Some(key) = key.filter(|key| key.is_writable()).filter(may_be_set) else {
        return ERR;
    };
    let change = ScoreChange {
        score,
        is_increment: new_score.is_some(),
        conditions: flags.as_deref().map_or(ScoreConditions::default(), |flags| {
            ZaddFlags::from_bits_truncate(*flags).conditions()
        }),
    };
    let update = key.with_keys(|session, key| session.change_score(key, member, change));
    let (result, score) = match update {
        Some(ScoreUpdate::Added(score)) => {
            key.set_kind(KeyKind::SortedSet);
            (ZaddFlags::ADDED, Some(score))
        }
        Some(ScoreUpdate::Changed(score)) => (ZaddFlags::UPDATED, Some(score)),
        Some(ScoreUpdate::Same(score)) => (ZaddFlags::empty(), Some(score)),
        Some(ScoreUpdate::Forbidden) => (ZaddFlags::NOTHING, None),
        Some(ScoreUpdate::NotANumber | ScoreUpdate::WrongType) | None => {
            if let Some(flags) = flags {
                *flags = 0;
            }
            return ERR;
        }
    };
    if let Some(flags) = flags {
        *flags = result.bits();
    }
    if let (Some(place), Some(score)) = (new_score.filter(|place| !place.is_null()), score) {
        // SAFETY: the caller promises it.
        unsafe { place.write(score) };
    }
    OK
}

/// `ZsetAdd`: sets the score of a member. A missing set is created.
///
/// # Safety
/// The arguments are an open key, a string, and null or a place for flags (rule 1).
unsafe extern "C" fn zset_add(key: *mut ModuleKey, score: f64, member: *mut ModuleString, flags: *mut c_int) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { change_score(key, score, member, flags, None) }
}

/// `ZsetIncrby`: adds to the score of a member, and stores the new one. A missing set is created.
///
/// # Safety
/// As for [`zset_add`]; `new_score` is null or a place for a number (rule 1).
unsafe extern "C" fn zset_incrby(
    key: *mut ModuleKey,
    score: f64,
    member: *mut ModuleString,
    flags: *mut c_int,
    new_score: *mut f64,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { change_score(key, score, member, flags, Some(new_score)) }
}

/// `ZsetScore`: stores the score of a member.
///
/// # Safety
/// The arguments are an open key, a string and a place for a number (rule 1).
unsafe extern "C" fn zset_score(key: *mut ModuleKey, member: *mut ModuleString, score: *mut f64) -> c_int {
    // SAFETY: the caller promises it; the string is not changed during this call.
    let (key, member) = unsafe { (ModuleKey::from_pointer(key), ModuleString::bytes_of(member)) };
    let Some(key) = key.filter(|key| key.kind() == KeyKind::SortedSet) else {
        return ERR;
    };
    match key.with_keys(|session, key| session.read_score(key, member)).flatten() {
        Some(found) => {
            if !score.is_null() {
                // SAFETY: the caller promises it.
                unsafe { score.write(found) };
            }
            OK
        }
        None => ERR,
    }
}

/// `ZsetRem`: removes a member, and stores 1 if there was one. An empty set is deleted.
///
/// # Safety
/// The arguments are an open key, a string, and null or a place for a number (rule 1).
unsafe extern "C" fn zset_rem(key: *mut ModuleKey, member: *mut ModuleString, deleted: *mut c_int) -> c_int {
    // SAFETY: the caller promises it; the string is not changed during this call.
    let (key, member, deleted) = unsafe {
        let key = ModuleKey::from_pointer(key);
        (key, ModuleString::bytes_of(member), deleted.as_mut())
    };
    let may_be_set = |key: &&ModuleKey| matches!(key.kind(), KeyKind::SortedSet | KeyKind::Empty);
    let Some(key) = key.filter(|key| key.is_writable()).filter(may_be_set) else {
        return ERR;
    };
    let removal = match key.kind() {
        KeyKind::Empty => MemberRemoval::Missing,
        _ => key
            .with_keys(|session, key| session.remove_member(key, member))
            .unwrap_or(MemberRemoval::Missing),
    };
    if removal == MemberRemoval::Emptied {
        key.set_kind(KeyKind::Empty);
    }
    if let Some(deleted) = deleted {
        *deleted = c_int::from(removal != MemberRemoval::Missing);
    }
    OK
}

/// Returns a key with a sorted set.
///
/// # Safety
/// As for [`ModuleKey::from_pointer`].
unsafe fn sorted_set_key<'a>(key: *mut ModuleKey) -> Option<&'a ModuleKey> {
    // SAFETY: the caller promises it.
    unsafe { key_of_kind(key, KeyKind::SortedSet, KeyMode::empty()) }.ok()
}

/// `ZsetRangeStop`: ends the iteration.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn zset_range_stop(key: *mut ModuleKey) {
    // SAFETY: the caller promises it.
    if let Some(key) = unsafe { sorted_set_key(key) } {
        key.cursor.replace(KeyCursor::None);
    }
}

/// `ZsetRangeEndReached`: returns 1 if a step has left the range, or there is no iteration.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn zset_range_end_reached(key: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { sorted_set_key(key) }) else {
        return 1;
    };
    match &*key.cursor.borrow() {
        KeyCursor::SortedSet(cursor) => c_int::from(cursor.has_ended),
        _ => 1,
    }
}

/// Begins an iteration at one end of a range.
fn start_range(key: &ModuleKey, range: SortedSetRange, is_last: bool) -> c_int {
    let current = key
        .with_keys(|session, key| session.member_in_range(key, &range, is_last))
        .flatten();
    key.cursor.replace(KeyCursor::SortedSet(SortedSetCursor {
        range,
        has_ended: current.is_none(),
        current,
    }));
    OK
}

/// Begins an iteration at one end of a range of scores.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe fn start_score_range(key: *mut ModuleKey, range: ScoreRange, is_last: bool) -> c_int {
    // SAFETY: the caller promises it.
    match unsafe { sorted_set_key(key) } {
        Some(key) => start_range(key, SortedSetRange::Scores(range), is_last),
        None => ERR,
    }
}

/// `ZsetFirstInScoreRange`: begins an iteration at the member with the lowest score of a range.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn zset_first_in_score_range(
    key: *mut ModuleKey,
    min: f64,
    max: f64,
    min_exclusive: c_int,
    max_exclusive: c_int,
) -> c_int {
    let range = ScoreRange {
        min,
        min_exclusive: min_exclusive != 0,
        max,
        max_exclusive: max_exclusive != 0,
    };
    // SAFETY: the caller promises it.
    unsafe { start_score_range(key, range, false) }
}

/// `ZsetLastInScoreRange`: begins an iteration at the member with the highest score of a range.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn zset_last_in_score_range(
    key: *mut ModuleKey,
    min: f64,
    max: f64,
    min_exclusive: c_int,
    max_exclusive: c_int,
) -> c_int {
    let range = ScoreRange {
        min,
        min_exclusive: min_exclusive != 0,
        max,
        max_exclusive: max_exclusive != 0,
    };
    // SAFETY: the caller promises it.
    unsafe { start_score_range(key, range, true) }
}

/// Parses an end of a range of members, as in ZRANGEBYLEX.
fn parse_range_end(text: &[u8]) -> Option<RangeEnd> {
    match text {
        [b'-'] | [b'-', 0, ..] => Some(RangeEnd::Lowest),
        [b'+'] | [b'+', 0, ..] => Some(RangeEnd::Highest),
        [b'[', member @ ..] => Some(RangeEnd::Inclusive(member.to_vec())),
        [b'(', member @ ..] => Some(RangeEnd::Exclusive(member.to_vec())),
        _ => None,
    }
}

/// Begins an iteration at one end of a range of members.
///
/// # Safety
/// The key is null or open, and the ends are strings (rule 1).
unsafe fn start_lex_range(key: *mut ModuleKey, min: *mut ModuleString, max: *mut ModuleString, is_last: bool) -> c_int {
    // SAFETY: the caller promises it; the strings are not changed during this call.
    let (key, min, max) = unsafe {
        let key = sorted_set_key(key);
        (key, ModuleString::bytes_of(min), ModuleString::bytes_of(max))
    };
    let Some(key) = key else {
        return ERR;
    };
    key.cursor.replace(KeyCursor::None);
    match (parse_range_end(min), parse_range_end(max)) {
        (Some(min), Some(max)) => start_range(key, SortedSetRange::Members { min, max }, is_last),
        _ => ERR,
    }
}

/// `ZsetFirstInLexRange`: begins an iteration at the first member of a range of members.
///
/// # Safety
/// The key is null or open, and the ends are strings (rule 1).
unsafe extern "C" fn zset_first_in_lex_range(
    key: *mut ModuleKey,
    min: *mut ModuleString,
    max: *mut ModuleString,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { start_lex_range(key, min, max, false) }
}

/// `ZsetLastInLexRange`: begins an iteration at the last member of a range of members.
///
/// # Safety
/// The key is null or open, and the ends are strings (rule 1).
unsafe extern "C" fn zset_last_in_lex_range(
    key: *mut ModuleKey,
    min: *mut ModuleString,
    max: *mut ModuleString,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { start_lex_range(key, min, max, true) }
}

/// `ZsetRangeCurrentElement`: returns the current member, and stores its score.
///
/// # Safety
/// The key is null or open, and `score` null or a place for a number (rule 1).
unsafe extern "C" fn zset_range_current_element(key: *mut ModuleKey, score: *mut f64) -> *mut ModuleString {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { sorted_set_key(key) }) else {
        return null_mut();
    };
    match &*key.cursor.borrow() {
        KeyCursor::SortedSet(SortedSetCursor {
            current: Some(current), ..
        }) => {
            if !score.is_null() {
                // SAFETY: the caller promises it.
                unsafe { score.write(current.score) };
            }
            key.create_string(&current.member)
        }
        _ => null_mut(),
    }
}

/// Goes to the next or the previous member. Returns 1 unless that is outside the range.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe fn step(key: *mut ModuleKey, is_backward: bool) -> c_int {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { sorted_set_key(key) }) else {
        return 0;
    };
    let mut cursor = key.cursor.borrow_mut();
    let KeyCursor::SortedSet(cursor) = &mut *cursor else {
        return 0;
    };
    let Some(from) = &cursor.current else {
        return 0;
    };
    let next = key
        .with_keys(|session, key| session.neighbor_in_range(key, &cursor.range, from, is_backward))
        .flatten();
    match next {
        Some(next) => {
            cursor.current = Some(next);
            1
        }
        None => {
            cursor.has_ended = true;
            0
        }
    }
}

/// `ZsetRangeNext`: goes to the next member.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn zset_range_next(key: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { step(key, false) }
}

/// `ZsetRangePrev`: goes to the previous member.
///
/// # Safety
/// The key is null or open (rule 1).
unsafe extern "C" fn zset_range_prev(key: *mut ModuleKey) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { step(key, true) }
}
