//! Users in files: the `user` directives of a configuration file, and the file named by `aclfile`.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::rules::{RuleError, UnclosedSelector, has_blanks, merge_selectors, until_nul};
use super::user::{SelectorDefaults, UserRules};
use super::{Acl, AclAccount, CommandCatalogue, NewUsers, selector_defaults};
use weft_base::files::error_text;
use weft_base::files::replace_file;
use weft_config::{Config, id};

/// The reason for which the users cannot be created at the start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadUsersError {
    /// Both the configuration and `aclfile` declare users.
    #[error(
        "Users are declared in the configuration and in the file that aclfile names. Only one of them can be right: \
         please declare all users in one place"
    )]
    DeclaredTwice,
    /// The name of a user contains blanks. Contains the place of its line.
    #[error("Spaces not allowed in ACL usernames")]
    InvalidName(String),
    /// A rule of a user is invalid.
    #[error("Error loading ACL rule '{rule}' for the user named '{user}': {}", reason.as_str())]
    Rule {
        /// The rule.
        rule: String,
        /// The name of the user.
        user: String,
        /// The fault of the rule.
        reason: RuleError,
        /// The place of the line that declares the user, in words.
        location: String,
    },
    /// The file named by `aclfile` has errors. Contains all of them.
    #[error("Aborting startup because of ACL errors: {0}")]
    File(String),
}

/// Says which rules are valid.
pub const ADVICE_FOR_RULES: &str = "Rules are on, off, >PASSWORD, nopass, ~PATTERN of keys, &PATTERN of channels, \
                                    +COMMAND, -COMMAND, +@CATEGORY and others: ACL CAT lists the categories, COMMAND \
                                    LIST the commands.";

impl LoadUsersError {
    /// Returns what the error text lacks: the line at fault, and what would be valid.
    pub fn advice(&self, config: &Config) -> String {
        match self {
            LoadUsersError::DeclaredTwice => {
                let first = config.users().first().map_or_else(String::new, |line| line.location());
                let advice = format!("a file with all users, or \"\" if lines 'user' declare them, as {first} does");
                config.advice(id::ACLFILE, &advice)
            }
            LoadUsersError::InvalidName(location) => {
                format!("This is {location}. A user's name contains no blanks, also not in quotes.")
            }
            LoadUsersError::Rule { location, .. } => format!("This is {location}. {ADVICE_FOR_RULES}"),
            LoadUsersError::File(_) => {
                let advice = "a file that exists and that the user of the server may read; it may be empty, and has \
                              lines 'user NAME RULES...'";
                format!("{} {ADVICE_FOR_RULES}", config.advice(id::ACLFILE, advice))
            }
        }
    }
}

/// The users of a file that was read.
pub struct FileUsers {
    users: NewUsers,
    /// The value of `Acl::file_changes` before the file was read.
    changes: u64,
}

/// An invalid `user` directive.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidUserDirective {
    /// Its index among the directives.
    pub line: usize,
    /// The error text.
    pub reason: String,
}

/// Checks the `user` directives of a configuration, each without its first word. Unknown commands are reported only
/// when the users are created.
///
/// # Errors
/// The first invalid directive.
pub fn check_declarations(
    lines: &[&[Vec<u8>]],
    catalogue: &CommandCatalogue,
    all_channels: bool,
) -> Result<(), InvalidUserDirective> {
    let ground = SelectorDefaults {
        catalogue,
        all_channels,
    };
    let mut names: HashSet<&[u8]> = HashSet::new();
    for (line, arguments) in lines.iter().enumerate() {
        // Valkey reports the word at the index of the invalid rule, counted from the word `user`.
        let shown = |place: usize| match place.checked_sub(1) {
            None => "user".into(),
            Some(place) => arguments
                .get(place)
                .map_or("".into(), |word| String::from_utf8_lossy(until_nul(word))),
        };
        let wrong = |place: usize, reason: &str| InvalidUserDirective {
            line,
            reason: format!("Error in user declaration '{}': {reason}", shown(place)),
        };
        let [name, rules @ ..] = arguments else {
            continue;
        };
        if !names.insert(name) {
            let reason = "Duplicate user found. A user can only be defined once in config files";
            return Err(wrong(1, reason));
        }
        let rules = merge_selectors(rules).map_err(|UnclosedSelector(place)| wrong(place, "Wrong format"))?;
        let mut user = UserRules::new(ground);
        for (place, rule) in rules.iter().enumerate() {
            match user.apply(rule, ground) {
                Ok(()) | Err(RuleError::UnknownCommand) => {}
                Err(error) => return Err(wrong(place, error.as_str())),
            }
        }
    }
    Ok(())
}

impl Acl {
    /// Creates the users of the configuration or those of `aclfile`. Called before there are clients.
    ///
    /// # Errors
    /// The reason to log before the process exits.
    pub fn load_at_start(&self, config: &Config) -> Result<(), LoadUsersError> {
        let password = config.text(id::REQUIREPASS);
        self.set_default_password(&password, config);
        let has_file = !config.text(id::ACLFILE).is_empty();
        if has_file && !config.users().is_empty() {
            return Err(LoadUsersError::DeclaredTwice);
        }
        for directive in config.users() {
            if let [name, rules @ ..] = directive.arguments.as_slice() {
                self.declare_user(name, rules, config, &|| directive.location())?;
            }
        }
        if has_file {
            let users = self.read_file(config);
            let users = users.map_err(|errors| LoadUsersError::File(String::from_utf8_lossy(&errors).into_owned()))?;
            self.replace_all(users);
        }
        Ok(())
    }

    /// Creates a user. `locate` returns the place of the line that declares it.
    fn declare_user(
        &self,
        name: &[u8],
        rules: &[Vec<u8>],
        config: &Config,
        locate: &dyn Fn() -> String,
    ) -> Result<(), LoadUsersError> {
        let catalogue = self.catalogue();
        let ground = selector_defaults(&catalogue, config);
        if has_blanks(name) {
            return Err(LoadUsersError::InvalidName(locate()));
        }
        let shown_name = String::from_utf8_lossy(name);
        let mut user = UserRules::new(ground);
        for rule in merge_selectors(rules).unwrap_or_default() {
            user.apply(&rule, ground).map_err(|reason| LoadUsersError::Rule {
                rule: String::from_utf8_lossy(&rule).into_owned(),
                user: shown_name.clone().into_owned(),
                reason,
                location: locate(),
            })?;
        }
        if !user.is_enabled() {
            log::info!(
                "The user '{shown_name}' is disabled (there is no 'on' modifier in the user description). Make sure \
                 this is not a configuration error."
            );
        }
        self.set_rules(name, user);
        Ok(())
    }

    /// Replaces all users by those in the file named by `aclfile`. The caller must hold exclusive mode, in which the
    /// file is read. Returns the accounts that have lost channels.
    ///
    /// # Errors
    /// All errors of the file in one line. No user has changed then.
    pub fn load_file(&self, config: &Config) -> Result<Vec<Arc<AclAccount>>, Vec<u8>> {
        // Locked before the file is read, so that its users do not replace newer users that are being written to it.
        let mut changes = self.file_changes.lock();
        let users = self.read_file(config)?;
        *changes += 1;
        Ok(self.replace_all(users))
    }

    /// Reads the file named by `aclfile` for [`Self::install_file_users`]. Waits while users are being written to it.
    ///
    /// # Errors
    /// All errors of the file in one line.
    pub fn read_file_users(&self, config: &Config) -> Result<FileUsers, Vec<u8>> {
        let changes = *self.file_changes.lock();
        let users = self.read_file(config)?;
        Ok(FileUsers { users, changes })
    }

    /// Replaces all users by those that were read. The caller must hold exclusive mode. Returns the accounts that have
    /// lost channels. Returns `None`, and changes nothing, if users have been saved or loaded since the file was read,
    /// or are being saved: the file must be read again.
    pub fn install_file_users(&self, read: FileUsers) -> Option<Vec<Arc<AclAccount>>> {
        let mut changes = self.file_changes.try_lock()?;
        if *changes != read.changes {
            return None;
        }
        *changes += 1;
        Some(self.replace_all(read.users))
    }

    /// Reads the file named by `aclfile`.
    ///
    /// # Errors
    /// All errors of the file in one line.
    fn read_file(&self, config: &Config) -> Result<NewUsers, Vec<u8>> {
        let path = config.text(id::ACLFILE);
        let text = std::fs::read(Path::new(OsStr::from_bytes(&path))).map_err(|error| {
            let reason = format!("': {}", error_text(&error));
            [b"Error loading ACLs, opening file '", &*path, reason.as_bytes()].concat()
        })?;
        parse_file(&text, &path, selector_defaults(&self.catalogue(), config))
    }

    /// Writes all users to the file named by `aclfile`.
    ///
    /// # Errors
    /// When the file cannot be replaced. The old file stays then.
    pub fn write_file(&self, config: &Config) -> io::Result<()> {
        // Locked before the users are read, so that a file with older users does not replace one with newer users.
        let mut changes = self.file_changes.lock();
        *changes += 1;
        let path = config.text(id::ACLFILE);
        let mut text = Vec::new();
        for user in self.describe_users() {
            text.extend_from_slice(b"user ");
            text.extend_from_slice(&user);
            text.push(b'\n');
        }
        replace_file(Path::new(OsStr::from_bytes(&path)), &text)
    }
}

/// Parses the users of a file. `path` is used in error messages.
///
/// # Errors
/// All errors of the file, in one line.
pub fn parse_file(text: &[u8], path: &[u8], ground: SelectorDefaults<'_>) -> Result<NewUsers, Vec<u8>> {
    let mut users = BTreeMap::new();
    let mut errors: Vec<u8> = Vec::new();
    for (number, line) in (1..).zip(until_nul(text).split(|byte| *byte == b'\n')) {
        let line = trim(line, b" \t\r\n");
        if line.is_empty() {
            continue;
        }
        let mut words = line.split(|byte| *byte == b' ');
        let (first, name) = (words.next(), words.next());
        let (Some(b"user"), Some(name)) = (first, name) else {
            let text = format!(":{number} should start with user keyword followed by the username. ");
            errors.extend([path, text.as_bytes()].concat());
            continue;
        };
        if has_blanks(name) {
            let place = format!(":{number}: username '");
            errors.extend([b"'", path, place.as_bytes(), name, b"' contains invalid characters. "].concat());
            continue;
        }
        if users.contains_key(name) {
            let place = format!("' found on line {number}. ");
            errors.extend([b"WARNING: Duplicate user '", name, place.as_bytes()].concat());
            continue;
        }
        let place = [path, format!(":{number}: ").as_bytes()].concat();
        let user = parse_user(&words.collect::<Vec<_>>(), &place, ground, &mut errors);
        users.insert(Box::from(name), user);
    }
    if errors.is_empty() {
        return Ok(NewUsers(users));
    }
    errors
        .extend_from_slice(b"WARNING: ACL errors detected, no change to the previously active ACL rules was performed");
    Err(errors)
}

/// Creates a user from the rules of a line. Appends errors to `errors`, with `place` before them.
fn parse_user(rules: &[&[u8]], place: &[u8], ground: SelectorDefaults<'_>, errors: &mut Vec<u8>) -> UserRules {
    let mut user = UserRules::new(ground);
    let Ok(rules) = merge_selectors(rules) else {
        errors.extend([place, b"Unmatched parenthesis in selector definition."].concat());
        return user;
    };
    let mut told = false;
    for rule in &rules {
        let rule = trim(rule, b"\t\r\n");
        match user.apply(rule, ground) {
            Ok(()) => {}
            Err(error @ RuleError::UnknownCommand) => {
                let reason = format!("': {}. ", error.as_str());
                errors.extend([place, b"Error in applying operation '", rule, reason.as_bytes()].concat());
            }
            // Errors after the first one may be caused by it.
            Err(error) if !told => {
                told = true;
                errors.extend([place, error.as_str().as_bytes(), b". "].concat());
            }
            Err(_) => {}
        }
    }
    user
}

/// Removes the bytes in `set` from both ends.
fn trim<'a>(mut text: &'a [u8], set: &[u8]) -> &'a [u8] {
    while let [first, rest @ ..] = text
        && set.contains(first)
    {
        text = rest;
    }
    while let [rest @ .., last] = text
        && set.contains(last)
    {
        text = rest;
    }
    text
}
