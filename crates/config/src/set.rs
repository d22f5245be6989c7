//! CONFIG SET: sets several parameters at once, all of them or none.

use std::fmt;
use std::path::PathBuf;

use weft_base::files::error_text;

use super::directory;
use super::parameters::{self, NamedParameter, ParameterFlags, ParameterId, ParameterKind, SpecialKind};
use super::value::ParameterValue;
use super::values::Config;

/// The permissions of the client that sends CONFIG SET, and the state of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPermissions {
    /// `true` if `enable-protected-configs` permits this client to change protected parameters.
    pub may_set_protected: bool,
    /// `true` while data is being loaded.
    pub is_loading: bool,
}

impl SetPermissions {
    /// Refuses a parameter with these flags.
    ///
    /// # Errors
    /// [`SetError`], with Valkey's text.
    pub fn check(self, name: &[u8], flags: ParameterFlags) -> Result<(), SetError> {
        if flags.contains(ParameterFlags::IMMUTABLE) {
            return Err(SetError::related_to(name, &"can't set immutable config"));
        }
        if flags.contains(ParameterFlags::PROTECTED) && !self.may_set_protected {
            return Err(SetError::related_to(name, &"can't set protected config"));
        }
        if flags.contains(ParameterFlags::DENY_LOADING) && self.is_loading {
            return Err(SetError::Loading);
        }
        Ok(())
    }
}

/// The reason for which nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The parameter cannot be changed while data is loaded: the client gets the usual `-LOADING` error.
    #[error("the parameter cannot be changed while data is loaded")]
    Loading,
    /// The text of an `-ERR` error.
    #[error("{}", String::from_utf8_lossy(.0))]
    Refused(Vec<u8>),
}

impl SetError {
    /// Returns the error of a name that no parameter has.
    pub fn unknown(name: &[u8]) -> SetError {
        // As in other errors, a word ends at its first zero byte.
        let shown = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let before = b"Unknown option or number of arguments for CONFIG SET - '";
        SetError::Refused([before, shown, b"'"].concat())
    }

    /// Returns the error of a parameter. The reason may be empty.
    pub fn related_to(name: &[u8], reason: &dyn fmt::Display) -> SetError {
        let name = String::from_utf8_lossy(name);
        let related = format!("CONFIG SET failed (possibly related to argument '{name}')");
        let reason = reason.to_string();
        let text = match reason.is_empty() {
            true => related,
            false => format!("{related} - {reason}"),
        };
        SetError::Refused(text.into_bytes())
    }
}

/// The parameter whose new value could not be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ParameterFailure {
    /// The parameter.
    pub parameter: ParameterId,
    /// The reason for the client.
    pub reason: String,
}

impl ParameterFailure {
    /// Creates a failure of `parameter`.
    pub fn new(parameter: ParameterId, reason: impl Into<String>) -> Self {
        ParameterFailure {
            parameter,
            reason: reason.into(),
        }
    }
}

/// The result of applying new values.
pub type ApplyResult = Result<(), ParameterFailure>;

/// A parameter with its old and its new value.
struct ValueChange {
    id: ParameterId,
    old: ParameterValue,
    new: ParameterValue,
}

impl Config {
    /// Sets pairs of name and value. Returns the parameters whose values have changed.
    ///
    /// `apply` makes the server act on the new values, which `self` already contains, for example by opening a port. If
    /// it fails for one of the parameters, all old values are restored, `apply` is called once more to undo its work,
    /// and its reason is sent to the client. It must not set parameters itself.
    ///
    /// # Errors
    /// [`SetError`], with Valkey's text. Nothing is changed then.
    pub fn set(
        &self,
        pairs: &[(&[u8], &[u8])],
        permissions: SetPermissions,
        apply: &mut dyn FnMut(&[ParameterId]) -> ApplyResult,
    ) -> Result<Vec<ParameterId>, SetError> {
        let names = check_permissions(pairs, permissions)?;
        let _changing = self.change_lock.lock();
        let mut changes = self.read_changes(&names, pairs)?;
        let left = self.enter_directory(&names, pairs)?;
        changes.retain(|change| change.is_reportable(left.is_some()));
        let ids: Vec<ParameterId> = changes.iter().map(|change| change.id).collect();
        if ids.is_empty() {
            return Ok(ids);
        }
        self.store_all(changes.iter().map(|change| (change.id, &change.new)));
        let Err(failure) = apply(&ids) else {
            return Ok(ids);
        };

        if let Some(directory) = left {
            // This fails only if the old directory has just been removed, and nothing can be done then.
            let _ = std::env::set_current_dir(directory);
        }
        self.store_all(changes.iter().map(|change| (change.id, &change.old)));
        // The old values worked before. The first failure is the one to report.
        let _ = apply(&ids);
        Err(SetError::related_to(
            failure.parameter.parameter().name.as_bytes(),
            &failure,
        ))
    }

    /// Refuses a parameter that this client must not set.
    ///
    /// # Errors
    /// [`SetError`], with Valkey's text.
    pub fn check_permission(name: &[u8], permissions: SetPermissions) -> Result<(), SetError> {
        let named = parameters::find(name).ok_or_else(|| SetError::unknown(name))?;
        permissions.check(name, named.id.parameter().flags)
    }

    fn store_all<'value>(&self, values: impl Iterator<Item = (ParameterId, &'value ParameterValue)>) {
        values.for_each(|(id, value)| self.store(id, value.clone()));
        self.increment_generation();
    }

    /// Parses the new values. A parameter given under both of its names appears once, with the last value.
    fn read_changes(&self, names: &[NamedParameter], pairs: &[(&[u8], &[u8])]) -> Result<Vec<ValueChange>, SetError> {
        let mut changes: Vec<ValueChange> = Vec::new();
        for (named, (_, text)) in names.iter().zip(pairs) {
            let place = changes.iter().position(|change| change.id == named.id);
            let current = place.map_or_else(|| self.value(named.id), |place| changes[place].new.clone());
            let parameter = named.id.parameter();
            let new = parameter
                .read(&split(parameter.flags, text), &current)
                .map_err(|reason| SetError::related_to(named.name.as_bytes(), &reason))?;
            match place {
                Some(place) => changes[place].new = new,
                None => changes.push(ValueChange {
                    id: named.id,
                    old: current,
                    new,
                }),
            }
        }
        Ok(changes)
    }

    /// Changes to the directory given by `dir`, if it is among the parameters. Returns the previous directory.
    fn enter_directory(&self, names: &[NamedParameter], pairs: &[(&[u8], &[u8])]) -> Result<Option<PathBuf>, SetError> {
        let is_directory = |named: &NamedParameter| {
            matches!(
                named.id.parameter().kind,
                ParameterKind::Special(SpecialKind::Directory)
            )
        };
        let Some(place) = names.iter().position(is_directory) else {
            return Ok(None);
        };
        let left = std::env::current_dir().unwrap_or_default();
        directory::change_directory(pairs[place].1)
            .map_err(|error| SetError::related_to(names[place].name.as_bytes(), &error_text(&error)))?;
        Ok(Some(left))
    }
}

impl ValueChange {
    fn is_reportable(&self, directory_entered: bool) -> bool {
        self.old != self.new
            || self.id.parameter().flags.contains(ParameterFlags::ALWAYS_CHANGED)
            || (directory_entered && self.new == ParameterValue::Directory)
    }
}

/// Finds the parameters and refuses those that this client must not set, in the order of the arguments.
fn check_permissions(pairs: &[(&[u8], &[u8])], permissions: SetPermissions) -> Result<Vec<NamedParameter>, SetError> {
    let mut names: Vec<NamedParameter> = Vec::with_capacity(pairs.len());
    for (name, _) in pairs {
        let named = parameters::find(name).ok_or_else(|| SetError::unknown(name))?;
        permissions.check(name, named.id.parameter().flags)?;
        if names.contains(&named) {
            return Err(SetError::related_to(name, &"duplicate parameter"));
        }
        names.push(named);
    }
    Ok(names)
}

/// Splits a value into its arguments. Parameters with several arguments separate them by single blanks.
fn split(flags: ParameterFlags, text: &[u8]) -> Vec<&[u8]> {
    if !flags.contains(ParameterFlags::MULTI_ARG) {
        return vec![text];
    }
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&byte| byte == b' ').collect()
}
