//! Tests that each rule ignores what it should, and nothing else.

use super::{ComparisonRule, replies_agree};
use crate::diff::reply::Reply;

fn reply(wire: &str) -> Reply {
    let wire = wire.replace('|', "\r\n") + "\r\n";
    let (reply, used) = Reply::parse(wire.as_bytes()).unwrap();
    assert_eq!(used, wire.len());
    reply
}

fn mask(name: &str) -> ComparisonRule {
    ComparisonRule::Mask(vec![name.to_string()])
}

#[test]
fn each_rule_ignores_its_difference_and_nothing_else() {
    // (rule, left, right, `true` if they agree); '|' stands for a line break.
    let cases = [
        (ComparisonRule::Type, "$1|a", "$2|bc", true),
        (ComparisonRule::Type, "$1|a", "$-1", false),
        (ComparisonRule::Type, "*1|:1", "*2|:1|:2", true),
        (ComparisonRule::Type, ":1", "+1", false),
        (ComparisonRule::Shape, "*2|:1|+a", "*2|:2|+b", true),
        (ComparisonRule::Shape, "*2|:1|+a", "*1|:2", false),
        (ComparisonRule::Shape, "*1|:1", "*1|+1", false),
        (ComparisonRule::BothError, "-ERR a", "-ERR b", true),
        (ComparisonRule::BothError, "-ERR a", "+b", false),
        (ComparisonRule::BothError, "+a", "+b", false),
        (ComparisonRule::ErrorCode, "-ERR a", "-ERR b", true),
        (ComparisonRule::ErrorCode, "-ERR a", "-WRONGTYPE a", false),
        (ComparisonRule::ErrorCode, "+OK a", "+OK b", false),
        (ComparisonRule::Approx(5), ":10", ":15", true),
        (ComparisonRule::Approx(5), ":10", ":16", false),
        (ComparisonRule::Approx(5), "*2|$1|1|$1|a", "*2|$1|4|$1|a", true),
        (ComparisonRule::Approx(5), "*2|$1|1|$1|a", "*2|$1|4|$1|b", false),
        (ComparisonRule::Approx(5), ":1", "$1|1", false),
        (ComparisonRule::Approx(2000), ":1500", ":1400", true),
        (ComparisonRule::Approx(2000), ":1500", ":2", false),
        (ComparisonRule::Approx(2000), ":100000", ":98000", true),
        (ComparisonRule::Approx(2000), ":-1", ":0", false),
        (
            ComparisonRule::NearExpiry(true),
            ":1800000000000",
            ":1800000004000",
            true,
        ),
        (
            ComparisonRule::NearExpiry(true),
            ":1800000000000",
            ":1800000006000",
            false,
        ),
        (
            ComparisonRule::NearExpiry(true),
            ":4000000000000",
            ":4000000000001",
            false,
        ),
        (
            ComparisonRule::NearExpiry(true),
            ":4000000000000",
            ":4000000000000",
            true,
        ),
        (ComparisonRule::NearExpiry(true), ":1800000000000", ":1800000000", false),
        (ComparisonRule::NearExpiry(false), ":1800000000", ":1800000001", true),
        (ComparisonRule::NearExpiry(false), ":1800000000", ":1800000006", false),
        (ComparisonRule::NearExpiry(false), ":4000000000", ":4000000001", false),
        (
            ComparisonRule::NearExpiry(false),
            "*1|:1800000000",
            "*1|:1800000001",
            true,
        ),
        (ComparisonRule::NearExpiry(false), ":-1", ":-2", false),
        (ComparisonRule::Unordered, "*2|:1|:2", "*2|:2|:1", true),
        (ComparisonRule::Unordered, "*3|:1|:2|:2", "*3|:2|:1|:1", false),
        (ComparisonRule::Unordered, "%2|+a|:1|+b|:2", "%2|+b|:2|+a|:1", true),
        (ComparisonRule::Unordered, "%2|+a|:1|+b|:2", "%2|+b|:1|+a|:2", false),
        (
            ComparisonRule::UnorderedTables,
            "*2|*2|:1|:2|*1|:3",
            "*2|*1|:3|*2|:1|:2",
            true,
        ),
        (
            ComparisonRule::UnorderedTables,
            "*2|*2|:1|:2|*1|:3",
            "*2|*1|:3|*2|:2|:1",
            false,
        ),
        (ComparisonRule::UnorderedTables, "*1|~2|:1|:2", "*1|~2|:2|:1", true),
        (ComparisonRule::Keys, "*4|+a|:1|+b|:2", "*4|+b|:9|+a|:8", true),
        (ComparisonRule::Keys, "*4|+a|:1|+b|:2", "*4|+a|:1|+c|:2", false),
        (ComparisonRule::Fields, "$7|a:1 x=2", "$7|a:2 y=3", true),
        (ComparisonRule::Fields, "$7|a=1 b=2", "$7|a=3 b=4", true),
        (ComparisonRule::Fields, "$7|a=1 b=2", "$7|a=3 c=4", false),
        (ComparisonRule::Fields, "$7|# Some1", "$7|# Some2", false),
        (ComparisonRule::Fields, "-ERR a:1", "-ERR a:2", false),
        (mask("a"), "$7|a=1 b=2", "$7|a=9 b=2", true),
        (mask("a"), "$7|a=1 b=2", "$7|a=1 b=9", false),
        (mask("a"), "=11|txt:a=1 b=2", "=11|txt:a=9 b=2", true),
        (mask("txt"), "=11|txt:a=1 b=2", "=11|txt:a=9 b=2", false),
        (ComparisonRule::Fields, "=11|txt:a=1 b:2", "=11|txt:a=9 b:2", true),
        (ComparisonRule::Fields, "=11|txt:a=1 b:2", "=11|mkd:a=1 b:2", false),
        (mask("a"), "%1|+a|:1", "%1|+a|:2", true),
        (mask("a"), "%1|+b|:1", "%1|+b|:2", false),
    ];
    for (rule, left, right, expected) in cases {
        let rules = [rule];
        let agreed = replies_agree(&rules, &reply(left), &reply(right));
        assert_eq!(agreed, expected, "{rules:?}: {left} against {right}");
        let swapped = replies_agree(&rules, &reply(right), &reply(left));
        assert_eq!(swapped, expected, "{rules:?}: {right} against {left}");
    }
}

#[test]
fn unordered_lines_must_all_be_present() {
    let rules = [ComparisonRule::UnorderedLines];
    let (left, right) = ("$5\r\na\nb\nc\r\n", "$5\r\nc\na\nb\r\n");
    let parsed = |wire: &str| Reply::parse(wire.as_bytes()).unwrap().0;
    assert!(replies_agree(&rules, &parsed(left), &parsed(right)));
    assert!(!replies_agree(&rules, &parsed(left), &parsed("$5\r\nc\na\na\r\n")));
}

#[test]
fn without_rules_only_equal_replies_agree() {
    assert!(replies_agree(&[], &reply("*1|:1"), &reply("*1|:1")));
    assert!(!replies_agree(&[], &reply("*1|:1"), &reply("*1|:2")));
    assert!(!replies_agree(&[], &reply(":1"), &reply(":01")));
    assert!(!replies_agree(&[], &reply("$-1"), &reply("*-1")));
}
