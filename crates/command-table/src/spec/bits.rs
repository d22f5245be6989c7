//! The bit sets of a metadata row: the properties that the dispatcher acts on, the ACL categories, and the uses of
//! keys.

use super::Group;

/// Defines a bit set with a constant and a printed name for each member, in the order of printing.
///
/// The members exist twice: as `KeyFlags::READ`, for example, for code that tests them, and in a module of their own
/// for the tables, which import them and need no prefix. A member with an empty name is left out of replies.
macro_rules! bit_set {
    (
        $(#[$($set_doc:tt)*])*
        pub struct $set:ident($bits:ty), members also in $module:ident {
            $( $(#[$($doc:tt)*])* $member:ident = $name:literal, )+
        }
    ) => {
        bitflags::bitflags! {
            $(#[$($set_doc)*])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
            pub struct $set: $bits {
                $( $(#[$($doc)*])* const $member = 1 << $module::Position::$member as u32; )+
            }
        }

        impl $set {
            /// Every member with its name, in the order of printing.
            const NAMED: &[($set, &str)] = &[$( ($set::$member, $name), )+];

            /// Returns the union of all `members`.
            pub const fn of(members: &[$set]) -> $set {
                let mut union = $set::empty();
                let mut index = 0;
                while index < members.len() {
                    union = union.union(members[index]);
                    index += 1;
                }
                union
            }

            /// Returns the names of the members that have one, in the order of printing.
            pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
                let printed = move |(member, name): &&(_, &str)| self.contains(*member) && !name.is_empty();
                Self::NAMED.iter().filter(printed).map(|(_, name)| *name)
            }
        }

        /// The members as constants without a prefix.
        pub mod $module {
            #![allow(missing_docs, reason = "documented where the set is defined")]

            use super::$set;

            /// The position of each member's bit.
            #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "named like the members")]
            pub(super) enum Position {
                $( $member, )+
            }

            $( pub const $member: $set = $set::$member; )+
        }

        // Each member is one bit, and all bits fit into the set.
        const _: () = assert!($( $module::$member.bits().is_power_of_two() )&&+);
    };
}

bit_set! {
    /// The properties of a command that the dispatcher acts on.
    pub struct CommandFlags(u64), members also in flag {
        /// May change data. The server rejects it on a read-only replica.
        WRITE = "write",
        /// Reads data and never changes it.
        READONLY = "readonly",
        /// May increase the used memory. The server rejects it when `maxmemory` is exceeded and no key can be evicted.
        DENYOOM = "denyoom",
        /// Belongs to a module.
        MODULE = "module",
        /// Administrates the server.
        ADMIN = "admin",
        /// Belongs to publish/subscribe.
        PUBSUB = "pubsub",
        /// Cannot be called from scripts.
        NOSCRIPT = "noscript",
        /// May block the client.
        BLOCKING = "blocking",
        /// Allowed while a data file is loaded.
        LOADING = "loading",
        /// Allowed on a replica whose data may be stale.
        STALE = "stale",
        /// Not shown to MONITOR.
        SKIP_MONITOR = "skip_monitor",
        /// Not recorded in the command log.
        SKIP_COMMANDLOG = "skip_commandlog",
        /// Implies ASKING: accepted for a slot that is being imported.
        ASKING = "asking",
        /// Has constant or logarithmic time complexity.
        FAST = "fast",
        /// Allowed before authentication.
        NO_AUTH = "no_auth",
        /// Not a write itself, but may be propagated to replicas. Hidden from COMMAND.
        MAY_REPLICATE = "",
        /// May have no key among its arguments, in which case COMMAND GETKEYS replies with an empty array.
        NO_MANDATORY_KEYS = "no_mandatory_keys",
        /// Needs `enable-debug-command` or `enable-module-command`. Hidden from COMMAND.
        PROTECTED = "",
        /// Rejected during the asynchronous load of a diskless replica.
        NO_ASYNC_LOADING = "no_async_loading",
        /// Not allowed inside MULTI.
        NO_MULTI = "no_multi",
        /// The legacy range does not cover every key. Derived from the key specs.
        MOVABLEKEYS = "movablekeys",
        /// Allowed while a script that exceeded its time limit is running.
        ALLOW_BUSY = "allow_busy",
        /// Reads keys that its arguments do not name (SCAN, RANDOMKEY). Hidden from COMMAND.
        TOUCHES_ARBITRARY_KEYS = "",
        /// Acts on every database, so the user must have access to all of them. Hidden from COMMAND.
        ALL_DBS = "",
        /// The module's function can be asked for the positions of the keys. Hidden from COMMAND.
        MODULE_GETKEYS = "",
        /// The module's function can be asked for the positions of the channels. Hidden from COMMAND.
        MODULE_GETCHANNELS = "",
        /// Exists only outside of a cluster. Hidden from COMMAND.
        MODULE_NO_CLUSTER = "",
    }
}

bit_set! {
    /// A set of ACL categories. Their names are written without the `@`.
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
    /// The use that a command makes of a key: its access to the key, and its effect on the user's data.
    pub struct KeyFlags(u16), members also in key_flag {
        /// Reads the value and changes no data, though it may change metadata.
        RO = "RO",
        /// Reads and changes the value.
        RW = "RW",
        /// Replaces the value without regard to the old one.
        OW = "OW",
        /// Removes the key.
        RM = "RM",
        /// Returns, copies or uses the user's data.
        ACCESS = "access",
        /// Changes data in a way that may depend on the old data.
        UPDATE = "update",
        /// Adds data and cannot modify or delete existing data.
        INSERT = "insert",
        /// Deletes data explicitly.
        DELETE = "delete",
        /// Not a key, but routed to a slot as if it were one (for example a shard channel).
        NOT_KEY = "not_key",
        /// The spec may miss keys of this command.
        INCOMPLETE = "incomplete",
        /// The other flags depend on further arguments.
        VARIABLE_FLAGS = "variable_flags",
    }
}

impl Categories {
    /// The largest number of categories, those of modules included.
    pub const MAX_COUNT: usize = u64::BITS as usize;
    /// The number of categories that exist without modules.
    pub const BUILT_IN_COUNT: usize = Self::NAMED.len();

    /// Returns the category number `index` of those that modules have added; `None` if there cannot be so many.
    pub const fn of_module(index: usize) -> Option<Categories> {
        match index < Self::MAX_COUNT - Self::BUILT_IN_COUNT {
            true => Some(Categories::from_bits_retain(1 << (Self::BUILT_IN_COUNT + index))),
            false => None,
        }
    }

    /// Returns the category of that name, in any case and without the `@`.
    pub fn parse(name: &[u8]) -> Option<Categories> {
        let matching = |(_, known): &&(Categories, &str)| known.as_bytes().eq_ignore_ascii_case(name);
        Self::NAMED.iter().find(matching).map(|(category, _)| *category)
    }

    /// Returns every category with its name, in the order of printing.
    pub fn named() -> impl Iterator<Item = (Categories, &'static str)> {
        Self::NAMED.iter().copied()
    }

    /// Returns the categories that follow from `flags` and are not listed in a row.
    ///
    /// A script is `READONLY` only as a promise about its effects, so the scripting group gets no `@read`.
    pub const fn implied_by(flags: CommandFlags, group: Group) -> Categories {
        let mut implied = if flags.contains(CommandFlags::FAST) {
            Categories::FAST
        } else {
            Categories::SLOW
        };
        if flags.contains(CommandFlags::WRITE) {
            implied = implied.union(Categories::WRITE);
        }
        if flags.contains(CommandFlags::READONLY) && !matches!(group, Group::Scripting) {
            implied = implied.union(Categories::READ);
        }
        if flags.contains(CommandFlags::ADMIN) {
            implied = implied.union(Categories::ADMIN).union(Categories::DANGEROUS);
        }
        if flags.contains(CommandFlags::PUBSUB) {
            implied = implied.union(Categories::PUBSUB);
        }
        if flags.contains(CommandFlags::BLOCKING) {
            implied = implied.union(Categories::BLOCKING);
        }
        implied
    }
}

impl KeyFlags {
    /// Returns `true` if the command only reads the key.
    pub const fn is_read_only(self) -> bool {
        self.contains(KeyFlags::RO)
    }

    /// Returns `true` if the key's new value does not depend on the old one.
    pub const fn is_overwrite(self) -> bool {
        self.contains(KeyFlags::OW)
    }

    /// Returns `true` if the command removes the key.
    pub const fn is_removal(self) -> bool {
        self.contains(KeyFlags::RM)
    }
}
