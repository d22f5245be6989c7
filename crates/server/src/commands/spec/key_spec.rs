//! Key specs: rules that find keys among the arguments.

use super::KeyFlags;

/// Where the search for keys begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeginSearch {
    /// At this argument; 0 is the command name.
    Index(i32),
    /// After this keyword. Looks forward from `start_from` if positive, else backward from that many before the end.
    Keyword {
        /// The keyword, matched in any case.
        keyword: &'static str,
        /// The argument where looking begins.
        start_from: i32,
    },
    /// Cannot be told from the arguments alone.
    Unknown,
}

/// How the keys are found from where the search began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FindKeys {
    /// Every `step`-th argument up to the last.
    Range {
        /// The last key: counted from the first if not negative, else from the end of the arguments.
        last: i32,
        /// The distance of neighbouring keys.
        step: i32,
        /// With `last` -1: only the first `1/limit` of the remaining arguments hold keys. 0 and 1: all of them.
        limit: i32,
    },
    /// An argument says how many keys follow.
    KeyNum {
        /// Where the count is, from the beginning of the search.
        index: i32,
        /// Where the first key is, from the beginning of the search.
        first: i32,
        /// The distance of neighbouring keys.
        step: i32,
    },
    /// Cannot be told from the arguments alone.
    Unknown,
}

/// One rule that finds some keys of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySpec {
    /// What happens to the keys it finds.
    pub flags: KeyFlags,
    /// Where to begin.
    pub begin: BeginSearch,
    /// How to go on.
    pub find: FindKeys,
    /// A remark for readers of COMMAND INFO; empty if there is none.
    pub notes: &'static str,
}

/// The key at argument `index`.
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

/// The key after `keyword`, which is looked for from argument `start_from`.
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

/// Keys that the arguments do not tell by position.
pub const fn keys_unknown(flags: &[KeyFlags]) -> KeySpec {
    KeySpec {
        flags: KeyFlags::of(flags),
        begin: BeginSearch::Unknown,
        find: FindKeys::Unknown,
        notes: "",
    }
}

impl KeySpec {
    /// Not one key but every `step`-th argument through `last`.
    pub const fn through(mut self, last: i32, step: i32) -> KeySpec {
        self.find = FindKeys::Range { last, step, limit: 0 };
        self
    }

    /// Keys are only the first `1/limit` of the remaining arguments.
    pub const fn first_part(mut self, limit: i32) -> KeySpec {
        self.find = FindKeys::Range {
            last: -1,
            step: 1,
            limit,
        };
        self
    }

    /// A count, `index` arguments on, says how many keys follow from `first` on, `step` apart.
    pub const fn counted(mut self, index: i32, first: i32, step: i32) -> KeySpec {
        self.find = FindKeys::KeyNum { index, first, step };
        self
    }

    /// A remark for readers of COMMAND INFO.
    pub const fn notes(mut self, notes: &'static str) -> KeySpec {
        self.notes = notes;
        self
    }
}
