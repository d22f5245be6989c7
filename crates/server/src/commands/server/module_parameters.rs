//! Parameters of modules in CONFIG GET, SET and REWRITE.
//!
//! The values belong to the modules. Commands that read or set them run on the home worker, in exclusive mode
//! ([`crate::commands::context::Binding::with_module_parameters`]), and so does everything here.

use std::sync::Arc;

use super::config;
use crate::commands::context::Context;
use crate::commands::error::CommandError;
use crate::observability::log;
use crate::runtime::config_changes::{self, ConfigSetError};
use weft_config::{ModuleSetting, ParameterFlags, SetError, SetPermissions, is_glob_pattern};
use weft_modules::module::parameters::{self, Parameter, Refusal, Setting};
use weft_resp::glob;

/// Returns the names and values of the parameters of modules that match one of the patterns, each once.
///
/// # Errors
/// If modules cannot be called here.
pub fn matching(ctx: &mut Context<'_, '_>, patterns: &[&[u8]]) -> Result<Vec<Setting>, CommandError> {
    let mut found: Vec<(Vec<u8>, Arc<Parameter>)> = Vec::new();
    let mut add = |name: &[u8], parameter: Arc<Parameter>| {
        if !found.iter().any(|(_, known)| Arc::ptr_eq(known, &parameter)) {
            found.push((name.to_vec(), parameter));
        }
    };
    for pattern in patterns {
        if !is_glob_pattern(pattern) {
            if let Some(parameter) = parameters::find(pattern) {
                add(pattern, parameter);
            }
            continue;
        }
        for parameter in parameters::all() {
            let is_hidden = parameter.flags.contains(parameters::ParameterFlags::HIDDEN);
            if !is_hidden && glob::matches(pattern, parameter.full_name.as_bytes(), true) {
                add(parameter.full_name.as_bytes(), parameter.clone());
            }
        }
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    ctx.call_modules(move || {
        let print = |(name, parameter): (Vec<u8>, Arc<Parameter>)| (name, parameter.print());
        found.into_iter().map(print).collect()
    })
}

/// Returns the parameters of modules for the configuration file.
///
/// # Errors
/// If modules cannot be called here.
pub fn for_file(ctx: &mut Context<'_, '_>) -> Result<Vec<ModuleSetting>, CommandError> {
    let all = parameters::all();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    ctx.call_modules(move || all.iter().map(|parameter| setting_of(parameter)).collect())
}

fn setting_of(parameter: &Parameter) -> ModuleSetting {
    let (value, is_default) = match parameter.print_for_file() {
        Some((value, differs)) => (Some(value), !differs),
        None => (None, true),
    };
    ModuleSetting {
        name: parameter.full_name.clone(),
        value,
        is_quoted: parameter.is_quoted_in_file(),
        is_default,
    }
}

/// Returns `true` if one of the names is that of a module's parameter.
pub fn are_named(pairs: &[(&[u8], &[u8])]) -> bool {
    parameters::any_exist() && pairs.iter().any(|(name, _)| parameters::find(name).is_some())
}

/// A parameter that is set, with its value before and after.
struct Change {
    parameter: Arc<Parameter>,
    old: Vec<u8>,
    new: Vec<u8>,
}

/// The parameters that one CONFIG SET sets: those of modules, and those of the server.
struct ChangeSet<'w> {
    of_modules: Vec<Change>,
    of_server: Vec<(&'w [u8], &'w [u8])>,
}

/// Sets parameters of modules and of the server, all or none.
///
/// # Errors
/// The reason for the client. Nothing has changed then, as far as the modules accept their old values.
pub fn set(
    ctx: &mut Context<'_, '_>,
    pairs: &[(&[u8], &[u8])],
    permissions: SetPermissions,
) -> Result<(), ModuleSetError> {
    let mut changes = find_changes(pairs, permissions)?;
    set_new_values(ctx, &mut changes.of_modules)?;
    let old_values: Vec<(&[u8], Vec<u8>)> = changes
        .of_server
        .iter()
        .filter_map(|(name, _)| Some((*name, ctx.server.config.printed(weft_config::find(name)?.id))))
        .collect();
    if !changes.of_server.is_empty() {
        let result = config_changes::set(ctx.server, &changes.of_server, permissions, false);
        if let Err(error) = result {
            restore(ctx, &changes.of_modules, false)?;
            return Err(ModuleSetError::Server(error));
        }
    }
    let applied = apply(ctx, &changes.of_modules)?;
    let Err((name, reason)) = applied else {
        return Ok(());
    };
    log::warning!("Failed applying new module configuration. Restoring previous settings.");
    restore(ctx, &changes.of_modules, true)?;
    if !old_values.is_empty() {
        let old_values: Vec<(&[u8], &[u8])> = old_values.iter().map(|(name, value)| (*name, &**value)).collect();
        // They were in effect before.
        let _ = config_changes::set(ctx.server, &old_values, permissions, false);
    }
    Err(refused(name.as_bytes(), reason))
}

/// The reason why parameters were not set.
pub enum ModuleSetError {
    /// As for parameters of the server.
    Server(ConfigSetError),
    /// Modules cannot be called here, or another client is changing the configuration.
    Command(CommandError),
}

impl From<CommandError> for ModuleSetError {
    fn from(error: CommandError) -> Self {
        ModuleSetError::Command(error)
    }
}

impl From<SetError> for ModuleSetError {
    fn from(error: SetError) -> Self {
        ModuleSetError::Server(ConfigSetError::Refused(error))
    }
}

fn refused(name: &[u8], reason: Refusal) -> ModuleSetError {
    let reason = reason.map(|reason| String::from_utf8_lossy(&reason).into_owned());
    SetError::related_to(name, &reason.unwrap_or_default()).into()
}

/// Finds the parameters, and refuses those that this client must not set.
fn find_changes<'w>(
    pairs: &[(&'w [u8], &'w [u8])],
    permissions: SetPermissions,
) -> Result<ChangeSet<'w>, ModuleSetError> {
    let (mut of_modules, mut of_server): (Vec<Change>, Vec<_>) = (Vec::new(), Vec::new());
    for (name, value) in pairs {
        let Some(parameter) = parameters::find(name) else {
            weft_config::Config::check_permission(name, permissions)?;
            of_server.push((*name, *value));
            continue;
        };
        permissions.check(name, flags_of(&parameter))?;
        if of_modules
            .iter()
            .any(|change| Arc::ptr_eq(&change.parameter, &parameter))
        {
            return Err(SetError::related_to(name, &"duplicate parameter").into());
        }
        of_modules.push(Change {
            parameter,
            old: Vec::new(),
            new: value.to_vec(),
        });
    }
    Ok(ChangeSet { of_modules, of_server })
}

/// Returns the restrictions of a parameter on clients.
fn flags_of(parameter: &Parameter) -> ParameterFlags {
    let has = |flag| parameter.flags.contains(flag);
    let mut flags = ParameterFlags::empty();
    flags.set(ParameterFlags::IMMUTABLE, has(parameters::ParameterFlags::IMMUTABLE));
    flags.set(ParameterFlags::PROTECTED, has(parameters::ParameterFlags::PROTECTED));
    flags.set(
        ParameterFlags::DENY_LOADING,
        has(parameters::ParameterFlags::DENY_LOADING),
    );
    flags
}

/// Has the modules set the new values. If one is refused, the old ones are set again. Only the changes remain whose set
/// function was called.
fn set_new_values(ctx: &mut Context<'_, '_>, changes: &mut Vec<Change>) -> Result<(), ModuleSetError> {
    let failure = ctx.call_modules(|| {
        for change in changes.iter_mut() {
            change.old = change.parameter.print();
        }
        let mut are_set = Vec::with_capacity(changes.len());
        for (index, change) in changes.iter().enumerate() {
            match change.parameter.set(&change.new) {
                Ok(is_set) => are_set.push(is_set),
                Err(reason) => {
                    let name = change.parameter.full_name.clone();
                    set_old_values(&changes[..=index]);
                    return Some((name, reason));
                }
            }
        }
        let mut are_set = are_set.into_iter();
        changes.retain(|_| are_set.next() == Some(true));
        None
    })?;
    match failure {
        Some((name, reason)) => Err(refused(name.as_bytes(), reason)),
        None => Ok(()),
    }
}

fn set_old_values(changes: &[Change]) {
    for Change { parameter, old, .. } in changes {
        if let Err(reason) = parameter.set(old) {
            let (value, reason) = (
                String::from_utf8_lossy(old),
                String::from_utf8_lossy(&reason.unwrap_or_default()).into_owned(),
            );
            log::warning!(
                "Failed restoring failed CONFIG SET command. Error setting {} to '{value}': {reason}",
                parameter.full_name
            );
        }
    }
}

/// Sets the old values again, and applies them if the new ones were applied.
fn restore(ctx: &mut Context<'_, '_>, changes: &[Change], applies: bool) -> Result<(), CommandError> {
    ctx.call_modules(|| {
        set_old_values(changes);
        if applies && let Err((_, reason)) = apply_each(changes) {
            let reason = String::from_utf8_lossy(&reason.unwrap_or_default()).into_owned();
            log::warning!("Failed applying restored failed CONFIG SET command: {reason}");
        }
    })
}

/// The name of a parameter whose apply function has failed, and the reason.
type ApplyFailure = (String, Refusal);

fn apply(ctx: &mut Context<'_, '_>, changes: &[Change]) -> Result<Result<(), ApplyFailure>, CommandError> {
    ctx.call_modules(|| apply_each(changes))
}

/// Calls the apply functions, each once for the same data.
fn apply_each(changes: &[Change]) -> Result<(), ApplyFailure> {
    for (index, Change { parameter, .. }) in changes.iter().enumerate() {
        let mut before = changes[..index].iter();
        if parameter.has_apply() && !before.any(|change| change.parameter.is_applied_with(parameter)) {
            parameter.apply().map_err(|reason| (parameter.short_name(), reason))?;
        }
    }
    Ok(())
}

/// Returns the change of the configuration that a CONFIG SET makes which also sets parameters of the server.
///
/// # Errors
/// If another change is under way.
pub fn begin_change<'s>(
    ctx: &Context<'s, '_>,
    pairs: &[(&[u8], &[u8])],
) -> Result<Option<weft_config::ConfigChangeGuard<'s>>, CommandError> {
    if pairs.iter().all(|(name, _)| parameters::find(name).is_some()) {
        return Ok(None);
    }
    let change = ctx.server.config.try_begin_change();
    change.map(Some).ok_or(config::CHANGE_UNDER_WAY)
}
