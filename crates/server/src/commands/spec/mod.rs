//! What a command *is*, without what it does: the types of the metadata rows and the builders that spell them.
//!
//! One row of a table in [`tables`](super::tables) is a chain of `const` calls and is complete at compile time:
//!
//! ```text
//! command("getset", 3, Group::String, "1.0.0")      name, arity, group, first version
//!     .flags(&[WRITE, DENYOOM, FAST])               what the dispatcher may refuse it for
//!     .keys(&[keys(1, &[RW, ACCESS, UPDATE])])      where its keys are and what happens to them
//!     .complexity("O(1)")                           documentation from here on
//!     .summary("...")
//!     .args(&[key("key", 0), string("value")])
//! ```
//!
//! Three things are derived, so that a row cannot contradict itself:
//!
//! - *ACL categories* are the group's own category, plus those that the flags imply ([`Categories::implied_by`]),
//!   plus what [`CommandSpec::categories`] adds. A row whose group category does not apply says
//!   [`CommandSpec::categories_without_group`].
//! - The *legacy range* (first key, last key, step: the three numbers old clients read from COMMAND) and
//!   [`Flags::MOVABLEKEYS`], its admission that the range is not the whole truth, come from the key specs.
//! - The *key shape* comes from the key specs: it lets the walker in `dispatch::keys` skip interpreting them.

mod arg;
mod bits;
mod key_spec;

pub use arg::{Arg, ArgType, block, double, integer, key, one_of, pattern, string, token, unix_time};
pub use bits::{Categories, Flags, KeyFlags, category, flag, key_flag};
pub use key_spec::{BeginSearch, FindKeys, KeySpec, keys, keys_after, keys_unknown};

use crate::commands::keys::{KeyShape, SpecialKeys};

/// The chapter of the documentation, and the table, that a command belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each group says what it is")]
pub enum Group {
    Bitmap,
    Cluster,
    Connection,
    Generic,
    Geo,
    Hash,
    HyperLogLog,
    List,
    PubSub,
    Scripting,
    Server,
    Set,
    SortedSet,
    Stream,
    String,
    Transactions,
}

impl Group {
    /// The name as COMMAND DOCS prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Bitmap => "bitmap",
            Group::Cluster => "cluster",
            Group::Connection => "connection",
            Group::Generic => "generic",
            Group::Geo => "geo",
            Group::Hash => "hash",
            Group::HyperLogLog => "hyperloglog",
            Group::List => "list",
            Group::PubSub => "pubsub",
            Group::Scripting => "scripting",
            Group::Server => "server",
            Group::Set => "set",
            Group::SortedSet => "sorted-set",
            Group::Stream => "stream",
            Group::String => "string",
            Group::Transactions => "transactions",
        }
    }

    /// The ACL category that a command has by being in this group.
    const fn category(self) -> Categories {
        match self {
            Group::Bitmap => Categories::BITMAP,
            Group::Connection => Categories::CONNECTION,
            Group::Generic => Categories::KEYSPACE,
            Group::Geo => Categories::GEO,
            Group::Hash => Categories::HASH,
            Group::HyperLogLog => Categories::HYPERLOGLOG,
            Group::List => Categories::LIST,
            Group::PubSub => Categories::PUBSUB,
            Group::Scripting => Categories::SCRIPTING,
            Group::Set => Categories::SET,
            Group::SortedSet => Categories::SORTEDSET,
            Group::Stream => Categories::STREAM,
            Group::String => Categories::STRING,
            Group::Transactions => Categories::TRANSACTION,
            Group::Cluster | Group::Server => Categories::NONE,
        }
    }
}

/// First key, last key and step as COMMAND prints them: all 0 if no plain range covers any key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LegacyRange {
    /// Argument of the first key.
    pub first: i32,
    /// Argument of the last key; negative counts from the end.
    pub last: i32,
    /// Distance of neighbouring keys.
    pub step: i32,
}

/// The metadata of one command or subcommand. Texts that do not apply are empty.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// Lower case. A subcommand has its own name only; the full name is `container|name`.
    pub name: &'static str,
    /// Number of arguments including all words of the name; if negative, at least that many.
    pub arity: i32,
    /// What the dispatcher acts on.
    pub flags: Flags,
    /// What ACL rules select it by.
    pub acl_categories: Categories,
    /// Hints for clients and proxies.
    pub tips: &'static [&'static str],
    /// How its keys are found.
    pub key_specs: &'static [KeySpec],
    /// How its keys are found when the specs cannot tell.
    pub special_keys: SpecialKeys,
    /// The specs condensed for the hot path.
    pub key_shape: KeyShape,
    /// The range that old clients look at.
    pub legacy_range: LegacyRange,
    /// If not empty, the first argument names one of these.
    pub subcommands: &'static [CommandSpec],
    /// The chapter it is in.
    pub group: Group,
    /// The version that introduced it.
    pub since: &'static str,
    /// Its cost.
    pub complexity: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// What changed, by version.
    pub history: &'static [(&'static str, &'static str)],
    /// The version that advised against using it.
    pub deprecated_since: &'static str,
    /// What to use instead.
    pub replaced_by: &'static str,
    /// Meant for servers talking to each other, not for users.
    pub is_internal: bool,
    /// Its arguments.
    pub args: &'static [Arg],
}

/// Begins a row. See the module's head for how it goes on.
pub const fn command(name: &'static str, arity: i32, group: Group, since: &'static str) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags: Flags::NONE,
        acl_categories: group.category().with(Categories::SLOW),
        tips: &[],
        key_specs: &[],
        special_keys: SpecialKeys::None,
        key_shape: KeyShape::None,
        legacy_range: LegacyRange {
            first: 0,
            last: 0,
            step: 0,
        },
        subcommands: &[],
        group,
        since,
        complexity: "",
        summary: "",
        history: &[],
        deprecated_since: "",
        replaced_by: "",
        is_internal: false,
        args: &[],
    }
}

impl CommandSpec {
    /// What the dispatcher acts on; call it before the methods that add categories.
    pub const fn flags(mut self, flags: &[Flags]) -> CommandSpec {
        self.flags = self.flags.with(Flags::of(flags));
        self.acl_categories = self
            .group
            .category()
            .with(Categories::implied_by(self.flags, self.group));
        self
    }

    /// ACL categories beyond those of the group and the flags.
    pub const fn categories(mut self, extra: &[Categories]) -> CommandSpec {
        self.acl_categories = self.acl_categories.with(Categories::of(extra));
        self
    }

    /// ACL categories beyond those of the flags; the group's own does not apply.
    pub const fn categories_without_group(mut self, extra: &[Categories]) -> CommandSpec {
        self.acl_categories = Categories::implied_by(self.flags, self.group).with(Categories::of(extra));
        self
    }

    /// Hints for clients and proxies.
    pub const fn tips(mut self, tips: &'static [&'static str]) -> CommandSpec {
        self.tips = tips;
        self
    }

    /// How the keys are found.
    pub const fn keys(mut self, specs: &'static [KeySpec]) -> CommandSpec {
        let (range, covers_all) = legacy_range(specs);
        self.key_specs = specs;
        self.legacy_range = range;
        self.key_shape = KeyShape::of(specs);
        if !covers_all {
            self.flags = self.flags.with(Flags::MOVABLEKEYS);
        }
        self
    }

    /// Which procedure finds the keys when the specs cannot tell.
    pub const fn special_keys(mut self, procedure: SpecialKeys) -> CommandSpec {
        self.special_keys = procedure;
        self
    }

    /// The commands that the first argument chooses from.
    pub const fn subcommands(mut self, subcommands: &'static [CommandSpec]) -> CommandSpec {
        self.subcommands = subcommands;
        self
    }

    /// The cost.
    pub const fn complexity(mut self, text: &'static str) -> CommandSpec {
        self.complexity = text;
        self
    }

    /// What the command does, in a line.
    pub const fn summary(mut self, text: &'static str) -> CommandSpec {
        self.summary = text;
        self
    }

    /// What changed, by version.
    pub const fn history(mut self, changes: &'static [(&'static str, &'static str)]) -> CommandSpec {
        self.history = changes;
        self
    }

    /// Advised against since that version, in favour of `replaced_by`.
    pub const fn deprecated(mut self, since: &'static str, replaced_by: &'static str) -> CommandSpec {
        self.deprecated_since = since;
        self.replaced_by = replaced_by;
        self
    }

    /// Meant for servers talking to each other.
    pub const fn internal(mut self) -> CommandSpec {
        self.is_internal = true;
        self
    }

    /// The arguments.
    pub const fn args(mut self, args: &'static [Arg]) -> CommandSpec {
        self.args = args;
        self
    }

    /// Whether `count` words, the command's own name included, satisfy the arity.
    pub const fn accepts_arg_count(&self, count: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity >= 0 {
            count == wanted
        } else {
            count >= wanted
        }
    }

    /// Whether COMMAND GETKEYS has anything to look for.
    pub const fn may_have_keys(&self) -> bool {
        if !matches!(self.special_keys, SpecialKeys::None) {
            return true;
        }
        let mut index = 0;
        while index < self.key_specs.len() {
            if !self.key_specs[index].flags.contains(KeyFlags::NOT_KEY) {
                return true;
            }
            index += 1;
        }
        false
    }
}

/// Glues adjacent plain ranges into one; the flag tells whether it covers every key.
const fn legacy_range(specs: &[KeySpec]) -> (LegacyRange, bool) {
    if let [
        KeySpec {
            begin: BeginSearch::Index(first),
            find: FindKeys::Range { last, step, .. },
            flags,
            ..
        },
    ] = specs
    {
        let range = LegacyRange {
            first: *first,
            last: absolute(*first, *last),
            step: *step,
        };
        return (range, !flags.contains(KeyFlags::INCOMPLETE));
    }
    let mut glued = LegacyRange {
        first: 0,
        last: 0,
        step: 0,
    };
    let mut covers_all = true;
    let mut index = 0;
    while index < specs.len() {
        let spec = &specs[index];
        index += 1;
        let (BeginSearch::Index(first), FindKeys::Range { last, step: 1, .. }) = (spec.begin, spec.find) else {
            covers_all = false;
            continue;
        };
        if glued.first != 0 && glued.last != first - 1 {
            covers_all = false;
            continue;
        }
        if spec.flags.contains(KeyFlags::INCOMPLETE) {
            covers_all = false;
        }
        if glued.first == 0 {
            glued.first = first;
        }
        glued.last = absolute(first, last);
        glued.step = 1;
    }
    (glued, covers_all)
}

/// The position of a last key that is counted from the first one, unless it counts from the end.
const fn absolute(first: i32, last: i32) -> i32 {
    if last >= 0 { first + last } else { last }
}

#[cfg(test)]
mod tests;
