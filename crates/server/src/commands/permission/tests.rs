//! Tests of the permissions that commands need.

use weft_base::DbIndex;

use super::*;
use crate::commands::registry;

fn permission<'a>(words: &'a [&'a [u8]]) -> CommandPermission<'a, [&'a [u8]]> {
    let weft_command_table::registry::Lookup::Found(command) = registry().lookup(words) else {
        panic!("{words:?} is no command");
    };
    CommandPermission {
        command,
        args: words,
        db: DbIndex::new(7),
        databases: 16,
    }
}

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

#[test]
fn rules_accept_every_command_of_valkey() {
    let catalogue = command_catalogue();
    for name in [
        "get",
        "CONFIG|GET",
        "psync",
        "cluster|slots",
        "eval",
        "subscribe",
        "module|load",
    ] {
        assert!(catalogue.find(name.as_bytes()).is_some(), "{name}");
    }
    assert!(catalogue.find(b"config|nosuch").is_none());
    for command in registry().commands() {
        assert_eq!(catalogue.find(command.full_name.as_bytes()), Some(command.id));
    }
    let config = catalogue.entry(catalogue.find(b"config").unwrap_or_default());
    let subcommands: Vec<&str> = config
        .subcommands
        .iter()
        .map(|id| &*catalogue.entry(*id).full_name)
        .collect();
    assert!(subcommands.contains(&"config|get") && subcommands.iter().all(|name| name.starts_with("config|")));
}

#[test]
fn the_selected_database_and_those_named_by_arguments_are_checked() {
    let cases: [(&str, &[(usize, usize)]); 14] = [
        ("get a", &[(0, 7)]),
        ("ping", &[]),
        ("dbsize", &[(0, 7)]),
        ("object help", &[(0, 7)]),
        ("select 3", &[(1, 3)]),
        ("select 16", &[]),
        ("select 03", &[]),
        ("swapdb 1 2", &[(1, 1), (2, 2)]),
        ("swapdb 1 16", &[]),
        ("move a 3", &[(2, 3), (0, 7)]),
        ("move a x", &[(0, 7)]),
        ("copy a b", &[(0, 7)]),
        ("copy a b replace db 3 DB 4", &[(5, 3), (7, 4), (0, 7)]),
        ("copy a b db 3 nosuch", &[(0, 7)]),
    ];
    for (line, expected) in cases {
        let mut databases = Vec::new();
        permission(&words(line)).each_database(&mut |argument, database| databases.push((argument, database.get())));
        assert_eq!(databases, expected, "{line}");
    }
}

#[test]
fn flushing_migrating_slots_and_reports_about_keys_need_all_databases() {
    let lines = [
        "flushall",
        "cluster migrateslots slotsrange 0 1 node x",
        "cluster cancelslotmigrations",
        "weft hotkeys get",
        "weft bigkeys start",
    ];
    for line in lines {
        assert_eq!(permission(&words(line)).all_databases(), Some(16), "{line}");
    }
    for line in ["flushdb", "swapdb 1 2", "get a", "select 3"] {
        assert_eq!(permission(&words(line)).all_databases(), None, "{line}");
    }
}

#[test]
fn keys_are_checked_for_read_write_or_no_access() {
    let cases: [(&str, &[(usize, KeyAccess)]); 6] = [
        ("get a", &[(1, KeyAccess::READ)]),
        ("set a v", &[(1, KeyAccess::WRITE)]),
        ("set a v get", &[(1, KeyAccess::BOTH)]),
        ("exists a b", &[(1, KeyAccess::empty()), (2, KeyAccess::empty())]),
        ("copy a b", &[(1, KeyAccess::READ), (2, KeyAccess::WRITE)]),
        ("sort a store b", &[(1, KeyAccess::READ), (3, KeyAccess::WRITE)]),
    ];
    for (line, expected) in cases {
        let mut keys = Vec::new();
        permission(&words(line)).each_key(&mut |argument, access, _| keys.push((argument, access)));
        assert_eq!(keys, expected, "{line}");
    }
}
