//! Compares which commands the servers have.

use std::collections::BTreeSet;

use super::exceptions::Exceptions;

/// Returns a line for each command that only one of the servers has, unless an exception names it.
pub fn unknown_commands(weft: &BTreeSet<String>, valkey: &BTreeSet<String>, exceptions: &Exceptions) -> Vec<String> {
    let missing = valkey
        .difference(weft)
        .filter(|name| exceptions.reason_without_command(name).is_none())
        .map(|name| format!("Weft lacks the command {name}, and tests/diff/exceptions.txt has no reason for it"));
    let own = weft
        .difference(valkey)
        .map(|name| format!("Valkey has no command {name}"));
    missing.chain(own).collect()
}

#[cfg(test)]
mod tests {
    //! Tests of the comparison of commands.

    use super::*;

    fn names(text: &str) -> BTreeSet<String> {
        text.split(' ').map(str::to_string).collect()
    }

    #[test]
    fn every_command_must_be_on_both_sides_or_be_named() {
        let exceptions = Exceptions::parse("== command cluster|x\nreason: none\n").unwrap();
        let unknown = |weft: &str, valkey: &str| unknown_commands(&names(weft), &names(valkey), &exceptions).len();
        assert_eq!(unknown("get set", "get set"), 0);
        assert_eq!(unknown("get set", "get set cluster|x"), 0);
        assert_eq!(unknown("get set", "get set cluster|y"), 1);
        assert_eq!(unknown("get set own", "get set"), 1);
    }
}
