//! Vulnerabilities of stream commands.

use super::{Target, like_valkey};

/// Adds three entries, delivers them and deletes two of them.
const PREPARED: [super::Case<'static>; 6] = [
    (&["XADD", "x", "1-0", "f", "v"], "1-0"),
    (&["XADD", "x", "2-0", "f", "v"], "2-0"),
    (&["XADD", "x", "3-0", "f", "v"], "3-0"),
    (&["XGROUP", "CREATE", "x", "g", "0"], "OK"),
    (
        &["XREADGROUP", "GROUP", "g", "c", "STREAMS", "x", ">"],
        "((x ((1-0 (f v)) (2-0 (f v)) (3-0 (f v)))))",
    ),
    (&["XDEL", "x", "1-0", "2-0"], "2"),
];

/// Deleted entries count in the reply of XAUTOCLAIM, and take room in it.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2022_31144_xautoclaim_counts_deleted_entries() {
    let mut cases = PREPARED.to_vec();
    cases.push((&["XAUTOCLAIM", "x", "g", "d", "0", "0", "COUNT", "1"], "(2-0 () (1-0))"));
    cases.push((&["XAUTOCLAIM", "x", "g", "d", "0", "0", "COUNT", "1"], "(3-0 () (2-0))"));
    cases.push((&["XAUTOCLAIM", "x", "g", "d", "0", "0"], "(0-0 ((3-0 (f v))) ())"));
    cases.push((&["XPENDING", "x", "g"], "(1 3-0 3-0 ((d 1)))"));
    like_valkey(&[], &cases).serves();
    // All of very many pending entries are deleted.
    let fill = "for i = 1, 20000 do redis.call('xadd', 'y', i .. '-1', 'f', 'v') end \
                redis.call('xgroup', 'create', 'y', 'g', '0') redis.call('xreadgroup', 'group', 'g', 'c', 'streams', 'y', '>') \
                redis.call('xtrim', 'y', 'maxlen', '0') return redis.call('xpending', 'y', 'g')[1]";
    like_valkey(
        &[],
        &[
            (&["EVAL", fill, "1", "y"], "20000"),
            (
                &[
                    "EVAL",
                    "return #redis.call('xautoclaim', 'y', 'g', 'd', 0, 0, 'count', 20000)[3]",
                    "1",
                    "y",
                ],
                "20000",
            ),
            (&["XPENDING", "y", "g"], "(0 - - -)"),
        ],
    )
    .serves();
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2022_35951_counts_of_xautoclaim_do_not_overflow() {
    let (refused, memory) = (
        "ERR COUNT must be > 0",
        "ERR Insufficient memory, failed allocating transient memory, COUNT too high.",
    );
    let counts = [
        ("0", refused),
        ("-1", refused),
        ("9223372036854775807", refused),
        ("1152921504606846976", refused),
        ("576460752303423488", refused),
        ("576460752303423487", memory),
    ];
    let words: Vec<[&str; 8]> = counts
        .iter()
        .map(|(count, _)| ["XAUTOCLAIM", "x", "g", "d", "0", "0", "COUNT", count])
        .collect();
    let mut cases = PREPARED.to_vec();
    cases.extend(words.iter().zip(counts).map(|(words, (_, reply))| (&words[..], reply)));
    like_valkey(&[], &cases).serves_within(200 << 20);
}

/// XGROUP looks at the type of its key, in each of its subcommands.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2018_12453_xgroup_takes_only_streams() {
    let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
    like_valkey(
        &[],
        &[
            (&["HSET", "h", "a", "1"], "1"),
            (&["XGROUP", "CREATE", "h", "g", "$"], wrong),
            (&["XGROUP", "CREATE", "h", "g", "$", "MKSTREAM"], wrong),
            (&["XGROUP", "SETID", "h", "g", "0"], wrong),
            (&["XGROUP", "DESTROY", "h", "g"], wrong),
            (&["XGROUP", "DELCONSUMER", "h", "g", "c"], wrong),
            (&["XGROUP", "CREATECONSUMER", "h", "g", "c"], wrong),
            (&["XREADGROUP", "GROUP", "g", "c", "STREAMS", "h", ">"], wrong),
            (&["XSETID", "h", "1-1"], wrong),
        ],
    );
}

/// XADD frees what it has built when it fails.
#[test]
fn cve_2022_33105_xadd_that_fails_leaves_nothing() {
    let mut target = Target::start(&[]);
    let long = "x".repeat(100_000);
    let used = |target: &mut Target| -> u64 { target.witness.info("used_memory").parse().expect("a number") };
    target.answers(&[(
        &["XADD", "x", "18446744073709551615-18446744073709551615", "f", "v"],
        "18446744073709551615-18446744073709551615",
    )]);
    let before = used(&mut target);
    for _ in 0..500 {
        let exhausted = "ERR The stream has exhausted the last possible ID, unable to add more items";
        target.answers(&[
            (&["XADD", "x", "*", "f", &long], exhausted),
            (&["XADD", "x", "18446744073709551615-*", "f", &long], exhausted),
            (&["XADD", "none", "NOMKSTREAM", "*", "f", &long], "-"),
        ]);
    }
    let after = used(&mut target);
    assert!(after < before + (8 << 20), "{before} bytes became {after}");
}
