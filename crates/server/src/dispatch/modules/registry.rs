//! What modules ask about commands, and register.

use std::sync::Arc;

use weft_command_table::keys::{KeyPosition, walk_keys};
use weft_command_table::registry::{Lookup, ModuleCategory};
use weft_command_table::spec::{Categories, KeyFlags};
use weft_modules::module::Module;
use weft_modules::session::registry::{KeysUnknown, RegistryHost};

use super::ModuleHost;
use crate::commands::{module_commands, registry};

impl RegistryHost for ModuleHost {
    fn is_command_name_taken(&self, name: &str) -> bool {
        let commands = registry();
        commands.command(name.as_bytes()).is_some() || commands.find_by_original_name(name.as_bytes()).is_some()
    }

    fn is_clustered(&self) -> bool {
        self.server.cluster.is_some()
    }

    fn acl_category(&self, name: &str) -> Option<Categories> {
        registry().category(name.as_bytes())
    }

    fn module_categories(&self) -> Vec<ModuleCategory> {
        registry().module_categories().to_vec()
    }

    fn keys_of_command(&self, words: &[&[u8]]) -> Result<Vec<(usize, KeyFlags)>, KeysUnknown> {
        let Lookup::Found(command) = registry().lookup(words) else {
            return Err(KeysUnknown::NoSuchCommand);
        };
        let spec = command.spec;
        if !spec.may_have_keys() {
            return Ok(Vec::new());
        }
        if !spec.accepts_arg_count(words.len()) {
            return Err(KeysUnknown::WrongArity);
        }
        let mut keys = Vec::new();
        walk_keys(spec, words, &mut |key: KeyPosition| keys.push((key.index, key.flags)));
        Ok(keys)
    }

    fn publish_commands(&self, module: &Arc<Module>) -> Result<(), String> {
        module_commands::publish(&self.server, module)
    }

    fn remove_commands(&self, module: &str) {
        module_commands::remove(&self.server, module);
    }
}
