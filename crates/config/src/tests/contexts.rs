//! Tests of what errors say in addition to Valkey's text: the file, the line, and what would be valid.

use super::ScratchDirectory;
use crate::command_line::CommandLine;
use crate::{Config, ParameterId, SetPermissions, StartError, id};

fn failure(text: &str) -> StartError {
    match Config::parse(text.as_bytes(), None) {
        Err(error) => error,
        Ok(_) => panic!("{text:?} was accepted"),
    }
}

fn load_failure(file: Option<std::path::PathBuf>, options: &str) -> StartError {
    let command_line = CommandLine {
        file,
        standard_input: false,
        options: options.into(),
    };
    match Config::load(&command_line) {
        Err(error) => error,
        Ok(_) => panic!("{options:?} was accepted"),
    }
}

#[test]
fn errors_say_what_would_be_valid() {
    let cases = [
        (
            "port 70000",
            "port takes one value: a number from 0 to 65535; the default is 6379.",
        ),
        (
            "port",
            "port takes one value: a number from 0 to 65535; the default is 6379.",
        ),
        (
            "io-threads x",
            "io-threads takes one value: a number from 0 to 256; the default is 0, which means automatic.",
        ),
        (
            "maxmemory 1tb",
            "maxmemory takes one value: an amount of bytes, with or without one of the units kb, mb and gb; the default \
             is 0.",
        ),
        (
            "maxmemory-clients x",
            "maxmemory-clients takes one value: an amount of bytes, with or without one of the units kb, mb and gb, or a \
             percentage from 0% to 100%; the default is 0.",
        ),
        (
            "unixsocketperm 999",
            "unixsocketperm takes one value: an octal number from 0 to 777; the default is 0.",
        ),
        (
            "slave-read-only perhaps",
            "slave-read-only takes one value: yes or no; the default is yes.",
        ),
        (
            "appendfsync now",
            "appendfsync takes one value: one of everysec, always, no; the default is everysec.",
        ),
        (
            "appendfilename a/b",
            "appendfilename takes one value, in quotes if it contains blanks: the name of a file, without a directory; \
             the default is appendonly.aof.",
        ),
        (
            "save 1",
            "save takes pairs of seconds, at least 1, and a number of changes, or \"\"; the default is 3600 1 300 100 60 \
             10000.",
        ),
        (
            "replicaof a x",
            "replicaof takes a host and a port from 0 to 65535, or no one.",
        ),
        ("include", "include takes one path or pattern of files."),
        (
            "maxmemroy 1gb",
            "There is no parameter 'maxmemroy'. Did you mean 'maxmemory'?",
        ),
        ("port=77", "A blank separates the name port from its value."),
        (
            "no-such-parameter 1",
            "There is no parameter 'no-such-parameter'; weft-server --print-default-config prints all of them.",
        ),
        ("requirepass \"a", crate::advice::FOR_QUOTES),
        ("foo.bar 1", crate::advice::FOR_MODULES),
    ];
    for (line, expected) in cases {
        let context = failure(&format!("# x\n{line}")).context();
        assert_eq!(
            context,
            format!("This is line 2 of standard input.\n{expected}"),
            "{line}"
        );
    }
    let whole = failure("cluster-enabled yes\nreplicaof a 1").context();
    let valid = crate::advice::FOR_REPLICA_IN_CLUSTER;
    assert_eq!(
        whole,
        format!("replicaof is 'a 1': {valid}. It is set by line 2 of standard input.")
    );
    let log = failure("logfile /nonexistent/place/log").context();
    assert!(log.starts_with("logfile is '/nonexistent/place/log': "), "{log}");
    assert!(log.ends_with(". It is set by line 1 of standard input."), "{log}");
}

/// Errors that a start finds later name the last line about the parameter.
#[test]
fn settings_are_found_by_their_parameter() {
    let scratch = ScratchDirectory::new("settings");
    let inner = scratch.file("inner.conf", "# x\ntls-cert-file a\ntls-key-file-pass secret\n");
    let text = format!("bind 1.2.3.4\nport 1\ninclude {}\nbind 1.2.3.5 -::1\n", inner.display());
    let main = scratch.file("main.conf", &text);
    let command_line = CommandLine {
        file: Some(main.clone()),
        standard_input: false,
        options: "port 2\nunixsocket \"\"\n".into(),
    };
    let config = Config::load(&command_line).expect("is valid");
    let line = |number: u32, file: &std::path::Path| Some(format!("line {number} of {}", file.display()));
    assert_eq!(config.setting_location(id::BIND), line(4, &main));
    assert_eq!(config.setting_location(id::TLS_CERT_FILE), line(2, &inner));
    assert_eq!(config.setting_location(id::PORT).as_deref(), Some("the option --port"));
    assert_eq!(config.setting_location(id::TIMEOUT), None);
    let place = format!("It is set by line 4 of {}.", main.display());
    assert_eq!(
        config.advice(id::BIND, "some"),
        format!("bind is '1.2.3.5 -::1': some. {place}")
    );
    let unset = "unixsocket is empty: a path. It is set by the option --unixsocket.";
    assert_eq!(config.advice(id::UNIXSOCKET, "a path"), unset);
    assert_eq!(config.advice(id::ACLFILE, "a file"), "aclfile is empty: a file.");
    let secret = config.advice(id::TLS_KEY_FILE_PASS, "the password");
    assert!(
        secret.starts_with("tls-key-file-pass is not usable: ") && !secret.contains("secret"),
        "{secret}"
    );

    let permissions = SetPermissions {
        may_set_protected: false,
        is_loading: false,
    };
    let changed = config.set(&[(&b"port"[..], &b"3"[..])], permissions, &mut |_| Ok(()));
    assert!(changed.is_ok());
    assert_eq!(
        config.setting_location(id::PORT),
        None,
        "the option did not set this value"
    );
    assert_eq!(config.setting_location(id::BIND), line(4, &main));
    config
        .rewrite(&crate::RewrittenDirectives::default(), crate::RewriteScope::ChangedOnly)
        .expect("rewrites");
    assert_eq!(config.setting_location(id::BIND), None, "the line may be elsewhere now");
}

#[test]
fn an_error_of_a_directive_takes_advice() {
    let config = Config::parse(b"# x\nrename-command nope x", None).expect("is valid so far");
    let directive = &config.renamed_commands()[0];
    assert_eq!(directive.location(), "line 2 of standard input");
    let error = directive.error_with_advice("No such command in rename-command", "Remove it.");
    assert_eq!(error.context(), "This is line 2 of standard input.\nRemove it.");
    assert_eq!(directive.error("wrong").context(), "This is line 2 of standard input.");
    assert_eq!(crate::similar_of(b"gett", ["set", "get"].into_iter()), Some("get"));
    assert_eq!(
        crate::similar_of(b"flusall", ["set", "flushall"].into_iter()),
        Some("flushall")
    );
    assert_eq!(crate::similar_of(b"unlikely", ["set", "get"].into_iter()), None);
}

#[test]
fn every_parameter_has_advice_that_fits_its_default() {
    for id in ParameterId::all() {
        let parameter = id.parameter();
        let named = crate::find(parameter.name.as_bytes()).expect("it is in the table");
        let advice = crate::advice::for_parameter(named);
        assert!(
            advice.starts_with(&format!("{} takes ", parameter.name)) && advice.ends_with('.'),
            "{advice}"
        );
        // Such a number is how a bound without a limit is stored.
        assert!(
            !advice.contains("9223372036854775807") && !advice.contains("18446744073709551615"),
            "{advice}"
        );
    }
}

#[test]
fn errors_name_the_file_and_its_line() {
    let scratch = ScratchDirectory::new("contexts");
    let root = scratch.path().display().to_string();
    scratch.file("part-a.conf", "# a comment");
    scratch.file("part-b.conf", "timeout 2\n\nport x\n");
    let inner = scratch.file("inner.conf", &format!("# x\n\ninclude {root}/part-*.conf\n"));
    let main = scratch.file("main.conf", &format!("hz 10\ninclude {}\n", inner.display()));
    let error = load_failure(Some(main.clone()), "");
    // Two files are read as one; the first one lacks a newline at its end.
    assert!(error.to_string().contains("at line 3\n>>> 'port x'\n"), "{error}");
    let place = format!(
        "This is line 3 of {root}/part-b.conf, included by line 3 of {root}/inner.conf, included by line 2 of \
         {root}/main.conf.\n"
    );
    assert!(error.context().starts_with(&place), "{}", error.context());

    scratch.file("part-a.conf", "timeout 1\n");
    scratch.file("part-b.conf", "timeout 2x\n");
    let error = load_failure(Some(main.clone()), "");
    assert!(error.to_string().contains("at line 2\n>>> 'timeout 2x'\n"), "{error}");
    let place = format!("This is line 1 of {root}/part-b.conf, included by ");
    assert!(error.context().starts_with(&place), "{}", error.context());

    scratch.file("inner.conf", &format!("include {root}/missing.conf"));
    let error = load_failure(Some(main), "");
    assert!(
        error.to_string().starts_with("Fatal error, can't open config file"),
        "{error}"
    );
    let places =
        format!("The file is included by line 1 of {root}/inner.conf, included by line 2 of {root}/main.conf.");
    assert_eq!(error.context(), places);

    let cycle = scratch.file("cycle.conf", &format!("include {root}/cycle.conf"));
    let context = load_failure(Some(cycle), "").context();
    assert_eq!(context.matches("line 1 of").count(), 4, "{context}");
}

#[test]
fn errors_name_the_option_without_its_value() {
    let scratch = ScratchDirectory::new("option");
    let file = scratch.file("weft.conf", "timeout 5\nport 1\n");
    let error = load_failure(Some(file), "port \"7812\" \nrequirepass \"secret\" \"x\" ");
    assert!(error.to_string().contains("at line 5\n"), "{error}");
    let context = error.context();
    assert!(context.starts_with("This is the option --requirepass.\n"), "{context}");
    assert!(!context.contains("secret"), "{context}");
    let context = load_failure(None, "\"-x\" ").context();
    assert!(
        context.starts_with("This is an argument before the first option.\n"),
        "{context}"
    );
}

#[test]
fn a_missing_file_needs_no_context() {
    assert_eq!(load_failure(Some("/nonexistent/weft.conf".into()), "").context(), "");
}
