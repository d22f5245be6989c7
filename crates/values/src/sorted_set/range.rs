//! Ranges of scores and of members, and the position of a score or member relative to them.
/// A range of scores. A range whose start is after its end is empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRange {
    /// The lowest score.
    pub min: f64,
    /// `true` if the lowest score itself is excluded.
    pub min_exclusive: bool,
    /// The highest score.
    pub max: f64,
    /// `true` if the highest score itself is excluded.
    pub max_exclusive: bool,
}

impl ScoreRange {
    /// Returns `true` if a score is before the start of the range.
    #[inline]
    pub fn is_before_start(&self, score: f64) -> bool {
        if self.min_exclusive {
            score <= self.min
        } else {
            score < self.min
        }
    }

    /// Returns `true` if a score is before the end of the range.
    #[inline]
    pub fn is_before_end(&self, score: f64) -> bool {
        if self.max_exclusive {
            score < self.max
        } else {
            score <= self.max
        }
    }
}

/// An end of a range of members that all have the same score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexEnd<'a> {
    /// Before every member: `-`.
    Lowest,
    /// After every member: `+`.
    Highest,
    /// At this member, which is included: `[member`.
    Inclusive(&'a [u8]),
    /// At this member, which is excluded: `(member`.
    Exclusive(&'a [u8]),
}

/// A range of members that all have the same score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LexRange<'a> {
    /// The start of the range.
    pub min: LexEnd<'a>,
    /// The end of the range.
    pub max: LexEnd<'a>,
}

impl LexRange<'_> {
    /// Returns `true` if a member is before the start of the range.
    #[inline]
    pub fn is_before_start(&self, member: &[u8]) -> bool {
        match self.min {
            LexEnd::Lowest => false,
            LexEnd::Highest => true,
            LexEnd::Inclusive(min) => member < min,
            LexEnd::Exclusive(min) => member <= min,
        }
    }

    /// Returns `true` if a member is before the end of the range.
    #[inline]
    pub fn is_before_end(&self, member: &[u8]) -> bool {
        match self.max {
            LexEnd::Lowest => false,
            LexEnd::Highest => true,
            LexEnd::Inclusive(max) => member <= max,
            LexEnd::Exclusive(max) => member < max,
        }
    }
}
