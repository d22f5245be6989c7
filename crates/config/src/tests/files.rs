//! Tests of reading configuration files.

use super::{ScratchDirectory, config_get, loaded, working_directory};
use crate::command_line::CommandLine;
use crate::{Config, StartError, id};

fn failure(text: &str) -> String {
    match Config::parse(text.as_bytes(), None) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{text:?} was accepted"),
    }
}

#[test]
fn wrong_lines_are_reported_in_valkeys_words() {
    let cases = [
        ("foo bar", 1, "foo bar", "Bad directive or wrong number of arguments"),
        ("port 1 2", 1, "port 1 2", "wrong number of arguments"),
        ("\nport", 2, "port", "wrong number of arguments"),
        ("port=77", 1, "port=77", "Bad directive or wrong number of arguments"),
        ("port abc", 1, "port abc", "argument couldn't be parsed into an integer"),
        (
            "timeout \"a",
            1,
            "timeout \"a",
            "Unbalanced quotes in configuration line",
        ),
        ("timeout '5", 1, "timeout '5", "Unbalanced quotes in configuration line"),
        ("foo.bar", 1, "foo.bar", "Module config specified without value"),
        (
            "sentinel x",
            1,
            "sentinel x",
            "sentinel directive while not in sentinel mode",
        ),
        (
            "dynamic-hz yes no",
            1,
            "dynamic-hz yes no",
            "Bad directive or wrong number of arguments",
        ),
        ("maxmemory 1tb", 1, "maxmemory 1tb", "argument must be a memory value"),
        ("replicaof a", 1, "replicaof a", "wrong number of arguments"),
        ("replicaof a 99999", 1, "replicaof a 99999", "Invalid primary port"),
        ("replicaof a x", 1, "replicaof a x", "Invalid primary port"),
        ("save 1", 1, "save 1", "Invalid save parameters"),
        (
            "\n\n  save \"1 2 ",
            3,
            "save \"1 2",
            "Unbalanced quotes in configuration line",
        ),
        (
            "unixsocketperm 999",
            1,
            "unixsocketperm 999",
            "argument couldn't be parsed as an octal number",
        ),
        (
            "unixsocketperm 1000",
            1,
            "unixsocketperm 1000",
            "argument must be between 0 and 777 inclusive",
        ),
        (
            "io-threads 300",
            1,
            "io-threads 300",
            "argument must be between 1 and 256 inclusive",
        ),
        (
            "cluster-config-file \"\"",
            1,
            "cluster-config-file \"\"",
            "cluster-config-file can't be empty",
        ),
        (
            "appendfilename a/b",
            1,
            "appendfilename a/b",
            "appendfilename can't be a path, just a filename",
        ),
        (
            "appenddirname a/b",
            1,
            "appenddirname a/b",
            "appenddirname can't be a path, just a dirname",
        ),
        (
            "shutdown-on-sigint save nosave",
            1,
            "shutdown-on-sigint save nosave",
            "shutdown options SAVE and NOSAVE can't be used simultaneously",
        ),
        (
            "client-output-buffer-limit normal 0 0",
            1,
            "client-output-buffer-limit normal 0 0",
            "Wrong number of arguments in buffer limit configuration.",
        ),
        ("user", 1, "user", "Bad directive or wrong number of arguments"),
        (
            "rename-command a",
            1,
            "rename-command a",
            "Bad directive or wrong number of arguments",
        ),
        ("include", 1, "include", "Bad directive or wrong number of arguments"),
        (
            "# x\n\t\"timeout\" 5x \r\nport 1",
            2,
            "\"timeout\" 5x",
            "argument couldn't be parsed into an integer",
        ),
        (
            "dir /nonexistent/place",
            1,
            "dir /nonexistent/place",
            "No such file or directory",
        ),
    ];
    for (text, number, line, reason) in cases {
        let expected = format!(
            "\n*** FATAL CONFIG FILE ERROR (Version 9.1.2) ***\n\
             Reading the configuration file, at line {number}\n>>> '{line}'\n{reason}"
        );
        assert_eq!(failure(text), expected, "{text:?}");
    }
}

#[test]
fn some_errors_concern_the_whole_configuration() {
    let head = "\n*** FATAL CONFIG FILE ERROR (Version 9.1.2) ***\n";
    let cluster = failure("cluster-enabled yes\nreplicaof a 1");
    assert_eq!(
        cluster,
        format!("{head}replicaof directive not allowed in cluster mode")
    );
    let log = failure("logfile /nonexistent/place/log");
    assert_eq!(log, format!("{head}Can't open the log file: No such file or directory"));
    let unused = failure("foo.bar 1");
    assert!(
        unused.starts_with("Unused Module Configuration: foo.bar\nModule Configuration detected"),
        "{unused}"
    );
    let missing = failure("include /nonexistent/x");
    assert_eq!(
        missing,
        "Fatal error, can't open config file '/nonexistent/x': No such file or directory"
    );
}

#[test]
fn good_lines_set_values() {
    let config = loaded(
        "# a comment\n\
         PORT 7000\r\n\
         \t timeout   '5'\n\
         maxmemory \"1gb\"\n\
         slave-priority 3\n\
         bind 127.0.0.1 ::1\n\
         shutdown-on-sigterm \"save now\"\n\
         requirepass \"with \\x23 and space\"\n\
         dynamic-hz yes\nevents-per-io-thread 2\nsanitize-dump-payload clients\nlua-replicate-commands perhaps\n\
         sentinel\n\
         hz 9999\n\
         port 7001\n\
         include /nonexistent/*.conf",
    );
    let expected = [
        ("port", "7001"),
        ("timeout", "5"),
        ("maxmemory", "1073741824"),
        ("replica-priority", "3"),
        ("bind", "127.0.0.1 ::1"),
        ("shutdown-on-sigterm", "save now"),
        ("requirepass", "with # and space"),
        ("hz", "500"),
        ("sanitize-dump-payload", "clients"),
        ("lua-replicate-commands", "yes"),
    ];
    for (name, value) in expected {
        assert_eq!(config_get(&config, name), value, "{name}");
    }
}

#[test]
fn save_lines_add_up() {
    let cases = [
        ("", "3600 1 300 100 60 10000"),
        ("save 900 1", "900 1"),
        ("save 900 1\nsave 60 5 30 7", "900 1 60 5 30 7"),
        ("save \"900 1\"\nsave '10 2'", "900 1 10 2"),
        ("save \"\"", ""),
        ("save", ""),
        ("save 900 1\nsave \"\"", ""),
        ("save 900 1\nsave \"\"\nsave 5 6", "5 6"),
        ("save 900 99999999999999999999", "900 2147483647"),
        ("save 900 4294967295", "900 2147483647"),
    ];
    for (text, expected) in cases {
        assert_eq!(config_get(&loaded(text), "save"), expected, "{text:?}");
    }
}

#[test]
fn buffer_limit_lines_change_only_their_classes() {
    let config = loaded("client-output-buffer-limit normal 1kb 0 0\nclient-output-buffer-limit pubsub 5 6 7");
    assert_eq!(
        config_get(&config, "client-output-buffer-limit"),
        "normal 1024 0 0 slave 268435456 67108864 60 pubsub 5 6 7"
    );
}

#[test]
fn directives_are_kept_with_their_line() {
    let config = loaded("rename-command get \"\"\nRename-Command set put\nuser alice on >x");
    let arguments: Vec<_> = config
        .renamed_commands()
        .iter()
        .map(|line| line.arguments.clone())
        .collect();
    assert_eq!(
        arguments,
        [[b"get".to_vec(), b"".to_vec()], [b"set".to_vec(), b"put".to_vec()]]
    );
    assert_eq!(
        config.users()[0].arguments,
        [b"alice".to_vec(), b"on".to_vec(), b">x".to_vec()]
    );
    let error = config.renamed_commands()[1]
        .error("No such command in rename-command")
        .to_string();
    assert!(
        error.ends_with("at line 2\n>>> 'Rename-Command set put'\nNo such command in rename-command"),
        "{error}"
    );
}

#[test]
fn files_include_files() {
    let scratch = ScratchDirectory::new("include");
    let root = scratch.path().display();
    scratch.file("one.conf", "timeout 1\nport 1000\n");
    scratch.file("part-b.conf", "hz 20\n");
    scratch.file("part-a.conf", "hz 30\ntcp-keepalive 1\n");
    let main = scratch.file(
        "main.conf",
        &format!("port 2\ninclude {root}/one.conf\ntimeout 9\ninclude {root}/part-*.conf\n"),
    );
    let command_line = CommandLine {
        file: Some(main),
        options: b"maxclients 5".to_vec(),
        ..CommandLine::default()
    };
    let config = Config::load(&command_line).expect("a good file");
    let expected = [
        ("port", "1000"),
        ("timeout", "9"),
        ("hz", "20"),
        ("tcp-keepalive", "1"),
        ("maxclients", "5"),
    ];
    for (name, value) in expected {
        assert_eq!(config_get(&config, name), value, "{name}");
    }
    assert_eq!(config.file(), command_line.file.as_deref());

    scratch.file("one.conf", "timeout 1\nport x\n");
    let error = Config::load(&command_line).expect_err("a bad include").to_string();
    assert!(error.contains("at line 2\n>>> 'port x'\n"), "{error}");
    scratch.file("one.conf", &format!("include {root}/one.conf"));
    let error = Config::load(&command_line).expect_err("a circle").to_string();
    assert!(error.ends_with("include each other in a cycle"), "{error}");
}

#[test]
fn a_missing_file_stops_the_start() {
    let command_line = CommandLine {
        file: Some("/nonexistent/weft.conf".into()),
        ..CommandLine::default()
    };
    let error = Config::load(&command_line).expect_err("no file");
    let text = "Fatal error, can't open config file '/nonexistent/weft.conf': No such file or directory";
    assert_eq!(error, StartError::Other(text.into()));
}

#[test]
fn dir_takes_effect_while_reading() {
    let _turn = working_directory();
    let home = std::env::current_dir().expect("a working directory");
    let scratch = ScratchDirectory::new("relative");
    scratch.file("part.conf", "timeout 77\n");
    let config = loaded(&format!("dir {}\ninclude part.conf", scratch.path().display()));
    assert_eq!(config.integer(id::TIMEOUT), 77);
    assert_eq!(config_get(&config, "dir"), scratch.path().display().to_string());
    std::env::set_current_dir(home).expect("the way back");
}

#[test]
fn no_text_makes_the_parser_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let words = [
        "save",
        "bind",
        "user",
        "replicaof",
        "port",
        "1",
        "\"",
        "'",
        " ",
        "\n",
        "\\x",
        "a.b",
        "\0",
        "%",
        "-1",
        "client-output-buffer-limit",
        "normal",
    ];
    for _ in 0..5000 {
        let text: String = (0..random.usize(0..12))
            .map(|_| words[random.usize(0..words.len())])
            .collect();
        let _ = Config::parse(text.as_bytes(), None);
    }
}
