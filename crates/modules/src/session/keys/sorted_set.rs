//! Access to sorted sets.

use weft_values::sorted_set::ScoreRange;

use super::SessionKey;

/// The conditions under which a score changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreConditions {
    /// Members that exist do not change.
    pub if_missing: bool,
    /// No members are added.
    pub if_present: bool,
    /// A score changes only to a greater one.
    pub if_greater: bool,
    /// A score changes only to a smaller one.
    pub if_less: bool,
}

/// A change of a member's score.
#[derive(Clone, Copy, Debug)]
pub struct ScoreChange {
    /// The score, or the number to be added to the score.
    pub score: f64,
    /// `true` if the number is added.
    pub is_increment: bool,
    /// The conditions.
    pub conditions: ScoreConditions,
}

/// The result of a change of a member's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScoreUpdate {
    /// The conditions forbid the change.
    Forbidden,
    /// The member was added with this score.
    Added(f64),
    /// The member has got this score.
    Changed(f64),
    /// The member had this score already.
    Same(f64),
    /// The score would not be a number.
    NotANumber,
    /// The key holds another type.
    WrongType,
}

/// The result of removing a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRemoval {
    /// There is no such member.
    Missing,
    /// The member was removed.
    Removed,
    /// The member was removed, and with it the key.
    Emptied,
}

/// An end of a range of members that all have the same score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeEnd {
    /// Before every member.
    Lowest,
    /// After every member.
    Highest,
    /// At this member, which is included.
    Inclusive(Vec<u8>),
    /// At this member, which is excluded.
    Exclusive(Vec<u8>),
}

/// A range of members.
#[derive(Clone, Debug, PartialEq)]
pub enum SortedSetRange {
    /// A range of scores.
    Scores(ScoreRange),
    /// A range of members that all have the same score.
    Members {
        /// The start.
        min: RangeEnd,
        /// The end.
        max: RangeEnd,
    },
}

/// A member of a sorted set at the time of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberPosition {
    /// The number of members before it.
    pub rank: usize,
    /// The score.
    pub score: f64,
    /// The member.
    pub member: Vec<u8>,
}

/// Access to sorted sets.
pub trait SortedSetSession {
    /// Changes the score of a member. Creates the set if the key is missing, unless the conditions forbid it.
    fn change_score(&mut self, key: SessionKey<'_>, member: &[u8], change: ScoreChange) -> ScoreUpdate;

    /// Returns the score of a member; `None` if there is no such member or set.
    fn read_score(&mut self, key: SessionKey<'_>, member: &[u8]) -> Option<f64>;

    /// Removes a member. Deletes an empty set.
    fn remove_member(&mut self, key: SessionKey<'_>, member: &[u8]) -> MemberRemoval;

    /// Returns the first member in a range, or the last one.
    fn member_in_range(&mut self, key: SessionKey<'_>, range: &SortedSetRange, is_last: bool)
    -> Option<MemberPosition>;

    /// Returns the member after a position, or the one before it, if it is in a range. A member at the position that
    /// was removed, or has got another score, counts as if it were still there.
    fn neighbor_in_range(
        &mut self,
        key: SessionKey<'_>,
        range: &SortedSetRange,
        from: &MemberPosition,
        is_backward: bool,
    ) -> Option<MemberPosition>;
}
