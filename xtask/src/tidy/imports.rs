//! The import matrix: which crate may depend on which, and which server module may use which.

use super::{Document, Finding, source};

/// Libraries that know neither each other nor the server.
const LIBRARIES: &[&str] = &["resp", "sync", "table", "values", "reactor", "lua"];

/// For each top-level module of the server: the sibling modules it may import. Lower layers come
/// first, and a module may only name modules above it in this list; so nothing calls upward.
///
/// - `blocking` and `watch` are below `keyspace`, for queues of waiters and watches lie in the slots.
/// - `net` is low: a client and its connection are state, which handlers read and change (CLIENT,
///   HELLO, SELECT), and which know nothing of commands. The worker alone moves their bytes. Its layer of TLS also serves
///   the threads that talk to other servers, and `apply` gives it new certificates.
/// - `state` is what all threads share and the messages between them, so it names clients and
///   connections, which travel in messages, and the keyspace.
/// - `pubsub` and `tracking` are below `keyspace`, for a command's record of effects carries their messages.
/// - `journal` is the log of writes; it is below `keyspace`, for a command's record of effects holds a thread's end of it.
/// - `messages` is what others are told of a command: it joins both with the mailboxes of `state`.
/// - `script` is Lua and what is cached for it; it reaches keys and commands through its host, the dispatcher.
/// - `apply` is what a changed parameter does to the running server; CONFIG SET calls it.
/// - `topology` puts what the cluster has become into place: view, role in replication, file, clients that have to be told.
/// - `bus` talks to the other nodes of the cluster, on a thread of its own.
/// - `aof` opens, loads and rewrites the append-only file.
/// - `snapshot` writes all data at one moment, for whoever needs that; `saving`, logs and replication start one.
/// - `saving` writes and loads dumps; commands, signals and the start call it.
/// - `repl` is what is known about replication; `follow` is the thread that follows a primary, and runs its stream through
///   the dispatcher; `supply` is the one that serves replicas from the backlog, which `feed` fills from the log; `role` says
///   whom this server follows.
/// - `check` is the programs that check files; nothing of a running server.
/// - `start` builds everything, and only `main` is above it.
/// - `fuzzing` is what the fuzz targets reach of all this.
#[rustfmt::skip]
const SERVER_MODULES: &[(&str, &[&str])] = &[
    ("config",      &[]),
    ("observe",     &["config"]),
    ("process",     &["config", "observe"]),
    ("shutdown",    &["config", "observe"]),
    ("acl",         &["config", "observe"]),
    ("blocking",    &["acl"]),
    ("watch",       &[]),
    ("pubsub",      &["config", "observe", "acl"]),
    ("tracking",    &["config", "observe"]),
    ("journal",     &["observe"]),
    ("keyspace",    &["config", "observe", "blocking", "watch", "pubsub", "tracking", "journal"]),
    ("script",      &["observe"]),
    ("cluster",     &["config", "observe", "keyspace"]),
    ("persist",     &["config", "observe", "journal", "keyspace"]),
    ("check",       &["config", "persist"]),
    ("repl",        &["config", "observe", "acl", "keyspace", "persist"]),
    ("net",         &["config", "observe", "acl", "keyspace", "blocking", "watch", "pubsub", "tracking"]),
    ("state",       &["config", "observe", "shutdown", "acl", "keyspace", "watch", "blocking", "pubsub",
                      "tracking", "script", "cluster", "persist", "repl", "net", "journal"]),
    ("messages",    &["config", "observe", "keyspace", "pubsub", "tracking", "net", "state"]),
    ("feed",        &["config", "observe", "journal", "keyspace", "repl", "state"]),
    ("snapshot",    &["config", "observe", "keyspace", "persist", "state"]),
    ("saving",      &["config", "observe", "shutdown", "journal", "keyspace", "script", "persist", "repl", "state", "feed",
                      "snapshot"]),
    ("aof",         &["config", "observe", "journal", "keyspace", "persist", "repl", "state", "snapshot", "saving"]),
    ("apply",       &["config", "observe", "process", "keyspace", "repl", "net", "state", "messages", "aof"]),
    ("role",        &["config", "observe", "repl", "state", "apply", "feed"]),
    ("topology",    &["config", "observe", "shutdown", "journal", "cluster", "keyspace", "repl", "state", "messages", "role"]),
    ("background",  &["observe", "script", "state"]),
    ("tuning",      &["config", "observe", "state"]),
    ("reclaim",     &["observe"]),
    ("commands",    &["config", "observe", "process", "shutdown", "acl", "keyspace", "watch", "blocking", "pubsub",
                      "tracking", "cluster", "persist", "repl", "net", "state", "messages", "apply", "saving", "aof", "topology", "script",
                      "journal", "role"]),
    ("dispatch",    &["config", "observe", "acl", "keyspace", "watch", "blocking", "pubsub", "tracking",
                      "cluster", "persist", "repl", "net", "state", "messages", "script", "commands", "journal"]),
    ("follow",      &["config", "observe", "acl", "keyspace", "persist", "repl", "net", "state", "messages", "script",
                      "saving", "snapshot", "role", "dispatch"]),
    ("supply",      &["config", "observe", "journal", "keyspace", "persist", "repl", "net", "state", "snapshot", "saving",
                      "feed", "role", "commands"]),
    ("worker",      &["config", "observe", "acl", "keyspace", "watch", "blocking", "pubsub", "tracking",
                      "cluster", "persist", "repl", "net", "state", "messages", "script", "commands", "dispatch", "journal"]),
    ("bus",         &["config", "observe", "cluster", "keyspace", "pubsub", "repl", "net", "state", "messages", "topology"]),
    ("coordinator", &["config", "observe", "process", "shutdown", "reclaim", "acl", "keyspace", "watch",
                      "blocking", "pubsub", "tracking", "cluster", "persist", "repl", "net", "state", "saving",
                      "aof", "tuning"]),
    ("start",       &["config", "observe", "process", "shutdown", "acl", "keyspace", "watch", "blocking",
                      "pubsub", "tracking", "cluster", "persist", "repl", "net", "state", "messages", "apply",
                      "saving", "aof", "journal", "background", "tuning", "script", "commands", "dispatch", "follow", "supply",
                      "worker", "topology", "bus", "check", "coordinator"]),
    ("fuzzing",     &["config", "keyspace", "persist", "commands"]),
];

/// Modules that start everything and therefore may import everything.
const ROOTS: &[&str] = &["main", "lib"];

/// Checks one file: a library's manifest, or a source file of the server.
pub fn check(document: &Document, findings: &mut Vec<Finding>) {
    if let Some(rest) = document.path.strip_prefix("crates/") {
        if let Some(name) = rest.strip_suffix("/Cargo.toml") {
            manifest(document, name, findings);
        } else if let Some(path) = rest.strip_prefix("server/src/") {
            server_source(document, path, findings);
        }
    }
}

fn manifest(document: &Document, name: &str, findings: &mut Vec<Finding>) {
    if !LIBRARIES.contains(&name) {
        return;
    }
    let mut in_dependencies = false;
    for (index, line) in document.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        }
        let weft = line.trim_start_matches(|byte: char| !byte.is_ascii_alphabetic());
        let named = weft.starts_with("weft-") || line.contains("dependencies.weft-");
        if in_dependencies && named {
            let message = format!(
                "crate {name} is a library below the server and knows no other crate of ours; \
                 let the server join the two"
            );
            findings.push(document.finding(index + 1, message));
        }
    }
}

fn server_source(document: &Document, path: &str, findings: &mut Vec<Finding>) {
    let first = path.split('/').next().unwrap_or_default();
    let module = first.trim_end_matches(".rs");
    if ROOTS.contains(&module) || !path.ends_with(".rs") {
        return;
    }
    let Some((_, allowed)) = SERVER_MODULES.iter().find(|(name, _)| *name == module) else {
        let message = format!(
            "server module '{module}' has no place in the layers; add it to SERVER_MODULES in \
             xtask/src/tidy/imports.rs and to docs/ARCHITECTURE.md"
        );
        findings.push(document.finding(1, message));
        return;
    };
    // A test may reach for whatever sets its scene.
    if path.ends_with("tests.rs") {
        return;
    }
    for (line, import) in crate_paths(&document.text) {
        if import != module && is_module(&import) && !allowed.contains(&import.as_str()) {
            let message = format!(
                "{module} may not import {import}; it may import: {}. Pass the thing in from \
                 above, or move it down",
                allowed.join(", ")
            );
            findings.push(document.finding(line, message));
        }
    }
}

fn is_module(name: &str) -> bool {
    ROOTS.contains(&name) || SERVER_MODULES.iter().any(|(known, _)| *known == name)
}

/// The names that follow `crate::` in code, with their lines; `crate::{a::b, c}` counts as two.
fn crate_paths(text: &str) -> Vec<(usize, String)> {
    let code = source::code_only(text);
    let mut paths = Vec::new();
    for (start, prefix) in code.match_indices("crate::") {
        let line = code[..start].matches('\n').count() + 1;
        let rest = &code[start + prefix.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            paths.extend(group_heads(group).into_iter().map(|name| (line, name)));
        } else {
            paths.push((line, identifier(rest)));
        }
    }
    paths
}

/// The first name of each entry of a `{…}` import group whose opening brace is already gone.
fn group_heads(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut at_entry = true;
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_entry = true,
            _ if at_entry && !character.is_whitespace() => {
                heads.push(identifier(&group[index..]));
                at_entry = false;
            }
            _ => {}
        }
    }
    heads
}

fn identifier(text: &str) -> String {
    text.chars()
        .take_while(|character| character.is_alphanumeric() || *character == '_')
        .collect()
}

#[cfg(test)]
mod tests {
    //! Tests of the table itself.

    use super::SERVER_MODULES;

    #[test]
    fn every_module_imports_only_modules_listed_before_it() {
        for (index, (name, allowed)) in SERVER_MODULES.iter().enumerate() {
            for import in *allowed {
                let before = SERVER_MODULES[..index].iter().any(|(known, _)| known == import);
                assert!(before, "{name} imports {import}, which is not a lower layer");
            }
        }
    }
}
