//! Tests that each rule ignores what it should, and nothing else.

use super::{Rule, agree};
use crate::diff::reply::Reply;

fn reply(wire: &str) -> Reply {
    let wire = wire.replace('|', "\r\n") + "\r\n";
    let (reply, used) = Reply::parse(wire.as_bytes()).unwrap();
    assert_eq!(used, wire.len());
    reply
}

fn mask(name: &str) -> Rule {
    Rule::Mask(vec![name.to_string()])
}

#[test]
fn rules_overlook_what_they_name_and_nothing_else() {
    // (rule, left, right, `true` if they agree); '|' stands for a line break.
    let cases = [
        (Rule::Type, "$1|a", "$2|bc", true),
        (Rule::Type, "$1|a", "$-1", false),
        (Rule::Type, "*1|:1", "*2|:1|:2", true),
        (Rule::Type, ":1", "+1", false),
        (Rule::Shape, "*2|:1|+a", "*2|:2|+b", true),
        (Rule::Shape, "*2|:1|+a", "*1|:2", false),
        (Rule::Shape, "*1|:1", "*1|+1", false),
        (Rule::BothError, "-ERR a", "-ERR b", true),
        (Rule::BothError, "-ERR a", "+b", false),
        (Rule::BothError, "+a", "+b", false),
        (Rule::ErrorCode, "-ERR a", "-ERR b", true),
        (Rule::ErrorCode, "-ERR a", "-WRONGTYPE a", false),
        (Rule::ErrorCode, "+OK a", "+OK b", false),
        (Rule::Approx(5), ":10", ":15", true),
        (Rule::Approx(5), ":10", ":16", false),
        (Rule::Approx(5), "*2|$1|1|$1|a", "*2|$1|4|$1|a", true),
        (Rule::Approx(5), "*2|$1|1|$1|a", "*2|$1|4|$1|b", false),
        (Rule::Approx(5), ":1", "$1|1", false),
        (Rule::Unordered, "*2|:1|:2", "*2|:2|:1", true),
        (Rule::Unordered, "*3|:1|:2|:2", "*3|:2|:1|:1", false),
        (Rule::Unordered, "%2|+a|:1|+b|:2", "%2|+b|:2|+a|:1", true),
        (Rule::Unordered, "%2|+a|:1|+b|:2", "%2|+b|:1|+a|:2", false),
        (Rule::UnorderedTables, "*2|*2|:1|:2|*1|:3", "*2|*1|:3|*2|:1|:2", true),
        (Rule::UnorderedTables, "*2|*2|:1|:2|*1|:3", "*2|*1|:3|*2|:2|:1", false),
        (Rule::UnorderedTables, "*1|~2|:1|:2", "*1|~2|:2|:1", true),
        (Rule::Keys, "*4|+a|:1|+b|:2", "*4|+b|:9|+a|:8", true),
        (Rule::Keys, "*4|+a|:1|+b|:2", "*4|+a|:1|+c|:2", false),
        (Rule::Fields, "$7|a:1 x=2", "$7|a:2 y=3", true),
        (Rule::Fields, "$7|a=1 b=2", "$7|a=3 b=4", true),
        (Rule::Fields, "$7|a=1 b=2", "$7|a=3 c=4", false),
        (Rule::Fields, "$7|# Some1", "$7|# Some2", false),
        (Rule::Fields, "-ERR a:1", "-ERR a:2", false),
        (mask("a"), "$7|a=1 b=2", "$7|a=9 b=2", true),
        (mask("a"), "$7|a=1 b=2", "$7|a=1 b=9", false),
        (mask("a"), "=11|txt:a=1 b=2", "=11|txt:a=9 b=2", true),
        (mask("txt"), "=11|txt:a=1 b=2", "=11|txt:a=9 b=2", false),
        (Rule::Fields, "=11|txt:a=1 b:2", "=11|txt:a=9 b:2", true),
        (Rule::Fields, "=11|txt:a=1 b:2", "=11|mkd:a=1 b:2", false),
        (mask("a"), "%1|+a|:1", "%1|+a|:2", true),
        (mask("a"), "%1|+b|:1", "%1|+b|:2", false),
    ];
    for (rule, left, right, expected) in cases {
        let rules = [rule];
        let agreed = agree(&rules, &reply(left), &reply(right));
        assert_eq!(agreed, expected, "{rules:?}: {left} against {right}");
        let swapped = agree(&rules, &reply(right), &reply(left));
        assert_eq!(swapped, expected, "{rules:?}: {right} against {left}");
    }
}

#[test]
fn lines_in_any_order_but_all_of_them() {
    let rules = [Rule::UnorderedLines];
    let (left, right) = ("$5\r\na\nb\nc\r\n", "$5\r\nc\na\nb\r\n");
    let parsed = |wire: &str| Reply::parse(wire.as_bytes()).unwrap().0;
    assert!(agree(&rules, &parsed(left), &parsed(right)));
    assert!(!agree(&rules, &parsed(left), &parsed("$5\r\nc\na\na\r\n")));
}

#[test]
fn without_rules_only_equal_replies_agree() {
    assert!(agree(&[], &reply("*1|:1"), &reply("*1|:1")));
    assert!(!agree(&[], &reply("*1|:1"), &reply("*1|:2")));
    assert!(!agree(&[], &reply(":1"), &reply(":01")));
    assert!(!agree(&[], &reply("$-1"), &reply("*-1")));
}
