//! Fuzzes rules of users, and files of users. A user that was accepted is described by rules that make the same user.
//! An error is one line.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use weft_acl::{CommandCatalogue, SelectorDefaults, UserRules, merge_selectors, parse_file};

fn defaults(all_channels: bool) -> SelectorDefaults<'static> {
    static CATALOGUE: OnceLock<CommandCatalogue> = OnceLock::new();
    SelectorDefaults {
        catalogue: CATALOGUE.get_or_init(|| CommandCatalogue::of_table([], 0, &[])),
        all_channels,
    }
}

/// Creates a user of these rules. A rule that is refused is an error text, and changes nothing.
fn user_of(rules: &[&[u8]], defaults: SelectorDefaults<'_>) -> Option<UserRules> {
    let mut user = UserRules::new(defaults);
    for rule in merge_selectors(rules).ok()? {
        let before = user.describe();
        if let Err(error) = user.apply(&rule, defaults) {
            assert!(!error.as_str().contains(['\r', '\n']));
            assert_eq!(user.describe(), before, "a refused rule changes a user: {rule:?}");
        }
    }
    Some(user)
}

/// Returns `true` if a rule is a selector with quotation marks. [`without_superfluous_patterns`] does not know quoted
/// patterns; a unit test reads such selectors back.
fn has_quoted_selector(rules: &[Vec<u8>]) -> bool {
    rules
        .iter()
        .any(|rule| rule.starts_with(b"(") && rule.iter().any(|byte| matches!(byte, b'"' | b'\'')))
}

/// Removes the key patterns before a `~*` from a description. `%RW~*` after other patterns is described as `~*`, in
/// Valkey too. Read back, it means all keys, and the patterns before it are forgotten.
fn without_superfluous_patterns(described: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for word in described.split(|byte| *byte == b' ') {
        let mut opening: &[u8] = b"";
        while word == b"~*"
            && let Some(last) = kept.pop_if(|last| matches!(last.strip_prefix(b"(").unwrap_or(last), [b'~' | b'%', ..]))
        {
            if last.starts_with(b"(") {
                opening = b"(";
            }
        }
        kept.push(if opening.is_empty() { word } else { b"(~*" });
    }
    kept.join(&b' ')
}

/// Checks that the description of a user makes the same user.
fn check_description(user: &UserRules, defaults: SelectorDefaults<'_>) {
    let described = user.describe();
    let words: Vec<&[u8]> = described
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty())
        .collect();
    let mut again = UserRules::new(defaults);
    let Ok(rules) = merge_selectors(&words) else {
        panic!("selectors of {:?} are not closed", String::from_utf8_lossy(&described));
    };
    if has_quoted_selector(&rules) {
        return;
    }
    for rule in rules {
        if let Err(error) = again.apply(&rule, defaults) {
            let rule = String::from_utf8_lossy(&rule).into_owned();
            panic!("{rule:?} of {:?}: {error:?}", String::from_utf8_lossy(&described));
        }
    }
    assert_eq!(
        String::from_utf8_lossy(&again.describe()),
        String::from_utf8_lossy(&without_superfluous_patterns(&described))
    );
}

fuzz_target!(|input: &[u8]| {
    let Some((shape, text)) = input.split_first() else {
        return;
    };
    let defaults = defaults(shape & 1 == 0);
    // Rules come as arguments, which hold any byte, or as words of a file.
    let separator = if shape & 2 == 0 { b' ' } else { b'\n' };
    let rules: Vec<&[u8]> = text.split(|byte| *byte == separator).collect();
    if let Some(user) = user_of(&rules, defaults) {
        // A pattern with a blank cannot be written to a file. SETUSER refuses it.
        check_description(&user, defaults);
    }
    if let Err(errors) = parse_file(text, b"users.acl", defaults) {
        assert!(!errors.is_empty());
        // At most the whole line is repeated for each word of it.
        assert!(
            errors.len() <= 200 + 60 * text.len(),
            "{} bytes of {}",
            errors.len(),
            text.len()
        );
    }
});
