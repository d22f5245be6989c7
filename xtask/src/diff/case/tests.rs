//! Tests of the case file parser.

use super::{Action, CaseArgument, CaseFile, parse};
use crate::diff::normalise::ComparisonRule;

fn file(text: &str) -> CaseFile {
    parse("a.case", text).unwrap()
}

/// Returns the commands of a file's sections, their words joined by `|`.
fn commands(text: &str) -> Vec<String> {
    let file = file(text);
    let steps = file.sections.iter().flat_map(|section| &section.steps);
    steps
        .filter_map(|step| match &step.action {
            Action::Command(arguments) => Some(arguments),
            _ => None,
        })
        .map(|arguments| {
            let words = arguments.iter().map(|argument| match argument {
                CaseArgument::Literal(word) => word.escape_ascii().to_string(),
                other => format!("{other:?}"),
            });
            words.collect::<Vec<_>>().join("|")
        })
        .collect()
}

#[test]
fn words_quotes_escapes_and_repetitions_are_parsed() {
    let text = "== a\n# remark\nSET \"a \\x00\\r\\n\\\"\" 'b\\n' \"\"\n  GET \"ab\"x3\n";
    assert_eq!(commands(text), ["SET|a \\x00\\r\\n\\\"|b\\\\n|", "GET|ababab"]);
}

#[test]
fn loops_expand_to_groups_and_nest() {
    let text = "== a\n@for k x [y z] []\n  @for v 1 \"]\"\n    SET $k $v\n  PING\nECHO e\n";
    let expected = [
        "SET|x|1",
        "SET|x|]",
        "PING",
        "SET|y|z|1",
        "SET|y|z|]",
        "PING",
        "SET|1",
        "SET|]",
        "PING",
        "ECHO|e",
    ];
    assert_eq!(commands(text), expected);
}

#[test]
fn variables_within_words_are_replaced_by_one_word() {
    let text = "== a\n@for a x \"y z\"\n  @for n 1\n    SET $a:$n-$n \"v $a$n\" '$a' \"$4\" b$\n";
    let expected = ["SET|x:1-1|v x1|$a|$4|b$", "SET|y z:1-1|v y z1|$a|$4|b$"];
    assert_eq!(commands(text), expected);
    let groups = parse("a.case", "== a\n@for a [x y]\n  GET k$a\n").unwrap_err();
    assert!(groups.contains("is not one literal word"), "{groups}");
    let reply = parse("a.case", "== a\n@let p\nDUMP k\nGET k$p\n").unwrap_err();
    assert!(reply.contains("is a reply"), "{reply}");
    let unknown = parse("a.case", "== a\nGET \"k $p\"\n").unwrap_err();
    assert!(unknown.contains("$p is not defined"), "{unknown}");
}

#[test]
fn times_and_bindings_are_parsed() {
    let text = "== a\n@let p\nDUMP k\nRESTORE k2 0 $p $$p\nEXPIREAT k $now+5\nPEXPIREAT k $nowms\n";
    let expected = [
        "DUMP|k",
        "RESTORE|k2|0|StoredReply(\"p\")|OtherStoredReply(\"p\")",
        "EXPIREAT|k|NowSeconds(5)",
        "PEXPIREAT|k|NowMs(0)",
    ];
    assert_eq!(commands(text), expected);
}

#[test]
fn directives_are_parsed() {
    let text = "@server --a b\n== a\n@protocol 3\n@approx 5\n@unordered\n@replies 2\nA\nB\n\
                @conn 2\n@close\n@sleep 7\n@second 9\n@config n v\n@write \"a\" b\n@drain\n@raw \"a\" b\n\
                @bytewise ab\n@scan SCAN CURSOR\n";
    let file = file(text);
    assert_eq!(file.server_arguments, ["--a", "b"]);
    let section = &file.sections[0];
    assert_eq!(section.protocols, [3]);
    assert_eq!(
        section.steps[0].rules,
        [ComparisonRule::Approx(5), ComparisonRule::Unordered]
    );
    assert_eq!((section.steps[0].replies, section.steps[0].line), (2, 7));
    assert!(section.steps[1].rules.is_empty());
    assert_eq!(section.steps[1].replies, 1);
    let bytes = |text: &str| text.as_bytes().to_vec();
    let rest: Vec<&Action> = section.steps[2..].iter().map(|step| &step.action).collect();
    let scan = ["SCAN", "CURSOR"].map(|word| CaseArgument::Literal(bytes(word)));
    let expected = [
        Action::SwitchConnection(2),
        Action::Close,
        Action::SleepMs(7),
        Action::AwaitSecond(9),
        Action::Config("n".to_string(), "v".to_string()),
        Action::Write(bytes("ab")),
        Action::Drain,
        Action::Raw(vec![bytes("a"), bytes("b")]),
        Action::Raw(vec![bytes("a"), bytes("b")]),
        Action::Scan(scan.to_vec()),
    ];
    assert_eq!(rest, expected.iter().collect::<Vec<_>>());
}

#[test]
fn errors_name_their_line() {
    let mistakes = [
        ("GET a\n", "a.case:1: outside a section"),
        ("== a\nGET \"a\n", "a.case:2: a quote"),
        ("== a\nGET \"\\q\"\n", "a.case:2: unknown escape"),
        ("== a\nGET $x\n", "a.case:2: $x is not defined"),
        ("== a\n@what\n", "a.case:2: unknown directive @what"),
        ("== a\n@approx x\nGET a\n", "a.case:2: 'x' is not a number"),
        (
            "== a\n@approx 2\nEXPIRETIME a\n",
            "a.case:3: an absolute time is compared exactly",
        ),
        (
            "== a\n@ignore\nhpexpiretime a\n",
            "a.case:3: an absolute time is compared exactly",
        ),
        ("== a\n@expiry m\nEXPIRETIME a\n", "a.case:2: write @expiry s"),
        ("== a\n@for x a\nGET a\n", "a.case:2: @for without"),
        ("== a\n@for x a\n  @for y [b\n    GET a\n", "a.case:3: brackets"),
        (
            "== a\n@ignore\n@sleep 5\n",
            "a.case:3: a directive for the next command",
        ),
        ("== a\n@ignore GET a\n", "a.case:2: @ignore must be on its own line"),
        ("== a\n== a\n", "a.case:2: duplicate section"),
        ("== a\n@server x\n", "a.case:2: @server must precede"),
    ];
    for (text, expected) in mistakes {
        let error = parse("a.case", text).unwrap_err();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}
