//! Tests that the metadata tables are well formed: they find typing mistakes in rows.

use std::collections::HashSet;

use super::super::tables::TABLES;
use super::*;
use crate::keys::MAX_KEY_SPECS;
use crate::spec::KeyShape;
use crate::spec::SpecialKeys;

/// Returns every row; a subcommand's row comes with its container.
fn rows() -> Vec<(Option<&'static CommandSpec>, &'static CommandSpec)> {
    let top = TABLES.iter().copied().flatten();
    top.flat_map(|spec| std::iter::once((None, spec)).chain(spec.subcommands.iter().map(move |sub| (Some(spec), sub))))
        .collect()
}

fn is_sorted_without_repetition(specs: &[CommandSpec]) -> bool {
    specs.is_sorted_by(|first, second| first.name < second.name)
}

#[test]
fn rows_are_sorted_and_no_name_occurs_twice() {
    let mut names = HashSet::new();
    let own = |spec: &CommandSpec| usize::from(spec.is_weft_only);
    let own_names: usize = TABLES.iter().copied().flatten().map(own).sum();
    let own_rows: usize = rows().into_iter().map(|(_, spec)| own(spec)).sum();
    for table in TABLES {
        assert!(is_sorted_without_repetition(table), "the table of {}", table[0].name);
        for spec in *table {
            assert!(names.insert(spec.name), "{} is in two tables", spec.name);
            assert!(
                is_sorted_without_repetition(spec.subcommands),
                "the subcommands of {}",
                spec.name
            );
        }
    }
    assert_eq!(names.len() - own_names, 257, "as many as Valkey 9.1 has");
    assert_eq!(rows().len() - own_rows, 399, "and with subcommands");
    assert_eq!((own_names, own_rows), (1, 4), "Weft's own commands");
}

#[test]
fn every_table_contains_one_group() {
    for table in TABLES {
        for spec in table
            .iter()
            .flat_map(|spec| std::iter::once(spec).chain(spec.subcommands))
        {
            assert_eq!(spec.group, table[0].group, "{}", spec.name);
        }
    }
}

#[test]
fn names_are_lower_case_words() {
    let is_name_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    for (_, spec) in rows() {
        assert!(
            !spec.name.is_empty() && spec.name.bytes().all(is_name_byte),
            "{}",
            spec.name
        );
    }
}

#[test]
fn arities_count_every_word_of_the_name() {
    for (container, spec) in rows() {
        let words = if container.is_some() { 2 } else { 1 };
        assert!(spec.arity.abs() >= words, "{}: arity {}", spec.name, spec.arity);
        assert!(spec.accepts_arg_count(spec.arity.unsigned_abs() as usize));
        assert!(!spec.accepts_arg_count(spec.arity.unsigned_abs() as usize - 1));
        assert_eq!(
            spec.accepts_arg_count(spec.arity.unsigned_abs() as usize + 1),
            spec.arity < 0
        );
    }
}

#[test]
fn containers_have_help_and_subcommands_are_not_nested() {
    for (container, spec) in rows() {
        if container.is_some() {
            assert!(spec.subcommands.is_empty(), "{} is nested too deeply", spec.name);
        } else if !spec.subcommands.is_empty() {
            assert!(
                spec.subcommands.iter().any(|sub| sub.name == "help"),
                "{} has no HELP",
                spec.name
            );
        }
    }
}

#[test]
fn documentation_is_complete_and_fits() {
    for (_, spec) in rows() {
        assert!(
            spec.summary.ends_with('.') && spec.summary.len() <= 80,
            "summary of {}",
            spec.name
        );
        assert!(is_version(spec.since), "version of {}", spec.name);
        assert!(
            spec.history
                .iter()
                .all(|(version, change)| is_version(version) && !change.is_empty()),
            "{}",
            spec.name
        );
        assert_eq!(
            spec.deprecated_since.is_empty(),
            spec.replaced_by.is_empty(),
            "{}",
            spec.name
        );
        check_args(spec, spec.args);
    }
}

fn is_version(text: &str) -> bool {
    text.split('.').count() == 3 && text.split('.').all(|part| part.parse::<u8>().is_ok())
}

fn check_args(spec: &CommandSpec, args: &[ArgSpec]) {
    let mut names = HashSet::new();
    for arg in args {
        assert!(
            names.insert(arg.name),
            "{}: argument {} occurs twice",
            spec.name,
            arg.name
        );
        assert_eq!(
            arg.kind.is_nested(),
            !arg.args.is_empty(),
            "{}: {}",
            spec.name,
            arg.name
        );
        assert!(
            arg.key_spec_index < spec.key_specs.len() as i32,
            "{}: {}",
            spec.name,
            arg.name
        );
        assert!(
            !arg.repeats_token || arg.is_multiple && !arg.token.is_empty(),
            "{}: {}",
            spec.name,
            arg.name
        );
        assert!(
            arg.since.is_empty() || is_version(arg.since),
            "{}: {}",
            spec.name,
            arg.name
        );
        check_args(spec, arg.args);
    }
}

#[test]
fn key_specs_point_into_the_arguments() {
    for (container, spec) in rows() {
        let first_possible = if container.is_some() { 2 } else { 1 };
        assert!(spec.key_specs.len() <= MAX_KEY_SPECS, "{}", spec.name);
        for key_spec in spec.key_specs {
            if let BeginSearch::Index(index) = key_spec.begin {
                // A range to the end may be empty, as in PFMERGE without sources.
                let may_be_empty = matches!(key_spec.find, FindKeys::Range { last: ..0, .. });
                let is_mandatory = index < spec.arity.abs() || may_be_empty && index == spec.arity.abs();
                assert!(index >= first_possible && is_mandatory, "{}: key at {index}", spec.name);
            }
            let step = match key_spec.find {
                FindKeys::Range { step, .. } | FindKeys::KeyNum { step, .. } => step,
                FindKeys::Unknown => 1,
            };
            assert!(step > 0, "{}", spec.name);
        }
    }
}

#[test]
fn a_key_has_one_way_of_access() {
    const WAYS: [KeyFlags; 4] = [KeyFlags::RO, KeyFlags::RW, KeyFlags::OW, KeyFlags::RM];
    for (_, spec) in rows() {
        for flags in spec.key_specs.iter().map(|key_spec| key_spec.flags) {
            let ways = WAYS.iter().filter(|way| flags.contains(**way)).count();
            assert_eq!(ways, usize::from(!flags.contains(KeyFlags::NOT_KEY)), "{}", spec.name);
            let changes = !flags.is_read_only() && !flags.contains(KeyFlags::NOT_KEY);
            assert!(
                !changes || !spec.flags.contains(CommandFlags::READONLY) || spec.name == "pfcount",
                "{} changes a key and calls itself read-only",
                spec.name
            );
        }
    }
}

#[test]
fn incomplete_specs_have_a_procedure() {
    for (_, spec) in rows() {
        let needs_procedure = spec.key_specs.iter().any(|key_spec| {
            key_spec.begin == BeginSearch::Unknown
                || key_spec.flags.contains(KeyFlags::INCOMPLETE)
                || key_spec.flags.contains(KeyFlags::VARIABLE_FLAGS)
        });
        assert!(
            !needs_procedure || spec.special_keys != SpecialKeys::None,
            "{}",
            spec.name
        );
    }
}

#[test]
fn writes_and_reads_exclude_each_other() {
    for (_, spec) in rows() {
        assert!(
            !spec.flags.contains(CommandFlags::WRITE.union(CommandFlags::READONLY)),
            "{}",
            spec.name
        );
        let categories = spec.acl_categories;
        assert_ne!(
            categories.contains(Categories::FAST),
            categories.contains(Categories::SLOW),
            "{}",
            spec.name
        );
    }
}

#[test]
fn common_commands_have_a_simple_key_shape() {
    let shape = |name: &str| {
        let row = TABLES.iter().copied().flatten().find(|spec| spec.name == name);
        row.expect("the command has a row").key_shape
    };
    for name in [
        "get", "set", "incr", "expire", "hset", "hgetall", "lpush", "zadd", "bitfield", "xadd",
    ] {
        assert!(
            matches!(shape(name), KeyShape::One { index: 1, .. }),
            "{name}: {:?}",
            shape(name)
        );
    }
    for name in ["mget", "mset", "del", "exists", "sinter", "blpop"] {
        assert!(
            matches!(shape(name), KeyShape::Range { first: 1, .. }),
            "{name}: {:?}",
            shape(name)
        );
    }
    assert_eq!(shape("ping"), KeyShape::None);
    assert_eq!(shape("zunionstore"), KeyShape::Complex);
}

#[test]
fn categories_are_found_by_name_in_any_case() {
    assert_eq!(Categories::parse(b"SortedSet"), Some(Categories::SORTEDSET));
    assert_eq!(Categories::parse(b"@string"), None);
    assert_eq!(Categories::parse(b""), None);
    for (category, name) in Categories::named() {
        assert_eq!(Categories::parse(name.as_bytes()), Some(category));
        assert_eq!(category.names().collect::<Vec<_>>(), [name]);
    }
}

#[test]
fn hidden_flags_are_not_printed() {
    let flags = CommandFlags::of(&[
        CommandFlags::PROTECTED,
        CommandFlags::WRITE,
        CommandFlags::ALL_DBS,
        CommandFlags::MAY_REPLICATE,
    ]);
    assert_eq!(flags.names().collect::<Vec<_>>(), ["write"]);
}

#[test]
fn the_example_row_is_that_of_the_instructions() {
    use super::flag::{FAST, LOADING, STALE};
    const ROW: CommandSpec = command("echo2", 2, Group::Connection, "9.1.0")
        .flags(&[LOADING, STALE, FAST])
        .complexity("O(1)")
        .summary("Returns the argument twice.")
        .args(&[string("message")]);
    assert_eq!(ROW.name, "echo2");

    let source = include_str!("tests.rs");
    let start = source.find("command(\"echo2\"").unwrap();
    let written = source[start..].split(';').next().unwrap();
    for line in written.lines() {
        let line = line.trim();
        assert!(include_str!("../../../../CONTRIBUTING.md").contains(line), "{line}");
    }
}
