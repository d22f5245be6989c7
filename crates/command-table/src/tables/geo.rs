//! Metadata of the group *geo*. Geographic positions, which are stored in sorted sets.

use crate::spec::SpecialKeys;
use crate::spec::flag::{DENYOOM, READONLY, WRITE};
use crate::spec::key_flag::{ACCESS, OW, RO, RW, UPDATE, VARIABLE_FLAGS};
use crate::spec::{CommandSpec, Group, block, command, double, integer, key, keys, keys_after, one_of, string, token};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("geoadd", -5, Group::Geo, "3.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(log(N)) for each member added to a sorted set of N")
        .summary("Adds members with their positions, or moves them.")
        .history(&[("6.2.0", "Options `CH`, `NX`, `XX`.")])
        .args(&[
            key("key", 0),
            one_of("condition", &[token("nx", "NX"), token("xx", "XX")])
                .since("6.2.0")
                .optional(),
            token("change", "CH").since("6.2.0").optional(),
            block("data", &[double("longitude"), double("latitude"), string("member")]).multiple(),
        ]),
    command("geodist", -4, Group::Geo, "3.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Tells the distance between two members.")
        .args(&[
            key("key", 0),
            string("member1"),
            string("member2"),
            one_of(
                "unit",
                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
            )
            .optional(),
        ]),
    command("geohash", -2, Group::Geo, "3.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1) for each member")
        .summary("Tells the positions of members as geohash strings.")
        .args(&[key("key", 0), string("member").optional().multiple()]),
    command("geopos", -2, Group::Geo, "3.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1) for each member")
        .summary("Tells the longitude and latitude of members.")
        .args(&[key("key", 0), string("member").optional().multiple()]),
    command("georadius", -6, Group::Geo, "3.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[
            keys(1, &[RO, ACCESS]),
            keys_after("STORE", 6, &[OW, UPDATE, VARIABLE_FLAGS]),
            keys_after("STOREDIST", 6, &[OW, UPDATE, VARIABLE_FLAGS]),
        ])
        .special_keys(SpecialKeys::GeoRadius)
        .complexity("O(N+log(M)) for N members in the box around the circle, out of M")
        .summary("Finds members within a distance of a point, and may store them.")
        .history(&[
            ("6.2.0", "`COUNT` may be followed by `ANY`."),
            ("7.0.0", "Unit names may be upper case."),
        ])
        .args(&[
            key("key", 0),
            double("longitude"),
            double("latitude"),
            double("radius"),
            one_of(
                "unit",
                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
            ),
            token("withcoord", "WITHCOORD").optional(),
            token("withdist", "WITHDIST").optional(),
            token("withhash", "WITHHASH").optional(),
            block(
                "count-block",
                &[
                    integer("count").with_token("COUNT"),
                    token("any", "ANY").since("6.2.0").optional(),
                ],
            )
            .optional(),
            one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
            one_of(
                "store",
                &[
                    key("storekey", 1).with_token("STORE").with_display_text("key"),
                    key("storedistkey", 2).with_token("STOREDIST").with_display_text("key"),
                ],
            )
            .optional(),
        ]),
    command("georadius_ro", -6, Group::Geo, "3.2.10")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N+log(M)) for N members in the box around the circle, out of M")
        .summary("Finds members within a distance of a point.")
        .history(&[
            ("6.2.0", "`COUNT` may be followed by `ANY`."),
            ("7.0.0", "Unit names may be upper case."),
        ])
        .args(&[
            key("key", 0),
            double("longitude"),
            double("latitude"),
            double("radius"),
            one_of(
                "unit",
                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
            ),
            token("withcoord", "WITHCOORD").optional(),
            token("withdist", "WITHDIST").optional(),
            token("withhash", "WITHHASH").optional(),
            block(
                "count-block",
                &[
                    integer("count").with_token("COUNT"),
                    token("any", "ANY").since("6.2.0").optional(),
                ],
            )
            .optional(),
            one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
        ]),
    command("georadiusbymember", -5, Group::Geo, "3.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[
            keys(1, &[RO, ACCESS]),
            keys_after("STORE", 5, &[OW, UPDATE, VARIABLE_FLAGS]),
            keys_after("STOREDIST", 5, &[OW, UPDATE, VARIABLE_FLAGS]),
        ])
        .special_keys(SpecialKeys::GeoRadius)
        .complexity("O(N+log(M)) for N members in the box around the circle, out of M")
        .summary("Finds members within a distance of a member, and may store them.")
        .history(&[
            ("6.2.0", "`COUNT` may be followed by `ANY`."),
            ("7.0.0", "Unit names may be upper case."),
        ])
        .args(&[
            key("key", 0),
            string("member"),
            double("radius"),
            one_of(
                "unit",
                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
            ),
            token("withcoord", "WITHCOORD").optional(),
            token("withdist", "WITHDIST").optional(),
            token("withhash", "WITHHASH").optional(),
            block(
                "count-block",
                &[integer("count").with_token("COUNT"), token("any", "ANY").optional()],
            )
            .optional(),
            one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
            one_of(
                "store",
                &[
                    key("storekey", 1).with_token("STORE").with_display_text("key"),
                    key("storedistkey", 2).with_token("STOREDIST").with_display_text("key"),
                ],
            )
            .optional(),
        ]),
    command("georadiusbymember_ro", -5, Group::Geo, "3.2.10")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N+log(M)) for N members in the box around the circle, out of M")
        .summary("Finds members within a distance of a member.")
        .history(&[
            ("6.2.0", "`COUNT` may be followed by `ANY`."),
            ("7.0.0", "Unit names may be upper case."),
        ])
        .args(&[
            key("key", 0),
            string("member"),
            double("radius"),
            one_of(
                "unit",
                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
            ),
            token("withcoord", "WITHCOORD").optional(),
            token("withdist", "WITHDIST").optional(),
            token("withhash", "WITHHASH").optional(),
            block(
                "count-block",
                &[integer("count").with_token("COUNT"), token("any", "ANY").optional()],
            )
            .optional(),
            one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
        ]),
    command("geosearch", -7, Group::Geo, "6.2.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N+log(M)) for N members in the cells around the shape, M inside")
        .summary("Finds members inside a circle, box or polygon.")
        .history(&[
            ("7.0.0", "Unit names may be upper case."),
            ("9.0.0", "Option `BYPOLYGON`."),
        ])
        .args(&[
            key("key", 0),
            one_of(
                "from",
                &[
                    string("member").with_token("FROMMEMBER"),
                    block("fromlonlat", &[double("longitude"), double("latitude")]).with_token("FROMLONLAT"),
                ],
            )
            .optional(),
            one_of(
                "by",
                &[
                    block(
                        "circle",
                        &[
                            double("radius").with_token("BYRADIUS"),
                            one_of(
                                "unit",
                                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
                            ),
                        ],
                    ),
                    block(
                        "box",
                        &[
                            double("width").with_token("BYBOX"),
                            double("height"),
                            one_of(
                                "unit",
                                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
                            ),
                        ],
                    ),
                    block(
                        "polygon",
                        &[
                            integer("num-vertices").with_token("BYPOLYGON"),
                            block("vertices", &[double("longitude"), double("latitude")]).multiple(),
                        ],
                    )
                    .since("9.0.0"),
                ],
            ),
            one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
            block(
                "count-block",
                &[integer("count").with_token("COUNT"), token("any", "ANY").optional()],
            )
            .optional(),
            token("withcoord", "WITHCOORD").optional(),
            token("withdist", "WITHDIST").optional(),
            token("withhash", "WITHHASH").optional(),
        ]),
    command("geosearchstore", -8, Group::Geo, "6.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[OW, UPDATE]), keys(2, &[RO, ACCESS])])
        .complexity("O(N+log(M)) for N members in the cells around the shape, M inside")
        .summary("Finds members inside a circle, box or polygon and stores them.")
        .history(&[
            ("7.0.0", "Unit names may be upper case."),
            ("9.0.0", "Option `BYPOLYGON`."),
        ])
        .args(&[
            key("destination", 0),
            key("source", 1),
            one_of(
                "from",
                &[
                    string("member").with_token("FROMMEMBER"),
                    block("fromlonlat", &[double("longitude"), double("latitude")]).with_token("FROMLONLAT"),
                ],
            )
            .optional(),
            one_of(
                "by",
                &[
                    block(
                        "circle",
                        &[
                            double("radius").with_token("BYRADIUS"),
                            one_of(
                                "unit",
                                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
                            ),
                        ],
                    ),
                    block(
                        "box",
                        &[
                            double("width").with_token("BYBOX"),
                            double("height"),
                            one_of(
                                "unit",
                                &[token("m", "M"), token("km", "KM"), token("ft", "FT"), token("mi", "MI")],
                            ),
                        ],
                    ),
                    block(
                        "polygon",
                        &[
                            integer("num-vertices").with_token("BYPOLYGON"),
                            block("vertices", &[double("longitude"), double("latitude")]).multiple(),
                        ],
                    )
                    .since("9.0.0"),
                ],
            ),
            one_of("order", &[token("asc", "ASC"), token("desc", "DESC")]).optional(),
            block(
                "count-block",
                &[integer("count").with_token("COUNT"), token("any", "ANY").optional()],
            )
            .optional(),
            token("storedist", "STOREDIST").optional(),
        ]),
];
