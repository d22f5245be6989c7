//! CONFIG SET: sets several parameters at once, all of them or none.

use std::path::PathBuf;
use std::sync::PoisonError;

use super::directory;
use super::parameters::{self, Flags, Kind, NamedParameter, ParameterId, Special};
use super::value::Value;
use super::values::Config;

/// The permissions of the client that sends CONFIG SET, and the state of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// `true` if `enable-protected-configs` permits this client to change protected parameters.
    pub protected: bool,
    /// `true` while data is being loaded.
    pub loading: bool,
}

/// The reason for which nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetError {
    /// The parameter cannot be changed while data is loaded: the client gets the usual `-LOADING` error.
    Loading,
    /// The text of an `-ERR` error.
    Refused(Vec<u8>),
}

impl SetError {
    fn unknown(name: &[u8]) -> SetError {
        // As in other errors, a word ends at its first zero byte.
        let shown = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let before = b"Unknown option or number of arguments for CONFIG SET - '";
        SetError::Refused([before, shown, b"'"].concat())
    }

    fn related_to(name: &[u8], reason: &str) -> SetError {
        let name = String::from_utf8_lossy(name);
        let related = format!("CONFIG SET failed (possibly related to argument '{name}')");
        let text = match reason.is_empty() {
            true => related,
            false => format!("{related} - {reason}"),
        };
        SetError::Refused(text.into_bytes())
    }
}

/// The result of applying new values. The error contains the parameter at fault and the reason for the client.
pub type ApplyResult = Result<(), (ParameterId, String)>;

/// A parameter with its old and its new value.
struct Change {
    id: ParameterId,
    old: Value,
    new: Value,
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
        permissions: Permissions,
        apply: &mut dyn FnMut(&[ParameterId]) -> ApplyResult,
    ) -> Result<Vec<ParameterId>, SetError> {
        let names = admitted(pairs, permissions)?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = self.read_changes(&names, pairs)?;
        let left = self.enter_directory(&names, pairs)?;
        changes.retain(|change| change.counts(left.is_some()));
        let ids: Vec<ParameterId> = changes.iter().map(|change| change.id).collect();
        if ids.is_empty() {
            return Ok(ids);
        }
        self.store_all(changes.iter().map(|change| (change.id, &change.new)));
        let Err((id, reason)) = apply(&ids) else {
            return Ok(ids);
        };

        if let Some(directory) = left {
            // This fails only if the old directory has just been removed, and nothing can be done then.
            let _ = std::env::set_current_dir(directory);
        }
        self.store_all(changes.iter().map(|change| (change.id, &change.old)));
        // The old values worked before. The first failure is the one to report.
        let _ = apply(&ids);
        Err(SetError::related_to(id.parameter().name.as_bytes(), &reason))
    }

    fn store_all<'value>(&self, values: impl Iterator<Item = (ParameterId, &'value Value)>) {
        values.for_each(|(id, value)| self.store(id, value.clone()));
        self.bump();
    }

    /// Parses the new values. A parameter given under both of its names appears once, with the last value.
    fn read_changes(&self, names: &[NamedParameter], pairs: &[(&[u8], &[u8])]) -> Result<Vec<Change>, SetError> {
        let mut changes: Vec<Change> = Vec::new();
        for (named, (_, text)) in names.iter().zip(pairs) {
            let place = changes.iter().position(|change| change.id == named.id);
            let current = place.map_or_else(|| self.value(named.id), |place| changes[place].new.clone());
            let parameter = named.id.parameter();
            let new = parameter
                .read(&split(parameter.flags, text), &current)
                .map_err(|reason| SetError::related_to(named.name.as_bytes(), &reason))?;
            match place {
                Some(place) => changes[place].new = new,
                None => changes.push(Change {
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
        let is_directory =
            |named: &NamedParameter| matches!(named.id.parameter().kind, Kind::Special(Special::Directory));
        let Some(place) = names.iter().position(is_directory) else {
            return Ok(None);
        };
        let left = std::env::current_dir().unwrap_or_default();
        directory::enter(pairs[place].1)
            .map_err(|reason| SetError::related_to(names[place].name.as_bytes(), &reason))?;
        Ok(Some(left))
    }
}

impl Change {
    fn counts(&self, directory_entered: bool) -> bool {
        self.old != self.new
            || self.id.parameter().flags.contains(Flags::VOLATILE)
            || (directory_entered && self.new == Value::Directory)
    }
}

/// Finds the parameters and refuses those that this client must not set, in the order of the arguments.
fn admitted(pairs: &[(&[u8], &[u8])], permissions: Permissions) -> Result<Vec<NamedParameter>, SetError> {
    let mut names: Vec<NamedParameter> = Vec::with_capacity(pairs.len());
    for (name, _) in pairs {
        let named = parameters::find(name).ok_or_else(|| SetError::unknown(name))?;
        let flags = named.id.parameter().flags;
        if flags.contains(Flags::IMMUTABLE) {
            return Err(SetError::related_to(name, "can't set immutable config"));
        }
        if flags.contains(Flags::PROTECTED) && !permissions.protected {
            return Err(SetError::related_to(name, "can't set protected config"));
        }
        if flags.contains(Flags::DENY_LOADING) && permissions.loading {
            return Err(SetError::Loading);
        }
        if names.contains(&named) {
            return Err(SetError::related_to(name, "duplicate parameter"));
        }
        names.push(named);
    }
    Ok(names)
}

/// Splits a value into its arguments. Parameters with several arguments separate them by single blanks.
fn split(flags: Flags, text: &[u8]) -> Vec<&[u8]> {
    if !flags.contains(Flags::MULTI_ARG) {
        return vec![text];
    }
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&byte| byte == b' ').collect()
}
