//! Tests of patterns against results recorded from Valkey and against a model.

use super::*;

/// Decodes a text in which `%HH` stands for a byte and `-` for the empty text.
fn decode(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(hex, 16).unwrap());
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

/// Checks recorded matches. The first line of `data` lists strings. Each other line holds a pattern and the indexes of
/// the strings it matches.
fn check_recorded(data: &str, ignore_case: bool) {
    let mut lines = data.lines();
    let strings: Vec<Vec<u8>> = lines.next().unwrap().split(' ').map(decode).collect();
    let mut count = 0;
    for line in lines {
        let (pattern, expected) = line.split_once(' ').unwrap();
        let pattern = decode(pattern);
        let found = strings
            .iter()
            .enumerate()
            .filter(|(_, s)| matches(&pattern, s, ignore_case));
        let found: Vec<String> = found.map(|(index, _)| index.to_string()).collect();
        assert_eq!(found.join(","), expected, "{}", pattern.escape_ascii());
        count += 1;
    }
    assert!(count > 200);
}

#[test]
fn patterns_match_keys_as_recorded() {
    check_recorded(include_str!("data/keys.txt"), false);
}

#[test]
fn patterns_match_parameters_in_any_case_as_recorded() {
    check_recorded(include_str!("data/parameters.txt"), true);
}

#[test]
fn the_empty_string_matches_only_the_empty_pattern() {
    assert!(matches(b"", b"", false));
    assert!(!matches(b"*", b"", false));
    assert!(!matches(b"", b"a", false));
}

#[test]
fn ranges_with_high_bytes_depend_on_whether_case_is_ignored() {
    // Pattern, string, expected result, expected result with case ignored.
    let cases: [(&[u8], &[u8], bool, bool); 8] = [
        (b"[\xe9-Z]", b"Y", true, false),
        (b"[Z-\xe9]", b"Y", true, false),
        (b"[\x80-Z]", b"z", false, false),
        (b"[\xe9-Z]", b"\xf0", true, false),
        (b"[\xff-Z]", b"z", false, true),
        (b"[Z-\xff]", b"z", false, true),
        (b"[\xff-Z]", b"Y", true, true),
        (b"[\x80-\xfe]", b"\xe9", true, true),
    ];
    for (pattern, string, exact, folded) in cases {
        assert_eq!(matches(pattern, string, false), exact, "{}", pattern.escape_ascii());
        assert_eq!(matches(pattern, string, true), folded, "{}", pattern.escape_ascii());
    }
}

/// Matches by trying every length for every star.
fn model(pattern: &[u8], string: &[u8]) -> bool {
    match (pattern, string) {
        ([], _) => string.is_empty(),
        ([b'*', rest @ ..], _) => (0..=string.len()).any(|len| model(rest, &string[len..])),
        ([b'?', rest @ ..], [_, tail @ ..]) => model(rest, tail),
        ([byte, rest @ ..], [first, tail @ ..]) => byte == first && model(rest, tail),
        (_, []) => false,
    }
}

#[test]
fn random_patterns_agree_with_the_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..50_000 {
        let pattern: Vec<u8> = (0..random.usize(0..9))
            .map(|_| *random.choice(b"ab*?").unwrap())
            .collect();
        let string: Vec<u8> = (0..random.usize(1..12))
            .map(|_| *random.choice(b"ab").unwrap())
            .collect();
        let expected = model(&pattern, &string);
        assert_eq!(matches(&pattern, &string, false), expected, "{pattern:?} {string:?}");
    }
}

#[test]
fn random_bytes_do_not_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..100_000 {
        let pattern: Vec<u8> = (0..random.usize(0..12))
            .map(|_| *random.choice(b"[]^-\\*?ab\xff\0").unwrap())
            .collect();
        let string: Vec<u8> = (0..random.usize(0..8))
            .map(|_| *random.choice(b"[]^-\\ab\xff\0").unwrap())
            .collect();
        // A string with every byte escaped matches itself.
        let escaped: Vec<u8> = string.iter().flat_map(|&byte| [b'\\', byte]).collect();
        assert!(matches(&escaped, &string, false));
        matches(&pattern, &string, random.bool());
    }
}

#[test]
fn many_stars_do_not_take_exponential_time() {
    let mut pattern = b"a*".repeat(500);
    pattern.push(b'b');
    let string = vec![b'a'; 5000];
    assert!(!matches(&pattern, &string, false));
    assert!(matches(&pattern, &[&string[..], b"b"].concat(), false));
    // The pattern of the next check exceeds the depth limit.
    let deep = b"a*".repeat(STAR_MAX_DEPTH as usize + 2);
    assert!(!matches(
        &[&deep, &b"b"[..]].concat(),
        &[&string[..], b"b"].concat(),
        false
    ));
}
