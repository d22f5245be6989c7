//! Tests of the command registry.

use std::sync::Arc;

use super::{AddCommandsError, Lookup, ModuleCategory, ModuleCommandBinding, Registry};
use crate::spec::{Categories, CommandSpec, Group, command};

/// A registry of two commands, one of which is a container.
fn built_in() -> Registry<u32> {
    Registry::new(&[("get", 1), ("config|get", 2), ("config|set", 3)])
}

fn spec_of(name: &'static str, module: &'static str) -> &'static CommandSpec {
    let mut spec = command(name, -2, Group::Module, "");
    spec.module = module;
    Box::leak(Box::new(spec))
}

fn binding(full_name: &'static str, module: &'static str, handler: u32) -> ModuleCommandBinding<u32> {
    let name = full_name.rsplit('|').next().unwrap_or(full_name);
    ModuleCommandBinding {
        spec: spec_of(name, module),
        full_name,
        handler,
        subcommands: Vec::new(),
    }
}

fn container(full_name: &'static str, subcommands: Vec<ModuleCommandBinding<u32>>) -> ModuleCommandBinding<u32> {
    ModuleCommandBinding {
        subcommands,
        ..binding(full_name, "m", 10)
    }
}

fn handler_of(registry: &Registry<u32>, words: &[&str]) -> Option<u32> {
    match registry.lookup(words) {
        Lookup::Found(command) => command.handler,
        _ => None,
    }
}

#[test]
fn commands_of_modules_are_found_by_their_names_in_any_case() {
    let subcommands = vec![binding("M.Box|Put", "m", 11), binding("M.Box|take", "m", 12)];
    let added = [binding("M.GET", "m", 9), container("M.Box", subcommands)];
    let registry = built_in().with_module_commands(&added).expect("the names are free");
    assert_eq!(handler_of(&registry, &["m.get"]), Some(9));
    assert_eq!(handler_of(&registry, &["m.box", "PUT"]), Some(11));
    assert_eq!(handler_of(&registry, &["M.BOX", "take", "x"]), Some(12));
    assert_eq!(handler_of(&registry, &["m.box", "drop"]), None);
    assert_eq!(handler_of(&registry, &["get"]), Some(1));
    let put = registry.find_by_original_name(b"m.box|put").expect("is a subcommand");
    assert_eq!(put.full_name, "M.Box|Put");
    let container = registry.command(b"m.box").expect("is a command");
    let names: Vec<&str> = registry
        .subcommands(container)
        .iter()
        .map(|command| command.full_name)
        .collect();
    assert_eq!(names, ["M.Box|Put", "M.Box|take"]);
    for (id, command) in registry.commands().iter().enumerate() {
        assert_eq!(usize::from(command.id), id);
    }
    assert_eq!(registry.module_commands("m").count(), 4);
    assert_eq!(registry.built_in_count(), built_in().commands().len());
}

#[test]
fn a_command_that_comes_back_gets_its_id_again_and_no_other_command_gets_it() {
    let with = built_in().with_module_commands(&[binding("m.a", "m", 1), binding("m.b", "m", 2)]);
    let with = with.expect("the names are free");
    let id = with.command(b"m.a").expect("is a command").id;
    let without = with.without_module_commands("m", 99);
    assert!(without.command(b"m.a").is_none() && without.find_by_original_name(b"m.a").is_none());
    let gone = without.commands()[usize::from(id)];
    assert_eq!((gone.full_name, gone.handler, gone.id), ("", Some(99), id));
    let other = without
        .with_module_commands(&[binding("n.a", "n", 3)])
        .expect("the name is free");
    assert_ne!(other.command(b"n.a").expect("is a command").id, id);
    let back = other
        .with_module_commands(&[binding("M.A", "m", 4)])
        .expect("the name is free");
    assert_eq!(back.command(b"m.a").expect("is a command").id, id);
    assert_eq!(back.top_level().filter(|command| command.spec.module == "n").count(), 1);
}

#[test]
fn names_that_are_taken_or_renamed_are_refused() {
    let mut renamed = built_in();
    renamed.rename(b"get", b"fetch").expect("the command exists");
    for name in ["get", "GET", "fetch", "config", ""] {
        let refused = renamed.with_module_commands(&[binding(name, "m", 1)]);
        assert_eq!(refused.err(), Some(AddCommandsError::NameTaken(name.to_owned())));
    }
    let twice = [binding("m.a", "m", 1), binding("M.A", "m", 2)];
    assert!(built_in().with_module_commands(&twice).is_err());
    let subcommands = vec![binding("m.b|x", "m", 1), binding("m.b|X", "m", 2)];
    assert!(
        built_in()
            .with_module_commands(&[container("m.b", subcommands)])
            .is_err()
    );
}

#[test]
fn registries_share_the_names_of_commands_that_are_not_of_modules() {
    let before = built_in();
    let with = before
        .with_module_commands(&[binding("m.a", "m", 1)])
        .expect("the name is free");
    let without = with.without_module_commands("m", 0);
    for after in [&with, &without] {
        assert!(
            Arc::ptr_eq(&before.index.slots, &after.index.slots)
                && Arc::ptr_eq(&before.index.names, &after.index.names)
        );
        assert!(Arc::ptr_eq(&before.original_index.slots, &after.original_index.slots));
    }
    assert_eq!(with.top_level().last().map(|command| command.full_name), Some("m.a"));
    assert_eq!(without.top_level().count(), before.top_level().count());
}

#[test]
fn modules_may_register_a_limited_number_of_different_commands() {
    let mut registry = built_in();
    for index in 0..Registry::<u32>::MAX_MODULE_COMMANDS {
        let name: &'static str = Box::leak(format!("m.{index}").into_boxed_str());
        let with = registry.with_module_commands(&[binding(name, "m", 1)]);
        registry = with.expect("the name is free").without_module_commands("m", 0);
    }
    let one_more = registry.with_module_commands(&[binding("m.one-more", "m", 1)]);
    assert_eq!(one_more.err(), Some(AddCommandsError::TooMany));
    assert!(registry.with_module_commands(&[binding("m.7", "m", 1)]).is_ok());
}

#[test]
fn categories_of_modules_have_names() {
    let category = Categories::of_module(0).expect("there are some");
    let added = ModuleCategory {
        category,
        name: "shapes",
        module: "m",
    };
    let registry = built_in().with_module_categories(&[added]);
    assert_eq!(registry.category(b"Shapes"), Some(category));
    assert_eq!(registry.category(b"read"), Some(Categories::READ));
    assert_eq!(registry.category(b"other"), None);
    assert_eq!(
        registry.category_names(Categories::READ.union(category)),
        ["read", "shapes"]
    );
    let again = registry
        .without_module_commands("m", 0)
        .with_module_categories(&[added]);
    assert_eq!(again.module_categories().len(), 1, "it stays, and is not added twice");
    let last = Categories::MAX_COUNT - Categories::BUILT_IN_COUNT - 1;
    assert!(Categories::of_module(last).is_some() && Categories::of_module(last + 1).is_none());
}
