//! Tests of commands that modules add and take away.

use std::sync::Arc;

use weft_base::DbIndex;
use weft_command_table::registry::ModuleCategory;
use weft_command_table::spec::{Categories, Group, command};
use weft_config::Config;

use super::{CommandCatalogue, CommandId};
use crate::{AccessRequest, Acl, ChannelUse, KeyAccess};

/// A catalogue with the command `m.get` of a module, which is in `@read` and in a category of its own.
fn catalogue_with_module() -> Arc<CommandCatalogue> {
    let category = Categories::of_module(0).expect("there are some");
    let mut spec = command("m.get", -1, Group::Module, "");
    spec.acl_categories = Categories::READ.union(category);
    let spec = Box::leak(Box::new(spec));
    let added = ModuleCategory {
        category,
        name: "shapes",
        module: "m",
    };
    Arc::new(CommandCatalogue::of_table([("M.Get", &*spec)], 8, &[added]))
}

/// Asks for one command without keys.
struct OnlyCommand(CommandId);

impl AccessRequest for OnlyCommand {
    fn command(&self) -> CommandId {
        self.0
    }
    fn is_always_allowed(&self) -> bool {
        false
    }
    fn first_arg(&self) -> Option<&[u8]> {
        None
    }
    fn all_databases(&self) -> Option<usize> {
        None
    }
    fn each_database(&self, _: &mut dyn FnMut(usize, DbIndex)) {}
    fn each_key(&self, _: &mut dyn FnMut(usize, KeyAccess, &[u8])) {}
    fn each_channel(&self, _: &mut dyn FnMut(usize, ChannelUse, &[u8])) {}
}

#[test]
fn rules_apply_to_commands_that_modules_add_later() {
    let acl = Acl::new(Arc::new(CommandCatalogue::of_table([], 8, &[])));
    let config = Config::defaults();
    acl.set_user(b"all", &["on", "+@all"], &config).expect("rules");
    acl.set_user(b"reader", &["on", "-@all", "+@read", "-get"], &config)
        .expect("rules");
    acl.set_user(b"writer", &["on", "-@all", "+@write", "(+@read)"], &config)
        .expect("rules");
    acl.set_user(b"none", &["on", "+@all", "-@read"], &config)
        .expect("rules");
    assert!(acl.set_user(b"none", &["+m.get"], &config).is_err());
    let before: Vec<_> = acl.describe_users();
    let id_of_get = acl.catalogue().find(b"get").expect("a command");

    acl.replace_catalogue(catalogue_with_module());
    let id = acl.catalogue().find(b"m.gEt").expect("a command");
    assert_eq!(acl.catalogue().find(b"get"), Some(id_of_get), "other ids stay");
    let may = |name: &[u8], id| {
        let account = acl.account(name).expect("a user");
        account.rules().check(&OnlyCommand(id)).is_ok()
    };
    assert!(may(b"all", id) && may(b"reader", id) && may(b"writer", id) && !may(b"none", id));
    assert!(!may(b"reader", id_of_get) && may(b"writer", id_of_get));
    assert_eq!(acl.describe_users(), before, "the rules are the same");

    acl.set_user(b"none", &["+@shapes", "-get"], &config).expect("rules");
    assert!(may(b"none", id));
    let account = acl.account(b"none").expect("a user");
    let named: Vec<Vec<u8>> = account
        .rules()
        .rules_about_commands()
        .map(|rule| rule.name.to_vec())
        .collect();
    assert_eq!(named, [b"get".to_vec()], "categories are no commands");
    acl.set_user(b"none", &["-m.get"], &config).expect("rules");
    let before: Vec<_> = acl.describe_users();
    acl.replace_catalogue(Arc::new(CommandCatalogue::of_table([], 8, &[])));
    assert_eq!(acl.describe_users(), before, "rules about what is gone stay");
    acl.replace_catalogue(catalogue_with_module());
    assert!(!may(b"none", id));
}
