//! Tests of the replies against those recorded from Valkey 9.1.2, and of the errors.

use weft_resp::Protocol;

use super::*;
use weft_command_table::spec::CommandSpec;
use weft_command_table::tables::TABLES;

/// A reply as a tree. Sets of names are sorted, because their order has no meaning.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Reply {
    Integer(i64),
    Simple(String),
    Bulk(String),
    Null,
    Error(String),
    Array(Vec<Reply>),
    Set(Vec<Reply>),
    Map(Vec<Reply>),
}

impl Reply {
    fn is_scalar(&self) -> bool {
        !matches!(self, Reply::Array(_) | Reply::Set(_) | Reply::Map(_))
    }
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let joined = |members: &[Reply]| members.iter().map(Reply::to_string).collect::<Vec<_>>().join(" ");
        match self {
            Reply::Integer(value) => write!(f, "{value}"),
            Reply::Simple(text) => write!(f, "+{text}"),
            Reply::Bulk(text) => write!(f, "{text:?}"),
            Reply::Null => write!(f, "_"),
            Reply::Error(text) => write!(f, "-{text}"),
            Reply::Array(members) => write!(f, "[{}]", joined(members)),
            Reply::Set(members) => write!(f, "<{}>", joined(members)),
            Reply::Map(members) => write!(f, "{{{}}}", joined(members)),
        }
    }
}

/// Parses the one RESP3 reply in `bytes`.
fn parsed(bytes: &[u8]) -> Reply {
    let mut rest = bytes;
    let reply = next_reply(&mut rest);
    assert_eq!(rest.escape_ascii().to_string(), "", "one reply and no more");
    reply
}

fn next_reply(rest: &mut &[u8]) -> Reply {
    let header = String::from_utf8(next_bytes(rest, None)).expect("a header is text");
    let (kind, value) = header.split_at(1);
    let len = || value.parse::<usize>().expect("a length");
    let mut members = |count: usize| -> Vec<Reply> { (0..count).map(|_| next_reply(rest)).collect() };
    match kind {
        "*" => Reply::Array(members(len())),
        "%" => Reply::Map(members(2 * len())),
        "~" => {
            let mut members = members(len());
            if members.iter().all(Reply::is_scalar) {
                members.sort();
            }
            Reply::Set(members)
        }
        "$" => Reply::Bulk(String::from_utf8(next_bytes(rest, Some(len()))).expect("replies here are text")),
        "+" => Reply::Simple(value.to_owned()),
        "-" => Reply::Error(value.to_owned()),
        ":" => Reply::Integer(value.parse().expect("an integer")),
        "_" => Reply::Null,
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
fn run(registry: &Registry<()>, words: &[&str]) -> Reply {
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
    parsed(&bytes)
}

/// Runs a line of a recording. `""` stands for an empty word.
fn run_line(registry: &Registry<()>, line: &str) -> Reply {
    let words: Vec<&str> = line
        .split(' ')
        .map(|word| if word == "\"\"" { "" } else { word })
        .collect();
    run(registry, &words)
}

/// Returns the lines of a recording, each a request and its reply.
fn recorded(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.lines()
        .map(|line| line.split_once(" => ").expect("a recorded line has a reply"))
}

/// Replaces the texts that are Weft's own, and sorts the parts that have no order.
fn normalized(reply: Reply) -> Reply {
    let prose = || Reply::Bulk("…".to_owned());
    let members = |members: Vec<Reply>| members.into_iter().map(normalized).collect();
    match reply {
        Reply::Array(rows) => Reply::Array(members(rows)),
        Reply::Set(rows) => Reply::Set(members(rows)),
        Reply::Map(mut fields) => {
            for pair in fields.chunks_exact_mut(2) {
                let [Reply::Bulk(name), value] = pair else {
                    continue;
                };
                match (name.as_str(), value) {
                    ("summary" | "complexity" | "notes", value @ Reply::Bulk(_)) => *value = prose(),
                    ("history", Reply::Set(changes)) => {
                        for change in changes {
                            let Reply::Array(change) = change else {
                                panic!("a change is an array")
                            };
                            change[1] = prose();
                        }
                    }
                    _ => {}
                }
            }
            Reply::Map(members(fields))
        }
        other => other,
    }
}

#[test]
fn replies_are_those_of_valkey_but_for_the_prose() {
    let registry = full_registry();
    for (line, expected) in recorded(include_str!("recorded.txt")) {
        assert_eq!(normalized(run_line(&registry, line)).to_string(), expected, "{line}");
    }
}

#[test]
fn keys_and_their_flags_are_those_that_valkey_finds() {
    let registry = full_registry();
    let mut count = 0;
    for (line, expected) in recorded(include_str!("recorded_keys.txt")) {
        let reply = run_line(&registry, &format!("command getkeysandflags {line}"));
        assert_eq!(reply.to_string(), expected, "{line}");
        count += 1;
    }
    assert!(count > 200, "the recording is complete");
}

#[test]
fn all_commands_are_listed_once_and_described_in_the_same_order() {
    let registry = full_registry();
    let Reply::Array(rows) = run(&registry, &["command"]) else {
        panic!("COMMAND replies with an array")
    };
    let Reply::Map(docs) = run(&registry, &["command", "docs"]) else {
        panic!("COMMAND DOCS replies with a map")
    };
    let Reply::Array(names) = run(&registry, &["command", "list"]) else {
        panic!("COMMAND LIST replies with an array")
    };
    let described: Vec<&Reply> = rows
        .iter()
        .map(|row| match row {
            Reply::Array(fields) => &fields[0],
            other => panic!("a row is an array, not {other}"),
        })
        .collect();
    let documented: Vec<&Reply> = docs.iter().step_by(2).collect();
    assert_eq!(described, documented);
    assert_eq!(names.len(), registry.commands().len());
    assert_eq!(run(&registry, &["command", "info"]), Reply::Array(rows.clone()));
    assert_eq!(run(&registry, &["command", "count"]), Reply::Integer(rows.len() as i64));
}

#[test]
fn clients_see_only_what_has_a_handler() {
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
    let Reply::Array(rows) = run_line(&registry, "command info put") else {
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
