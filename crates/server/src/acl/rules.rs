//! The words that rules are made of, and what can be wrong with them.

/// Why a rule was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// It is no rule.
    Syntax,
    /// It names a command or category that does not exist.
    UnknownCommand,
    /// A pattern of keys where all keys are allowed already.
    KeysAfterAll,
    /// A pattern of channels where all channels are allowed already.
    ChannelsAfterAll,
    /// It takes a password away that was not there.
    NoSuchPassword,
    /// It gives a hash of a password that is none.
    NotAHash,
    /// It is about the first argument of a subcommand.
    FirstArgumentOfSubcommand,
    /// It names a database whose number cannot be one.
    DatabaseOutOfRange,
}

impl RuleError {
    /// The words that clients know.
    pub fn text(self) -> &'static str {
        match self {
            RuleError::Syntax => "Syntax error",
            RuleError::UnknownCommand => "Unknown command or category name in ACL",
            RuleError::KeysAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. \
                 Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::ChannelsAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            RuleError::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            RuleError::NotAHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            RuleError::FirstArgumentOfSubcommand => "Allowing first-arg of a subcommand is not supported",
            RuleError::DatabaseOutOfRange => "The provided database ID is out of range",
        }
    }
}

/// The bytes up to the first zero byte: what Valkey sees of a word.
pub fn text_of(word: &[u8]) -> &[u8] {
    word.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Whether a rule is that word, in any case.
pub fn is_word(rule: &[u8], word: &str) -> bool {
    text_of(rule).eq_ignore_ascii_case(word.as_bytes())
}

/// Returns `true` if there is a blank or a control byte in it. Rules are written to lines whose words stand between blanks: such
/// a word could not be read back, or would be read as another rule, or another user.
pub fn has_blanks(word: &[u8]) -> bool {
    word.iter().any(|byte| *byte == b' ' || byte.is_ascii_control())
}

/// A selector that has no end: the place of the rule that it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmatched(pub usize);

/// Puts selectors that are spread over several rules together: `(+get`, `~a)` becomes `(+get ~a)`.
///
/// # Errors
/// When a selector is not closed.
pub fn merge_selectors<Word: AsRef<[u8]>>(rules: &[Word]) -> Result<Vec<Vec<u8>>, Unmatched> {
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
                selector.extend_from_slice(text_of(rule));
                if closes {
                    merged.extend(open.take().map(|(_, selector)| selector));
                }
            }
        }
    }
    match open {
        None => Ok(merged),
        Some((place, _)) => Err(Unmatched(place)),
    }
}
