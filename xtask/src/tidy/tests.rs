//! Tests that each rule reports its violation and nothing else, and that the repository itself is tidy.

use super::{Document, check, read_documents};

fn messages(files: &[(&str, &str)]) -> Vec<String> {
    let documents: Vec<Document> = files
        .iter()
        .map(|(path, text)| Document {
            path: (*path).to_string(),
            text: (*text).to_string(),
        })
        .collect();
    check(&documents).iter().map(ToString::to_string).collect()
}

#[test]
fn the_repository_is_tidy() {
    let documents = read_documents().unwrap();
    let findings = messages_of(&documents);
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

fn messages_of(documents: &[Document]) -> Vec<String> {
    check(documents).iter().map(ToString::to_string).collect()
}

/// (path, text, the start of the only finding)
const VIOLATIONS: &[(&str, &str, &str)] = &[
    ("xtask/src/a.rs", "fn a() {}\n", "xtask/src/a.rs:1: begin the file"),
    (
        "crates/resp/src/util.rs",
        "//! U.\n",
        "crates/resp/src/util.rs:1: 'util' does not describe a purpose",
    ),
    (
        "crates/resp/src/a.rs",
        "//! A.\nfn get_a() {}\n",
        "crates/resp/src/a.rs:2: drop the `get_`",
    ),
    (
        "crates/sync/src/a.rs",
        "//! A.\nfn a() {\n    std::thread::sleep(b);\n}\n",
        "crates/sync/src/a.rs:3: `std::thread::sleep` bypasses the scheduler",
    ),
    (
        "crates/resp/src/a.rs",
        "//! A.\n\nunsafe fn a() {}\n",
        "crates/resp/src/a.rs:3: no `unsafe` here",
    ),
    (
        "crates/table/src/a.rs",
        "//! A.\nfn a() {\n    unsafe { b() }\n}\n",
        "crates/table/src/a.rs:3: put a `// SAFETY:`",
    ),
    (
        "crates/table/src/a.rs",
        "//! A.\nunsafe impl Send for A {}\n",
        "crates/table/src/a.rs:2: put a `// SAFETY:`",
    ),
    (
        "crates/table/Cargo.toml",
        "[dependencies]\nweft-sync.workspace = true\n",
        "crates/table/Cargo.toml:2: crate table may not depend on weft-sync",
    ),
    (
        "crates/table/Cargo.toml",
        "[dev-dependencies.weft-sync]\n",
        "crates/table/Cargo.toml:1: crate table may not depend on weft-sync",
    ),
    (
        "crates/acl/Cargo.toml",
        "[dependencies]\nweft-config.workspace = true\nweft-server.workspace = true\n",
        "crates/acl/Cargo.toml:3: crate acl may not depend on weft-server",
    ),
    (
        "crates/novel/Cargo.toml",
        "[package]\n",
        "crates/novel/Cargo.toml:1: crate novel has no place",
    ),
    (
        "crates/server/src/keyspace/expiry.rs",
        "//! E.\nuse crate::commands::string;\n",
        "crates/server/src/keyspace/expiry.rs:2: keyspace may not import commands",
    ),
    (
        "crates/server/src/net.rs",
        "//! N.\nuse crate::{\n    config::Config,\n    dispatch::{A, B},\n};\n",
        "crates/server/src/net.rs:2: net may not import dispatch",
    ),
    (
        "crates/server/src/commands/string.rs",
        "//! S.\nfn a() { crate::runtime::worker::wake() }\n",
        "crates/server/src/commands/string.rs:2: commands may not import runtime::worker",
    ),
    (
        "crates/server/src/persistence/save/mod.rs",
        "//! S.\nuse crate::persistence::{aof_files::A, aof::B};\n",
        "crates/server/src/persistence/save/mod.rs:2: persistence::save may not import persistence::aof;",
    ),
    (
        "crates/server/src/novel.rs",
        "//! N.\n",
        "crates/server/src/novel.rs:1: server module 'novel'",
    ),
    (
        "README.md",
        "see [x](docs/none.md#part)\n",
        "README.md:1: link to 'docs/none.md'",
    ),
    ("docs/lonely.md", "# Lonely\n", "docs/lonely.md:1: link this file"),
];

#[test]
fn every_violation_is_reported_once_with_its_line() {
    for (path, text, expected) in VIOLATIONS {
        let found = messages(&[(path, text)]);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert!(found[0].starts_with(expected), "{found:?} is not {expected}");
    }
}

#[test]
fn markers_are_found_as_words_in_every_kind_of_file() {
    let markers = [
        "TO\u{44}O",
        "FIX\u{4d}E",
        "X\u{58}X",
        "HA\u{43}K",
        "to\u{64}o!",
        "db\u{67}!",
    ];
    for marker in markers {
        for path in ["docs/ARCHITECTURE.md", "tests/clients/python/a.py"] {
            let found = messages(&[(path, &format!("one\n# {marker}(x)\n"))]);
            assert_eq!(found.len(), 1, "{marker} in {path}: {found:?}");
            assert!(found[0].starts_with(&format!("{path}:2: leftover")), "{found:?}");
        }
        assert!(messages(&[("a.md", &format!("my{marker}\n"))]).is_empty());
        assert!(messages(&[("a.case", &format!("{marker}\n"))]).is_empty());
    }
    assert!(messages(&[("a.md", "SETEXXX key\nXXXX\n")]).is_empty());
}

#[test]
fn apparent_violations_pass() {
    let unsafe_words = r##"//! A module about unsafe { blocks }.
/* unsafe { /* nested */ unsafe } */
fn a<'a>(text: &'a str) -> char {
    let _ = ("unsafe { }", r#"unsafe " {"#, '"', '\'', b'"', "\" unsafe");
    'x'
}
"##;
    assert_eq!(
        messages(&[("crates/resp/src/a.rs", unsafe_words)]),
        Vec::<String>::new()
    );
    let safe = "//! A.\nfn a() {\n    // SAFETY: rule 1,\n    // in two lines.\n    \
                #[allow(x)]\n    let a =\n        unsafe { b() };\n}\n";
    assert_eq!(messages(&[("crates/table/src/a.rs", safe)]), Vec::<String>::new());
    let imports = "//! D.\nuse crate::commands::string;\nuse crate::dispatch::plan;\n";
    let path = "crates/server/src/dispatch/execute.rs";
    assert_eq!(messages(&[(path, imports)]), Vec::<String>::new());
    let linked = [
        (
            "README.md",
            "[a](docs/a.md) [w](https://example.org) [c](docs/) [s](#here)\n",
        ),
        ("docs/a.md", "[up](../README.md)\n```\n[x](nowhere)\n```\n"),
    ];
    assert_eq!(messages(&linked), Vec::<String>::new());
}

#[test]
fn tests_that_a_page_names_must_exist() {
    let files = [
        ("crates/resp/src/a.rs", "//! A.\n\n#[test]\nfn all_is_well() {}\n"),
        ("tests/diff/a.case", "== a title\nPING\n"),
    ];
    let of_page = |text: &str| messages(&[&files[..], &[("README.md", text)]].concat());
    let good = "| `src/a.rs::all_is_well` | `a.case::a title` |\n`a.rs` `a::b`\n";
    assert_eq!(of_page(good), Vec::<String>::new());
    for (span, file, test) in [
        ("a.rs::all_is", "a.rs", "all_is"),
        ("b.rs::all_is_well", "b.rs", "all_is_well"),
        ("rc/a.rs::all_is_well", "rc/a.rs", "all_is_well"),
        ("a.case::a", "a.case", "a"),
    ] {
        let expected = format!("README.md:1: no {file} has a test '{test}'; name one that exists");
        assert_eq!(of_page(&format!("`{span}`\n")), [expected]);
    }
}

#[test]
fn long_files_functions_and_comments_are_found() {
    let long_file = format!("//! A.\n{}", "const A: u8 = 1;\n".repeat(800));
    assert_eq!(
        messages(&[("crates/resp/src/a.rs", &long_file)]),
        ["crates/resp/src/a.rs:801: 801 lines; a file is one job and has at most 800"]
    );
    let function = |lines: usize| {
        format!(
            "//! A.\nimpl A {{\n    pub fn a() {{\n{}    }}\n}}\n",
            "        b();\n".repeat(lines - 2)
        )
    };
    assert_eq!(
        messages(&[("crates/resp/src/a.rs", &function(80))]),
        Vec::<String>::new()
    );
    assert_eq!(
        messages(&[("crates/resp/src/a.rs", &function(81))]),
        ["crates/resp/src/a.rs:3: a has 81 lines; a function is one thought of at most 80"]
    );
    assert_eq!(
        messages(&[("crates/resp/src/a/tests.rs", &function(81))]),
        Vec::<String>::new()
    );
    let comment = |columns: usize| format!("//! A.\n// {}\n", "é".repeat(columns - 3));
    assert_eq!(
        messages(&[("crates/resp/src/a.rs", &comment(120))]),
        Vec::<String>::new()
    );
    assert_eq!(
        messages(&[("crates/resp/src/a.rs", &comment(121))]),
        ["crates/resp/src/a.rs:2: wrap the comment at 120 columns"]
    );
}

#[test]
fn a_module_with_submodules_is_a_folder_with_mod_rs() {
    let module = ("crates/resp/src/a.rs", "//! A.\n");
    assert_eq!(
        messages(&[module, ("crates/resp/src/a/tests.rs", "//! T.\n")]),
        Vec::<String>::new()
    );
    assert_eq!(
        messages(&[module, ("crates/resp/src/a/b.rs", "//! B.\n")]),
        ["crates/resp/src/a.rs:1: a module with submodules is crates/resp/src/a/mod.rs"]
    );
}

#[test]
fn import_cycles_of_more_than_three_files_are_reported() {
    let ring = |files: usize, through: &str| {
        let sources: Vec<(String, String)> = (0..files)
            .map(|index| {
                let next = (index + 1) % files;
                let import = through.replace('#', &next.to_string());
                (format!("crates/resp/src/m{index}.rs"), format!("//! M.\n{import}\n"))
            })
            .collect();
        let borrowed: Vec<(&str, &str)> = sources.iter().map(|(path, text)| (&path[..], &text[..])).collect();
        messages(&borrowed)
    };
    for through in [
        "use crate::m#::A;",
        "use super::m#;",
        "use crate::{\n    m#::{A, B},\n};",
        "fn a() { crate::m#::a() }",
    ] {
        assert!(ring(3, through).is_empty(), "{through}");
        let found = ring(4, through);
        assert_eq!(found.len(), 1, "{through}: {found:?}");
        assert!(found[0].contains("4 files import each other"), "{found:?}");
    }
    assert!(ring(4, "// crate::m#::A").is_empty(), "a comment imports nothing");
    // A re-export leads to the file that defines the name.
    let hub = "//! L.\npub use m1::A;\nmod m0;\nmod m1;\n";
    let found = messages(&[
        ("crates/resp/src/lib.rs", hub),
        ("crates/resp/src/m0.rs", "//! M.\nuse crate::A;\n"),
        ("crates/resp/src/m1.rs", "//! M.\nuse crate::m2::B;\n"),
        ("crates/resp/src/m2.rs", "//! M.\nuse crate::m3::B;\n"),
        ("crates/resp/src/m3.rs", "//! M.\nuse crate::m0::B;\n"),
    ]);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_public_type_name_is_defined_at_most_twice() {
    let sources = [
        ("crates/resp/src/a.rs", "//! A.\npub struct Range;\n"),
        (
            "crates/resp/src/b.rs",
            "//! B.\npub(super) enum Range {}\nstruct Other;\n",
        ),
        (
            "crates/resp/src/c.rs",
            "//! C.\npub fn range() {}\n\npub(crate) type Range<T> = (T, T);\n",
        ),
        ("crates/resp/src/d.rs", "//! D.\nstruct Range;\n// pub struct Range;\n"),
    ];
    assert!(messages(&sources[..2]).is_empty());
    let found = messages(&sources);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("crates/resp/src/c.rs:4: a public type Range"),
        "{found:?}"
    );
}
