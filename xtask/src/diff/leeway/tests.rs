//! Tests of the differences that each leeway allows and rejects.

use super::*;
use crate::diff::connection::Received;

fn answer(raw: &str) -> Answer {
    let (reply, used) = Reply::parse(raw.as_bytes()).expect("a reply");
    assert_eq!(used, raw.len());
    Answer::Reply(Received { raw: raw.into(), reply })
}

fn both(weft: &str, valkey: &str) -> Both<Answer> {
    Both {
        weft: answer(weft),
        valkey: answer(valkey),
    }
}

fn accepts(leeway: Leeway, line: &str, before: &str, weft: &str, valkey: &str) -> bool {
    let words = words(line);
    leeway.accepts(&Evidence {
        words: &words,
        before: Some(&both(before, before)),
        answers: &both(weft, valkey),
    })
}

const AB: &str = "*2\r\n$1\r\na\r\n$1\r\nb\r\n";
const BA: &str = "*2\r\n$1\r\nb\r\n$1\r\na\r\n";
const AA: &str = "*2\r\n$1\r\na\r\n$1\r\na\r\n";
const AC: &str = "*2\r\n$1\r\na\r\n$1\r\nc\r\n";
const A: &str = "*1\r\n$1\r\na\r\n";
const SMALL: &str = "$8\r\nlistpack\r\n";
const TABLE: &str = "$9\r\nhashtable\r\n";

#[test]
fn order_counts_unless_a_table_holds_the_elements() {
    assert!(accepts(Leeway::Elements, "SMEMBERS k", TABLE, AB, BA));
    assert!(!accepts(Leeway::Elements, "SMEMBERS k", SMALL, AB, BA));
    assert!(!accepts(Leeway::Elements, "SMEMBERS k", TABLE, AB, AC));
    assert!(!accepts(Leeway::Elements, "SMEMBERS k", TABLE, AB, A));
    assert!(accepts(Leeway::Elements.without_order(), "SMEMBERS k", SMALL, AB, BA));
}

#[test]
fn the_order_of_many_elements_does_not_count() {
    let many = |range: std::ops::Range<u32>| {
        let items: String = range.map(|number| format!(":{number}\r\n")).collect();
        format!("*{}\r\n{items}", items.matches(':').count())
    };
    let turned = many(1..101) + ":0\r\n";
    let turned = turned.replacen("*100", "*101", 1);
    assert!(accepts(Leeway::Elements, "HKEYS k", SMALL, &turned, &many(0..101)));
    assert!(!accepts(
        Leeway::Elements,
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
    assert!(accepts(Leeway::Pairs, "HGETALL k", TABLE, one, same));
    assert!(!accepts(Leeway::Pairs, "HGETALL k", TABLE, one, mixed));
    assert!(!accepts(Leeway::Pairs, "HGETALL k", SMALL, one, same));
}

#[test]
fn draws_come_from_the_whole_and_nothing_comes_twice() {
    let draw = Leeway::Drawn("SMEMBERS");
    assert!(accepts(draw, "SPOP k 2", AB, AB, BA));
    assert!(accepts(draw, "SRANDMEMBER k -2", AB, AA, BA));
    for weft in [AA, AC, A] {
        assert!(!accepts(draw, "SPOP k 2", AB, weft, AB), "{weft:?}");
    }
    let error = "-ERR syntax error\r\n";
    assert!(accepts(draw, "SPOP k x y", AB, error, error));
    assert!(!accepts(draw, "SPOP k x y", AB, "-ERR other\r\n", error));
    let fields = Leeway::Drawn("HGETALL");
    let whole = "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n1\r\n";
    assert!(accepts(fields, "HRANDFIELD k 2 WITHVALUES", whole, whole, whole));
    let twice = "*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\na\r\n$1\r\n1\r\n";
    assert!(!accepts(fields, "HRANDFIELD k 2 WITHVALUES", whole, twice, whole));
}

#[test]
fn pages_are_compared_as_far_as_they_are_defined() {
    let page = |items: &str| format!("*2\r\n$1\r\n0\r\n{items}");
    let (one, other) = (page(AB), page(BA));
    assert!(accepts(Leeway::Scan, "SSCAN k 0 COUNT 100000", TABLE, &one, &other));
    assert!(!accepts(Leeway::Scan, "SSCAN k 0 COUNT 100000", TABLE, &one, &page(AC)));
    assert!(!accepts(Leeway::Scan, "SSCAN k 0 COUNT 100000", SMALL, &one, &other));
    assert!(accepts(Leeway::Scan, "SSCAN k 0 COUNT 1", TABLE, &page(A), &other));
    assert!(!accepts(Leeway::Scan, "SSCAN k 0 COUNT 1", TABLE, ":0\r\n", &other));
}

#[test]
fn ranges_of_words_are_defined_for_one_score_only() {
    let equal = "*4\r\n$1\r\na\r\n$1\r\n0\r\n$1\r\nb\r\n$1\r\n0\r\n";
    let mixed = "*4\r\n$1\r\na\r\n$1\r\n0\r\n$1\r\nb\r\n$1\r\n1\r\n";
    assert!(!accepts(Leeway::Words, "ZLEXCOUNT k - +", equal, ":1\r\n", ":2\r\n"));
    assert!(accepts(Leeway::Words, "ZLEXCOUNT k - +", mixed, ":1\r\n", ":2\r\n"));
    assert!(!accepts(Leeway::Words, "ZRANGE k 0 1", mixed, ":1\r\n", ":2\r\n"));
    let after = |line: &str| Leeway::Words.after(&words(line));
    assert_eq!(after("ZREMRANGEBYLEX k - +"), Some(words("DEL k")));
    assert_eq!(after("ZRANGESTORE k j - + bylex"), Some(words("DEL k")));
    assert_eq!(after("ZRANGEBYLEX k - +"), None);
}

#[test]
fn times_may_be_apart_but_nothing_else() {
    let row = |idle: &str, count: &str| format!("*1\r\n*4\r\n$3\r\n1-1\r\n$1\r\nc\r\n:{idle}\r\n:{count}\r\n");
    let line = "XPENDING k g - + 10";
    assert!(accepts(Leeway::Idle, line, SMALL, &row("3", "1"), &row("90", "1")));
    assert!(!accepts(Leeway::Idle, line, SMALL, &row("3", "1"), &row("3", "2")));
    assert!(!accepts(Leeway::Idle, line, SMALL, &row("3", "1"), &row("90000", "1")));
    let info = |idle: &str, pending: &str| format!("*4\r\n$4\r\nidle\r\n:{idle}\r\n$7\r\npending\r\n:{pending}\r\n");
    let line = "XINFO CONSUMERS k g";
    assert!(accepts(
        Leeway::StreamTimes,
        line,
        SMALL,
        &info("5", "1"),
        &info("0", "1")
    ));
    assert!(!accepts(
        Leeway::StreamTimes,
        line,
        SMALL,
        &info("-1", "1"),
        &info("0", "1")
    ));
    assert!(!accepts(
        Leeway::StreamTimes,
        line,
        SMALL,
        &info("5", "1"),
        &info("0", "2")
    ));
    assert!(accepts(Leeway::Seconds, "TTL k", SMALL, ":99\r\n", ":100\r\n"));
    assert!(!accepts(Leeway::Seconds, "TTL k", SMALL, ":-1\r\n", ":0\r\n"));
    assert!(!accepts(Leeway::Clock, "PTTL k", SMALL, ":-1\r\n", ":-2\r\n"));
}

#[test]
fn equal_weights_leave_the_order_open_but_not_the_number() {
    let line = "SORT k BY w_* ALPHA GET h_*->f";
    let nil = "*2\r\n$-1\r\n$1\r\na\r\n";
    assert!(accepts(Leeway::Sort, line, SMALL, nil, AB));
    assert!(!accepts(Leeway::Sort, line, SMALL, A, AB));
    assert!(!accepts(Leeway::Sort, "SORT k BY w_* GET h_*->f", SMALL, nil, AB));
    assert!(!accepts(Leeway::Sort, "SORT k ALPHA", TABLE, BA, AB));
    assert!(accepts(Leeway::Sort, "SORT k BY nosort", TABLE, BA, AB));
    let (empty_first, empty_last) = ("*2\r\n$0\r\n\r\n$1\r\n\0\r\n", "*2\r\n$1\r\n\0\r\n$0\r\n\r\n");
    assert!(accepts(Leeway::Sort, "SORT k ALPHA", SMALL, empty_first, empty_last));
    assert!(!accepts(Leeway::Sort, "SORT k", SMALL, empty_first, empty_last));
}

#[test]
fn what_chance_changed_goes_afterwards() {
    let after = |leeway: Leeway, line: &str| leeway.after(&words(line));
    assert_eq!(after(Leeway::Drawn("SMEMBERS"), "spop k 2"), Some(words("DEL k")));
    assert_eq!(after(Leeway::Drawn("SMEMBERS"), "SRANDMEMBER k 2"), None);
    assert_eq!(after(Leeway::EntryId, "XADD k * f v"), Some(words("DEL k")));
    assert_eq!(after(Leeway::EntryId, "XADD k 1-* f v"), None);
    assert_eq!(after(Leeway::Sort, "SORT k BY w_* ALPHA STORE d"), Some(words("DEL d")));
    assert_eq!(after(Leeway::Sort, "SORT k BY w_* STORE d"), None);
}
