//! Tests of the databases that are printed.

use super::*;

/// Returns the numbers of the databases that are printed if there are keys in `databases`.
fn printed(databases: &[usize]) -> Vec<usize> {
    let mut statistics = RdbStatistics::default();
    for db in databases {
        statistics.add(&CountedKey {
            db: *db,
            name_bytes: 1,
            content: None,
            has_expiry: false,
            is_expired: false,
        });
    }
    let mut out = Vec::new();
    statistics.print(StatisticsFormat::Csv, &mut out);
    let text = String::from_utf8(out).expect("text");
    let mut numbers: Vec<usize> = text
        .lines()
        .map(|line| {
            let (number, _) = line
                .strip_prefix("db.")
                .and_then(|rest| rest.split_once('.'))
                .expect("a figure");
            number.parse().expect("a number")
        })
        .collect();
    assert_eq!(numbers.len() % (1 + FIGURES.len()), 0);
    numbers.dedup();
    numbers
}

#[test]
fn empty_databases_are_printed_up_to_the_last_one_with_keys() {
    assert_eq!(printed(&[]), [0]);
    assert_eq!(printed(&[0]), [0]);
    assert_eq!(printed(&[3, 1]), [0, 1, 2, 3]);
}

#[test]
fn a_huge_number_of_a_database_does_not_lengthen_the_output() {
    let low: Vec<usize> = (0..EMPTY_DATABASES_MAX).collect();
    let high = [EMPTY_DATABASES_MAX, 1 << 40, usize::MAX];
    assert_eq!(printed(&high), [low.as_slice(), &high].concat());
}
