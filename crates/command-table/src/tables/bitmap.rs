//! Metadata of the group *bitmap*. Strings seen as arrays of bits.

use crate::spec::SpecialKeys;
use crate::spec::flag::{DENYOOM, FAST, READONLY, WRITE};
use crate::spec::key_flag::{ACCESS, OW, RO, RW, UPDATE, VARIABLE_FLAGS};
use crate::spec::{CommandSpec, Group, block, command, integer, key, keys, one_of, string, token};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("bitcount", -2, Group::Bitmap, "2.6.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N)")
        .summary("Counts the bits that are set in a string.")
        .history(&[
            ("7.0.0", "Offsets may count bits: option `BYTE` or `BIT`."),
            ("8.0.0", "`end` may be omitted and is the last byte then."),
        ])
        .args(&[
            key("key", 0),
            block(
                "range",
                &[
                    integer("start"),
                    block(
                        "end-unit-block",
                        &[
                            integer("end"),
                            one_of("unit", &[token("byte", "BYTE"), token("bit", "BIT")])
                                .since("7.0.0")
                                .optional(),
                        ],
                    )
                    .optional(),
                ],
            )
            .optional(),
        ]),
    command("bitfield", -2, Group::Bitmap, "3.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE, VARIABLE_FLAGS]).notes("Operations may read, modify, or both.")])
        .special_keys(SpecialKeys::BitField)
        .complexity("O(1) for each operation")
        .summary("Reads and changes integers of any width inside a string.")
        .args(&[
            key("key", 0),
            one_of(
                "operation",
                &[
                    block("get-block", &[string("encoding"), integer("offset")]).with_token("GET"),
                    block(
                        "write",
                        &[
                            one_of(
                                "overflow-block",
                                &[token("wrap", "WRAP"), token("sat", "SAT"), token("fail", "FAIL")],
                            )
                            .with_token("OVERFLOW")
                            .optional(),
                            one_of(
                                "write-operation",
                                &[
                                    block("set-block", &[string("encoding"), integer("offset"), integer("value")])
                                        .with_token("SET"),
                                    block(
                                        "incrby-block",
                                        &[string("encoding"), integer("offset"), integer("increment")],
                                    )
                                    .with_token("INCRBY"),
                                ],
                            ),
                        ],
                    ),
                ],
            )
            .optional()
            .multiple(),
        ]),
    command("bitfield_ro", -2, Group::Bitmap, "6.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1) for each operation")
        .summary("Reads integers of any width inside a string.")
        .args(&[
            key("key", 0),
            block("get-block", &[string("encoding"), integer("offset")])
                .with_token("GET")
                .optional()
                .multiple()
                .multiple_token(),
        ]),
    command("bitop", -4, Group::Bitmap, "2.6.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(2, &[OW, UPDATE]), keys(3, &[RO, ACCESS]).with_range(-1, 1)])
        .complexity("O(N)")
        .summary("Combines strings bit by bit and stores the outcome.")
        .args(&[
            one_of(
                "operation",
                &[
                    token("and", "AND"),
                    token("or", "OR"),
                    token("xor", "XOR"),
                    token("not", "NOT"),
                ],
            ),
            key("destkey", 0),
            key("key", 1).multiple(),
        ]),
    command("bitpos", -3, Group::Bitmap, "2.8.7")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N)")
        .summary("Finds the first bit in a string that has the given value.")
        .history(&[("7.0.0", "Offsets may count bits: option `BYTE` or `BIT`.")])
        .args(&[
            key("key", 0),
            integer("bit"),
            block(
                "range",
                &[
                    integer("start"),
                    block(
                        "end-unit-block",
                        &[
                            integer("end"),
                            one_of("unit", &[token("byte", "BYTE"), token("bit", "BIT")])
                                .since("7.0.0")
                                .optional(),
                        ],
                    )
                    .optional(),
                ],
            )
            .optional(),
        ]),
    command("getbit", 3, Group::Bitmap, "2.2.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(1)")
        .summary("Reads one bit of a string.")
        .args(&[key("key", 0), integer("offset")]),
    command("setbit", 4, Group::Bitmap, "2.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, ACCESS, UPDATE])])
        .complexity("O(1)")
        .summary("Sets or clears one bit of a string, padding with zero bytes.")
        .args(&[key("key", 0), integer("offset"), integer("value")]),
];
