//! Every name is found in every case, nothing else is, and renaming moves names only.

use std::collections::HashMap;

use super::*;

const BINDINGS: &[(&str, u32)] = &[
    ("set", 1),
    ("get", 2),
    ("config|get", 3),
    ("config|set", 4),
    ("config|help", 5),
    ("command", 6),
    ("command|count", 7),
    ("georadiusbymember_ro", 8),
    ("ping", 9),
];

/// Every command that has metadata, bound to its full name.
fn full_registry() -> Registry<&'static str> {
    let mut bindings: Vec<(&'static str, &'static str)> = Vec::new();
    for spec in TABLES.iter().copied().flatten() {
        bindings.push((spec.name, spec.name));
        for sub in spec.subcommands {
            let full_name: &'static str = format!("{}|{}", spec.name, sub.name).leak();
            bindings.push((full_name, full_name));
        }
    }
    Registry::new(&bindings)
}

fn found<H: Copy>(lookup: Lookup<H>) -> Option<H> {
    match lookup {
        Lookup::Found(command) => command.handler,
        Lookup::UnknownCommand | Lookup::UnknownSubcommand { .. } => None,
    }
}

/// The name with the case of each letter chosen by chance.
fn any_case(name: &str, random: &mut fastrand::Rng) -> String {
    let flip = |letter: char| {
        if random.bool() {
            letter.to_ascii_uppercase()
        } else {
            letter
        }
    };
    name.chars().map(flip).collect()
}

#[test]
fn every_command_is_found_in_any_case() {
    let registry = full_registry();
    let mut random = fastrand::Rng::with_seed(7);
    for command in registry.commands() {
        for _ in 0..20 {
            let full_name = any_case(command.full_name, &mut random);
            let words: Vec<&str> = full_name.split('|').collect();
            assert_eq!(
                found(registry.lookup(words.as_slice())),
                Some(command.full_name),
                "{full_name}"
            );
            let by_name = registry
                .by_full_name(full_name.as_bytes())
                .map(|command| command.id);
            assert_eq!(by_name, Some(command.id), "{full_name}");
        }
    }
}

#[test]
fn names_that_differ_in_a_byte_are_not_confused() {
    let registry = full_registry();
    let model: HashMap<&[u8], u16> = registry
        .top_level()
        .map(|command| (command.full_name.as_bytes(), command.id))
        .collect();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20 {
        for name in model.keys() {
            let mut changed = name.to_vec();
            match random.u8(0..4) {
                0 => changed[random.usize(0..name.len())] = random.u8(..),
                1 => changed[random.usize(0..name.len())] ^= 0x20,
                2 => changed.insert(random.usize(0..=name.len()), random.u8(..)),
                _ => drop(changed.remove(random.usize(0..name.len()))),
            }
            let expected = model.get(changed.to_ascii_lowercase().as_slice()).copied();
            let actual = registry.command(&changed).map(|command| command.id);
            assert_eq!(actual, expected, "{}", changed.escape_ascii());
        }
    }
}

#[test]
fn lower_casing_eight_bytes_is_lower_casing_each() {
    for byte in 0..=u8::MAX {
        for neighbour in [0, b'A', b'z', 0x7f, 0x80, 0xff] {
            let mut bytes = [neighbour; 8];
            bytes[3] = byte;
            let expected = u64::from_le_bytes(bytes.map(|byte| byte.to_ascii_lowercase()));
            assert_eq!(
                lower_case(u64::from_le_bytes(bytes)),
                expected,
                "{byte:#x} beside {neighbour:#x}"
            );
        }
    }
}

#[test]
fn the_second_word_of_a_container_names_a_subcommand() {
    let registry = Registry::new(BINDINGS);
    let cases: &[(&[&str], &str)] = &[
        (&["get", "config"], "found 2"),
        (&["CONFIG", "GET", "x"], "found 3"),
        (&["config", "Help"], "found 5"),
        (&["config"], "found none"),
        (&["command"], "found 6"),
        (&["command", "count"], "found 7"),
        (&["command", "docs"], "unknown subcommand of command"),
        (&["config", "nosuch"], "unknown subcommand of config"),
        (&["config", ""], "unknown subcommand of config"),
        (&["config|get", "x"], "unknown command"),
        (&["mget", "x"], "unknown command"),
        (&[""], "unknown command"),
        (&[], "unknown command"),
    ];
    for (words, expected) in cases {
        let actual = match registry.lookup(*words) {
            Lookup::Found(Command {
                handler: Some(handler),
                ..
            }) => format!("found {handler}"),
            Lookup::Found(Command { handler: None, .. }) => "found none".to_owned(),
            Lookup::UnknownCommand => "unknown command".to_owned(),
            Lookup::UnknownSubcommand { parent } => {
                format!("unknown subcommand of {}", parent.full_name)
            }
        };
        assert_eq!(actual, *expected, "{words:?}");
    }
}

#[test]
fn ids_are_dense_and_lead_back_to_the_command() {
    let registry = full_registry();
    for (command, id) in registry.commands().iter().zip(0..) {
        assert_eq!(command.id, id);
        for subcommand in registry.subcommands(command) {
            let parent = subcommand.parent.expect("a subcommand has a parent");
            assert_eq!(parent.id, command.id);
            assert_eq!(
                subcommand.full_name,
                format!("{}|{}", command.spec.name, subcommand.spec.name)
            );
        }
    }
    let containers_and_subcommands: usize = registry
        .top_level()
        .map(|command| 1 + registry.subcommands(command).len())
        .sum();
    assert_eq!(containers_and_subcommands, registry.commands().len());
}

#[test]
fn a_renamed_command_answers_to_its_new_name_only() {
    let mut registry = Registry::new(BINDINGS);
    assert_eq!(
        registry.rename(b"Get", b"A-Name-Longer-Than-16-Bytes"),
        Ok(())
    );
    assert_eq!(registry.rename(b"config", b""), Ok(()));
    assert_eq!(found(registry.lookup(&["get", "k"][..])), None);
    assert_eq!(
        found(registry.lookup(&["a-name-longer-than-16-BYTES", "k"][..])),
        Some(2)
    );
    assert_eq!(
        found(registry.lookup(&["a-name-lOnger-thaN-16-bytez", "k"][..])),
        None
    );
    assert_eq!(
        found(registry.lookup(&["a-name-lXnger-than-16-bytes", "k"][..])),
        None,
        "the ends are equal"
    );
    assert!(matches!(
        registry.lookup(&["config", "get"][..]),
        Lookup::UnknownCommand
    ));
    assert!(registry.by_full_name(b"config|get").is_none());
    assert_eq!(
        registry
            .by_original_name(b"config|get")
            .and_then(|command| command.handler),
        Some(3)
    );
    assert_eq!(
        registry
            .by_original_name(b"get")
            .and_then(|command| command.handler),
        Some(2)
    );
    assert_eq!(registry.top_level_count(), 5);
}

#[test]
fn renaming_refuses_unknown_and_taken_names() {
    let mut registry = Registry::new(BINDINGS);
    assert_eq!(
        registry.rename(b"mget", b"x"),
        Err(RenameError::NoSuchCommand)
    );
    assert_eq!(
        registry.rename(b"config|get", b"x"),
        Err(RenameError::NoSuchCommand)
    );
    assert_eq!(registry.rename(b"get", b"SET"), Err(RenameError::NameTaken));
}

#[test]
fn two_commands_can_exchange_their_names() {
    let mut registry = Registry::new(BINDINGS);
    for (name, new_name) in [("get", "tmp"), ("set", "get"), ("tmp", "set")] {
        assert_eq!(
            registry.rename(name.as_bytes(), new_name.as_bytes()),
            Ok(())
        );
    }
    assert_eq!(found(registry.lookup(&["get", "k"][..])), Some(1));
    assert_eq!(found(registry.lookup(&["set", "k"][..])), Some(2));
}

#[test]
#[should_panic(expected = "has no metadata")]
fn a_handler_without_metadata_is_a_mistake() {
    Registry::new(&[("get", ()), ("no-such-command", ())]);
}

#[test]
#[should_panic(expected = "bound twice")]
fn a_command_has_one_handler() {
    Registry::new(&[("get", ()), ("get", ())]);
}

#[test]
#[should_panic(expected = "needs a handler")]
fn a_container_that_can_stand_alone_needs_a_handler() {
    Registry::new(&[("command|count", ())]);
}
