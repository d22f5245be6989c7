//! The syntax of ACL rules, and its errors.
/// The reason for which a rule was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// It is not a rule.
    Syntax,
    /// It names an unknown command or category.
    UnknownCommand,
    /// It adds a key pattern although all keys are allowed.
    KeyPatternAfterAllKeys,
    /// It adds a channel pattern although all channels are allowed.
    ChannelPatternAfterAllChannels,
    /// It removes a password that the user does not have.
    NoSuchPassword,
    /// It contains an invalid password hash.
    InvalidPasswordHash,
    /// It specifies the first argument of a subcommand.
    FirstArgumentOfSubcommand,
    /// It names a database with an invalid number.
    DatabaseOutOfRange,
}

impl RuleError {
    /// Returns Valkey's error text.
    pub fn as_str(self) -> &'static str {
        match self {
            RuleError::Syntax => "Syntax error",
            RuleError::UnknownCommand => "Unknown command or category name in ACL",
            RuleError::KeyPatternAfterAllKeys => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. \
                 Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::ChannelPatternAfterAllChannels => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            RuleError::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            RuleError::InvalidPasswordHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            RuleError::FirstArgumentOfSubcommand => "Allowing first-arg of a subcommand is not supported",
            RuleError::DatabaseOutOfRange => "The provided database ID is out of range",
        }
    }
}

/// Returns the bytes up to the first zero byte, which is all that Valkey sees of a word.
pub fn until_nul(word: &[u8]) -> &[u8] {
    word.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns `true` if the rule is this word, ignoring case.
pub fn is_word(rule: &[u8], word: &str) -> bool {
    until_nul(rule).eq_ignore_ascii_case(word.as_bytes())
}

/// Returns `true` if the word contains a blank or a control byte. Rules are written to lines whose words are separated
/// by blanks: such a word could not be read back, or would be read as another rule or another user.
pub fn has_blanks(word: &[u8]) -> bool {
    word.iter().any(|byte| *byte == b' ' || byte.is_ascii_control())
}

/// A selector without an end, given by the index of its first rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnclosedSelector(pub usize);

/// Joins selectors that span several rules: `(+get`, `~a)` becomes `(+get ~a)`.
///
/// # Errors
/// When a selector is not closed.
pub fn merge_selectors<Word: AsRef<[u8]>>(rules: &[Word]) -> Result<Vec<Vec<u8>>, UnclosedSelector> {
    let mut merged: Vec<Vec<u8>> = Vec::with_capacity(rules.len());
    let mut open: Option<(usize, Vec<u8>)> = None;
    for (place, rule) in rules.iter().enumerate() {
        let rule = rule.as_ref();
        let closes = rule.last() == Some(&b')');
        match &mut open {
            None if rule.first() == Some(&b'(') && !closes => open = Some((place, rule.to_vec())),
            None => merged.push(rule.to_vec()),
            Some((_, selector)) => {
                selector.push(b' ');
                selector.extend_from_slice(until_nul(rule));
                if closes {
                    merged.extend(open.take().map(|(_, selector)| selector));
                }
            }
        }
    }
    match open {
        None => Ok(merged),
        Some((place, _)) => Err(UnclosedSelector(place)),
    }
}
