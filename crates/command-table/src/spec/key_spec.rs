//! Key specs: rules that find keys among the arguments.

use super::KeyFlags;

/// The position at which the search for keys begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeginSearch {
    /// This argument; 0 is the command's name.
    Index(i32),
    /// The argument after this keyword. The search for the keyword goes forward from argument `start_from` if positive,
    /// else backward from that many arguments before the end.
    Keyword {
        /// The keyword, matched in any case.
        keyword: &'static str,
        /// The argument at which the search for the keyword begins.
        start_from: i32,
    },
    /// The arguments alone do not determine it.
    Unknown,
}

/// The rule that finds the keys from the beginning of the search on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FindKeys {
    /// Every `step`-th argument up to the last key.
    Range {
        /// The last key: relative to the first if not negative, else to the end of the arguments.
        last: i32,
        /// The distance between neighbouring keys.
        step: i32,
        /// With `last` -1: only the first `1/limit` of the remaining arguments hold keys. 0 and 1 stand for all of
        /// them.
        limit: i32,
    },
    /// An argument holds the number of keys that follow.
    KeyNum {
        /// The argument with the number, relative to the beginning of the search.
        index: i32,
        /// The first key, relative to the beginning of the search.
        first: i32,
        /// The distance between neighbouring keys.
        step: i32,
    },
    /// The arguments alone do not determine it.
    Unknown,
}

/// One rule that finds some keys of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySpec {
    /// The use that the command makes of these keys.
    pub flags: KeyFlags,
    /// The position at which the search begins.
    pub begin: BeginSearch,
    /// The rule that finds the keys from there on.
    pub find: FindKeys,
    /// A remark that COMMAND INFO shows; empty if there is none.
    pub notes: &'static str,
}

/// Returns a spec of the key at argument `index`.
pub const fn keys(index: i32, flags: &[KeyFlags]) -> KeySpec {
    KeySpec {
        flags: KeyFlags::of(flags),
        begin: BeginSearch::Index(index),
        find: FindKeys::Range {
            last: 0,
            step: 1,
            limit: 0,
        },
        notes: "",
    }
}

/// Returns a spec of the key after `keyword`, which is searched from argument `start_from` on.
pub const fn keys_after(keyword: &'static str, start_from: i32, flags: &[KeyFlags]) -> KeySpec {
    KeySpec {
        flags: KeyFlags::of(flags),
        begin: BeginSearch::Keyword { keyword, start_from },
        find: FindKeys::Range {
            last: 0,
            step: 1,
            limit: 0,
        },
        notes: "",
    }
}

/// Returns a spec of keys that cannot be found by position.
pub const fn unknown_keys(flags: &[KeyFlags]) -> KeySpec {
    KeySpec {
        flags: KeyFlags::of(flags),
        begin: BeginSearch::Unknown,
        find: FindKeys::Unknown,
        notes: "",
    }
}

impl KeySpec {
    /// Extends the spec from one key to every `step`-th argument up to `last`.
    pub const fn with_range(mut self, last: i32, step: i32) -> KeySpec {
        self.find = FindKeys::Range { last, step, limit: 0 };
        self
    }

    /// Extends the spec to the first `1/limit` of the remaining arguments.
    pub const fn with_limit(mut self, limit: i32) -> KeySpec {
        self.find = FindKeys::Range {
            last: -1,
            step: 1,
            limit,
        };
        self
    }

    /// Extends the spec to as many keys as the argument at `index` specifies. They begin at `first` and are `step`
    /// apart; both positions are relative to the beginning of the search.
    pub const fn with_key_count(mut self, index: i32, first: i32, step: i32) -> KeySpec {
        self.find = FindKeys::KeyNum { index, first, step };
        self
    }

    /// Sets the remark that COMMAND INFO shows.
    pub const fn notes(mut self, notes: &'static str) -> KeySpec {
        self.notes = notes;
        self
    }
}
