//! Tests of common subsequences against the complete table of lengths.

use super::*;

/// Returns the complete table of lengths, row by row.
fn table(first: &[u8], second: &[u8]) -> Vec<Vec<usize>> {
    let mut lengths = vec![vec![0; second.len() + 1]; first.len() + 1];
    for row in 1..=first.len() {
        for column in 1..=second.len() {
            lengths[row][column] = if first[row - 1] == second[column - 1] {
                lengths[row - 1][column - 1] + 1
            } else {
                lengths[row - 1][column].max(lengths[row][column - 1])
            };
        }
    }
    lengths
}

/// Returns the subsequence and its matches from the full table. The path goes left unless going up is better.
fn model(first: &[u8], second: &[u8]) -> (Vec<u8>, Vec<LcsMatch>) {
    let lengths = table(first, second);
    let (mut row, mut column) = (first.len(), second.len());
    let (mut bytes, mut pairs) = (Vec::new(), Vec::new());
    while row > 0 && column > 0 {
        if first[row - 1] == second[column - 1] {
            row -= 1;
            column -= 1;
            bytes.insert(0, first[row]);
            pairs.push((row, column));
        } else if lengths[row - 1][column] > lengths[row][column - 1] {
            row -= 1;
        } else {
            column -= 1;
        }
    }
    let mut matches: Vec<LcsMatch> = Vec::new();
    for (one, other) in pairs {
        if let Some(last) = matches.last_mut()
            && last.first.start == one + 1
            && last.second.start == other + 1
        {
            last.first.start = one;
            last.second.start = other;
            continue;
        }
        matches.push(LcsMatch {
            first: one..one + 1,
            second: other..other + 1,
        });
    }
    (bytes, matches)
}

#[test]
fn known_texts_give_the_known_subsequence_and_matches() {
    let comparison = Comparison::new(b"ohmytext", b"mynewtext").unwrap();
    assert_eq!(comparison.length(), 6);
    assert_eq!(comparison.subsequence(), b"mytext");
    let matches = comparison.matches();
    let wanted = [(4..8, 5..9), (2..4, 0..2)].map(|(first, second)| LcsMatch { first, second });
    assert_eq!(matches, wanted);
    assert_eq!(matches[0].length(), 4);
}

#[test]
fn empty_strings_have_nothing_in_common() {
    for (first, second) in [("", ""), ("", "abc"), ("abc", "")] {
        let comparison = Comparison::new(first.as_bytes(), second.as_bytes()).unwrap();
        assert_eq!(comparison.length(), 0);
        assert_eq!(length(first.as_bytes(), second.as_bytes()).unwrap(), 0);
        assert!(comparison.subsequence().is_empty());
        assert!(comparison.matches().is_empty());
    }
}

#[test]
fn random_strings_agree_with_the_table() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..400 {
        let letters = random.u8(1..6);
        let longest = if random.bool() { 12 } else { 300 };
        let mut text = || -> Vec<u8> { (0..random.usize(0..longest)).map(|_| random.u8(0..letters)).collect() };
        let (first, second) = (text(), text());
        let (bytes, matches) = model(&first, &second);
        let comparison = Comparison::new(&first, &second).unwrap();
        assert_eq!(comparison.length(), bytes.len(), "{first:?} {second:?}");
        assert_eq!(length(&first, &second).unwrap(), bytes.len());
        assert_eq!(comparison.subsequence(), bytes, "{first:?} {second:?}");
        assert_eq!(comparison.matches(), matches, "{first:?} {second:?}");
    }
}

#[test]
fn steps_are_counted_without_overflow() {
    assert_eq!(estimate_steps(0, 0), 0);
    assert_eq!(estimate_steps(10, 1), 10);
    assert_eq!(estimate_steps(10, 65), 20);
    assert!(estimate_steps(usize::MAX, usize::MAX) > 1 << 60);
}
