//! What modules ask about commands, and register.

use std::sync::Arc;

use weft_command_table::keys::{KeyPosition, walk_keys};
use weft_command_table::registry::{Lookup, ModuleCategory};
use weft_command_table::spec::{Categories, KeyFlags, LegacyRange, SpecialKeys};
use weft_modules::module::Module;
use weft_modules::session::registry::{KeysUnknown, RegistryHost};

use super::ModuleHost;
use crate::commands::{module_commands, registry};

/// Returns `true` if Valkey's function for these keys tells modules how they are used. For other commands it tells only
/// the positions.
fn knows_flags(special: SpecialKeys) -> bool {
    !matches!(
        special,
        SpecialKeys::None | SpecialKeys::Counted(_) | SpecialKeys::CountedAndStored
    )
}

/// Adds the keys in a range, without their use. There are none if the range does not fit the number of words.
fn legacy_keys(range: LegacyRange, count: usize, keys: &mut Vec<(usize, KeyFlags)>) {
    let count = count as i64;
    let (first, last, step) = (i64::from(range.first), i64::from(range.last), i64::from(range.step));
    let last = if last < 0 { count + last } else { last };
    if first < 1 || last >= count {
        return;
    }
    let positions = (first..=last).step_by(step.max(1) as usize);
    keys.extend(positions.map(|index| (index as usize, KeyFlags::empty())));
}

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
        if matches!(spec.special_keys, SpecialKeys::None) && !spec.module.is_empty() {
            legacy_keys(spec.legacy_range, words.len(), &mut keys);
            return Ok(keys);
        }
        let flags_are_known = knows_flags(spec.special_keys);
        walk_keys(spec, words, &mut |key: KeyPosition| {
            let flags = if flags_are_known { key.flags } else { KeyFlags::empty() };
            keys.push((key.index, flags));
        });
        // Valkey finds the keys for modules by other means than those of COMMAND GETKEYS, in this order.
        if matches!(spec.special_keys, SpecialKeys::CountedAndStored) && !keys.is_empty() {
            keys.rotate_left(1);
        }
        Ok(keys)
    }

    fn publish_commands(&self, module: &Arc<Module>) -> Result<(), String> {
        module_commands::publish(&self.server, module)
    }

    fn remove_commands(&self, module: &str) {
        module_commands::remove(&self.server, module);
    }
}
