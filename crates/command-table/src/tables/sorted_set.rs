//! Metadata of the group *sorted-set*. Sorted sets: members ordered by their scores.

use crate::spec::SpecialKeys;
use crate::spec::flag::{BLOCKING, DENYOOM, FAST, READONLY, WRITE};
use crate::spec::key_flag::{ACCESS, DELETE, OW, RO, RW, UPDATE};
use crate::spec::{CommandSpec, Group, block, command, double, integer, key, keys, one_of, pattern, string, token};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("bzmpop", -5, Group::SortedSet, "7.0.0")
        .flags(&[WRITE, BLOCKING])
        .keys(&[keys(2, &[RW, ACCESS, DELETE]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(2))
        .complexity("O(K) + O(M*log(N)) for K keys and M members popped out of N")
        .summary("Pops members of the first sorted set that has any, waiting if necessary.")
        .args(&[
            double("timeout"),
            integer("numkeys"),
            key("key", 0).multiple(),
            one_of("where", &[token("min", "MIN"), token("max", "MAX")]),
            integer("count").with_token("COUNT").optional(),
        ]),
    command("bzpopmax", -3, Group::SortedSet, "5.0.0")
        .flags(&[WRITE, BLOCKING, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]).with_range(-2, 1)])
        .complexity("O(log(N)) for a sorted set of N members")
        .summary("Pops the member with the highest score, waiting if necessary.")
        .history(&[("6.0.0", "The timeout may have a fraction.")])
        .args(&[key("key", 0).multiple(), double("timeout")]),
    command("bzpopmin", -3, Group::SortedSet, "5.0.0")
        .flags(&[WRITE, BLOCKING, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]).with_range(-2, 1)])
        .complexity("O(log(N)) for a sorted set of N members")
        .summary("Pops the member with the lowest score, waiting if necessary.")
        .history(&[("6.0.0", "The timeout may have a fraction.")])
        .args(&[key("key", 0).multiple(), double("timeout")]),
    command("zadd", -4, Group::SortedSet, "1.2.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(log(N)) for each member added to a sorted set of N")
        .summary("Adds members with their scores, or changes the scores.")
        .history(&[
            ("2.4.0", "Takes more than one element."),
            ("3.0.2", "Options `XX`, `NX`, `CH`, `INCR`."),
            ("6.2.0", "Options `GT` and `LT`."),
        ])
        .args(&[
            key("key", 0),
            one_of("condition", &[token("nx", "NX"), token("xx", "XX")])
                .since("3.0.2")
                .optional(),
            one_of("comparison", &[token("gt", "GT"), token("lt", "LT")])
                .since("6.2.0")
                .optional(),
            token("change", "CH").since("3.0.2").optional(),
            token("increment", "INCR").since("3.0.2").optional(),
            block("data", &[double("score"), string("member")]).multiple(),
        ]),
    command("zcard", 2, Group::SortedSet, "1.2.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Counts the members of a sorted set.")
        .args(&[key("key", 0)]),
    command("zcount", 4, Group::SortedSet, "2.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N)) for a sorted set of N members")
        .summary("Counts the members whose scores are in a range.")
        .args(&[key("key", 0), double("min"), double("max")]),
    command("zdiff", -3, Group::SortedSet, "6.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(1))
        .complexity("O(L + (N-K)log(N)) for L members in all, N in the first, K in the result")
        .summary("Computes which members of a sorted set are in none of the others.")
        .args(&[
            integer("numkeys"),
            key("key", 0).multiple(),
            token("withscores", "WITHSCORES").optional(),
        ]),
    command("zdiffstore", -4, Group::SortedSet, "6.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE]), keys(2, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::CountedAndStored)
        .complexity("O(L + (N-K)log(N)) for L members in all, N in the first, K in the result")
        .summary("Stores those members of a sorted set that are in none of the others.")
        .args(&[key("destination", 0), integer("numkeys"), key("key", 1).multiple()]),
    command("zincrby", 4, Group::SortedSet, "1.2.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(log(N)) for a sorted set of N members")
        .summary("Adds an amount to the score of a member.")
        .args(&[key("key", 0), integer("increment"), string("member")]),
    command("zinter", -3, Group::SortedSet, "6.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(1))
        .complexity("O(N*K)+O(M*log(M)) for K sorted sets, the smallest of N, and M results")
        .summary("Computes which members sorted sets have in common.")
        .args(&[
            integer("numkeys"),
            key("key", 0).multiple(),
            integer("weight").with_token("WEIGHTS").optional().multiple(),
            one_of(
                "aggregate",
                &[token("sum", "SUM"), token("min", "MIN"), token("max", "MAX")],
            )
            .with_token("AGGREGATE")
            .optional(),
            token("withscores", "WITHSCORES").optional(),
        ]),
    command("zintercard", -3, Group::SortedSet, "7.0.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(1))
        .complexity("O(N*K) at worst, for K sorted sets of which the smallest has N members")
        .summary("Counts the members that sorted sets have in common.")
        .args(&[
            integer("numkeys"),
            key("key", 0).multiple(),
            integer("limit").with_token("LIMIT").optional(),
        ]),
    command("zinterstore", -4, Group::SortedSet, "2.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE]), keys(2, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::CountedAndStored)
        .complexity("O(N*K)+O(M*log(M)) for K sorted sets, the smallest of N, and M results")
        .summary("Stores the members that sorted sets have in common.")
        .args(&[
            key("destination", 0),
            integer("numkeys"),
            key("key", 1).multiple(),
            integer("weight").with_token("WEIGHTS").optional().multiple(),
            one_of(
                "aggregate",
                &[token("sum", "SUM"), token("min", "MIN"), token("max", "MAX")],
            )
            .with_token("AGGREGATE")
            .optional(),
        ]),
    command("zlexcount", 4, Group::SortedSet, "2.8.9")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N)) for a sorted set of N members")
        .summary("Counts the members in a lexicographical range.")
        .args(&[key("key", 0), string("min"), string("max")]),
    command("zmpop", -4, Group::SortedSet, "7.0.0")
        .flags(&[WRITE])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(1))
        .complexity("O(K) + O(M*log(N)) for K keys and M members popped out of N")
        .summary("Pops members of the first sorted set that has any.")
        .args(&[
            integer("numkeys"),
            key("key", 0).multiple(),
            one_of("where", &[token("min", "MIN"), token("max", "MAX")]),
            integer("count").with_token("COUNT").optional(),
        ]),
    command("zmscore", -3, Group::SortedSet, "6.2.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N members")
        .summary("Reads the scores of several members.")
        .args(&[key("key", 0), string("member").multiple()]),
    command("zpopmax", -2, Group::SortedSet, "5.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE])])
        .complexity("O(log(N)*M) to pop M members out of N")
        .summary("Pops the members with the highest scores.")
        .args(&[key("key", 0), integer("count").optional()]),
    command("zpopmin", -2, Group::SortedSet, "5.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE])])
        .complexity("O(log(N)*M) to pop M members out of N")
        .summary("Pops the members with the lowest scores.")
        .args(&[key("key", 0), integer("count").optional()]),
    command("zrandmember", -2, Group::SortedSet, "6.2.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N members returned")
        .summary("Picks members at random.")
        .args(&[
            key("key", 0),
            block(
                "options",
                &[integer("count"), token("withscores", "WITHSCORES").optional()],
            )
            .optional(),
        ]),
    command("zrange", -4, Group::SortedSet, "1.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N)+M) for M members out of N")
        .summary("Lists the members in a range of ranks, scores or names.")
        .history(&[("6.2.0", "Options `REV`, `BYSCORE`, `BYLEX`, `LIMIT`.")])
        .args(&[
            key("key", 0),
            string("start"),
            string("stop"),
            one_of("sortby", &[token("byscore", "BYSCORE"), token("bylex", "BYLEX")])
                .since("6.2.0")
                .optional(),
            token("rev", "REV").since("6.2.0").optional(),
            block("limit", &[integer("offset"), integer("count")])
                .with_token("LIMIT")
                .since("6.2.0")
                .optional(),
            token("withscores", "WITHSCORES").optional(),
        ]),
    command("zrangebylex", -4, Group::SortedSet, "2.8.9")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N)+M) for M members out of N; O(log(N)) if LIMIT bounds M")
        .summary("Lists the members in a lexicographical range.")
        .args(&[
            key("key", 0),
            string("min"),
            string("max"),
            block("limit", &[integer("offset"), integer("count")])
                .with_token("LIMIT")
                .optional(),
        ]),
    command("zrangebyscore", -4, Group::SortedSet, "1.0.5")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N)+M) for M members out of N; O(log(N)) if LIMIT bounds M")
        .summary("Lists the members whose scores are in a range.")
        .history(&[("2.0.0", "Option `WITHSCORES`.")])
        .args(&[
            key("key", 0),
            double("min"),
            double("max"),
            token("withscores", "WITHSCORES").since("2.0.0").optional(),
            block("limit", &[integer("offset"), integer("count")])
                .with_token("LIMIT")
                .optional(),
        ]),
    command("zrangestore", -5, Group::SortedSet, "6.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE]), keys(2, &[RO, ACCESS])])
        .complexity("O(log(N)+M) to store M members out of N")
        .summary("Stores the members in a range of ranks, scores or names.")
        .args(&[
            key("dst", 0),
            key("src", 1),
            string("min"),
            string("max"),
            one_of("sortby", &[token("byscore", "BYSCORE"), token("bylex", "BYLEX")]).optional(),
            token("rev", "REV").optional(),
            block("limit", &[integer("offset"), integer("count")])
                .with_token("LIMIT")
                .optional(),
        ]),
    command("zrank", -3, Group::SortedSet, "2.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N))")
        .summary("Tells the rank of a member, the lowest score being first.")
        .history(&[("7.2.0", "Option `WITHSCORE`.")])
        .args(&[
            key("key", 0),
            string("member"),
            token("withscore", "WITHSCORE").optional(),
        ]),
    command("zrem", -3, Group::SortedSet, "1.2.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(M*log(N)) to remove M members out of N")
        .summary("Removes members, and the sorted set with its last member.")
        .history(&[("2.4.0", "Takes more than one element.")])
        .args(&[key("key", 0), string("member").multiple()]),
    command("zremrangebylex", 4, Group::SortedSet, "2.8.9")
        .flags(&[WRITE])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(log(N)+M) to remove M members out of N")
        .summary("Removes the members in a lexicographical range.")
        .args(&[key("key", 0), string("min"), string("max")]),
    command("zremrangebyrank", 4, Group::SortedSet, "2.0.0")
        .flags(&[WRITE])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(log(N)+M) to remove M members out of N")
        .summary("Removes the members in a range of ranks.")
        .args(&[key("key", 0), integer("start"), integer("stop")]),
    command("zremrangebyscore", 4, Group::SortedSet, "1.2.0")
        .flags(&[WRITE])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(log(N)+M) to remove M members out of N")
        .summary("Removes the members whose scores are in a range.")
        .args(&[key("key", 0), double("min"), double("max")]),
    command("zrevrange", -4, Group::SortedSet, "1.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N)+M) for M members out of N")
        .summary("Lists the members in a range of ranks, the highest score being first.")
        .args(&[
            key("key", 0),
            integer("start"),
            integer("stop"),
            token("withscores", "WITHSCORES").optional(),
        ]),
    command("zrevrangebylex", -4, Group::SortedSet, "2.8.9")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N)+M) for M members out of N; O(log(N)) if LIMIT bounds M")
        .summary("Lists the members in a lexicographical range backwards.")
        .args(&[
            key("key", 0),
            string("max"),
            string("min"),
            block("limit", &[integer("offset"), integer("count")])
                .with_token("LIMIT")
                .optional(),
        ]),
    command("zrevrangebyscore", -4, Group::SortedSet, "2.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N)+M) for M members out of N; O(log(N)) if LIMIT bounds M")
        .summary("Lists the members whose scores are in a range, highest first.")
        .history(&[("2.1.6", "Either end of the range may be exclusive.")])
        .args(&[
            key("key", 0),
            double("max"),
            double("min"),
            token("withscores", "WITHSCORES").optional(),
            block("limit", &[integer("offset"), integer("count")])
                .with_token("LIMIT")
                .optional(),
        ]),
    command("zrevrank", -3, Group::SortedSet, "2.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(log(N))")
        .summary("Tells the rank of a member, the highest score being first.")
        .history(&[("7.2.0", "Option `WITHSCORE`.")])
        .args(&[
            key("key", 0),
            string("member"),
            token("withscore", "WITHSCORE").optional(),
        ]),
    command("zscan", -3, Group::SortedSet, "2.8.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1) a call, O(N) for a complete iteration over N elements")
        .summary("Visits the members of a sorted set step by step.")
        .history(&[("8.0.0", "Option `NOSCORES`.")])
        .args(&[
            key("key", 0),
            integer("cursor"),
            pattern("pattern").with_token("MATCH").optional(),
            integer("count").with_token("COUNT").optional(),
            token("noscores", "NOSCORES").optional(),
        ]),
    command("zscore", 3, Group::SortedSet, "1.2.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Reads the score of a member.")
        .args(&[key("key", 0), string("member")]),
    command("zunion", -3, Group::SortedSet, "6.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(1))
        .complexity("O(N)+O(M*log(M)) for N members in all sorted sets together and M results")
        .summary("Computes the union of sorted sets.")
        .args(&[
            integer("numkeys"),
            key("key", 0).multiple(),
            integer("weight").with_token("WEIGHTS").optional().multiple(),
            one_of(
                "aggregate",
                &[token("sum", "SUM"), token("min", "MIN"), token("max", "MAX")],
            )
            .with_token("AGGREGATE")
            .optional(),
            token("withscores", "WITHSCORES").optional(),
        ]),
    command("zunionstore", -4, Group::SortedSet, "2.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE]), keys(2, &[RO, ACCESS]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::CountedAndStored)
        .complexity("O(N)+O(M log(M)) for N members in all sorted sets together and M results")
        .summary("Stores the union of sorted sets.")
        .args(&[
            key("destination", 0),
            integer("numkeys"),
            key("key", 1).multiple(),
            integer("weight").with_token("WEIGHTS").optional().multiple(),
            one_of(
                "aggregate",
                &[token("sum", "SUM"), token("min", "MIN"), token("max", "MAX")],
            )
            .with_token("AGGREGATE")
            .optional(),
        ]),
];
