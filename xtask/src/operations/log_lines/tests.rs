//! Tests of the lines of logs.

use super::*;

fn line(text: &str) -> String {
    format!("4711:M 20 Nov 2026 22:15:45.062 # {text}\n")
}

fn numbered(logger: usize, numbers: &[u64]) -> String {
    numbers
        .iter()
        .map(|number| line(&format!("{MARK}{logger}:{number}")))
        .collect()
}

fn sent(acknowledged: &[u64], unknown: &[u64]) -> BTreeMap<usize, SentLines> {
    let lines = SentLines {
        last: 9,
        acknowledged: acknowledged.iter().copied().collect(),
        unknown: unknown.iter().copied().collect(),
    };
    BTreeMap::from([(0, lines)])
}

fn check(texts: &[String], sent: &BTreeMap<usize, SentLines>) -> Result<u64, String> {
    let texts: Vec<(String, String)> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| (format!("log.{index}"), text.clone()))
        .collect();
    check_texts(&texts, sent)
}

#[test]
fn lines_have_the_format_of_valkey() {
    for (text, wanted) in [
        (
            "4711:M 20 Nov 2026 22:15:45.062 * Ready to accept connections",
            Some("Ready to accept connections"),
        ),
        ("1:S 01 Jan 2027 00:00:00.000 - ", Some("")),
        ("1:C 01 Jan 2027 00:00:00.000 # forked", Some("forked")),
        ("1:M 01 Jan 2027 00:00:00.000 #", None),
        ("1:M 1 Jan 2027 00:00:00.000 # text", None),
        ("1:M 01 Foo 2027 00:00:00.000 # text", None),
        ("1:M 01 Jan 2027 00:00:00.00 # text", None),
        ("1:M 01 Jan 2027 00:00.000 # text", None),
        ("1:X 01 Jan 2027 00:00:00.000 # text", None),
        ("M 01 Jan 2027 00:00:00.000 # text", None),
        ("the second half of a line", None),
        ("", None),
    ] {
        assert_eq!(message(text), wanted, "{text:?}");
    }
}

#[test]
fn whole_logs_are_accepted() {
    let texts = [
        line("Server initialized") + &numbered(0, &[1, 2]),
        String::new(),
        numbered(0, &[3, 5]) + &line("Ready"),
    ];
    // Line 4 had no reply and was not written, line 5 had none and was.
    assert_eq!(check(&texts, &sent(&[1, 2, 3], &[4, 5])), Ok(6));
}

#[test]
fn lost_torn_repeated_and_mixed_lines_are_found() {
    let whole = numbered(0, &[1, 2, 3]);
    let torn = whole.trim_end().to_owned();
    let (half, rest) = whole.split_at(whole.len() - 10);
    for (texts, part) in [
        (vec![numbered(0, &[1, 3])], "line 2 is in no file"),
        (vec![numbered(0, &[1, 2, 2, 3])], "line 2 follows line 2"),
        (vec![numbered(0, &[3]), numbered(0, &[1, 2])], "line 1 follows line 3"),
        (vec![numbered(0, &[1, 2, 3, 4])], "line 4 was not sent"),
        (vec![whole.clone(), numbered(1, &[1])], "lines of logger 1"),
        (vec![torn, numbered(0, &[])], "log.0 ends within a line"),
        (vec![format!("{half}\n")], "line 3 is in no file"),
        (vec![format!("{half}\n{rest}")], "no whole line"),
    ] {
        match check(&texts, &sent(&[1, 2, 3], &[])) {
            Err(why) => assert!(why.contains(part), "{why}"),
            Ok(lines) => panic!("{lines} lines were accepted instead of: {part}"),
        }
    }
}

#[test]
fn lines_about_failed_dumps_and_rewrites_are_found() {
    let ended = line("Background saving terminated by request");
    assert_eq!(check(&[ended], &BTreeMap::new()), Ok(1));
    for failure in FAILURES {
        let texts = [line("Ready") + &line(failure) + &line("Background saving terminated with success")];
        let why = check(&texts, &BTreeMap::new()).expect_err("a failure");
        assert!(why.contains(failure), "{why}");
    }
}

#[test]
fn rotated_files_are_checked_and_kept_for_one_round() {
    let directory = std::env::temp_dir().join(format!("weft-xtask-log-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let mut logs = NodeLogs::default();
    let write = |text: &str| fs::write(directory.join(LOG_FILE), text).expect("a file");
    assert_eq!(logs.rotate(&directory), Ok(false));
    write(&numbered(0, &[1]));
    assert_eq!(logs.rotate(&directory), Ok(true));
    write(&numbered(0, &[2]));
    logs.sent = sent(&[1, 2], &[]);
    assert_eq!(logs.check(&directory), Ok(2));
    let exists = |number: u32| directory.join(format!("{LOG_FILE}.{number}")).exists();
    assert!(exists(1) && exists(2) && !directory.join(LOG_FILE).exists());
    write(&numbered(0, &[3]));
    logs.sent = sent(&[3, 4], &[]);
    assert_eq!(logs.check(&directory), Err("logger 0: line 4 is in no file".to_owned()));
    logs.sent = sent(&[3], &[]);
    assert_eq!(logs.check(&directory), Ok(1));
    assert!(!exists(1) && !exists(2) && exists(3));
    fs::remove_dir_all(&directory).expect("removed");
}
