//! The metadata of commands: the types of the metadata rows, and the builders that the tables are written with.
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
//! - *ACL categories* are the group's own category, plus those that the flags imply ([`Categories::implied_by`]), plus
//!   those that [`CommandSpec::categories`] adds. A row to which the group's category does not apply calls
//!   [`CommandSpec::categories_without_group`].
//! - The *legacy range* (first key, last key and step, the three numbers that old clients read from COMMAND) is
//!   computed from the key specs. So is [`CommandFlags::MOVABLEKEYS`], which marks a command whose legacy range does
//!   not cover all keys.
//! - The *key shape* is computed from the key specs: with it, the walker in [`keys`](crate::keys) need not interpret
//!   them.

mod arg;
mod bits;
mod key_shape;
mod key_spec;

pub use arg::{ArgSpec, ArgType, block, double, integer, key, one_of, pattern, string, token, unix_time};
pub use bits::{Categories, CommandFlags, KeyFlags, category, flag, key_flag};
pub use key_shape::{KeyFinder, KeyShape, ModuleKeys, SpecialKeys};
pub use key_spec::{BeginSearch, FindKeys, KeySpec, keys, keys_after, unknown_keys};

/// The group of a command: its chapter in the documentation, and its table.
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
    Module,
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
    /// Returns the name as COMMAND DOCS prints it.
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
            Group::Module => "module",
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

    /// Returns the ACL category that all commands of this group have.
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
            Group::Cluster | Group::Module | Group::Server => Categories::empty(),
        }
    }
}

/// First key, last key and step as COMMAND prints them. All are 0 if the keys do not form a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LegacyRange {
    /// The index of the argument that is the first key.
    pub first: i32,
    /// The index of the argument that is the last key; negative if counted from the end.
    pub last: i32,
    /// The distance between neighbouring keys.
    pub step: i32,
}

/// The metadata of one command or subcommand. Texts that do not apply are empty.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// The name in lower case. A subcommand has only its own name; the full name is `container|name`.
    pub name: &'static str,
    /// The number of arguments, including all words of the name. A negative number is a minimum.
    pub arity: i32,
    /// The properties that the dispatcher acts on.
    pub flags: CommandFlags,
    /// The ACL categories that the command belongs to.
    pub acl_categories: Categories,
    /// Hints for clients and proxies.
    pub tips: &'static [&'static str],
    /// The rules that find the command's keys.
    pub key_specs: &'static [KeySpec],
    /// The procedure that finds the keys if the specs do not suffice.
    pub special_keys: SpecialKeys,
    /// The key specs, condensed for the hot path.
    pub key_shape: KeyShape,
    /// The range of keys that old clients read.
    pub legacy_range: LegacyRange,
    /// The subcommands. If there are any, the first argument names one of them.
    pub subcommands: &'static [CommandSpec],
    /// The command's group.
    pub group: Group,
    /// The name of the module that the command belongs to.
    pub module: &'static str,
    /// The version that added the command.
    pub since: &'static str,
    /// The time complexity.
    pub complexity: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    /// The changes, each with its version.
    pub history: &'static [(&'static str, &'static str)],
    /// The version that deprecated the command.
    pub deprecated_since: &'static str,
    /// The replacement of a deprecated command.
    pub replaced_by: &'static str,
    /// `true` if the command is meant for communication between servers, not for users.
    pub is_internal: bool,
    /// `true` if Valkey does not have the command. Lists of all commands leave it out, as CONFIG GET leaves out Weft's
    /// parameters; requests that name it show it.
    pub is_weft_only: bool,
    /// The arguments, as COMMAND DOCS prints them.
    pub args: &'static [ArgSpec],
}

/// Begins a row. The module's documentation shows an example.
pub const fn command(name: &'static str, arity: i32, group: Group, since: &'static str) -> CommandSpec {
    CommandSpec {
        name,
        arity,
        flags: CommandFlags::empty(),
        acl_categories: group.category().union(Categories::SLOW),
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
        module: "",
        since,
        complexity: "",
        summary: "",
        history: &[],
        deprecated_since: "",
        replaced_by: "",
        is_internal: false,
        is_weft_only: false,
        args: &[],
    }
}

impl CommandSpec {
    /// Sets the properties that the dispatcher acts on. Must be called before the methods that add categories.
    pub const fn flags(mut self, flags: &[CommandFlags]) -> CommandSpec {
        self.flags = self.flags.union(CommandFlags::of(flags));
        self.acl_categories = self
            .group
            .category()
            .union(Categories::implied_by(self.flags, self.group));
        self
    }

    /// Returns `true` if a command has arguments that belong to a slot and are not keys.
    pub fn has_slot_arguments(&self) -> bool {
        self.key_specs.iter().any(|spec| spec.flags.contains(KeyFlags::NOT_KEY))
    }

    /// Adds ACL categories to those of the group and the flags.
    pub const fn categories(mut self, extra: &[Categories]) -> CommandSpec {
        self.acl_categories = self.acl_categories.union(Categories::of(extra));
        self
    }

    /// Adds ACL categories to those of the flags, and drops the group's own category.
    pub const fn categories_without_group(mut self, extra: &[Categories]) -> CommandSpec {
        self.acl_categories = Categories::implied_by(self.flags, self.group).union(Categories::of(extra));
        self
    }

    /// Sets the hints for clients and proxies.
    pub const fn tips(mut self, tips: &'static [&'static str]) -> CommandSpec {
        self.tips = tips;
        self
    }

    /// Sets the key specs and derives the legacy range, the key shape and [`CommandFlags::MOVABLEKEYS`] from them.
    pub const fn keys(mut self, specs: &'static [KeySpec]) -> CommandSpec {
        let (range, covers_all) = legacy_range(specs);
        self.key_specs = specs;
        self.legacy_range = range;
        self.key_shape = KeyShape::of(specs);
        if !covers_all {
            self.flags = self.flags.union(CommandFlags::MOVABLEKEYS);
        }
        self
    }

    /// Sets the procedure that finds the keys if the specs do not suffice.
    pub const fn special_keys(mut self, procedure: SpecialKeys) -> CommandSpec {
        self.special_keys = procedure;
        self
    }

    /// Sets the subcommands.
    pub const fn subcommands(mut self, subcommands: &'static [CommandSpec]) -> CommandSpec {
        self.subcommands = subcommands;
        self
    }

    /// Sets the time complexity.
    pub const fn complexity(mut self, text: &'static str) -> CommandSpec {
        self.complexity = text;
        self
    }

    /// Sets the one-line description.
    pub const fn summary(mut self, text: &'static str) -> CommandSpec {
        self.summary = text;
        self
    }

    /// Sets the changes, each with its version.
    pub const fn history(mut self, changes: &'static [(&'static str, &'static str)]) -> CommandSpec {
        self.history = changes;
        self
    }

    /// Marks the command as deprecated since version `since`, in favour of `replaced_by`.
    pub const fn deprecated(mut self, since: &'static str, replaced_by: &'static str) -> CommandSpec {
        self.deprecated_since = since;
        self.replaced_by = replaced_by;
        self
    }

    /// Marks the command as internal: it is meant for communication between servers.
    pub const fn internal(mut self) -> CommandSpec {
        self.is_internal = true;
        self
    }

    /// Marks the command as one that Valkey does not have.
    pub const fn weft_only(mut self) -> CommandSpec {
        self.is_weft_only = true;
        self
    }

    /// Sets the arguments.
    pub const fn args(mut self, args: &'static [ArgSpec]) -> CommandSpec {
        self.args = args;
        self
    }

    /// Returns `true` if a request of `count` words, including the command's own name, satisfies the arity.
    pub const fn accepts_arg_count(&self, count: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity >= 0 {
            count == wanted
        } else {
            count >= wanted
        }
    }

    /// Returns `true` if the command can have keys for COMMAND GETKEYS.
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

/// Joins adjacent plain ranges into one. The flag is `true` if the range covers every key.
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
            last: absolute_last_key(*first, *last),
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
        if glued.first != 0 && glued.last != first.wrapping_sub(1) {
            covers_all = false;
            continue;
        }
        if spec.flags.contains(KeyFlags::INCOMPLETE) {
            covers_all = false;
        }
        if glued.first == 0 {
            glued.first = first;
        }
        glued.last = absolute_last_key(first, last);
        glued.step = 1;
    }
    (glued, covers_all)
}

/// Returns the index of the last key if it is counted from the first one; returns it unchanged if it is counted from
/// the end.
const fn absolute_last_key(first: i32, last: i32) -> i32 {
    if last >= 0 { first.saturating_add(last) } else { last }
}

#[cfg(test)]
mod tests;
