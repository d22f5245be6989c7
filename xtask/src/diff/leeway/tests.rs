//! Tests of the differences that each leeway allows and rejects.

use super::*;
use crate::diff::connection::RawReply;

fn answer(raw: &str) -> ServerAnswer {
    let (reply, used) = Reply::parse(raw.as_bytes()).expect("a reply");
    assert_eq!(used, raw.len());
    ServerAnswer::Reply(RawReply { raw: raw.into(), reply })
}

fn both(weft: &str, valkey: &str) -> ServerPair<ServerAnswer> {
    ServerPair {
        weft: answer(weft),
        valkey: answer(valkey),
    }
}

fn accepts(leeway: AllowedDifference, line: &str, before: &str, weft: &str, valkey: &str) -> bool {
    let words = split_words(line);
    leeway.accepts(&ObservedAnswers {
        words: &words,
        before: Some(&both(before, before)),
        answers: &both(weft, valkey),
        exceptions: &Exceptions::parse(EXCEPTIONS).expect("is well formed"),
    })
}

const EXCEPTIONS: &str = "== generated order of more than 100 elements
reason: a test
== generated nodes of the index of a stream
reason: a test
";

const AB: &str = "*2\r\n$1\r\na\r\n$1\r\nb\r\n";
const BA: &str = "*2\r\n$1\r\nb\r\n$1\r\na\r\n";
const AA: &str = "*2\r\n$1\r\na\r\n$1\r\na\r\n";
const AC: &str = "*2\r\n$1\r\na\r\n$1\r\nc\r\n";
const A: &str = "*1\r\n$1\r\na\r\n";
const SMALL: &str = "$8\r\nlistpack\r\n";
const TABLE: &str = "$9\r\nhashtable\r\n";

#[test]
fn order_is_compared_unless_a_table_holds_the_elements() {
    assert!(accepts(AllowedDifference::Elements, "SMEMBERS k", TABLE, AB, BA));
    assert!(!accepts(AllowedDifference::Elements, "SMEMBERS k", SMALL, AB, BA));
    assert!(!accepts(AllowedDifference::Elements, "SMEMBERS k", TABLE, AB, AC));
    assert!(!accepts(AllowedDifference::Elements, "SMEMBERS k", TABLE, AB, A));
    assert!(accepts(
        AllowedDifference::Elements.without_order(),
        "SMEMBERS k",
        SMALL,
        AB,
        BA
    ));
}

#[test]
fn the_order_of_many_elements_is_not_compared() {
    let many = |range: std::ops::Range<u32>| {
        let items: String = range.map(|number| format!(":{number}\r\n")).collect();
        format!("*{}\r\n{items}", items.matches(':').count())
    };
    let turned = many(1..101) + ":0\r\n";
    let turned = turned.replacen("*100", "*101", 1);
    assert!(accepts(
        AllowedDifference::Elements,
        "HKEYS k",
        SMALL,
        &turned,
        &many(0..101)
    ));
    assert!(!accepts(
        AllowedDifference::Elements,
        "HKEYS k",
        SMALL,
        &many(1..102),
        &many(0..101)
    ));
}

#[test]
fn names_stay_with_their_values() {
    let one = "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n";
    let same = "*4\r\n$1\r\nb\r\n$1\r\n2\r\n$1\r\na\r\n$1\r\n1\r\n";
    let mixed = "*4\r\n$1\r\nb\r\n$1\r\n1\r\n$1\r\na\r\n$1\r\n2\r\n";
    assert!(accepts(AllowedDifference::Pairs, "HGETALL k", TABLE, one, same));
    assert!(!accepts(AllowedDifference::Pairs, "HGETALL k", TABLE, one, mixed));
    assert!(!accepts(AllowedDifference::Pairs, "HGETALL k", SMALL, one, same));
}

#[test]
fn draws_come_from_the_whole_value_without_repetition() {
    let draw = AllowedDifference::RandomDraw("SMEMBERS");
    assert!(accepts(draw, "SPOP k 2", AB, AB, BA));
    assert!(accepts(draw, "SRANDMEMBER k -2", AB, AA, BA));
    for weft in [AA, AC, A] {
        assert!(!accepts(draw, "SPOP k 2", AB, weft, AB), "{weft:?}");
    }
    let error = "-ERR syntax error\r\n";
    assert!(accepts(draw, "SPOP k x y", AB, error, error));
    assert!(!accepts(draw, "SPOP k x y", AB, "-ERR other\r\n", error));
    let fields = AllowedDifference::RandomDraw("HGETALL");
    let whole = "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n1\r\n";
    assert!(accepts(fields, "HRANDFIELD k 2 WITHVALUES", whole, whole, whole));
    let exchanged = "*4\r\n$1\r\na\r\n$1\r\n2\r\n$1\r\nb\r\n$1\r\n1\r\n";
    let whole_with_both = "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n";
    assert!(accepts(
        fields,
        "HRANDFIELD k 2 WITHVALUES",
        whole_with_both,
        whole_with_both,
        whole_with_both
    ));
    assert!(!accepts(
        fields,
        "HRANDFIELD k 2 WITHVALUES",
        whole_with_both,
        exchanged,
        whole_with_both
    ));
    let value_as_field = "*1\r\n$1\r\n1\r\n";
    assert!(accepts(fields, "HRANDFIELD k 1", whole_with_both, A, A));
    assert!(!accepts(fields, "HRANDFIELD k 1", whole_with_both, value_as_field, A));
    let twice = "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\na\r\n$1\r\n1\r\n";
    assert!(!accepts(fields, "HRANDFIELD k 2 WITHVALUES", whole, twice, whole));
}

#[test]
fn pages_are_compared_where_they_are_defined() {
    let page = |items: &str| format!("*2\r\n$1\r\n0\r\n{items}");
    let (one, other) = (page(AB), page(BA));
    assert!(accepts(
        AllowedDifference::Scan,
        "SSCAN k 0 COUNT 100000",
        TABLE,
        &one,
        &other
    ));
    assert!(!accepts(
        AllowedDifference::Scan,
        "SSCAN k 0 COUNT 100000",
        TABLE,
        &one,
        &page(AC)
    ));
    assert!(!accepts(
        AllowedDifference::Scan,
        "SSCAN k 0 COUNT 100000",
        SMALL,
        &one,
        &other
    ));
    assert!(accepts(
        AllowedDifference::Scan,
        "SSCAN k 0 COUNT 1",
        TABLE,
        &page(A),
        &other
    ));
    assert!(!accepts(
        AllowedDifference::Scan,
        "SSCAN k 0 COUNT 1",
        TABLE,
        ":0\r\n",
        &other
    ));
}

#[test]
fn lexicographic_ranges_are_defined_for_one_score_only() {
    let equal = "*4\r\n$1\r\na\r\n$1\r\n0\r\n$1\r\nb\r\n$1\r\n0\r\n";
    let mixed = "*4\r\n$1\r\na\r\n$1\r\n0\r\n$1\r\nb\r\n$1\r\n1\r\n";
    assert!(!accepts(
        AllowedDifference::LexicographicRange,
        "ZLEXCOUNT k - +",
        equal,
        ":1\r\n",
        ":2\r\n"
    ));
    assert!(accepts(
        AllowedDifference::LexicographicRange,
        "ZLEXCOUNT k - +",
        mixed,
        ":1\r\n",
        ":2\r\n"
    ));
    assert!(!accepts(
        AllowedDifference::LexicographicRange,
        "ZRANGE k 0 1",
        mixed,
        ":1\r\n",
        ":2\r\n"
    ));
    let after = |line: &str| AllowedDifference::LexicographicRange.command_after(&split_words(line));
    assert_eq!(after("ZREMRANGEBYLEX k - +"), Some(split_words("DEL k")));
    assert_eq!(after("ZRANGESTORE k j - + bylex"), Some(split_words("DEL k")));
    assert_eq!(after("ZRANGEBYLEX k - +"), None);
}

#[test]
fn only_times_may_differ() {
    let row = |idle: &str, count: &str| format!("*1\r\n*4\r\n$3\r\n1-1\r\n$1\r\nc\r\n:{idle}\r\n:{count}\r\n");
    let line = "XPENDING k g - + 10";
    assert!(accepts(
        AllowedDifference::IdleTime,
        line,
        SMALL,
        &row("3", "1"),
        &row("90", "1")
    ));
    assert!(!accepts(
        AllowedDifference::IdleTime,
        line,
        SMALL,
        &row("3", "1"),
        &row("3", "2")
    ));
    assert!(!accepts(
        AllowedDifference::IdleTime,
        line,
        SMALL,
        &row("3", "1"),
        &row("90000", "1")
    ));
    let info = |idle: &str, pending: &str| format!("*4\r\n$4\r\nidle\r\n:{idle}\r\n$7\r\npending\r\n:{pending}\r\n");
    let line = "XINFO CONSUMERS k g";
    assert!(accepts(
        AllowedDifference::StreamTimes,
        line,
        SMALL,
        &info("5", "1"),
        &info("0", "1")
    ));
    assert!(!accepts(
        AllowedDifference::StreamTimes,
        line,
        SMALL,
        &info("-1", "1"),
        &info("0", "1")
    ));
    assert!(!accepts(
        AllowedDifference::StreamTimes,
        line,
        SMALL,
        &info("5", "1"),
        &info("0", "2")
    ));
    assert!(accepts(
        AllowedDifference::Seconds,
        "TTL k",
        SMALL,
        ":99\r\n",
        ":100\r\n"
    ));
    assert!(!accepts(
        AllowedDifference::Seconds,
        "TTL k",
        SMALL,
        ":-1\r\n",
        ":0\r\n"
    ));
    assert!(!accepts(
        AllowedDifference::Milliseconds,
        "PTTL k",
        SMALL,
        ":-1\r\n",
        ":-2\r\n"
    ));
}

#[test]
fn equal_weights_leave_the_order_undefined_but_not_the_length() {
    let line = "SORT k BY w_* ALPHA GET h_*->f";
    let nil = "*2\r\n$-1\r\n$1\r\na\r\n";
    assert!(accepts(AllowedDifference::Sort, line, SMALL, nil, AB));
    assert!(!accepts(AllowedDifference::Sort, line, SMALL, A, AB));
    assert!(!accepts(
        AllowedDifference::Sort,
        "SORT k BY w_* GET h_*->f",
        SMALL,
        nil,
        AB
    ));
    assert!(!accepts(AllowedDifference::Sort, "SORT k ALPHA", TABLE, BA, AB));
    assert!(accepts(AllowedDifference::Sort, "SORT k BY nosort", TABLE, BA, AB));
    let (empty_first, empty_last) = ("*2\r\n$0\r\n\r\n$1\r\n\0\r\n", "*2\r\n$1\r\n\0\r\n$0\r\n\r\n");
    assert!(accepts(
        AllowedDifference::Sort,
        "SORT k ALPHA",
        SMALL,
        empty_first,
        empty_last
    ));
    assert!(!accepts(
        AllowedDifference::Sort,
        "SORT k",
        SMALL,
        empty_first,
        empty_last
    ));
}

#[test]
fn keys_that_random_commands_changed_are_deleted() {
    let after = |leeway: AllowedDifference, line: &str| leeway.command_after(&split_words(line));
    assert_eq!(
        after(AllowedDifference::RandomDraw("SMEMBERS"), "spop k 2"),
        Some(split_words("DEL k"))
    );
    assert_eq!(
        after(AllowedDifference::RandomDraw("SMEMBERS"), "SRANDMEMBER k 2"),
        None
    );
    assert_eq!(
        after(AllowedDifference::EntryId, "XADD k * f v"),
        Some(split_words("DEL k"))
    );
    assert_eq!(after(AllowedDifference::EntryId, "XADD k 1-* f v"), None);
    assert_eq!(
        after(AllowedDifference::Sort, "SORT k BY w_* ALPHA STORE d"),
        Some(split_words("DEL d"))
    );
    assert_eq!(after(AllowedDifference::Sort, "SORT k BY w_* STORE d"), None);
}
