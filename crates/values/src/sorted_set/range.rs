//! Ranges of scores and of members, as their ends divide the order of a sorted set.

/// A range of scores. A range whose start is behind its end holds nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRange {
    /// The lowest score.
    pub min: f64,
    /// Whether the lowest score itself is left out.
    pub min_exclusive: bool,
    /// The highest score.
    pub max: f64,
    /// Whether the highest score itself is left out.
    pub max_exclusive: bool,
}

impl ScoreRange {
    /// Whether a score lies before the range.
    #[inline]
    pub fn starts_behind(&self, score: f64) -> bool {
        if self.min_exclusive {
            score <= self.min
        } else {
            score < self.min
        }
    }

    /// Whether a score lies before the end of the range.
    #[inline]
    pub fn ends_behind(&self, score: f64) -> bool {
        if self.max_exclusive {
            score < self.max
        } else {
            score <= self.max
        }
    }
}

/// An end of a range of members that all have one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexEnd<'a> {
    /// Before every member: `-`.
    Lowest,
    /// Behind every member: `+`.
    Highest,
    /// At this member, which belongs to the range: `[member`.
    Inclusive(&'a [u8]),
    /// At this member, which does not: `(member`.
    Exclusive(&'a [u8]),
}

/// A range of members that all have one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LexRange<'a> {
    /// Its start.
    pub min: LexEnd<'a>,
    /// Its end.
    pub max: LexEnd<'a>,
}

impl LexRange<'_> {
    /// Whether a member lies before the range.
    #[inline]
    pub fn starts_behind(&self, member: &[u8]) -> bool {
        match self.min {
            LexEnd::Lowest => false,
            LexEnd::Highest => true,
            LexEnd::Inclusive(min) => member < min,
            LexEnd::Exclusive(min) => member <= min,
        }
    }

    /// Whether a member lies before the end of the range.
    #[inline]
    pub fn ends_behind(&self, member: &[u8]) -> bool {
        match self.max {
            LexEnd::Lowest => false,
            LexEnd::Highest => true,
            LexEnd::Inclusive(max) => member <= max,
            LexEnd::Exclusive(max) => member < max,
        }
    }
}
