//! Titles as the system shows them.

use super::{Borders, ROOM, set_process_title};

fn shown() -> Vec<u8> {
    std::fs::read("/proc/self/cmdline").expect("the system tells the command line")
}

#[test]
fn fields_are_found_behind_any_name() {
    let numbers: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
    let text = format!("77 (a) b (c) S {}\n", numbers.join(" "));
    let borders = Borders::parse(&text).expect("all fields are there");
    let expected = Borders {
        code: [26, 27],
        stack: 28,
        data: [45, 46, 47],
        environment: [50, 51],
    };
    assert_eq!(borders, expected);
    assert_eq!(Borders::parse("77 (a) S 1 2 3"), None);
    assert_eq!(Borders::parse(""), None);
}

#[test]
fn a_title_is_shown_whatever_its_length() {
    let environment = std::fs::read("/proc/self/environ").expect("the system tells the environment");
    for title in [
        "short".to_owned(),
        "x".repeat(500),
        String::new(),
        "another one *:6379".to_owned(),
    ] {
        match set_process_title(title.as_bytes()) {
            Ok(()) => assert_eq!(shown(), [title.as_bytes(), b"\0"].concat()),
            // A kernel that does not offer it has nothing to be tested.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}"),
        }
    }
    if set_process_title(&vec![b'y'; 5000]).is_ok() {
        assert_eq!(shown().len(), ROOM);
    }
    if set_process_title(b"cut\0here").is_ok() {
        assert_eq!(shown(), b"cut\0");
    }
    let after = std::fs::read("/proc/self/environ").expect("the system tells the environment");
    assert_eq!(environment, after);
}
