//! Tests of the choice of sections and of summing up the workers' figures.

use super::*;

fn names(words: &[&str]) -> Vec<&'static str> {
    wanted(words.iter().map(|word| word.as_bytes()))
        .iter()
        .map(|section| section.name())
        .collect()
}

#[test]
fn sections_come_once_and_in_their_own_order_whatever_the_words_say() {
    assert_eq!(names(&["clients", "SERVER", "server"]), ["server", "clients"]);
    assert_eq!(names(&["nosuch"]), [""; 0]);
    assert_eq!(names(&[]), names(&["default"]));
    assert_eq!(names(&["all", "server", "everything"]).len(), Section::ALL.len());
    assert!(!names(&[]).contains(&"commandstats"));
    assert!(!names(&["everything"]).contains(&"debug"));
    assert_eq!(names(&["Debug"]), ["debug"]);
    assert!(names(&["default", "commandstats"]).contains(&"commandstats"));
}

#[test]
fn figures_of_workers_add_up() {
    let part = |numbers: [u64; 7]| {
        numbers
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect::<TransactionPart>()
    };
    let total = total(&[part([1, 4, 1 << 40, 9, 7, 3, 1]), part([2, 3, 5, 2, 6, 300, 2])]);
    assert_eq!(
        total,
        ClientFigures {
            blocked: 3,
            watching: 7,
            memory_bytes: (1 << 40) + 5,
            replica_bytes: 11,
            max_input_bytes: 7,
            max_output_bytes: 300,
            closing: 3,
            allocator: Default::default(),
        }
    );
}
