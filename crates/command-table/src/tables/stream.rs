//! Metadata of the group *stream*. Streams and consumer groups.

use crate::spec::flag::{BLOCKING, DENYOOM, FAST, LOADING, READONLY, STALE, WRITE};
use crate::spec::key_flag::{ACCESS, DELETE, INSERT, RO, RW, UPDATE};
use crate::spec::{
    CommandSpec, Group, block, command, integer, key, keys, keys_after, one_of, string, token, unix_time,
};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("xack", -4, Group::Stream, "5.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(1) for each ID")
        .summary("Marks entries as processed by a consumer group.")
        .args(&[key("key", 0), string("group"), string("id").multiple()]),
    command("xadd", -5, Group::Stream, "5.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RW, UPDATE]).notes("Trimming may delete entries, hence update rather than insert.")])
        .complexity("O(1) to add, O(N) to evict N entries when trimming")
        .summary("Appends an entry to a stream, creating it when absent.")
        .history(&[
            ("6.2.0", "Options `NOMKSTREAM` and `LIMIT`; trimming by `MINID`."),
            ("7.0.0", "An ID may have the form `<ms>-*`."),
        ])
        .args(&[
            key("key", 0),
            token("nomkstream", "NOMKSTREAM").since("6.2.0").optional(),
            block(
                "trim",
                &[
                    one_of(
                        "strategy",
                        &[token("maxlen", "MAXLEN"), token("minid", "MINID").since("6.2.0")],
                    ),
                    one_of("operator", &[token("equal", "="), token("approximately", "~")]).optional(),
                    string("threshold"),
                    integer("count").with_token("LIMIT").since("6.2.0").optional(),
                ],
            )
            .optional(),
            one_of("id-selector", &[token("auto-id", "*"), string("id")]),
            block("data", &[string("field"), string("value")]).multiple(),
        ]),
    command("xautoclaim", -6, Group::Stream, "6.2.0")
        .flags(&[WRITE, FAST])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(1) with a small COUNT")
        .summary("Takes over entries that have been pending for long.")
        .history(&[("7.0.0", "The reply also lists deleted entries that were still pending.")])
        .args(&[
            key("key", 0),
            string("group"),
            string("consumer"),
            string("min-idle-time"),
            string("start"),
            integer("count").with_token("COUNT").optional(),
            token("justid", "JUSTID").optional(),
        ]),
    command("xclaim", -6, Group::Stream, "5.0.0")
        .flags(&[WRITE, FAST])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(log N) for N pending entries of the group")
        .summary("Takes over given pending entries.")
        .args(&[
            key("key", 0),
            string("group"),
            string("consumer"),
            string("min-idle-time"),
            string("id").multiple(),
            integer("ms").with_token("IDLE").optional(),
            unix_time("unix-time-milliseconds").with_token("TIME").optional(),
            integer("count").with_token("RETRYCOUNT").optional(),
            token("force", "FORCE").optional(),
            token("justid", "JUSTID").optional(),
            string("lastid").with_token("LASTID").optional(),
        ]),
    command("xdel", -3, Group::Stream, "5.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(1) for each entry, however long the stream")
        .summary("Deletes entries of a stream.")
        .args(&[key("key", 0), string("id").multiple()]),
    command("xgroup", -2, Group::Stream, "5.0.0")
        .categories_without_group(&[])
        .complexity("Depends on the subcommand")
        .summary("Groups the commands that manage consumer groups.")
        .subcommands(XGROUP_SUBCOMMANDS),
    command("xinfo", -2, Group::Stream, "5.0.0")
        .categories_without_group(&[])
        .complexity("Depends on the subcommand")
        .summary("Groups the commands that describe streams.")
        .subcommands(XINFO_SUBCOMMANDS),
    command("xlen", 2, Group::Stream, "5.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Counts the entries of a stream.")
        .args(&[key("key", 0)]),
    command("xpending", -3, Group::Stream, "5.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N entries or consumers shown, O(M) for M looked at with IDLE")
        .summary("Lists or counts the pending entries of a group.")
        .history(&[("6.2.0", "Option `IDLE`; either end of the range may be exclusive.")])
        .args(&[
            key("key", 0),
            string("group"),
            block(
                "filters",
                &[
                    integer("min-idle-time").with_token("IDLE").since("6.2.0").optional(),
                    string("start"),
                    string("end"),
                    integer("count"),
                    string("consumer").optional(),
                ],
            )
            .optional(),
        ]),
    command("xrange", -4, Group::Stream, "5.0.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N entries returned; O(1) if COUNT bounds N")
        .summary("Lists the entries in a range of IDs.")
        .history(&[("6.2.0", "Either end of the range may be exclusive.")])
        .args(&[
            key("key", 0),
            string("start"),
            string("end"),
            integer("count").with_token("COUNT").optional(),
        ]),
    command("xread", -4, Group::Stream, "5.0.0")
        .flags(&[READONLY, BLOCKING])
        .keys(&[keys_after("STREAMS", 1, &[RO, ACCESS]).with_limit(2)])
        .summary("Reads the entries after given IDs, waiting for some if asked to.")
        .args(&[
            integer("count").with_token("COUNT").optional(),
            integer("milliseconds").with_token("BLOCK").optional(),
            block("streams", &[key("key", 0).multiple(), string("id").multiple()]).with_token("STREAMS"),
        ]),
    command("xreadgroup", -7, Group::Stream, "5.0.0")
        .flags(&[WRITE, BLOCKING])
        .keys(&[keys_after("STREAMS", 4, &[RO, ACCESS]).with_limit(2)])
        .complexity("O(M) for M entries of each stream; waking N waiters costs XADD O(N)")
        .summary("Reads entries on behalf of a group's consumer, waiting if asked to.")
        .args(&[
            block("group-block", &[string("group"), string("consumer")]).with_token("GROUP"),
            integer("count").with_token("COUNT").optional(),
            integer("milliseconds").with_token("BLOCK").optional(),
            token("noack", "NOACK").optional(),
            block("streams", &[key("key", 0).multiple(), string("id").multiple()]).with_token("STREAMS"),
        ]),
    command("xrevrange", -4, Group::Stream, "5.0.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for N entries returned; O(1) if COUNT bounds N")
        .summary("Lists the entries in a range of IDs, the newest first.")
        .history(&[("6.2.0", "Either end of the range may be exclusive.")])
        .args(&[
            key("key", 0),
            string("end"),
            string("start"),
            integer("count").with_token("COUNT").optional(),
        ]),
    command("xsetid", -3, Group::Stream, "5.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(1)")
        .summary("Sets the last ID of a stream; used by replication.")
        .history(&[("7.0.0", "Takes `entries_added` and `max_deleted_entry_id`.")])
        .args(&[
            key("key", 0),
            string("last-id"),
            integer("entries-added")
                .with_token("ENTRIESADDED")
                .since("7.0.0")
                .optional(),
            string("max-deleted-id")
                .with_token("MAXDELETEDID")
                .since("7.0.0")
                .optional(),
        ]),
    command("xtrim", -4, Group::Stream, "5.0.0")
        .flags(&[WRITE])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(N) for N evicted entries, which are freed many at a time")
        .summary("Deletes the oldest entries of a stream.")
        .history(&[("6.2.0", "Trimming by `MINID`; option `LIMIT`.")])
        .args(&[
            key("key", 0),
            block(
                "trim",
                &[
                    one_of(
                        "strategy",
                        &[token("maxlen", "MAXLEN"), token("minid", "MINID").since("6.2.0")],
                    ),
                    one_of("operator", &[token("equal", "="), token("approximately", "~")]).optional(),
                    string("threshold"),
                    integer("count").with_token("LIMIT").since("6.2.0").optional(),
                ],
            ),
        ]),
];

/// The subcommands of XGROUP.
const XGROUP_SUBCOMMANDS: &[CommandSpec] = &[
    command("create", -5, Group::Stream, "5.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(2, &[RW, INSERT])])
        .complexity("O(1)")
        .summary("Sets up a consumer group on a stream.")
        .history(&[("7.0.0", "Option `ENTRIESREAD`.")])
        .args(&[
            key("key", 0),
            string("group"),
            one_of("id-selector", &[string("id"), token("new-id", "$")]),
            token("mkstream", "MKSTREAM").optional(),
            integer("entriesread")
                .with_token("ENTRIESREAD")
                .with_display_text("entries-read")
                .optional(),
        ]),
    command("createconsumer", 5, Group::Stream, "6.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(2, &[RW, INSERT])])
        .complexity("O(1)")
        .summary("Adds a consumer to a group.")
        .args(&[key("key", 0), string("group"), string("consumer")]),
    command("delconsumer", 5, Group::Stream, "5.0.0")
        .flags(&[WRITE])
        .keys(&[keys(2, &[RW, DELETE])])
        .complexity("O(1)")
        .summary("Takes a consumer out of a group.")
        .args(&[key("key", 0), string("group"), string("consumer")]),
    command("destroy", 4, Group::Stream, "5.0.0")
        .flags(&[WRITE])
        .keys(&[keys(2, &[RW, DELETE])])
        .complexity("O(N) for N pending entries of the group")
        .summary("Drops a consumer group with its pending entries.")
        .args(&[key("key", 0), string("group")]),
    command("help", 2, Group::Stream, "5.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("setid", -5, Group::Stream, "5.0.0")
        .flags(&[WRITE])
        .keys(&[keys(2, &[RW, UPDATE])])
        .complexity("O(1)")
        .summary("Sets the last ID that a group counts as delivered.")
        .history(&[("7.0.0", "Option `ENTRIESREAD`.")])
        .args(&[
            key("key", 0),
            string("group"),
            one_of("id-selector", &[string("id"), token("new-id", "$")]),
            integer("entriesread")
                .with_token("ENTRIESREAD")
                .with_display_text("entries-read")
                .optional(),
        ]),
];

/// The subcommands of XINFO.
const XINFO_SUBCOMMANDS: &[CommandSpec] = &[
    command("consumers", 4, Group::Stream, "5.0.0")
        .flags(&[READONLY])
        .tips(&["nondeterministic_output"])
        .keys(&[keys(2, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Describes the consumers of a group.")
        .history(&[("7.2.0", "Field `inactive`; `idle` has a new meaning.")])
        .args(&[key("key", 0), string("group")]),
    command("groups", 3, Group::Stream, "5.0.0")
        .flags(&[READONLY])
        .keys(&[keys(2, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Describes the consumer groups of a stream.")
        .history(&[("7.0.0", "Fields `entries-read` and `lag`.")])
        .args(&[key("key", 0)]),
    command("help", 2, Group::Stream, "5.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("stream", -3, Group::Stream, "5.0.0")
        .flags(&[READONLY])
        .keys(&[keys(2, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Describes a stream.")
        .history(&[
            ("6.0.0", "Option `FULL`."),
            ("7.0.0", "Counters of entries added, deleted and read; `lag`."),
            ("7.2.0", "Field `active-time`; `seen-time` has a new meaning."),
        ])
        .args(&[
            key("key", 0),
            block(
                "full-block",
                &[token("full", "FULL"), integer("count").with_token("COUNT").optional()],
            )
            .optional(),
        ]),
];
