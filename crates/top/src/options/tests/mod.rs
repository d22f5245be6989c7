//! Tests of the command line.

mod manual;

use std::time::Duration;

use super::{OPTIONS, OutputMode, ParsedCommandLine, ServerAddress, TopOptions, parse};

fn options(line: &str) -> Result<TopOptions, String> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match parse(&words, |_| None) {
        Ok(ParsedCommandLine::Run(options)) => Ok(*options),
        Ok(ParsedCommandLine::Print(text)) => Err(text),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn defaults_are_those_of_the_command_line_client() {
    let parsed = options("").unwrap();
    assert_eq!(parsed.connection.address.to_string(), "127.0.0.1:6379");
    assert_eq!(parsed.interval, Duration::from_secs(1));
    assert_eq!(parsed.mode, OutputMode::Dashboard);
    assert!(parsed.connection.tls.is_none());
}

#[test]
fn all_options_are_understood() {
    let parsed = options("-h ::1 -p 7000 -a secret --user joe --tls --cacert ca --cert c --key k -i 0.5").unwrap();
    assert_eq!(parsed.connection.address.to_string(), "[::1]:7000");
    assert_eq!(parsed.connection.password.as_deref(), Some("secret"));
    assert_eq!(parsed.connection.tls.unwrap().key, Some("k".into()));
    let socket = options("-s /tmp/x --interval=2").unwrap();
    assert_eq!(socket.connection.address, ServerAddress::Unix("/tmp/x".into()));
    let once = OutputMode::Json {
        count: Some(1),
        pretty: true,
    };
    assert_eq!(options("--once").unwrap().mode, once);
    let two = OutputMode::Json {
        count: Some(2),
        pretty: false,
    };
    assert_eq!(options("--json --count 2").unwrap().mode, two);
    let costly = options("--hot-keys --json").unwrap();
    assert!(costly.hot_keys && !costly.sample_keys);
}

#[test]
fn the_environment_holds_the_password() {
    let variable = |name: &str| (name == "REDISCLI_AUTH").then(|| "from environment".to_owned());
    let Ok(ParsedCommandLine::Run(parsed)) = parse(&[], variable) else {
        panic!("an empty command line is valid");
    };
    assert_eq!(parsed.connection.password.as_deref(), Some("from environment"));
    assert!(!format!("{parsed:?}").contains("from environment"));
}

#[test]
fn wrong_command_lines_are_refused() {
    for line in [
        "-x",
        "-p 70000",
        "-p",
        "-i 0",
        "-i nan",
        "-i 1e9",
        "--count 0",
        "--count 3",
        "--once --count 2",
        "--json=1",
        "-p 1 -p 2",
        "--cacert x",
        "-s a -h b",
        "--user joe",
        "word",
    ] {
        assert!(options(line).unwrap_err().contains("see --help"), "{line}");
    }
}

#[test]
fn help_names_every_option() {
    let text = options("--help").unwrap_err();
    for row in OPTIONS {
        assert!(text.contains(row.names[0]));
    }
    assert!(options("--version").unwrap_err().starts_with("weft-top "));
}
