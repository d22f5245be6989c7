//! Metadata of the group *transactions*. Transactions and optimistic locking.

use crate::spec::flag::{ALLOW_BUSY, FAST, LOADING, NO_MULTI, NOSCRIPT, SKIP_COMMANDLOG, STALE};
use crate::spec::key_flag::RO;
use crate::spec::{CommandSpec, Group, command, key, keys};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("discard", 1, Group::Transactions, "2.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST, ALLOW_BUSY])
        .complexity("O(N) for N queued commands")
        .summary("Drops the queued commands and ends the transaction."),
    command("exec", 1, Group::Transactions, "1.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE, SKIP_COMMANDLOG])
        .complexity("Depends on the queued commands")
        .summary("Runs the queued commands and ends the transaction."),
    command("multi", 1, Group::Transactions, "1.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST, NO_MULTI, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Begins a transaction; commands are queued from here on."),
    command("unwatch", 1, Group::Transactions, "2.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Forgets the watched keys."),
    command("watch", -2, Group::Transactions, "2.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST, NO_MULTI, ALLOW_BUSY])
        .keys(&[keys(1, &[RO]).with_range(-1, 1)])
        .complexity("O(1) for each key")
        .summary("Makes the next EXEC fail if one of the keys changes before it.")
        .args(&[key("key", 0).multiple()]),
];
