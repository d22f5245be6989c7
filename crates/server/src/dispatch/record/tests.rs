//! Tests that secrets stay out of the recorded arguments.

use weft_resp::{ParseOutcome, Parser, RequestLimits};

use super::*;

fn redacted_arguments(full_name: &str, words: &[&str]) -> Vec<usize> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    let mut ranges = Vec::new();
    let limits = RequestLimits {
        max_bulk_len: 1 << 20,
        is_authenticated: true,
    };
    let parsed = Parser::default().parse(request.as_bytes(), &mut ranges, &limits);
    assert!(matches!(parsed, ParseOutcome::Request { .. }));
    let args = Args::new(request.as_bytes(), &ranges);
    (0..words.len())
        .filter(|index| is_redacted(full_name, args, *index))
        .collect()
}

#[test]
fn secrets_are_redacted_in_every_command_that_takes_them() {
    for (full_name, line, expected) in [
        ("auth", "auth user pass", vec![1, 2]),
        ("hello", "hello 3 AUTH user pass SETNAME joe", vec![3, 4]),
        ("hello", "hello 3", vec![]),
        (
            "config|set",
            "config set masterauth x timeout 0 REQUIREPASS y",
            vec![3, 7],
        ),
        ("config|set", "config set timeout requirepass", vec![]),
        ("acl|setuser", "acl setuser bob on >x", vec![2, 3, 4]),
        ("migrate", "migrate h 1 k 0 10 AUTH x", vec![7]),
        ("migrate", "migrate h 1 k 0 10 AUTH2 u p KEYS a", vec![7, 8]),
        ("set", "set auth x", vec![]),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(redacted_arguments(full_name, &words), expected, "{line}");
    }
}
