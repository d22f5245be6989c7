//! Tests of the check that every leeway has a planted difference.

use super::*;

/// Returns the planted differences that `keeps` accepts.
fn planted_if(keeps: impl Fn(&PlantedDifference) -> bool) -> Vec<&'static PlantedDifference> {
    all_planted().into_iter().filter(|planted| keeps(planted)).collect()
}

#[test]
fn every_leeway_exception_and_directive_has_a_planted_difference() {
    assert_eq!(check_completeness(&all_planted()), Ok(()));
}

#[test]
fn a_leeway_without_a_planted_difference_is_found() {
    for leeway in generate::used_leeways() {
        let others = planted_if(|planted| match planted.commands {
            Generated(commands) => commands.last().is_none_or(|(_, last)| *last != leeway),
            Case(_) => true,
        });
        let found = check_completeness(&others).unwrap_err();
        assert!(found.ends_with(&format!("{leeway:?}")), "{found}");
    }
}

#[test]
fn an_exception_or_a_directive_without_a_planted_difference_is_found() {
    let directives = case::COMPARISON_DIRECTIVES.iter().map(|name| format!("@{name}"));
    for subject in exceptions::GENERATED.iter().map(ToString::to_string).chain(directives) {
        let others = planted_if(|planted| !planted.name.starts_with(&format!("{subject}: ")));
        assert!(check_completeness(&others).is_err(), "{subject}");
    }
}
