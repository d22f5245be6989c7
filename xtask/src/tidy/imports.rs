//! The import matrix: the allowed dependencies between crates, and the allowed imports between server modules.

use super::{Document, Finding, source};

/// The libraries below the server: for each, the crates of the workspace that it may depend on. Those at the top are
/// for any program; those at the bottom are parts of a server that need none of its shared state.
#[rustfmt::skip]
const LIBRARIES: &[(&str, &[&str])] = &[
    (LOWEST, &[]),
    ("base", &[]),
    ("resp", &[]),
    ("sync", &[]),
    ("table", &[]),
    ("values", &[]),
    ("reactor", &[]),
    ("lua", &[]),
    ("command-table", &["resp"]),
    ("config", &["base", "resp"]),
    ("acl", &["base", "command-table", "config", "resp"]),
    ("rdb", &["resp", "table", "values"]),
    ("cluster", &["base", "config"]),
    ("tls", &["base", "config", "reactor"]),
    ("scripting", &["lua", "resp"]),
    ("modules", &["acl", "base", "command-table", "rdb", "resp", "values"]),
];

/// The crate of what the operating system gives to a thread. Every other crate may depend on it.
const LOWEST: &str = "os";

/// Crates that join the libraries into programs, and may depend on all of them.
const PROGRAMS: &[&str] = &["server", "bench", "sim", "top"];

/// For each top-level module of the server: the sibling modules it may import. Lower layers come first. A module may
/// only name modules above it in this list, so no module calls upward.
///
/// - `blocking` and `watch` are below `keyspace`, because the slots contain the queues of waiting clients and the
///   watches.
/// - `net` is low. A client and its connection are state that handlers read and change (CLIENT, HELLO, SELECT), and
///   they do not depend on commands. Only the worker moves their bytes. The TLS layer of `net` also serves the threads
///   that connect to other servers, and `config_changes` installs new certificates in it.
/// - `state` is the state that all threads share, and the messages between them. It therefore names clients and
///   connections, which are sent in messages, and the keyspace.
/// - `pubsub` and `tracking` are below `keyspace`, because a command's record of effects carries their messages.
/// - `propagation` is the propagation log. It is below `keyspace`, because a command's record of effects holds a
///   thread's writer for it.
/// - `messages` delivers a command's messages to other clients: it connects `pubsub` and `tracking` with the mailboxes
///   of `state`.
/// - `config_changes` applies changed parameters to the running server; CONFIG SET calls it.
/// - `topology` applies changes of the cluster: view, role in replication, file, and the clients that must be notified.
/// - `cluster_node::bus` communicates with the other nodes of the cluster, on its own thread.
/// - `aof_files` opens, loads and rewrites the append-only file.
/// - `snapshot` writes all data as of one moment; `save`, logs and replication start one.
/// - `save` writes and loads RDB files; commands, signals and the start call it.
/// - `slot_migration` contains the jobs of slot migrations. `slot_migration::engine` is the thread that performs them;
///   it executes the streams of imports through the dispatcher.
/// - `replication` contains the common types of replication. `replica` is the thread that follows a primary; it
///   executes the replication stream through the dispatcher. `primary` is the thread that serves replicas from the
///   replication backlog, which `backlog_writer` fills from the propagation log. `role` determines the primary of this
///   server.
/// - `metrics_endpoint` serves the figures of all subsystems over HTTP, on its own thread.
/// - `check` contains the programs that check files; it uses nothing of a running server.
/// - `start` builds everything, and only `main` is above it.
/// - `fuzzing` exposes the parts that the fuzz targets use.
#[rustfmt::skip]
const SUBSYSTEMS: &[(&str, &[&str])] = &[
    ("observability", &[]),
    ("runtime::process", &["observability"]),
    ("runtime::shutdown", &["observability"]),
    ("clients_waiting::blocking", &[]),
    ("clients_waiting::watch", &[]),
    ("notify::pubsub", &[]),
    ("notify::tracking", &[]),
    ("notify::monitor", &["observability"]),
    ("notify::keyspace_event", &[]),
    ("propagation", &["observability"]),
    ("keyspace", &["observability", "clients_waiting::blocking", "clients_waiting::watch", "notify::pubsub",
        "notify::tracking", "notify::keyspace_event", "propagation"]),
    ("persistence::aof_files", &["observability", "propagation"]),
    ("persistence::rdb_file", &["observability", "propagation", "keyspace"]),
    ("persistence::snapshot_state", &["observability"]),
    ("check", &["persistence::aof_files", "persistence::rdb_file"]),
    ("replication", &["observability"]),
    ("slot_migration", &["observability", "persistence::rdb_file"]),
    ("net", &["observability", "clients_waiting::blocking", "clients_waiting::watch",
        "notify::pubsub", "notify::tracking", "keyspace"]),
    ("state", &["observability", "runtime::shutdown", "clients_waiting::blocking",
        "clients_waiting::watch", "notify::pubsub", "notify::tracking", "notify::monitor", "propagation",
        "keyspace", "persistence::aof_files", "persistence::rdb_file",
        "persistence::snapshot_state", "replication", "slot_migration", "net"]),
    ("notify::messages", &["observability", "notify::pubsub", "notify::tracking",
        "notify::keyspace_event", "keyspace", "net", "state"]),
    ("replication::backlog_writer", &["observability", "propagation", "keyspace", "replication",
        "state"]),
    ("persistence::snapshot", &["observability", "keyspace", "persistence::rdb_file",
        "persistence::snapshot_state", "state"]),
    ("persistence::save", &["observability", "runtime::shutdown", "propagation", "keyspace", "persistence::aof_files", "persistence::rdb_file", "persistence::snapshot_state", "replication", "state",
        "notify::messages", "replication::backlog_writer", "persistence::snapshot"]),
    ("persistence::aof", &["observability", "propagation", "keyspace", "persistence::aof_files",
        "persistence::rdb_file", "persistence::snapshot_state", "replication", "state", "notify::messages",
        "persistence::snapshot", "persistence::save"]),
    ("runtime::config_changes", &["observability", "runtime::process", "keyspace", "replication", "net",
        "state", "notify::messages", "persistence::aof"]),
    ("replication::role", &["observability", "replication", "state", "replication::backlog_writer",
        "runtime::config_changes"]),
    ("cluster_node::key_deletion", &["keyspace", "state", "notify::messages"]),
    ("cluster_node::topology", &["observability", "runtime::shutdown", "propagation", "keyspace",
        "replication", "state", "notify::messages", "replication::role", "cluster_node::key_deletion"]),
    ("runtime::background", &["observability", "state"]),
    ("runtime::defragmentation", &["observability", "keyspace", "state"]),
    ("runtime::tuning", &["observability", "state"]),
    ("runtime::reclaim", &["observability"]),
    ("commands", &["observability", "runtime::process", "runtime::shutdown", "clients_waiting::blocking", "notify::pubsub", "notify::tracking", "notify::keyspace_event", "propagation",
        "keyspace", "persistence::aof_files", "persistence::snapshot_state",
        "replication", "slot_migration", "net", "state", "notify::messages", "persistence::save", "persistence::aof",
        "runtime::config_changes", "replication::role", "cluster_node::topology"]),
    ("runtime::watchdog", &["observability", "state", "commands"]),
    ("metrics_endpoint", &["observability", "notify::pubsub", "persistence::aof_files", "persistence::snapshot_state",
        "replication", "slot_migration", "net", "state", "commands"]),
    ("dispatch", &["observability", "clients_waiting::blocking", "clients_waiting::watch",
        "notify::monitor", "notify::pubsub", "notify::keyspace_event", "propagation", "keyspace", "persistence::aof_files",
        "persistence::rdb_file", "replication", "slot_migration", "net", "state", "notify::messages", "commands"]),
    ("replication::replica", &["observability", "keyspace", "persistence::rdb_file",
        "persistence::snapshot_state", "replication", "net", "state", "notify::messages", "persistence::snapshot",
        "persistence::aof", "replication::role", "dispatch"]),
    ("replication::primary", &["observability", "keyspace", "persistence::aof_files",
        "persistence::rdb_file", "persistence::snapshot_state", "replication", "net", "state",
        "replication::backlog_writer", "persistence::snapshot", "persistence::save", "replication::role",
        "commands"]),
    ("slot_migration::engine", &["observability", "propagation", "keyspace", "persistence::rdb_file",
        "persistence::snapshot_state", "slot_migration", "net", "state", "persistence::snapshot", "commands", "dispatch",
        "cluster_node::topology", "cluster_node::key_deletion"]),
    ("runtime::worker", &["observability", "clients_waiting::blocking", "notify::pubsub",
        "notify::tracking", "keyspace", "persistence::aof_files", "replication", "net", "state",
        "notify::messages", "commands", "dispatch"]),
    ("cluster_node::bus", &["observability", "notify::pubsub", "keyspace", "net", "state",
        "notify::messages", "cluster_node::topology", "cluster_node::key_deletion"]),
    ("runtime::coordinator", &["observability", "runtime::process", "runtime::shutdown", "runtime::background", "keyspace",
        "replication", "net", "state", "persistence::save", "persistence::aof", "runtime::tuning",
        "runtime::reclaim", "runtime::defragmentation", "metrics_endpoint"]),
    ("start", &["observability", "runtime::process", "runtime::shutdown", "keyspace", "check", "replication", "net", "state", "notify::messages", "persistence::rdb_file", "persistence::save",
        "persistence::aof", "runtime::config_changes", "cluster_node::topology", "runtime::background", "commands",
        "runtime::watchdog", "dispatch", "replication::replica", "replication::primary", "slot_migration::engine", "runtime::worker",
        "cluster_node::bus", "metrics_endpoint", "runtime::coordinator"]),
    ("fuzzing", &["observability", "keyspace", "persistence::aof_files", "persistence::rdb_file", "state",
        "replication", "runtime::background", "commands", "dispatch", "replication::replica", "start"]),
    ("simulation", &["start", "keyspace", "dispatch"]),
];

/// Modules that start the program and therefore may import every module.
const ROOTS: &[&str] = &["main", "lib"];

/// Checks one file: a library's manifest, or a source file of the server.
pub fn check(document: &Document, findings: &mut Vec<Finding>) {
    if let Some(rest) = document.path.strip_prefix("crates/") {
        if let Some(name) = rest.strip_suffix("/Cargo.toml") {
            check_manifest(document, name, findings);
        } else if let Some(path) = rest.strip_prefix("server/src/") {
            check_server_source(document, path, findings);
        }
    }
}

fn check_manifest(document: &Document, name: &str, findings: &mut Vec<Finding>) {
    if PROGRAMS.contains(&name) {
        return;
    }
    let Some((_, allowed)) = LIBRARIES.iter().find(|(library, _)| *library == name) else {
        let message =
            format!("crate {name} has no place in the layers; add it to LIBRARIES in xtask/src/tidy/imports.rs");
        findings.push(document.finding(1, message));
        return;
    };
    let mut in_dependencies = false;
    for (index, line) in document.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        }
        let Some(dependency) = workspace_crate(line).filter(|_| in_dependencies || line.starts_with('[')) else {
            continue;
        };
        if dependency != LOWEST && !allowed.contains(&dependency) {
            let message = format!(
                "crate {name} may not depend on weft-{dependency}; it may depend on: [{}]. Connect the two in the server",
                allowed.join(", ")
            );
            findings.push(document.finding(index + 1, message));
        }
    }
}

/// Returns the name, without `weft-`, of the workspace's crate that a line of a manifest declares as a dependency:
/// `weft-x = …`, `"weft-x".workspace = …` or `[dependencies.weft-x]`.
fn workspace_crate(line: &str) -> Option<&str> {
    let declared = match line.split_once("dependencies.") {
        Some((_, declared)) => declared,
        None => line,
    };
    let name = declared.trim_start_matches(['"', '\'']).strip_prefix("weft-")?;
    let end = name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
    Some(&name[..end.unwrap_or(name.len())])
}

fn check_server_source(document: &Document, path: &str, findings: &mut Vec<Finding>) {
    let Some(module) = path.strip_suffix(".rs").map(module_path) else {
        return;
    };
    if ROOTS.contains(&module.as_str()) {
        return;
    }
    let Some((subsystem, allowed)) = subsystem_of(&module) else {
        if !is_folder(&module) {
            let message = format!(
                "server module '{module}' has no place in the layers; add it to SUBSYSTEMS in \
                 xtask/src/tidy/imports.rs and to docs/ARCHITECTURE.md"
            );
            findings.push(document.finding(1, message));
        }
        return;
    };
    // A test may import any module that it needs for its setup.
    if path.ends_with("tests.rs") || path.contains("/tests/") {
        return;
    }
    for (line, import) in crate_paths(&document.text) {
        let Some((import, _)) = subsystem_of(&import) else {
            continue;
        };
        if import != subsystem && !allowed.contains(&import) {
            let message = format!(
                "{subsystem} may not import {import}; it may import: {}. Pass the thing in from \
                 above, or move it down",
                allowed.join(", ")
            );
            findings.push(document.finding(line, message));
        }
    }
}

/// The module path of a source file: `commands/string/mod` is `commands::string`.
fn module_path(path: &str) -> String {
    path.strip_suffix("/mod").unwrap_or(path).replace('/', "::")
}

/// The subsystem with the longest path that `module` lies below.
fn subsystem_of(module: &str) -> Option<(&'static str, &'static [&'static str])> {
    let lies_below = |path: &str| {
        module
            .strip_prefix(path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    SUBSYSTEMS
        .iter()
        .filter(|(path, _)| lies_below(path))
        .max_by_key(|(path, _)| path.len())
        .map(|(path, allowed)| (*path, *allowed))
}

/// Returns `true` if subsystems lie below `module`, which is none itself.
fn is_folder(module: &str) -> bool {
    SUBSYSTEMS
        .iter()
        .any(|(path, _)| path.strip_prefix(module).is_some_and(|rest| rest.starts_with("::")))
}

/// Returns the names that follow `crate::` in code, with their lines; `crate::{a::b, c}` counts as two.
fn crate_paths(text: &str) -> Vec<(usize, String)> {
    let code = source::code_only(text);
    let mut paths = Vec::new();
    for (start, prefix) in code.match_indices("crate::") {
        let line = code[..start].matches('\n').count() + 1;
        let rest = &code[start + prefix.len()..];
        let path = path_at(rest);
        if let Some(group) = rest[path.len()..].strip_prefix('{') {
            let heads = first_names(group).into_iter();
            paths.extend(heads.map(|head| (line, format!("{path}{head}"))));
        } else {
            paths.push((line, path.to_string()));
        }
    }
    paths
}

/// The path at the start of `text`, with the `::` that a group or a `*` follows.
fn path_at(text: &str) -> &str {
    let is_path = |character: char| character.is_alphanumeric() || character == '_' || character == ':';
    &text[..text.find(|character| !is_path(character)).unwrap_or(text.len())]
}

/// Returns the first name of each entry of a `{…}` import group. `group` begins after its opening brace.
fn first_names(group: &str) -> Vec<String> {
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
                heads.push(path_at(&group[index..]).to_string());
                at_entry = false;
            }
            _ => {}
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    //! Tests of the table.

    use super::SUBSYSTEMS;

    #[test]
    fn every_module_imports_only_modules_listed_before_it() {
        for (index, (name, allowed)) in SUBSYSTEMS.iter().enumerate() {
            for import in *allowed {
                let before = SUBSYSTEMS[..index].iter().any(|(known, _)| known == import);
                assert!(before, "{name} imports {import}, which is not a lower layer");
            }
        }
    }
}
