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
fn parts_of_the_published_loads_are_found_by_unique_names() {
    assert_eq!(PART_NAMES.len(), PUBLISHED.comparisons.len());
    assert_eq!(
        parts_by_name("all").expect("all parts").len(),
        PUBLISHED.comparisons.len()
    );
    let parts = parts_by_name("replica,strings").expect("two parts");
    assert!(parts[0].has_replicas && parts[1].title.starts_with("Strings"));
    assert!(parts_by_name("nothing").is_err());
    for (name, comparison) in PART_NAMES.iter().zip(PUBLISHED.comparisons) {
        let title = comparison.title.to_lowercase();
        assert!(title.contains(name), "{name} is not in the title {title:?}");
    }
}

#[test]
fn published_loads_have_three_depths_of_the_pipeline_and_curves_of_both_servers() {
    for comparison in &PUBLISHED.comparisons[..3] {
        for dataset in comparison.datasets {
            for pipeline in [1, 16, 64] {
                let cases = dataset.cases.iter().filter(|case| case.pipeline == pipeline);
                let mixed = |load: &str| load == "mixed" || load.contains(":20");
                let (mixtures, reads): (Vec<&LoadCase>, Vec<&LoadCase>) = cases.partition(|case| mixed(case.load));
                assert_eq!((mixtures.len(), reads.len()), (1, 1), "{}", comparison.title);
            }
        }
    }
    let workers = |program| {
        let sides = PUBLISHED.comparisons[5].sides.iter();
        let numbers = sides.filter(|side| side.program == program).map(|side| side.workers);
        numbers.collect::<Vec<usize>>()
    };
    assert_eq!(workers(Program::Weft), [1, 2, 4, 8, 16]);
    assert_eq!(workers(Program::Weft), workers(Program::Valkey));
    for side in PUBLISHED.comparisons[5].sides {
        let threads = format!("--io-threads {}", side.workers);
        assert!(side.arguments.split(" --io-threads-always").next() == Some(threads.as_str()));
    }
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
