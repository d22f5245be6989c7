//! Tests of the command line.

use std::ffi::OsString;

use super::{ScratchDirectory, config_get};
use crate::command_line::{CommandLine, version_line};
use crate::{Config, StartAction, StartError};

fn parse(arguments: &[&str]) -> Result<StartAction, StartError> {
    let arguments: Vec<OsString> = std::iter::once("weft-server")
        .chain(arguments.iter().copied())
        .map(Into::into)
        .collect();
    StartAction::parse(&arguments)
}

fn run(arguments: &[&str]) -> CommandLine {
    match parse(arguments) {
        Ok(StartAction::RunServer(command_line)) => command_line,
        other => panic!("{arguments:?} gave {other:?}"),
    }
}

#[test]
fn options_become_lines() {
    let cases: [(&[&str], &str); 14] = [
        (&[], ""),
        (&["--port", "7000"], "port \"7000\" "),
        (
            &["--port", "7000", "--save", "900", "1", "--hz", "5"],
            "port \"7000\" \nsave \"900\" \"1\" \nhz \"5\" ",
        ),
        (&["--port 7000", "--hz", "5"], "port 7000 \nhz \"5\" "),
        (&["--port=7000"], "port=7000 "),
        (&["--requirepass", "--x"], "requirepass \"--x\" "),
        (&["--save", "--hz", "5"], "save \"\"\nhz \"5\" "),
        (&["--SAVE"], "SAVE \"\""),
        (&["--save", ""], "save \"\" "),
        (&["--loglevel"], "loglevel "),
        (&["--requirepass", "a b\n"], "requirepass \"a b\\n\" "),
        (&["x.conf", "--port", "1"], "port \"1\" "),
        (&["-x"], "\"-x\" "),
        (&["--bind", "-", "::1"], "bind \"-\" \"::1\" "),
    ];
    for (arguments, expected) in cases {
        assert_eq!(
            String::from_utf8_lossy(&run(arguments).options),
            expected,
            "{arguments:?}"
        );
    }
}

#[test]
fn the_file_comes_first_and_a_dash_stands_at_an_end() {
    let both = run(&["/etc/weft.conf", "--port", "1", "-"]);
    assert_eq!(
        (both.file.as_deref().and_then(|path| path.to_str()), both.standard_input),
        (Some("/etc/weft.conf"), true)
    );
    let input = run(&["-", "--port", "1"]);
    assert_eq!((input.file, input.standard_input), (None, true));
    assert!(run(&["-"]).standard_input);
    assert!(!run(&["--port", "-", "1"]).standard_input);
}

#[test]
fn options_override_the_file_and_their_errors_count_lines_after_it() {
    let scratch = ScratchDirectory::new("options");
    let file = scratch.file("weft.conf", "hz 9999\nTIMEOUT 1\nport 5\n");
    let path = file.to_str().expect("a printable path");
    let config = Config::load(&run(&[path, "--port", "7812", "--timeout", "3"])).expect("good options");
    assert_eq!(
        (config_get(&config, "port"), config_get(&config, "timeout")),
        ("7812".into(), "3".into())
    );

    let error =
        Config::load(&run(&[path, "--port", "7812", "--hz", "5", "--timeout", "3", "x"])).expect_err("two values");
    assert!(
        error
            .to_string()
            .ends_with("at line 7\n>>> 'timeout \"3\" \"x\"'\nwrong number of arguments"),
        "{error}"
    );
    let error = Config::load(&run(&["--port"])).expect_err("no value");
    assert!(
        error
            .to_string()
            .ends_with("at line 2\n>>> 'port'\nwrong number of arguments"),
        "{error}"
    );
}

#[test]
fn values_with_several_parts_are_accepted_split_or_joined() {
    for arguments in [
        &["--save", "900 1 60 5"][..],
        &["--save", "900", "1", "60", "5"],
        &["--save 900 1", "--save", "60 5"],
    ] {
        let config = Config::load(&run(arguments)).expect("good options");
        assert_eq!(config_get(&config, "save"), "900 1 60 5", "{arguments:?}");
    }
    let config = Config::load(&run(&["--save", ""])).expect("good options");
    assert_eq!(config_get(&config, "save"), "");
}

#[test]
fn information_is_shown_instead_of_a_start() {
    for option in ["-v", "--version"] {
        assert_eq!(parse(&[option]), Ok(StartAction::PrintText(version_line())));
    }
    for option in ["-h", "--help"] {
        assert!(
            matches!(parse(&[option]), Ok(StartAction::PrintText(text)) if text.starts_with("Usage: weft-server "))
        );
    }
    assert_eq!(parse(&["--check-system"]), Ok(StartAction::CheckSystem));
    let Ok(StartAction::PrintText(text)) = parse(&["--print-default-config"]) else {
        unreachable!("it is text");
    };
    assert!(text.contains("\n#maxmemory 0\n") && text.contains("\n#io-threads "));
    let checked = parse(&["--check-config", "weft.conf", "--port", "7000"]);
    let Ok(StartAction::RunServer(started)) = parse(&["weft.conf", "--port", "7000"]) else {
        unreachable!("it starts");
    };
    assert_eq!(
        checked,
        Ok(StartAction::CheckConfiguration(started)),
        "the same words as for a start"
    );
    assert!(matches!(parse(&["--test-memory", "100"]), Err(StartError::Other(_))));
    let (report, _) = crate::system_check::run();
    assert_eq!(
        report
            .lines()
            .filter(|line| line.starts_with('[') && line.contains("]..."))
            .count(),
        3
    );
}

#[test]
fn the_version_line_is_laid_out_as_tools_expect() {
    let line = version_line();
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    assert_eq!(words[..3], ["Valkey", "server", "v=9.1.2"]);
    let keys: Vec<&str> = words[2..]
        .iter()
        .filter_map(|word| word.split_once('='))
        .map(|(key, _)| key)
        .collect();
    assert_eq!(keys, ["v", "sha", "malloc", "bits", "build", "weft"]);
    assert_eq!(words[3].split_once(':').map(|(_, dirty)| dirty), Some("0"));
}

#[test]
fn program_names_have_no_effect_but_sentinel_is_refused() {
    for (program, runs) in [
        ("/usr/bin/valkey-server", true),
        ("redis-server", true),
        ("/opt/my-sentinel-tests/weft-server", true),
        ("/usr/bin/redis-sentinel", false),
        ("valkey-sentinel", false),
    ] {
        assert_eq!(StartAction::parse(&[program.into()]).is_ok(), runs, "{program}");
    }
    assert_eq!(
        parse(&["x.conf", "--sentinel"]),
        Err(StartError::Other("This server has no Sentinel mode.".into()))
    );
}
