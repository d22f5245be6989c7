//! A selector: one set of permissions for commands, keys, channels and databases. A user has at least one.
//!
//! The allowed commands are stored twice: as one bit per command, which checks use, and as the rules that led there,
//! which are displayed. A rule that a later one makes redundant is dropped: `+get` replaces all earlier rules about
//! `get`, and `-config` also those about `config|get`.

use std::collections::BTreeSet;

use weft_resp::{glob, quote};

use super::catalogue::{CommandCatalogue, CommandId};
use super::check::{AccessRequest, ChannelUse, Denial, DenialReason, KeyAccess};
use super::rules::{RuleError, has_blanks, is_word, until_nul};

/// A key pattern, and the access allowed to matching keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyPattern {
    access: KeyAccess,
    pattern: Box<[u8]>,
}

impl KeyPattern {
    /// Returns `true` if the pattern without its access is the rule that allows all keys.
    fn reads_as_all_keys(&self) -> bool {
        *self.pattern == *b"*" && self.access.prefix() == b"~"
    }
}

/// The databases that commands may use.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedDatabases {
    All,
    Only(BTreeSet<u32>),
}

/// A rule `+` or `-` for a command or category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRule {
    /// `true` for `+`.
    pub allows: bool,
    /// A full command name, optionally with a first argument, or a category with its `@`; in lower case.
    pub name: Box<[u8]>,
}

/// One set of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// One bit per command of the catalogue.
    commands: Box<[u64]>,
    /// `true` if the rules begin with `+@all`, so that future commands are allowed, too.
    starts_with_all_commands: bool,
    /// The commands that are allowed only with one of these first arguments.
    first_arguments: Vec<(CommandId, Box<[u8]>)>,
    rules: Vec<CommandRule>,
    all_keys: bool,
    keys: Vec<KeyPattern>,
    all_channels: bool,
    channels: Vec<Box<[u8]>>,
    databases: AllowedDatabases,
}

impl Selector {
    /// Creates a selector with no commands, no keys, all databases, and the channels given by `acl-pubsub-default`.
    pub fn new(catalogue: &CommandCatalogue, all_channels: bool) -> Selector {
        Selector {
            commands: vec![0; catalogue.command_count().div_ceil(64)].into(),
            starts_with_all_commands: false,
            first_arguments: Vec::new(),
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
            databases: AllowedDatabases::All,
        }
    }

    /// Parses the inner text of `(rule rule …)`. Quotes are as in a configuration file. Unbalanced text gives an empty
    /// selector.
    ///
    /// # Errors
    /// The error of the first invalid rule.
    pub fn parse(inner: &[u8], catalogue: &CommandCatalogue, all_channels: bool) -> Result<Selector, RuleError> {
        let mut selector = Selector::new(catalogue, all_channels);
        let rules = quote::split_arguments(&[inner, b"\n"].concat()).unwrap_or_default();
        for rule in &rules {
            selector.apply(rule, catalogue)?;
            // When read back, the selector would end here, and the rules after it would be rules of the user.
            if rule.ends_with(b")") {
                return Err(RuleError::Syntax);
            }
        }
        Ok(selector)
    }

    /// Applies one rule.
    ///
    /// # Errors
    /// When the rule is invalid. Nothing has changed then.
    pub fn apply(&mut self, rule: &[u8], catalogue: &CommandCatalogue) -> Result<(), RuleError> {
        let is = |word: &str| is_word(rule, word);
        let text = until_nul(rule);
        if is("allkeys") || is("~*") {
            self.set_keys(true);
        } else if is("resetkeys") {
            self.set_keys(false);
        } else if is("allchannels") || is("&*") {
            self.set_channels(true);
        } else if is("resetchannels") {
            self.set_channels(false);
        } else if is("alldbs") {
            self.databases = AllowedDatabases::All;
        } else if is("resetdbs") {
            self.databases = AllowedDatabases::Only(BTreeSet::new());
        } else if is("allcommands") || is("+@all") {
            self.set_commands(true);
        } else if is("nocommands") || is("-@all") {
            self.set_commands(false);
        } else if let Some(pattern) = rule.strip_prefix(b"~") {
            self.add_keys(KeyAccess::BOTH, pattern)?;
        } else if let Some(rest) = rule.strip_prefix(b"%") {
            if self.all_keys {
                return Err(RuleError::KeyPatternAfterAllKeys);
            }
            let (access, pattern) = split_access(rest)?;
            self.add_keys(access, pattern)?;
        } else if let Some(pattern) = rule.strip_prefix(b"&") {
            self.add_channels(pattern)?;
        } else if text.len() >= 3 && text[..3].eq_ignore_ascii_case(b"db=") {
            self.databases = AllowedDatabases::Only(parse_databases(&text[3..])?);
        } else if let [sign @ (b'+' | b'-'), b'@', category @ ..] = text {
            self.change_category(category, *sign == b'+', catalogue)?;
        } else if let Some(name) = text.strip_prefix(b"+") {
            self.allow_command(name, catalogue)?;
        } else if let Some(name) = text.strip_prefix(b"-") {
            let id = catalogue.find(name).ok_or(RuleError::UnknownCommand)?;
            self.change_command(id, false, catalogue);
            self.record_rule(false, catalogue.entry(id).full_name.as_bytes());
        } else {
            return Err(RuleError::Syntax);
        }
        Ok(())
    }

    // ---- keys, channels, databases ----------------------------------------------------------------------------------

    fn set_keys(&mut self, all: bool) {
        self.all_keys = all;
        self.keys.clear();
    }

    fn add_keys(&mut self, access: KeyAccess, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::KeyPatternAfterAllKeys);
        }
        if has_blanks(pattern) {
            return Err(RuleError::Syntax);
        }
        match self.keys.iter_mut().find(|known| *known.pattern == *pattern) {
            Some(known) => known.access = known.access.union(access),
            None => self.keys.push(KeyPattern {
                access,
                pattern: pattern.into(),
            }),
        }
        Ok(())
    }

    fn set_channels(&mut self, all: bool) {
        self.all_channels = all;
        self.channels.clear();
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::ChannelPatternAfterAllChannels);
        }
        if has_blanks(pattern) {
            return Err(RuleError::Syntax);
        }
        if !self.channels.iter().any(|known| **known == *pattern) {
            self.channels.push(pattern.into());
        }
        Ok(())
    }

    // ---- commands ---------------------------------------------------------------------------------------------------

    fn set_commands(&mut self, all: bool) {
        self.commands.fill(if all { u64::MAX } else { 0 });
        self.starts_with_all_commands = all;
        self.rules.clear();
        self.first_arguments.clear();
    }

    /// Applies the command rules again, because the commands or their categories have changed.
    pub fn apply_commands_again(&mut self, catalogue: &CommandCatalogue) {
        let rules = std::mem::take(&mut self.rules);
        self.commands = vec![0; catalogue.command_count().div_ceil(64)].into();
        self.set_commands(self.starts_with_all_commands);
        for rule in rules {
            let sign: &[u8] = if rule.allows { b"+" } else { b"-" };
            // A rule about a command that is gone has no effect any more, but comes back with the command.
            if self.apply(&[sign, &rule.name].concat(), catalogue).is_err() {
                self.rules.push(rule);
            }
        }
    }

    /// Returns the commands that the rules name, without their signs: full names, or a name with a first argument.
    pub fn named_commands(&self) -> impl Iterator<Item = &CommandRule> {
        self.rules.iter().filter(|rule| !rule.name.starts_with(b"@"))
    }

    fn set_bit(&mut self, id: CommandId, allows: bool) {
        let (word, bit) = (usize::from(id) / 64, 1 << (id % 64));
        if allows {
            self.commands[word] |= bit;
        } else {
            self.commands[word] &= !bit;
        }
    }

    fn has_bit(&self, id: CommandId) -> bool {
        let word = self.commands.get(usize::from(id) / 64);
        word.is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Allows or forbids a command with its subcommands.
    fn change_command(&mut self, id: CommandId, allows: bool, catalogue: &CommandCatalogue) {
        self.set_bit(id, allows);
        self.first_arguments.retain(|(command, _)| *command != id);
        for subcommand in &catalogue.entry(id).subcommands {
            self.set_bit(*subcommand, allows);
        }
    }

    fn change_category(&mut self, name: &[u8], allows: bool, catalogue: &CommandCatalogue) -> Result<(), RuleError> {
        let category = catalogue.category(name).ok_or(RuleError::UnknownCommand)?;
        self.record_rule(allows, &[b"@", name].concat());
        for id in &category.members {
            self.change_command(*id, allows, catalogue);
        }
        Ok(())
    }

    /// Allows a command, a subcommand, or a command with a given first argument.
    fn allow_command(&mut self, name: &[u8], catalogue: &CommandCatalogue) -> Result<(), RuleError> {
        let Some(bar) = name.iter().rposition(|byte| *byte == b'|') else {
            let id = catalogue.find(name).ok_or(RuleError::UnknownCommand)?;
            self.change_command(id, true, catalogue);
            self.record_rule(true, catalogue.entry(id).full_name.as_bytes());
            return Ok(());
        };
        let id = catalogue.find(&name[..bar]).ok_or(RuleError::UnknownCommand)?;
        let argument = &name[bar + 1..];
        if catalogue.entry(id).is_subcommand() {
            return Err(RuleError::FirstArgumentOfSubcommand);
        }
        if argument.is_empty() || has_blanks(argument) {
            return Err(RuleError::Syntax);
        }
        if catalogue.entry(id).subcommands.is_empty() {
            log::warn!(
                "Deprecation warning: a rule that allows a first argument of a command that is forbidden otherwise is no \
                 protection to rely on (+{})",
                String::from_utf8_lossy(name)
            );
            let known =
                |(command, word): &(CommandId, Box<[u8]>)| *command == id && word.eq_ignore_ascii_case(argument);
            if !self.first_arguments.iter().any(known) {
                self.first_arguments.push((id, argument.into()));
            }
        } else {
            let id = catalogue.find(name).ok_or(RuleError::UnknownCommand)?;
            self.change_command(id, true, catalogue);
        }
        self.record_rule(true, name);
        Ok(())
    }

    /// Adds a rule, and drops earlier rules about the same command, its subcommands or first arguments.
    fn record_rule(&mut self, allows: bool, name: &[u8]) {
        let name = name.to_ascii_lowercase();
        self.rules.retain(|rule| match rule.name.strip_prefix(name.as_slice()) {
            Some(rest) => !matches!(rest, [] | [b'|', ..]),
            None => true,
        });
        self.rules.push(CommandRule {
            allows,
            name: name.into(),
        });
    }

    // ---- checks -----------------------------------------------------------------------------------------------------
    /// Returns `true` if nothing is forbidden.
    pub fn allows_everything(&self) -> bool {
        let all_commands = self.commands.iter().all(|word| *word == u64::MAX);
        all_commands && self.all_keys && self.all_channels && self.databases == AllowedDatabases::All
    }

    /// Checks if a command has the permissions that it requires: its databases, the command itself, its keys and its
    /// channels, in this order.
    pub fn check(&self, permission: &dyn AccessRequest) -> Result<(), Denial> {
        self.check_databases(permission)?;
        if !self.allows_command(permission) {
            return Err(Denial {
                reason: DenialReason::Command,
                argument: 0,
            });
        }
        if !self.all_keys {
            let mut denied = None;
            permission.each_key(&mut |argument, access, key| {
                if denied.is_none() && !self.allows_key(access, key) {
                    denied = Some(argument);
                }
            });
            Denial::from_argument(DenialReason::Key, denied)?;
        }
        if !self.all_channels {
            let mut denied = None;
            permission.each_channel(&mut |argument, usage, channel| {
                if denied.is_none() && !self.allows_channel(usage, channel) {
                    denied = Some(argument);
                }
            });
            Denial::from_argument(DenialReason::Channel, denied)?;
        }
        Ok(())
    }

    fn check_databases(&self, permission: &dyn AccessRequest) -> Result<(), Denial> {
        let AllowedDatabases::Only(allowed) = &self.databases else {
            return Ok(());
        };
        // A list of all databases allows as much as the rule `alldbs`.
        let has_first = |count: usize| allowed.range(..u32::try_from(count).unwrap_or(u32::MAX)).count() == count;
        let mut denied = permission.all_databases().filter(|count| !has_first(*count)).map(|_| 0);
        permission.each_database(&mut |argument, database| {
            let is_allowed = u32::try_from(database.get()).is_ok_and(|database| allowed.contains(&database));
            if denied.is_none() && !is_allowed {
                denied = Some(argument);
            }
        });
        Denial::from_argument(DenialReason::Database, denied)
    }

    fn allows_command(&self, permission: &dyn AccessRequest) -> bool {
        let id = permission.command();
        let with_argument = || {
            let argument = permission.first_arg().map(until_nul);
            let matching = |(command, word): &(CommandId, Box<[u8]>)| {
                *command == id && argument.is_some_and(|argument| word.eq_ignore_ascii_case(argument))
            };
            self.first_arguments.iter().any(matching)
        };
        permission.is_always_allowed() || self.has_bit(id) || with_argument()
    }

    /// Returns `true` if the access to a key is allowed.
    pub fn allows_key(&self, access: KeyAccess, key: &[u8]) -> bool {
        let matches = |known: &KeyPattern| known.access.contains(access) && glob::matches(&known.pattern, key, false);
        self.all_keys || self.keys.iter().any(matches)
    }

    /// Returns `true` if the access to all keys with a prefix is allowed: by a pattern that ends with `*` and that the
    /// prefix matches.
    pub fn allows_keys_with_prefix(&self, access: KeyAccess, prefix: &[u8]) -> bool {
        let is_open = |known: &KeyPattern| matches!(&*known.pattern, [] | [.., b'*']);
        let matches = |known: &KeyPattern| {
            let matches = &*known.pattern == b"*" || glob::matches(&known.pattern, prefix, false);
            known.access.contains(access) && is_open(known) && matches
        };
        self.all_keys || self.keys.iter().any(matches)
    }

    /// Returns `true` if all keys may be read.
    pub fn may_read_all_keys(&self) -> bool {
        let matches_all = |known: &KeyPattern| known.access.contains(KeyAccess::READ) && *known.pattern == *b"*";
        self.all_keys || self.keys.iter().any(matches_all)
    }

    /// Returns `true` if a channel may be used. A pattern of channels must be equal to one of the allowed patterns.
    pub fn allows_channel(&self, usage: ChannelUse, channel: &[u8]) -> bool {
        let matches = |known: &[u8]| match usage {
            ChannelUse::Name => glob::matches(known, channel, false),
            ChannelUse::Pattern => until_nul(channel) == known,
        };
        self.all_channels || self.channels.iter().any(|known| matches(known))
    }

    /// Returns `true` if all channels may be used.
    pub fn allows_all_channels(&self) -> bool {
        self.all_channels
    }

    /// Returns the patterns of the allowed channels.
    pub fn channel_patterns(&self) -> impl Iterator<Item = &[u8]> {
        self.channels.iter().map(|pattern| &**pattern)
    }

    // ---- descriptions -----------------------------------------------------------------------------------------------
    /// Returns the command rules, for example `-@all +get`.
    pub fn describe_commands(&self) -> Vec<u8> {
        let mut text: Vec<u8> = if self.starts_with_all_commands {
            "+@all"
        } else {
            "-@all"
        }
        .into();
        for rule in &self.rules {
            text.extend_from_slice(if rule.allows { b" +" } else { b" -" });
            text.extend_from_slice(&rule.name);
        }
        text
    }

    /// Returns the key rules, for example `~a %R~b`.
    pub fn describe_keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let last = self.keys.len().saturating_sub(1);
        let describe = |(index, known): (usize, &KeyPattern)| {
            // After `~*`, which means all keys, no pattern is accepted.
            let must_differ = index < last && known.reads_as_all_keys();
            let prefix = if must_differ { b"%RW~" } else { known.access.prefix() };
            [prefix, &*known.pattern].concat()
        };
        let texts: Vec<Vec<u8>> = self.keys.iter().enumerate().map(describe).collect();
        texts.join(&b' ')
    }

    /// Returns the channel rules, for example `&a &b`.
    pub fn describe_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let texts: Vec<Vec<u8>> = self.channels.iter().map(|known| [b"&", &**known].concat()).collect();
        texts.join(&b' ')
    }

    /// Returns the database rules: `alldbs`, `db=0,1`, or an empty string for none.
    pub fn describe_databases(&self) -> String {
        match &self.databases {
            AllowedDatabases::All => "alldbs".to_owned(),
            AllowedDatabases::Only(numbers) if numbers.is_empty() => String::new(),
            AllowedDatabases::Only(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
                format!("db={}", numbers.join(","))
            }
        }
    }

    /// Returns the inner text of `(rule rule …)` that recreates this selector. As [`Self::parse`] reads quotes, a rule
    /// that contains some is quoted: a pattern would lose them, and allow more keys.
    pub fn describe_in_parentheses(&self) -> Vec<u8> {
        let rules = self.describe();
        // No rule contains a blank.
        let quoted = rules.split(|byte| *byte == b' ').map(|rule| {
            match quote::split_arguments(&[rule, b"\n"].concat()).as_deref() {
                Some([read]) if read == rule => rule.to_vec(),
                _ => {
                    let mut quoted = Vec::new();
                    quote::append_quoted(&mut quoted, rule);
                    quoted
                }
            }
        });
        quoted.collect::<Vec<_>>().join(&b' ')
    }

    /// Returns rules that recreate this selector from any other.
    pub fn describe(&self) -> Vec<u8> {
        let mut parts = vec![self.describe_keys()];
        if self.all_channels {
            parts.push(self.describe_channels());
        } else {
            parts.push(b"resetchannels".to_vec());
            parts.push(self.describe_channels());
        }
        match &self.databases {
            AllowedDatabases::All => {}
            AllowedDatabases::Only(numbers) if numbers.is_empty() => parts.push(b"resetdbs".to_vec()),
            AllowedDatabases::Only(_) => parts.push(self.describe_databases().into_bytes()),
        }
        parts.push(self.describe_commands());
        parts.retain(|part| !part.is_empty());
        parts.join(&b' ')
    }
}

/// Splits the text after `%` into the access and the pattern after `~`. Both `~` and the pattern may be missing.
fn split_access(rest: &[u8]) -> Result<(KeyAccess, &[u8]), RuleError> {
    let mut access = KeyAccess::empty();
    for (index, byte) in rest.iter().enumerate() {
        access = match byte.to_ascii_uppercase() {
            b'R' if !access.contains(KeyAccess::READ) => access.union(KeyAccess::READ),
            b'W' if !access.contains(KeyAccess::WRITE) => access.union(KeyAccess::WRITE),
            b'~' if access != KeyAccess::empty() => return Ok((access, &rest[index + 1..])),
            _ => return Err(RuleError::Syntax),
        };
    }
    if access.is_empty() {
        return Err(RuleError::Syntax);
    }
    Ok((access, &[]))
}

/// Parses comma-separated numbers, each in the syntax of C's `strtol`.
fn parse_databases(list: &[u8]) -> Result<BTreeSet<u32>, RuleError> {
    list.split(|byte| *byte == b',').map(parse_database).collect()
}

fn parse_database(word: &[u8]) -> Result<u32, RuleError> {
    let word = word.trim_ascii_start();
    let (negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(RuleError::Syntax);
    }
    let number = digits.iter().fold(0_i64, |number, digit| {
        number.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    });
    match i32::try_from(number) {
        Ok(number) if !negative || number == 0 => Ok(number as u32),
        _ => Err(RuleError::DatabaseOutOfRange),
    }
}
