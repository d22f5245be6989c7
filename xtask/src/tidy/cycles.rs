//! The import graph within each crate: no cycle may contain more than [`MAX_CYCLE`] files.
//!
//! A file imports another one if it names a path into it, in a `use` or elsewhere. A path through a re-export counts as
//! an import of the file that defines the name, and a re-export itself does not count. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{Document, Finding, source};

/// The largest number of files that may import each other in a cycle.
const MAX_CYCLE: usize = 3;
/// The number of re-exports that are followed from one path.
const MAX_REEXPORTS: usize = 8;

/// A module by its path; the first segment is the crate's folder.
type ModulePath = Vec<String>;

/// The imports and re-exports of one module.
#[derive(Default)]
struct Module {
    /// Absolute paths that the module names.
    named: Vec<ModulePath>,
    /// Names that it re-exports, with their absolute paths.
    reexports: BTreeMap<String, ModulePath>,
}

/// Checks all crates among `documents`.
pub fn check(documents: &[Document], findings: &mut Vec<Finding>) {
    let sources: Vec<(ModulePath, &Document)> = documents
        .iter()
        .filter_map(|document| Some((module_path(&document.path)?, document)))
        .collect();
    let known: BTreeSet<ModulePath> = sources.iter().map(|(path, _)| path.clone()).collect();
    let modules: BTreeMap<ModulePath, Module> = sources
        .iter()
        .map(|(path, document)| (path.clone(), read_module(path, &document.text, &known)))
        .collect();
    let graph: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = modules
        .iter()
        .map(|(path, module)| {
            let targets = module.named.iter().filter_map(|named| target(&modules, named, 0));
            (path, targets.filter(|target| *target != path).collect())
        })
        .collect();
    for cycle in cycles(&graph) {
        if cycle.len() <= MAX_CYCLE {
            continue;
        }
        let names: Vec<String> = cycle.iter().map(|path| path.join("::")).collect();
        let Some((_, document)) = sources.iter().find(|(path, _)| path == cycle[0]) else {
            continue;
        };
        let message = format!(
            "{} files import each other in a cycle; at most {MAX_CYCLE} may. Move the types that they share into a file \
             below them: {}",
            names.len(),
            names.join(", ")
        );
        findings.push(document.finding(1, message));
    }
}

/// Returns the module of a source file: `crates/server/src/net/mod.rs` is `[server, net]`. Returns `None` for tests and
/// for files that are not sources of a crate.
fn module_path(path: &str) -> Option<ModulePath> {
    let (folder, rest) = path.strip_suffix(".rs")?.split_once("/src/")?;
    let name = folder
        .strip_prefix("crates/")
        .or((folder == "xtask").then_some(folder))?;
    let mut segments = vec![name.to_owned()];
    segments.extend(rest.split('/').map(str::to_owned));
    if segments.iter().any(|segment| segment == "tests" || segment == "bin") || rest == "main" && name != "xtask" {
        return None;
    }
    if matches!(segments.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        segments.pop();
    }
    Some(segments)
}

/// Reads what a module names, without the tests that it contains.
fn read_module(path: &[String], text: &str, known: &BTreeSet<ModulePath>) -> Module {
    let code = source::code_only(text);
    let code = code
        .find("#[cfg(test)]\nmod ")
        .map_or(&code[..], |tests| &code[..tests]);
    let mut module = Module::default();
    let mut rest = String::new();
    let mut last = 0;
    for (start, is_public, tree) in use_statements(code) {
        rest.push_str(&code[last..start]);
        last = start;
        for (segments, name) in leaves(tree) {
            let Some(absolute) = absolute(path, &segments, known) else {
                continue;
            };
            if is_public {
                module.reexports.insert(name, absolute);
            } else {
                module.named.push(absolute);
            }
        }
        last += code[last..].find(';').unwrap_or(0);
    }
    rest.push_str(&code[last..]);
    let in_code = inline_paths(&rest);
    module
        .named
        .extend(in_code.iter().filter_map(|segments| absolute(path, segments, known)));
    module
}

/// Returns each `use` statement: its start, `true` if it is a re-export, and its tree without the semicolon.
fn use_statements(code: &str) -> Vec<(usize, bool, &str)> {
    let mut statements = Vec::new();
    for (start, _) in code.match_indices("use ") {
        let line_start = code[..start].rfind('\n').map_or(0, |end| end + 1);
        let before = code[line_start..start].trim();
        if !(before.is_empty() || before.starts_with("pub")) {
            continue;
        }
        let tree = &code[start + "use ".len()..];
        let Some(end) = tree.find(';') else { continue };
        statements.push((start, !before.is_empty(), &tree[..end]));
    }
    statements
}

/// Returns the paths of a `use` tree, each with the name that it binds.
fn leaves(tree: &str) -> Vec<(ModulePath, String)> {
    let mut found = Vec::new();
    collect_leaves(tree.trim(), &[], &mut found);
    found
}

fn collect_leaves(tree: &str, prefix: &[String], found: &mut Vec<(ModulePath, String)>) {
    if let Some(brace) = tree.find('{') {
        let mut inner = prefix.to_vec();
        inner.extend(segments(&tree[..brace]));
        let group = tree[brace + 1..].trim_end();
        let group = group.strip_suffix('}').unwrap_or(group);
        for entry in split_at_depth_zero(group) {
            collect_leaves(entry.trim(), &inner, found);
        }
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim())),
        None => (tree, None),
    };
    let mut full = prefix.to_vec();
    full.extend(
        segments(path)
            .into_iter()
            .filter(|segment| segment != "self" || prefix.is_empty()),
    );
    if let Some(last) = full.last().cloned() {
        found.push((full, alias.map_or(last, str::to_owned)));
    }
}

fn segments(path: &str) -> ModulePath {
    path.split("::")
        .map(str::trim)
        .filter(|segment| !segment.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Splits at the commas that no brace encloses.
fn split_at_depth_zero(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (index, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Returns the paths outside `use` statements that begin with `crate` or `super`.
fn inline_paths(code: &str) -> Vec<ModulePath> {
    let mut paths = Vec::new();
    for word in ["crate::", "super::"] {
        for (start, _) in code.match_indices(word) {
            let is_inside = code[..start].ends_with(|letter: char| letter.is_alphanumeric() || "_:".contains(letter));
            if is_inside {
                continue;
            }
            let rest = &code[start..];
            let end = rest.find(|letter: char| !(letter.is_alphanumeric() || "_:".contains(letter)));
            paths.push(segments(&rest[..end.unwrap_or(rest.len())]));
        }
    }
    paths
}

/// Makes a path absolute; `None` if it leads into another crate.
fn absolute(module: &[String], path: &[String], known: &BTreeSet<ModulePath>) -> Option<ModulePath> {
    let first = path.first()?;
    let mut base = module.to_vec();
    let rest = match first.as_str() {
        "crate" => {
            base.truncate(1);
            &path[1..]
        }
        "self" => &path[1..],
        "super" => {
            let levels = path.iter().take_while(|segment| *segment == "super").count();
            base.truncate(module.len().saturating_sub(levels).max(1));
            &path[levels..]
        }
        _ => {
            let mut child = base.clone();
            child.push(first.clone());
            if !known.contains(&child) {
                return None;
            }
            path
        }
    };
    base.extend_from_slice(rest);
    Some(base)
}

/// Returns the module that defines the item at an absolute path.
fn target<'m>(modules: &'m BTreeMap<ModulePath, Module>, path: &[String], reexports: usize) -> Option<&'m ModulePath> {
    for length in (1..=path.len()).rev() {
        let Some((module, content)) = modules.get_key_value(&path[..length]) else {
            continue;
        };
        let reexported = path.get(length).and_then(|name| content.reexports.get(name));
        return match reexported {
            Some(at) if reexports < MAX_REEXPORTS => {
                let mut path_there = at.clone();
                path_there.extend_from_slice(&path[length + 1..]);
                target(modules, &path_there, reexports + 1)
            }
            _ => Some(module),
        };
    }
    None
}

/// Returns the sets of modules that reach each other, by Tarjan's algorithm ("Depth-first search and linear graph
/// algorithms", 1972).
fn cycles<'m>(graph: &BTreeMap<&'m ModulePath, BTreeSet<&'m ModulePath>>) -> Vec<Vec<&'m ModulePath>> {
    let mut search = Search {
        graph,
        visited: BTreeMap::new(),
        stack: Vec::new(),
        components: Vec::new(),
    };
    for module in graph.keys() {
        if !search.visited.contains_key(module) {
            search.visit(module);
        }
    }
    search.components
}

struct Search<'g, 'm> {
    graph: &'g BTreeMap<&'m ModulePath, BTreeSet<&'m ModulePath>>,
    /// The order of the visit, and the earliest module on the stack that is reachable; the latter is `None` once the
    /// module's component is complete.
    visited: BTreeMap<&'m ModulePath, (usize, Option<usize>)>,
    stack: Vec<&'m ModulePath>,
    components: Vec<Vec<&'m ModulePath>>,
}

impl<'m> Search<'_, 'm> {
    fn visit(&mut self, module: &'m ModulePath) -> usize {
        let order = self.visited.len();
        let mut lowest = order;
        self.visited.insert(module, (order, Some(order)));
        self.stack.push(module);
        for next in self.graph.get(module).into_iter().flatten() {
            match self.visited.get(next) {
                None => lowest = lowest.min(self.visit(next)),
                Some((there, Some(_))) => lowest = lowest.min(*there),
                Some((_, None)) => {}
            }
        }
        self.visited.insert(module, (order, Some(lowest)));
        if lowest == order {
            let start = self.stack.iter().rposition(|other| *other == module).unwrap_or(0);
            let mut component = self.stack.split_off(start);
            for member in &component {
                if let Some((_, lowest)) = self.visited.get_mut(member) {
                    *lowest = None;
                }
            }
            component.sort();
            self.components.push(component);
        }
        lowest
    }
}
