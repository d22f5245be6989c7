//! An ACL user: its state, its passwords, and the selectors with its permissions.

use super::catalogue::CommandCatalogue;
use super::check::{AccessRequest, ChannelUse, Denial, DenialReason, KeyAccess};
use super::password::PasswordHash;
use super::rules::{RuleError, UnclosedSelector, is_word, merge_selectors, until_nul};
use super::selector::{CommandRule, Selector};

/// The defaults of new selectors.
#[derive(Clone, Copy)]
pub struct SelectorDefaults<'a> {
    /// The commands that rules may name.
    pub catalogue: &'a CommandCatalogue,
    /// `true` if `acl-pubsub-default` is `allchannels`.
    pub all_channels: bool,
}

/// A user without its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRules {
    enabled: bool,
    no_password: bool,
    passwords: Vec<PasswordHash>,
    /// The permissions set by rules outside parentheses.
    root_selector: Selector,
    selectors: Vec<Selector>,
    /// `true` if one selector forbids nothing.
    is_unrestricted: bool,
}

impl UserRules {
    /// Creates a user that may neither log in nor do anything.
    pub fn new(ground: SelectorDefaults<'_>) -> UserRules {
        UserRules {
            enabled: false,
            no_password: false,
            passwords: Vec::new(),
            root_selector: Selector::new(ground.catalogue, ground.all_channels),
            selectors: Vec::new(),
            is_unrestricted: false,
        }
    }

    /// Creates the initial user `default`, which needs no password and may do everything.
    pub fn unrestricted(catalogue: &CommandCatalogue) -> UserRules {
        let ground = SelectorDefaults {
            catalogue,
            all_channels: true,
        };
        let mut user = UserRules::new(ground);
        for rule in ["on", "nopass", "+@all", "~*", "&*"] {
            let applied = user.apply(rule.as_bytes(), ground);
            debug_assert_eq!(applied, Ok(()), "{rule}");
        }
        user
    }

    /// Applies one rule.
    ///
    /// # Errors
    /// When the rule is invalid. Nothing has changed then.
    pub fn apply(&mut self, rule: &[u8], ground: SelectorDefaults<'_>) -> Result<(), RuleError> {
        let is = |word: &str| is_word(rule, word);
        match rule {
            [] => {}
            _ if is("on") => self.enabled = true,
            _ if is("off") => self.enabled = false,
            // The payloads of RESTORE are always sanitized.
            _ if is("skip-sanitize-payload") || is("sanitize-payload") => {}
            _ if is("nopass") || is("resetpass") => {
                self.no_password = is("nopass");
                self.passwords.clear();
            }
            [b'>', password @ ..] => self.add_password(PasswordHash::of(password)),
            [b'#', digits @ ..] => {
                self.add_password(PasswordHash::parse(digits).ok_or(RuleError::InvalidPasswordHash)?)
            }
            [b'<', password @ ..] => self.remove_password(&PasswordHash::of(password))?,
            [b'!', digits @ ..] => {
                self.remove_password(&PasswordHash::parse(digits).ok_or(RuleError::InvalidPasswordHash)?)?;
            }
            [b'(', inner @ .., b')'] => {
                self.selectors
                    .push(Selector::parse(inner, ground.catalogue, ground.all_channels)?);
            }
            _ if is("clearselectors") => self.selectors.clear(),
            _ if is("reset") => *self = UserRules::new(ground),
            rule => self.root_selector.apply(rule, ground.catalogue)?,
        }
        let everything = self.all_selectors().any(Selector::allows_everything);
        self.is_unrestricted = everything;
        Ok(())
    }

    /// Applies rules of ACL SETUSER in turn, of which a selector may consist of several words. If one is invalid, those
    /// before it have taken effect.
    ///
    /// # Errors
    /// An error text without its code.
    pub fn apply_all<Rule: AsRef<[u8]>>(
        &mut self,
        rules: &[Rule],
        ground: SelectorDefaults<'_>,
    ) -> Result<(), Vec<u8>> {
        let merged = merge_selectors(rules).map_err(|UnclosedSelector(place)| {
            let begin = until_nul(rules[place].as_ref());
            [b"Unmatched parenthesis in acl selector starting at '", begin, b"'."].concat()
        })?;
        for rule in &merged {
            self.apply(rule, ground).map_err(|error| {
                let rule = until_nul(rule);
                let reason = format!("': {}", error.as_str());
                [b"Error in ACL SETUSER modifier '", rule, reason.as_bytes()].concat()
            })?;
        }
        Ok(())
    }

    fn add_password(&mut self, hash: PasswordHash) {
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
        self.no_password = false;
    }

    fn remove_password(&mut self, hash: &PasswordHash) -> Result<(), RuleError> {
        let place = self.passwords.iter().position(|known| known == hash);
        self.passwords.remove(place.ok_or(RuleError::NoSuchPassword)?);
        Ok(())
    }

    fn all_selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root_selector).chain(&self.selectors)
    }

    /// Returns the permissions outside parentheses.
    pub fn root(&self) -> &Selector {
        &self.root_selector
    }

    /// Returns the permissions in parentheses.
    pub fn selectors(&self) -> &[Selector] {
        &self.selectors
    }

    /// Returns `true` if the user may log in.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns `true` if any password is accepted.
    pub fn needs_no_password(&self) -> bool {
        self.no_password
    }

    /// Returns the hashes of the passwords.
    pub fn passwords(&self) -> &[PasswordHash] {
        &self.passwords
    }

    /// Returns `true` if the user may log in with this password.
    pub fn accepts_password(&self, password: &[u8]) -> bool {
        if !self.enabled {
            return false;
        }
        let given = PasswordHash::of(password);
        // All hashes are compared, so that the time does not reveal which one matched.
        let right = self
            .passwords
            .iter()
            .fold(false, |right, known| right | known.is_same(&given));
        self.no_password || right
    }

    /// Returns `true` if nothing is forbidden.
    pub fn is_unrestricted(&self) -> bool {
        self.is_unrestricted
    }

    /// Checks if one selector allows the permissions that a command requires.
    ///
    /// # Errors
    /// The denial of the selector that allows most of them.
    pub fn check(&self, permission: &dyn AccessRequest) -> Result<(), Denial> {
        let mut worst = Denial {
            reason: DenialReason::Database,
            argument: 0,
        };
        for selector in self.all_selectors() {
            match selector.check(permission) {
                Ok(()) => return Ok(()),
                Err(denial) => {
                    let further = denial.reason == worst.reason && denial.argument > worst.argument;
                    if denial.reason > worst.reason || further {
                        worst = denial;
                    }
                }
            }
        }
        Err(worst)
    }

    /// Returns `true` if a selector that allows the command may also read all keys.
    pub fn may_read_all_keys(&self, permission: &dyn AccessRequest) -> bool {
        let allows = |selector: &Selector| selector.may_read_all_keys() && selector.check(permission).is_ok();
        self.is_unrestricted || self.all_selectors().any(allows)
    }

    /// Returns `true` if a channel allowed by `old` may no longer be allowed, judging by the rules alone.
    pub fn loses_channels_of(&self, old: &UserRules) -> bool {
        let allows_all = |user: &UserRules| user.all_selectors().any(Selector::allows_all_channels);
        let has = |pattern: &[u8]| {
            self.all_selectors()
                .any(|selector| selector.channel_patterns().any(|known| known == pattern))
        };
        let lost = |selector: &Selector| selector.channel_patterns().any(|pattern| !has(pattern));
        !allows_all(self) && (allows_all(old) || old.all_selectors().any(lost))
    }

    /// Returns `true` if a channel, or a pattern of channels, may be used. Called for the subscriptions of clients when
    /// users change.
    pub fn allows_channel(&self, usage: ChannelUse, channel: &[u8]) -> bool {
        self.all_selectors()
            .any(|selector| selector.allows_channel(usage, channel))
    }

    /// Applies the command rules again, because the commands or their categories have changed.
    pub fn apply_commands_again(&mut self, catalogue: &CommandCatalogue) {
        self.root_selector.apply_commands_again(catalogue);
        for selector in &mut self.selectors {
            selector.apply_commands_again(catalogue);
        }
        let everything = self.all_selectors().any(Selector::allows_everything);
        self.is_unrestricted = everything;
    }

    /// Returns the rules of all selectors that name a command.
    pub fn rules_about_commands(&self) -> impl Iterator<Item = &CommandRule> {
        self.all_selectors().flat_map(Selector::named_commands)
    }

    /// Returns `true` if one selector allows this access to a key. No access stands for any.
    pub fn allows_key(&self, access: KeyAccess, key: &[u8]) -> bool {
        self.all_selectors().any(|selector| selector.allows_key(access, key))
    }

    /// Returns `true` if one selector allows this access to all keys with a prefix.
    pub fn allows_keys_with_prefix(&self, access: KeyAccess, prefix: &[u8]) -> bool {
        self.all_selectors()
            .any(|selector| selector.allows_keys_with_prefix(access, prefix))
    }

    /// Returns the flags that describe the login: `on` or `off`, `nopass`.
    pub fn flag_names(&self) -> Vec<&'static str> {
        let mut names = vec![if self.enabled { "on" } else { "off" }];
        names.extend(self.no_password.then_some("nopass"));
        names
    }

    /// Returns rules that recreate this user from a new one.
    pub fn describe(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = self.flag_names().iter().map(|name| name.as_bytes().to_vec()).collect();
        parts.extend(
            self.passwords
                .iter()
                .map(|hash| format!("#{}", hash.digits()).into_bytes()),
        );
        parts.push(self.root_selector.describe());
        parts.extend(
            self.selectors
                .iter()
                .map(|selector| [b"(", selector.describe_in_parentheses().as_slice(), b")"].concat()),
        );
        parts.join(&b' ')
    }
}
