//! Metadata of the group *connection*. The connection itself: login, protocol, database, client administration.

use crate::spec::flag::{ADMIN, ALLOW_BUSY, FAST, LOADING, NO_AUTH, NO_MULTI, NOSCRIPT, STALE};
use crate::spec::{CommandSpec, Group, block, command, integer, one_of, string, token};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("auth", -2, Group::Connection, "1.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST, NO_AUTH, ALLOW_BUSY])
        .complexity("O(N) for a user with N passwords")
        .summary("Logs the connection in.")
        .history(&[("6.0.0", "A user name may precede the password.")])
        .args(&[string("username").since("6.0.0").optional(), string("password")]),
    command("client", -2, Group::Connection, "2.4.0")
        .categories_without_group(&[])
        .complexity("Depends on the subcommand")
        .summary("Groups the commands about client connections.")
        .subcommands(CLIENT_SUBCOMMANDS),
    command("echo", 2, Group::Connection, "1.0.0")
        .flags(&[LOADING, STALE, FAST])
        .complexity("O(1)")
        .summary("Returns the argument.")
        .args(&[string("message")]),
    command("hello", -1, Group::Connection, "6.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST, NO_AUTH, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Chooses the protocol version; may log in and name the connection too.")
        .history(&[
            (
                "8.1.0",
                "Reports `availability_zone` if the parameter `availability-zone` is set.",
            ),
            ("6.2.0", "Without `protover` it describes the connection as it is."),
        ])
        .args(&[block(
            "arguments",
            &[
                integer("protover"),
                block("auth", &[string("username"), string("password")])
                    .with_token("AUTH")
                    .optional(),
                string("clientname").with_token("SETNAME").optional(),
            ],
        )
        .optional()]),
    command("ping", -1, Group::Connection, "1.0.0")
        .flags(&[FAST])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .complexity("O(1)")
        .summary("Answers, to show that the server is alive.")
        .args(&[string("message").optional()]),
    command("quit", -1, Group::Connection, "1.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST, NO_AUTH, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Ends this connection."),
    command("reset", 1, Group::Connection, "6.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE, FAST, NO_AUTH, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Puts this connection back into its initial state."),
    command("select", 2, Group::Connection, "1.0.0")
        .flags(&[LOADING, STALE, FAST, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Chooses the database that this connection works on.")
        .args(&[integer("index")]),
];

/// The subcommands of CLIENT.
const CLIENT_SUBCOMMANDS: &[CommandSpec] = &[
    command("caching", 3, Group::Connection, "6.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Says whether the keys of the next command are tracked.")
        .args(&[one_of("mode", &[token("yes", "YES"), token("no", "NO")])]),
    command("capa", -3, Group::Connection, "8.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Declares what the client is capable of.")
        .args(&[string("capability").multiple()]),
    command("getname", 2, Group::Connection, "2.6.9")
        .flags(&[NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Tells what this connection is called."),
    command("getredir", 2, Group::Connection, "6.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Tells which client receives this connection's invalidation messages."),
    command("help", 2, Group::Connection, "5.0.0")
        .flags(&[LOADING, STALE])
        .complexity("O(1)")
        .summary("Describes the subcommands."),
    command("id", 2, Group::Connection, "5.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Tells the unique number of this connection."),
    command("import-source", 3, Group::Connection, "8.1.0")
        .flags(&[NOSCRIPT, LOADING, STALE])
        .complexity("O(1)")
        .summary("Marks this connection as the source of an import.")
        .args(&[one_of("enabled", &[token("on", "ON"), token("off", "OFF")])]),
    command("info", 2, Group::Connection, "6.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(1)")
        .summary("Describes this connection."),
    command("kill", -3, Group::Connection, "2.4.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N clients")
        .summary("Closes the connections that match.")
        .history(&[
            ("2.8.12", "Filters are given as name and value."),
            ("2.8.12", "Filter `ID`."),
            ("3.2.0", "`TYPE` knows `master`."),
            ("5.0.0", "`TYPE` knows `replica`; `slave` remains as a synonym."),
            ("6.2.0", "Filter `LADDR`."),
            ("8.0.0", "Filter `MAXAGE`."),
            ("8.0.0", "`TYPE` knows `primary`; `master` remains as a synonym."),
            ("8.1.0", "`ID` takes more than one client."),
            (
                "9.0.0",
                "More filters, among them `NAME`, `IDLE`, `FLAGS`; `NOT-` forms.",
            ),
        ])
        .args(&[one_of(
            "filter",
            &[
                string("old-format")
                    .with_display_text("ip:port")
                    .deprecated_since("2.8.12"),
                one_of(
                    "new-format",
                    &[
                        integer("client-id")
                            .with_token("ID")
                            .since("2.8.12")
                            .optional()
                            .multiple(),
                        one_of(
                            "client-type",
                            &[
                                token("normal", "NORMAL"),
                                token("master", "MASTER").since("3.2.0"),
                                token("primary", "PRIMARY").since("8.0.0"),
                                token("slave", "SLAVE"),
                                token("replica", "REPLICA").since("5.0.0"),
                                token("pubsub", "PUBSUB"),
                            ],
                        )
                        .with_token("TYPE")
                        .since("2.8.12")
                        .optional(),
                        string("username").with_token("USER").optional(),
                        string("addr")
                            .with_token("ADDR")
                            .with_display_text("ip:port")
                            .optional(),
                        string("laddr")
                            .with_token("LADDR")
                            .with_display_text("ip:port")
                            .since("6.2.0")
                            .optional(),
                        one_of("skipme", &[token("yes", "YES"), token("no", "NO")])
                            .with_token("SKIPME")
                            .optional(),
                        integer("maxage").with_token("MAXAGE").since("8.0.0").optional(),
                        string("name").with_token("NAME").since("9.0.0").optional(),
                        integer("idle").with_token("IDLE").since("9.0.0").optional(),
                        string("flags").with_token("FLAGS").since("9.0.0").optional(),
                        string("lib-name").with_token("LIB-NAME").since("9.0.0").optional(),
                        string("lib-ver").with_token("LIB-VER").since("9.0.0").optional(),
                        integer("db").with_token("DB").since("9.0.0").optional(),
                        string("capa").with_token("CAPA").since("9.0.0").optional(),
                        string("ip").with_token("IP").since("9.0.0").optional(),
                        one_of(
                            "not-client-type",
                            &[
                                token("normal", "NORMAL"),
                                token("master", "MASTER"),
                                token("primary", "PRIMARY"),
                                token("slave", "SLAVE"),
                                token("replica", "REPLICA"),
                                token("pubsub", "PUBSUB"),
                            ],
                        )
                        .with_token("NOT-TYPE")
                        .since("9.0.0")
                        .optional(),
                        integer("not-client-id")
                            .with_token("NOT-ID")
                            .since("9.0.0")
                            .optional()
                            .multiple(),
                        string("not-username").with_token("NOT-USER").since("9.0.0").optional(),
                        string("not-addr")
                            .with_token("NOT-ADDR")
                            .with_display_text("ip:port")
                            .since("9.0.0")
                            .optional(),
                        string("not-laddr")
                            .with_token("NOT-LADDR")
                            .with_display_text("ip:port")
                            .since("9.0.0")
                            .optional(),
                        string("not-name").with_token("NOT-NAME").since("9.0.0").optional(),
                        string("not-flags").with_token("NOT-FLAGS").since("9.0.0").optional(),
                        string("not-lib-name")
                            .with_token("NOT-LIB-NAME")
                            .since("9.0.0")
                            .optional(),
                        string("not-lib-ver")
                            .with_token("NOT-LIB-VER")
                            .since("9.0.0")
                            .optional(),
                        integer("not-db").with_token("NOT-DB").since("9.0.0").optional(),
                        string("not-capa").with_token("NOT-CAPA").since("9.0.0").optional(),
                        string("not-ip").with_token("NOT-IP").since("9.0.0").optional(),
                    ],
                )
                .multiple(),
            ],
        )]),
    command("list", -2, Group::Connection, "2.4.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .tips(&["nondeterministic_output"])
        .complexity("O(N) for N clients")
        .summary("Describes the open connections.")
        .history(&[
            ("2.8.12", "Field `id`."),
            ("5.0.0", "Filter `TYPE`."),
            ("6.0.0", "Field `user`."),
            ("6.2.0", "Fields `argv-mem`, `tot-mem`, `laddr`, `redir`; filter `ID`."),
            ("7.0.0", "Fields `resp`, `multi-mem`, `rbs`, `rbp`."),
            ("7.0.3", "Field `ssub`."),
            ("8.0.0", "`TYPE` knows `primary`; `master` remains as a synonym."),
            ("8.1.0", "Filters `USER`, `ADDR`, `LADDR`, `SKIPME`, `MAXAGE`."),
            (
                "9.0.0",
                "More filters, among them `NAME`, `IDLE`, `FLAGS`; `NOT-` forms.",
            ),
        ])
        .args(&[
            one_of(
                "client-type",
                &[
                    token("normal", "NORMAL"),
                    token("master", "MASTER"),
                    token("replica", "REPLICA"),
                    token("pubsub", "PUBSUB"),
                ],
            )
            .with_token("TYPE")
            .since("5.0.0")
            .optional(),
            integer("client-id")
                .with_token("ID")
                .since("6.2.0")
                .optional()
                .multiple(),
            string("username").with_token("USER").since("8.1.0").optional(),
            string("addr")
                .with_token("ADDR")
                .with_display_text("ip:port")
                .since("8.1.0")
                .optional(),
            string("laddr")
                .with_token("LADDR")
                .with_display_text("ip:port")
                .since("8.1.0")
                .optional(),
            one_of("skipme", &[token("yes", "YES"), token("no", "NO")])
                .with_token("SKIPME")
                .since("8.1.0")
                .optional(),
            integer("maxage").with_token("MAXAGE").since("8.1.0").optional(),
            string("name").with_token("NAME").since("9.0.0").optional(),
            integer("idle").with_token("IDLE").since("9.0.0").optional(),
            string("flags").with_token("FLAGS").since("9.0.0").optional(),
            string("lib-name").with_token("LIB-NAME").since("9.0.0").optional(),
            string("lib-ver").with_token("LIB-VER").since("9.0.0").optional(),
            integer("db").with_token("DB").since("9.0.0").optional(),
            string("capa").with_token("CAPA").since("9.0.0").optional(),
            string("ip").with_token("IP").since("9.0.0").optional(),
            one_of(
                "not-client-type",
                &[
                    token("normal", "NORMAL"),
                    token("master", "MASTER"),
                    token("replica", "REPLICA"),
                    token("pubsub", "PUBSUB"),
                ],
            )
            .with_token("NOT-TYPE")
            .since("9.0.0")
            .optional(),
            integer("not-client-id")
                .with_token("NOT-ID")
                .since("9.0.0")
                .optional()
                .multiple(),
            string("not-username").with_token("NOT-USER").since("9.0.0").optional(),
            string("not-addr")
                .with_token("NOT-ADDR")
                .with_display_text("ip:port")
                .since("9.0.0")
                .optional(),
            string("not-laddr")
                .with_token("NOT-LADDR")
                .with_display_text("ip:port")
                .since("9.0.0")
                .optional(),
            string("not-name").with_token("NOT-NAME").since("9.0.0").optional(),
            string("not-flags").with_token("NOT-FLAGS").since("9.0.0").optional(),
            string("not-lib-name")
                .with_token("NOT-LIB-NAME")
                .since("9.0.0")
                .optional(),
            string("not-lib-ver")
                .with_token("NOT-LIB-VER")
                .since("9.0.0")
                .optional(),
            integer("not-db").with_token("NOT-DB").since("9.0.0").optional(),
            string("not-capa").with_token("NOT-CAPA").since("9.0.0").optional(),
            string("not-ip").with_token("NOT-IP").since("9.0.0").optional(),
        ]),
    command("no-evict", 3, Group::Connection, "7.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Exempts this connection from client eviction, or no longer.")
        .args(&[one_of("enabled", &[token("on", "ON"), token("off", "OFF")])]),
    command("no-touch", 3, Group::Connection, "7.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Decides whether this connection's commands count as accesses to keys.")
        .args(&[one_of("enabled", &[token("on", "ON"), token("off", "OFF")])]),
    command("pause", -3, Group::Connection, "3.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(1)")
        .summary("Holds back the commands of all clients for a while.")
        .history(&[("6.2.0", "A mode may be given; `WRITE` holds back writes only.")])
        .args(&[
            integer("timeout"),
            one_of("mode", &[token("write", "WRITE"), token("all", "ALL")])
                .since("6.2.0")
                .optional(),
        ]),
    command("reply", 3, Group::Connection, "3.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE, NO_MULTI, ALLOW_BUSY])
        .complexity("O(1)")
        .summary("Decides whether this connection gets replies.")
        .args(&[one_of(
            "action",
            &[token("on", "ON"), token("off", "OFF"), token("skip", "SKIP")],
        )]),
    command("setinfo", 4, Group::Connection, "7.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(1)")
        .summary("Records the name or version of the client library.")
        .args(&[one_of(
            "attr",
            &[
                string("libname").with_token("LIB-NAME"),
                string("libver").with_token("LIB-VER"),
            ],
        )]),
    command("setname", 3, Group::Connection, "2.6.9")
        .flags(&[NOSCRIPT, LOADING, STALE, ALLOW_BUSY])
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .complexity("O(1)")
        .summary("Names this connection.")
        .args(&[string("connection-name")]),
    command("tracking", -3, Group::Connection, "6.0.0")
        .flags(&[NOSCRIPT, LOADING, STALE])
        .complexity("O(1), more with some options")
        .summary("Switches server-assisted client-side caching on or off.")
        .args(&[
            one_of("status", &[token("on", "ON"), token("off", "OFF")]),
            integer("client-id").with_token("REDIRECT").optional(),
            string("prefix")
                .with_token("PREFIX")
                .optional()
                .multiple()
                .multiple_token(),
            token("bcast", "BCAST").optional(),
            token("optin", "OPTIN").optional(),
            token("optout", "OPTOUT").optional(),
            token("noloop", "NOLOOP").optional(),
        ]),
    command("trackinginfo", 2, Group::Connection, "6.2.0")
        .flags(&[NOSCRIPT, LOADING, STALE])
        .complexity("O(1)")
        .summary("Tells how client-side caching is set up for this connection."),
    command("unblock", -3, Group::Connection, "5.0.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(log N) for N clients")
        .summary("Wakes a client that waits in a blocking command.")
        .args(&[
            integer("client-id"),
            one_of("unblock-type", &[token("timeout", "TIMEOUT"), token("error", "ERROR")]).optional(),
        ]),
    command("unpause", 2, Group::Connection, "6.2.0")
        .flags(&[ADMIN, NOSCRIPT, LOADING, STALE])
        .complexity("O(N) for N paused clients")
        .summary("Ends a pause before its time."),
];
