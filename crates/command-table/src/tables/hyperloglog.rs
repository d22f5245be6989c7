//! Metadata of the group *hyperloglog*. Approximate counting of distinct elements.

use crate::spec::flag::{ADMIN, DENYOOM, FAST, MAY_REPLICATE, READONLY, WRITE};
use crate::spec::key_flag::{ACCESS, INSERT, RO, RW};
use crate::spec::{CommandSpec, Group, command, key, keys, string};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("pfadd", -2, Group::HyperLogLog, "2.8.9")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(1) for each element")
        .summary("Adds elements to a HyperLogLog, creating it when absent.")
        .args(&[key("key", 0), string("element").optional().multiple()]),
    command("pfcount", -2, Group::HyperLogLog, "2.8.9")
        .flags(&[READONLY, MAY_REPLICATE])
        .keys(&[keys(1, &[RW, ACCESS])
            .with_range(-1, 1)
            .notes("The cached cardinality may be rewritten and replicated, hence RW.")])
        .complexity("O(1) for one key, cheaply; O(N) for N keys, at a higher price each")
        .summary("Estimates how many distinct elements HyperLogLogs have seen.")
        .args(&[key("key", 0).multiple()]),
    command("pfdebug", 3, Group::HyperLogLog, "2.8.9")
        .flags(&[WRITE, DENYOOM, ADMIN])
        .keys(&[keys(2, &[RW, ACCESS])])
        .complexity("Not specified")
        .summary("Shows the inside of a HyperLogLog.")
        .internal()
        .args(&[string("subcommand"), key("key", 0)]),
    command("pfmerge", -2, Group::HyperLogLog, "2.8.9")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, ACCESS, INSERT]), keys(2, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N) for N HyperLogLogs, with a large constant")
        .summary("Merges HyperLogLogs into one.")
        .args(&[key("destkey", 0), key("sourcekey", 1).optional().multiple()]),
    command("pfselftest", 1, Group::HyperLogLog, "2.8.9")
        .flags(&[ADMIN])
        .complexity("Not specified")
        .summary("Tests the HyperLogLog implementation.")
        .internal(),
];
