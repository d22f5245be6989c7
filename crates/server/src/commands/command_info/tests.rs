//! Replies compared with those recorded from Valkey 9.1.2, and the errors.

use super::super::spec::CommandSpec;
use super::super::tables::TABLES;
use super::*;

/// A reply as a tree. Sets of names are sorted, because their order means nothing.
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

/// Builds the tree and fails if a length was announced wrongly.
#[derive(Default)]
struct Tree {
    open: Vec<(Reply, usize)>,
    done: Vec<Reply>,
}

impl Tree {
    fn open(&mut self, reply: Reply, len: usize) {
        self.open.push((reply, len));
        self.close_full();
    }

    fn add(&mut self, reply: Reply) {
        match self.open.last_mut() {
            None => self.done.push(reply),
            Some((Reply::Array(members) | Reply::Set(members) | Reply::Map(members), _)) => members.push(reply),
            Some(_) => unreachable!("only aggregates are open"),
        }
        self.close_full();
    }

    fn close_full(&mut self) {
        while let Some((Reply::Array(members) | Reply::Set(members) | Reply::Map(members), len)) = self.open.last_mut()
        {
            if members.len() < *len {
                return;
            }
            let Some((mut reply, _)) = self.open.pop() else {
                return;
            };
            if let Reply::Set(members) = &mut reply
                && members.iter().all(Reply::is_scalar)
            {
                members.sort();
            }
            match self.open.last_mut() {
                None => self.done.push(reply),
                Some((Reply::Array(members) | Reply::Set(members) | Reply::Map(members), _)) => members.push(reply),
                Some(_) => unreachable!("only aggregates are open"),
            }
        }
    }

    fn into_reply(mut self) -> Reply {
        assert!(self.open.is_empty(), "unfinished: {:?}", self.open);
        assert_eq!(self.done.len(), 1, "one reply, not {:?}", self.done);
        self.done.remove(0)
    }
}

impl Sink for Tree {
    fn array(&mut self, len: usize) {
        self.open(Reply::Array(Vec::new()), len);
    }
    fn map(&mut self, len: usize) {
        self.open(Reply::Map(Vec::new()), 2 * len);
    }
    fn set(&mut self, len: usize) {
        self.open(Reply::Set(Vec::new()), len);
    }
    fn bulk(&mut self, bytes: &[u8]) {
        self.add(Reply::Bulk(
            String::from_utf8(bytes.to_vec()).expect("replies here are text"),
        ));
    }
    fn simple(&mut self, text: &str) {
        self.add(Reply::Simple(text.to_owned()));
    }
    fn integer(&mut self, value: i64) {
        self.add(Reply::Integer(value));
    }
    fn null(&mut self) {
        self.add(Reply::Null);
    }
    fn error(&mut self, text: &str) {
        self.add(Reply::Error(text.to_owned()));
    }
}

/// A registry with every command and subcommand that has metadata, as the recorded server has them.
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

/// Runs the words, of which the first two are a COMMAND subcommand.
fn run(registry: &Registry<()>, words: &[&str]) -> Reply {
    let mut out = Tree::default();
    let matches = |pattern: &[u8], name: &[u8]| match pattern.strip_suffix(b"*") {
        Some(prefix) => name.len() >= prefix.len() && name[..prefix.len()].eq_ignore_ascii_case(prefix),
        None => pattern.eq_ignore_ascii_case(name),
    };
    match words.get(1).copied() {
        None => all(registry, &mut out),
        Some("count") => count(registry, &mut out),
        Some("info") => info(registry, words, &mut out),
        Some("docs") => docs(registry, words, &mut out),
        Some("list") => list(registry, words, matches, &mut out),
        Some("getkeys") => keys(registry, words, &mut out),
        Some("getkeysandflags") => keys_and_flags(registry, words, &mut out),
        Some("help") => help(&mut out),
        Some(other) => panic!("no such subcommand: {other}"),
    }
    out.into_reply()
}

/// Runs a line of a recording. `""` stands for an empty word.
fn run_line(registry: &Registry<()>, line: &str) -> Reply {
    let words: Vec<&str> = line
        .split(' ')
        .map(|word| if word == "\"\"" { "" } else { word })
        .collect();
    run(registry, &words)
}

/// The lines of a recording: a request and the reply to it.
fn recorded(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.lines()
        .map(|line| line.split_once(" => ").expect("a recorded line has a reply"))
}

/// Blanks the texts that are our own, and sorts what has no order.
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
