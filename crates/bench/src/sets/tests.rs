//! Tests of the tables.

use super::*;

fn comparisons() -> impl Iterator<Item = &'static Comparison> {
    SETS.iter().flat_map(|set| set.comparisons)
}

#[test]
fn sets_are_found_by_unique_names() {
    for (position, set) in SETS.iter().enumerate() {
        assert!(SETS[..position].iter().all(|other| other.name != set.name));
        assert_eq!(sets_by_name(set.name).expect(set.name).len(), 1);
    }
    assert_eq!(sets_by_name("scripts,pubsub").expect("two sets").len(), 2);
    assert!(sets_by_name("nothing").is_err());
}

#[test]
fn labels_of_a_comparison_differ() {
    for comparison in comparisons() {
        for (position, side) in comparison.sides.iter().enumerate() {
            let labels = comparison.sides[..position].iter();
            assert!(labels.map(|other| other.label).all(|label| label != side.label));
        }
    }
}

#[test]
fn publishing_loads_have_the_subscribers_that_their_reply_counts() {
    for case in comparisons()
        .flat_map(|comparison| comparison.datasets)
        .flat_map(|dataset| dataset.cases)
    {
        let Some(receivers) = case.load.strip_prefix("publish-") else {
            assert!(!matches!(case.background_load, BackgroundLoad::Subscribers { .. }));
            continue;
        };
        let subscribers = match case.background_load {
            BackgroundLoad::Subscribers { count } => count,
            _ => 0,
        };
        assert_eq!(receivers.parse(), Ok(subscribers), "{}", case.load);
    }
}

#[test]
fn huge_pages_are_an_option_of_strings_and_memory_only() {
    let with_option = SETS
        .iter()
        .filter(|set| set.comparisons.iter().any(|each| each.may_add_huge_pages));
    let names: Vec<&str> = with_option.map(|set| set.name).collect();
    assert_eq!(names, ["strings", "memory"]);
}
