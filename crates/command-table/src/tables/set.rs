//! Metadata of the group *set*. Sets and operations on several sets.

use crate::spec::SpecialKeys;
use crate::spec::flag::{DENYOOM, FAST, READONLY, WRITE};
use crate::spec::key_flag::{ACCESS, DELETE, INSERT, OW, RO, RW, UPDATE};
use crate::spec::{CommandSpec, Group, command, integer, key, keys, pattern, string};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("sadd", -3, Group::Set, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(N) to add N elements")
        .summary("Adds members to a set, creating it when absent.")
        .history(&[("2.4.0", "Takes more than one member.")])
        .args(&[key("key", 0), string("member").multiple()]),
    command("scard", 2, Group::Set, "1.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Counts the members of a set.")
        .args(&[key("key", 0)]),
    command("sdiff", -2, Group::Set, "1.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output_order"])
        .keys(&[keys(1, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N) for N members in all sets together")
        .summary("Computes which members of a set are in none of the others.")
        .args(&[key("key", 0).multiple()]),
    command("sdiffstore", -3, Group::Set, "1.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE]), keys(2, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N) for N members in all sets together")
        .summary("Stores those members of a set that are in none of the others.")
        .args(&[key("destination", 0), key("key", 1).multiple()]),
    command("sinter", -2, Group::Set, "1.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output_order"])
        .keys(&[keys(1, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N*M) at worst, for M sets of which the smallest has N members")
        .summary("Computes which members sets have in common.")
        .args(&[key("key", 0).multiple()]),
    command("sintercard", -3, Group::Set, "7.0.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(1))
        .complexity("O(N*M) at worst, for M sets of which the smallest has N members")
        .summary("Counts the members that sets have in common.")
        .args(&[
            integer("numkeys"),
            key("key", 0).multiple(),
            integer("limit").with_token("LIMIT").optional(),
        ]),
    command("sinterstore", -3, Group::Set, "1.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE]), keys(2, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N*M) at worst, for M sets of which the smallest has N members")
        .summary("Stores the members that sets have in common.")
        .args(&[key("destination", 0), key("key", 1).multiple()]),
    command("sismember", 3, Group::Set, "1.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Tells whether a set has a member.")
        .args(&[key("key", 0), string("member")]),
    command("smembers", 2, Group::Set, "1.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output_order"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for a set of N members")
        .summary("Lists the members of a set.")
        .args(&[key("key", 0)]),
    command("smismember", -3, Group::Set, "6.2.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N members asked about")
        .summary("Tells which of the given members a set has.")
        .args(&[key("key", 0), string("member").multiple()]),
    command("smove", 4, Group::Set, "1.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]), keys(2, &[RW, INSERT])])
        .complexity("O(1)")
        .summary("Takes a member out of one set and puts it into another.")
        .args(&[key("source", 0), key("destination", 1), string("member")]),
    command("spop", -2, Group::Set, "1.0.0")
        .flags(&[WRITE, FAST])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RW, ACCESS, DELETE])])
        .complexity("O(1) without a count, else O(N) for a count of N")
        .summary("Removes members at random and returns them.")
        .history(&[("3.2.0", "Takes a count.")])
        .args(&[key("key", 0), integer("count").since("3.2.0").optional()]),
    command("srandmember", -2, Group::Set, "1.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1) without a count, else O(N) for a count of N or -N")
        .summary("Picks members at random.")
        .history(&[("2.6.0", "Takes a count.")])
        .args(&[key("key", 0), integer("count").since("2.6.0").optional()]),
    command("srem", -3, Group::Set, "1.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(N) for N members")
        .summary("Removes members, and the set with its last member.")
        .history(&[("2.4.0", "Takes more than one member.")])
        .args(&[key("key", 0), string("member").multiple()]),
    command("sscan", -3, Group::Set, "2.8.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1) a call, O(N) for a complete iteration over N elements")
        .summary("Visits the members of a set step by step.")
        .args(&[
            key("key", 0),
            integer("cursor"),
            pattern("pattern").with_token("MATCH").optional(),
            integer("count").with_token("COUNT").optional(),
        ]),
    command("sunion", -2, Group::Set, "1.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output_order"])
        .keys(&[keys(1, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N) for N members in all sets together")
        .summary("Computes the union of sets.")
        .args(&[key("key", 0).multiple()]),
    command("sunionstore", -3, Group::Set, "1.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE]), keys(2, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N) for N members in all sets together")
        .summary("Stores the union of sets.")
        .args(&[key("destination", 0), key("key", 1).multiple()]),
];
