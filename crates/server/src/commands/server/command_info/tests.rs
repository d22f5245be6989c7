//! Tests of the replies against those recorded from Valkey 9.1.2, and of the errors.

use weft_resp::Protocol;

use super::*;
use weft_command_table::spec::CommandSpec;
use weft_command_table::tables::TABLES;

/// A reply as a tree. Sets of names are sorted, because their order has no meaning.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ReplyTree {
    Integer(i64),
    Simple(String),
    Bulk(String),
    Null,
    Error(String),
    Array(Vec<ReplyTree>),
    Set(Vec<ReplyTree>),
    Map(Vec<ReplyTree>),
}

impl ReplyTree {
    fn is_scalar(&self) -> bool {
        !matches!(self, ReplyTree::Array(_) | ReplyTree::Set(_) | ReplyTree::Map(_))
    }
}

impl std::fmt::Display for ReplyTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let joined = |members: &[ReplyTree]| members.iter().map(ReplyTree::to_string).collect::<Vec<_>>().join(" ");
        match self {
            ReplyTree::Integer(value) => write!(f, "{value}"),
            ReplyTree::Simple(text) => write!(f, "+{text}"),
            ReplyTree::Bulk(text) => write!(f, "{text:?}"),
            ReplyTree::Null => write!(f, "_"),
            ReplyTree::Error(text) => write!(f, "-{text}"),
            ReplyTree::Array(members) => write!(f, "[{}]", joined(members)),
            ReplyTree::Set(members) => write!(f, "<{}>", joined(members)),
            ReplyTree::Map(members) => write!(f, "{{{}}}", joined(members)),
        }
    }
}

/// Parses the one RESP3 reply in `bytes`.
fn parse_reply(bytes: &[u8]) -> ReplyTree {
    let mut rest = bytes;
    let reply = next_reply(&mut rest);
    assert_eq!(rest.escape_ascii().to_string(), "", "one reply and no more");
    reply
}

fn next_reply(rest: &mut &[u8]) -> ReplyTree {
    let header = String::from_utf8(next_bytes(rest, None)).expect("a header is text");
    let (kind, value) = header.split_at(1);
    let len = || value.parse::<usize>().expect("a length");
    let mut members = |count: usize| -> Vec<ReplyTree> { (0..count).map(|_| next_reply(rest)).collect() };
    match kind {
        "*" => ReplyTree::Array(members(len())),
        "%" => ReplyTree::Map(members(2 * len())),
        "~" => {
            let mut members = members(len());
            if members.iter().all(ReplyTree::is_scalar) {
                members.sort();
            }
            ReplyTree::Set(members)
        }
        "$" => ReplyTree::Bulk(String::from_utf8(next_bytes(rest, Some(len()))).expect("replies here are text")),
        "+" => ReplyTree::Simple(value.to_owned()),
        "-" => ReplyTree::Error(value.to_owned()),
        ":" => ReplyTree::Integer(value.parse().expect("an integer")),
        "_" => ReplyTree::Null,
        other => panic!("no reply of these commands begins with {other}"),
    }
}

/// Takes `len` bytes, or as many as precede the end of the line, and the end of the line.
fn next_bytes(rest: &mut &[u8], len: Option<usize>) -> Vec<u8> {
    let line_end = || rest.windows(2).position(|pair| pair == b"\r\n").expect("a line ends");
    let len = len.unwrap_or_else(line_end);
    let (bytes, behind) = rest.split_at(len);
    *rest = behind
        .strip_prefix(b"\r\n")
        .expect("bytes are followed by the end of the line");
    bytes.to_vec()
}

/// Returns a registry with every command and subcommand that has metadata, like the recorded server.
fn full_registry() -> Registry<()> {
    let rows = TABLES.iter().copied().flatten();
    let with_subcommands = |spec: &'static CommandSpec| {
        let subcommands = spec
            .subcommands
            .iter()
            .map(move |sub| format!("{}|{}", spec.name, sub.name));
        std::iter::once(spec.name.to_owned()).chain(subcommands)
    };
    let names: Vec<(&'static str, ())> = rows
        .flat_map(with_subcommands)
        .map(|name| (&*name.leak(), ()))
        .collect();
    Registry::new(&names)
}

/// Runs a request whose first two words are a COMMAND subcommand.
fn run_subcommand(registry: &Registry<()>, words: &[&str]) -> ReplyTree {
    let mut bytes = Vec::new();
    let mut out = weft_resp::Reply::new(&mut bytes, Protocol::Resp3);
    match words.get(1).copied() {
        None => all(registry, &mut out),
        Some("count") => count(registry, &mut out),
        Some("info") => info(registry, words, &mut out),
        Some("docs") => docs(registry, words, &mut out),
        Some("list") => list(registry, words, &mut out),
        Some("getkeys") => keys(registry, words, &mut out),
        Some("getkeysandflags") => keys_and_flags(registry, words, &mut out),
        Some("help") => {
            out.array(HELP.len());
            HELP.iter().for_each(|line| out.simple(line));
        }
        Some(other) => panic!("no such subcommand: {other}"),
    }
    parse_reply(&bytes)
}

/// Runs a line of a recording. `""` stands for an empty word.
fn run_line(registry: &Registry<()>, line: &str) -> ReplyTree {
    let words: Vec<&str> = line
        .split(' ')
        .map(|word| if word == "\"\"" { "" } else { word })
        .collect();
    run_subcommand(registry, &words)
}

/// Returns the lines of a recording, each a request and its reply.
fn recorded_requests(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.lines()
        .map(|line| line.split_once(" => ").expect("a recorded line has a reply"))
}

/// Replaces the texts that are Weft's own, and sorts the parts that have no order.
fn normalize(reply: ReplyTree) -> ReplyTree {
    let prose = || ReplyTree::Bulk("…".to_owned());
    let members = |members: Vec<ReplyTree>| members.into_iter().map(normalize).collect();
    match reply {
        ReplyTree::Array(rows) => ReplyTree::Array(members(rows)),
        ReplyTree::Set(rows) => ReplyTree::Set(members(rows)),
        ReplyTree::Map(mut fields) => {
            for pair in fields.chunks_exact_mut(2) {
                let [ReplyTree::Bulk(name), value] = pair else {
                    continue;
                };
                match (name.as_str(), value) {
                    ("summary" | "complexity" | "notes", value @ ReplyTree::Bulk(_)) => *value = prose(),
                    ("history", ReplyTree::Set(changes)) => {
                        for change in changes {
                            let ReplyTree::Array(change) = change else {
                                panic!("a change is an array")
                            };
                            change[1] = prose();
                        }
                    }
                    _ => {}
                }
            }
            ReplyTree::Map(members(fields))
        }
        other => other,
    }
}

#[test]
fn replies_equal_those_of_valkey_except_for_the_documentation() {
    let registry = full_registry();
    for (line, expected) in recorded_requests(include_str!("recorded.txt")) {
        assert_eq!(normalize(run_line(&registry, line)).to_string(), expected, "{line}");
    }
}

#[test]
fn keys_and_their_flags_equal_those_of_valkey() {
    let registry = full_registry();
    let mut count = 0;
    for (line, expected) in recorded_requests(include_str!("recorded_keys.txt")) {
        let reply = run_line(&registry, &format!("command getkeysandflags {line}"));
        assert_eq!(reply.to_string(), expected, "{line}");
        count += 1;
    }
    assert!(count > 200, "the recording is complete");
}

#[test]
fn all_commands_are_listed_once_and_described_in_the_same_order() {
    let registry = full_registry();
    let ReplyTree::Array(rows) = run_subcommand(&registry, &["command"]) else {
        panic!("COMMAND replies with an array")
    };
    let ReplyTree::Map(docs) = run_subcommand(&registry, &["command", "docs"]) else {
        panic!("COMMAND DOCS replies with a map")
    };
    let ReplyTree::Array(names) = run_subcommand(&registry, &["command", "list"]) else {
        panic!("COMMAND LIST replies with an array")
    };
    let described: Vec<&ReplyTree> = rows
        .iter()
        .map(|row| match row {
            ReplyTree::Array(fields) => &fields[0],
            other => panic!("a row is an array, not {other}"),
        })
        .collect();
    let documented: Vec<&ReplyTree> = docs.iter().step_by(2).collect();
    assert_eq!(described, documented);
    let of_valkey = registry.commands().iter().filter(|command| !command.spec.is_weft_only);
    assert_eq!(names.len(), of_valkey.count());
    assert_eq!(
        run_subcommand(&registry, &["command", "info"]),
        ReplyTree::Array(rows.clone())
    );
    assert_eq!(
        run_subcommand(&registry, &["command", "count"]),
        ReplyTree::Integer(rows.len() as i64)
    );
}

#[test]
fn own_commands_are_shown_under_their_names_only() {
    let registry = full_registry();
    for line in [
        "command list",
        "command list filterby pattern weft*",
        "command list filterby aclcat admin",
    ] {
        assert!(!run_line(&registry, line).to_string().contains("weft"), "{line}");
    }
    let described = run_line(&registry, "command info weft weft|hotkeys").to_string();
    assert!(described.starts_with(r#"[["weft" -2 "#), "{described}");
    for part in [
        r#"["weft|hotkeys" -3 "#,
        r#"["weft|bigkeys" -3 "#,
        "+@admin +@dangerous +@slow",
    ] {
        assert!(described.contains(part), "{part} in {described}");
    }
    let documented = run_line(&registry, "command docs weft").to_string();
    assert!(documented.contains(r#""weft|bigkeys" {"summary""#), "{documented}");
    assert!(documented.contains(r#""token" "DURATION""#), "{documented}");
}

#[test]
fn only_commands_with_a_handler_are_listed() {
    let mut registry = Registry::new(&[("get", ()), ("config|get", ()), ("config|help", ()), ("set", ())]);
    assert_eq!(run_line(&registry, "command count").to_string(), "3");
    assert_eq!(
        run_line(&registry, "command list").to_string(),
        r#"["config" "config|get" "config|help" "get" "set"]"#
    );
    assert_eq!(run_line(&registry, "command info mget config|set").to_string(), "[_ _]");

    registry.rename(b"get", b"").expect("GET exists");
    registry.rename(b"set", b"put").expect("SET exists");
    assert_eq!(run_line(&registry, "command info get set").to_string(), "[_ _]");
    let ReplyTree::Array(rows) = run_line(&registry, "command info put") else {
        panic!("COMMAND INFO is an array")
    };
    assert!(
        rows[0].to_string().starts_with(r#"["set" -3 "#),
        "a renamed command keeps calling itself SET"
    );
    assert_eq!(
        run_line(&registry, "command list").to_string(),
        r#"["config" "config|get" "config|help" "set"]"#
    );
}
