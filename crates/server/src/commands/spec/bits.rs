//! The bit sets of a metadata row: what the dispatcher acts on, what ACL rules select, what happens to a key.

use super::Group;

/// Defines a bit set with a constant and a printed name for each member, in the order of printing.
///
/// The members exist twice: as `Set::MEMBER` for code that asks, and in a module of their own for the tables, which
/// import them and need no prefix. An empty name keeps a member out of replies.
macro_rules! bit_set {
    (
        $(#[$set_doc:meta])*
        pub struct $set:ident($bits:ty), members also in $module:ident {
            $( $(#[$doc:meta])* $member:ident = $name:literal, )+
        }
    ) => {
        $(#[$set_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $set($bits);

        impl $set {
            /// The empty set.
            pub const NONE: $set = $set(0);
            $( $(#[$doc])* pub const $member: $set = $set(1 << $module::Position::$member as u32); )+

            /// Every member with its name, in the order of printing.
            const NAMED: &[($set, &str)] = &[$( ($set::$member, $name), )+];

            /// The union of all `members`.
            pub const fn of(members: &[$set]) -> $set {
                let mut union = $set::NONE;
                let mut index = 0;
                while index < members.len() {
                    union = union.with(members[index]);
                    index += 1;
                }
                union
            }

            /// This set plus `other`.
            pub const fn with(self, other: $set) -> $set {
                $set(self.0 | other.0)
            }

            /// Whether every member of `other` is in this set.
            pub const fn contains(self, other: $set) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether at least one member of `other` is in this set.
            #[allow(dead_code, reason = "the sets have the same methods, and not every set uses each")]
            pub const fn intersects(self, other: $set) -> bool {
                self.0 & other.0 != 0
            }

            /// The names of the members that have one, in the order of printing.
            pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
                let printed = move |(member, name): &&(_, &str)| self.contains(*member) && !name.is_empty();
                Self::NAMED.iter().filter(printed).map(|(_, name)| *name)
            }
        }

        /// The members on their own.
        pub mod $module {
            #![allow(missing_docs, reason = "documented where the set is defined")]

            use super::$set;

            /// The place of each member's bit.
            #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "named like the members")]
            pub(super) enum Position {
                $( $member, )+
            }

            $( pub const $member: $set = $set::$member; )+
        }

        // One bit for each member, with a bit set's worth of room.
        const _: () = assert!($( $module::$member.0.is_power_of_two() )&&+);
    };
}

bit_set! {
    /// The properties of a command that the dispatcher acts on.
    pub struct Flags(u64), members also in flag {
        /// May change data; refused on a read-only replica.
        WRITE = "write",
        /// Reads data and never changes it.
        READONLY = "readonly",
        /// May grow the memory in use; refused when `maxmemory` is exceeded and nothing can be evicted.
        DENYOOM = "denyoom",
        /// Administrates the server.
        ADMIN = "admin",
        /// Belongs to publish/subscribe.
        PUBSUB = "pubsub",
        /// Not callable from scripts.
        NOSCRIPT = "noscript",
        /// May leave the client waiting.
        BLOCKING = "blocking",
        /// Allowed while a data file is being loaded.
        LOADING = "loading",
        /// Allowed on a replica whose data may be stale.
        STALE = "stale",
        /// Not shown to MONITOR.
        SKIP_MONITOR = "skip_monitor",
        /// Not recorded in the command log.
        SKIP_COMMANDLOG = "skip_commandlog",
        /// Implies ASKING: accepted for a slot that is being imported.
        ASKING = "asking",
        /// Constant or logarithmic time.
        FAST = "fast",
        /// Allowed before authentication.
        NO_AUTH = "no_auth",
        /// Not a write by itself but may put something on the replication stream. Hidden from COMMAND.
        MAY_REPLICATE = "",
        /// Having no key among the arguments is legal, so COMMAND GETKEYS answers with an empty array.
        NO_MANDATORY_KEYS = "no_mandatory_keys",
        /// Needs `enable-debug-command` or `enable-module-command`. Hidden from COMMAND.
        PROTECTED = "",
        /// Refused during the asynchronous load of a diskless replica.
        NO_ASYNC_LOADING = "no_async_loading",
        /// Not allowed inside MULTI.
        NO_MULTI = "no_multi",
        /// The legacy range does not find every key. Derived from the key specs.
        MOVABLEKEYS = "movablekeys",
        /// Allowed while a script that exceeded its time limit is running.
        ALLOW_BUSY = "allow_busy",
        /// Reads keys that its arguments do not name (SCAN, RANDOMKEY). Hidden from COMMAND.
        TOUCHES_ARBITRARY_KEYS = "",
        /// Acts on every database, so the user must be allowed to use them all. Hidden from COMMAND.
        ALL_DBS = "",
    }
}

bit_set! {
    /// A set of ACL categories; their names go without the `@`.
    pub struct Categories(u64), members also in category {
        /// `@keyspace`
        KEYSPACE = "keyspace",
        /// `@read`
        READ = "read",
        /// `@write`
        WRITE = "write",
        /// `@set`
        SET = "set",
        /// `@sortedset`
        SORTEDSET = "sortedset",
        /// `@list`
        LIST = "list",
        /// `@hash`
        HASH = "hash",
        /// `@string`
        STRING = "string",
        /// `@bitmap`
        BITMAP = "bitmap",
        /// `@hyperloglog`
        HYPERLOGLOG = "hyperloglog",
        /// `@geo`
        GEO = "geo",
        /// `@stream`
        STREAM = "stream",
        /// `@pubsub`
        PUBSUB = "pubsub",
        /// `@admin`
        ADMIN = "admin",
        /// `@fast`
        FAST = "fast",
        /// `@slow`
        SLOW = "slow",
        /// `@blocking`
        BLOCKING = "blocking",
        /// `@dangerous`
        DANGEROUS = "dangerous",
        /// `@connection`
        CONNECTION = "connection",
        /// `@transaction`
        TRANSACTION = "transaction",
        /// `@scripting`
        SCRIPTING = "scripting",
    }
}

bit_set! {
    /// What a command does with a key: how it reaches the key, and what happens to the user's data.
    pub struct KeyFlags(u16), members also in key_flag {
        /// Reads the value and changes no data, though it may change metadata.
        RO = "RO",
        /// Reads and changes the value.
        RW = "RW",
        /// Replaces the value whatever it was.
        OW = "OW",
        /// Removes the key.
        RM = "RM",
        /// Returns, copies or uses the user's data.
        ACCESS = "access",
        /// Changes data in a way that may depend on what was there.
        UPDATE = "update",
        /// Adds data and cannot modify or delete what was there.
        INSERT = "insert",
        /// Deletes data explicitly.
        DELETE = "delete",
        /// Not a key; only routed to a slot as if it were one (a shard channel, for example).
        NOT_KEY = "not_key",
        /// The spec may miss keys of this command.
        INCOMPLETE = "incomplete",
        /// The other flags depend on further arguments.
        VARIABLE_FLAGS = "variable_flags",
    }
}

impl Categories {
    /// The category of that name, in any case and without the `@`.
    pub fn named(name: &[u8]) -> Option<Categories> {
        let matching = |(_, known): &&(Categories, &str)| known.as_bytes().eq_ignore_ascii_case(name);
        Self::NAMED.iter().find(matching).map(|(category, _)| *category)
    }

    /// Every category with its name, in the order of printing.
    pub fn all() -> impl Iterator<Item = (Categories, &'static str)> {
        Self::NAMED.iter().copied()
    }

    /// The categories that follow from `flags` and need no mention in a row.
    ///
    /// A script is `READONLY` only as a promise about its effects, hence no `@read` for that group.
    pub const fn implied_by(flags: Flags, group: Group) -> Categories {
        let mut implied = if flags.contains(Flags::FAST) {
            Categories::FAST
        } else {
            Categories::SLOW
        };
        if flags.contains(Flags::WRITE) {
            implied = implied.with(Categories::WRITE);
        }
        if flags.contains(Flags::READONLY) && !matches!(group, Group::Scripting) {
            implied = implied.with(Categories::READ);
        }
        if flags.contains(Flags::ADMIN) {
            implied = implied.with(Categories::ADMIN).with(Categories::DANGEROUS);
        }
        if flags.contains(Flags::PUBSUB) {
            implied = implied.with(Categories::PUBSUB);
        }
        if flags.contains(Flags::BLOCKING) {
            implied = implied.with(Categories::BLOCKING);
        }
        implied
    }
}

impl KeyFlags {
    /// Whether the key is only read.
    pub const fn is_read_only(self) -> bool {
        self.contains(KeyFlags::RO)
    }

    /// Whether what the key holds does not matter to what it will hold.
    pub const fn replaces(self) -> bool {
        self.contains(KeyFlags::OW)
    }

    /// Whether the key is removed.
    pub const fn removes(self) -> bool {
        self.contains(KeyFlags::RM)
    }
}
