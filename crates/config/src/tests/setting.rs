//! Tests of CONFIG SET and GET: recorded replies, atomicity, permissions.

use super::{ALL_PERMISSIONS, ScratchDirectory, config_get, loaded, refusal, set, working_directory};
use crate::{Config, ParameterFailure, SetError, SetPermissions, find, id};

/// Name, value, reply ("OK" or the text after "ERR "), and the value that CONFIG GET shows afterwards.
const RECORDED: &str = include_str!("config_set.tsv");

/// The replies that differ on purpose: the recorded server was built without jemalloc, which this one uses.
const DIFFERENT: [(&str, &str); 1] = [("activedefrag", "yes")];

fn unescaped(field: &str) -> String {
    field.replace("\\t", "\t").replace("\\n", "\n").replace("\\\\", "\\")
}

#[test]
fn replies_to_valid_and_invalid_values_equal_valkeys() {
    let mut compared = 0;
    for line in RECORDED.lines() {
        let fields: Vec<String> = line.split('\t').map(unescaped).collect();
        let [name, value, answer, after] = &fields[..] else {
            panic!("{line}")
        };
        if DIFFERENT.contains(&(name, value)) {
            continue;
        }
        let config = Config::defaults();
        let before = config_get(&config, name);
        match set(&config, &[(name, value)]) {
            Ok(_) => assert_eq!(
                ("OK", after),
                (answer.as_str(), &config_get(&config, name)),
                "{name} {value:?}"
            ),
            Err(SetError::Refused(text)) => {
                assert_eq!(
                    (answer.as_bytes(), &before),
                    (&*text, &config_get(&config, name)),
                    "{name} {value:?}"
                );
            }
            Err(SetError::Loading) => panic!("{name} {value:?}: nothing is being loaded"),
        }
        compared += 1;
    }
    assert!(compared > 1000, "only {compared} answers were compared");
}

#[test]
fn refusals_name_the_parameter_as_valkey_does() {
    let config = Config::defaults();
    let related =
        |name: &str, reason: &str| format!("CONFIG SET failed (possibly related to argument '{name}') - {reason}");
    let unknown = |name: &str| format!("Unknown option or number of arguments for CONFIG SET - '{name}'");
    let cases: [(&[(&str, &str)], String); 13] = [
        (&[("nope", "1")], unknown("nope")),
        (&[("Nope", "1"), ("dir", "/x")], unknown("Nope")),
        (
            &[("dynamic-hz", "maybe")],
            related("dynamic-hz", "argument must be 'yes' or 'no'"),
        ),
        (
            &[("SlaveOf", "1"), ("nope", "1")],
            related("SlaveOf", "can't set immutable config"),
        ),
        (
            &[("timeout", "1"), ("TIMEOUT", "2")],
            related("TIMEOUT", "duplicate parameter"),
        ),
        (
            &[("slave-priority", "1"), ("SLAVE-priority", "2")],
            related("SLAVE-priority", "duplicate parameter"),
        ),
        (
            &[("SLAVE-PRIORITY", "x")],
            related("slave-priority", "argument couldn't be parsed into an integer"),
        ),
        (
            &[("timeout", "1"), ("maxclients", "x")],
            related("maxclients", "argument couldn't be parsed into an integer"),
        ),
        (
            &[("hash-seed", "1")],
            related("hash-seed", "can't set immutable config"),
        ),
        (&[("dir", "")], related("dir", "dir can't be empty")),
        (
            &[("dir", "/nonexistent/place")],
            related("dir", "No such file or directory"),
        ),
        (
            &[("timeout", "5"), ("bind", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17")],
            related("bind", "Too many bind addresses specified."),
        ),
        (
            &[("port", "65536")],
            related("port", "argument must be between 0 and 65535 inclusive"),
        ),
    ];
    for (pairs, expected) in cases {
        assert_eq!(refusal(&config, pairs), expected);
    }
    assert_eq!(config.generation(), 0);
    assert_eq!(config.integer(id::TIMEOUT), 0);
}

#[test]
fn protected_parameters_need_permission_and_some_wait_for_loading() {
    let config = Config::defaults();
    let nothing = SetPermissions {
        may_set_protected: false,
        is_loading: false,
    };
    let answer = config.set(&[(b"DBfilename", b"x")], nothing, &mut |_| Ok(()));
    let text = "CONFIG SET failed (possibly related to argument 'DBfilename') - can't set protected config";
    assert_eq!(answer, Err(SetError::Refused(text.into())));

    let loading = SetPermissions {
        may_set_protected: true,
        is_loading: true,
    };
    let answer = config.set(&[(b"timeout", b"1"), (b"appendonly", b"yes")], loading, &mut |_| Ok(()));
    assert_eq!(answer, Err(SetError::Loading));
    let answer = config.set(&[(b"timeout", b"1")], loading, &mut |_| Ok(()));
    assert_eq!(answer, Ok(vec![id::TIMEOUT]));
}

#[test]
fn only_actual_changes_are_reported_and_increment_the_generation() {
    let config = Config::defaults();
    assert_eq!(set(&config, &[("timeout", "0"), ("hz", "20")]), Ok(vec![id::HZ]));
    assert_eq!(config.generation(), 1);
    assert_eq!(set(&config, &[("hz", "20")]), Ok(vec![]));
    assert_eq!(config.generation(), 1);
    // Certificates can change while their path stays the same.
    assert_eq!(set(&config, &[("tls-cert-file", "")]), Ok(vec![id::TLS_CERT_FILE]));
    assert_eq!(
        set(&config, &[("slave-priority", "7"), ("replica-priority", "8")]),
        Ok(vec![id::REPLICA_PRIORITY])
    );
    assert_eq!(config.integer(id::REPLICA_PRIORITY), 8);
}

#[test]
fn a_failure_to_apply_restores_all_values() {
    let config = Config::defaults();
    let mut seen = Vec::new();
    let answer = config.set(&[(b"timeout", b"5"), (b"port", b"80")], ALL_PERMISSIONS, &mut |ids| {
        seen.push((ids.to_vec(), config.integer(id::TIMEOUT), config.integer(id::PORT)));
        if config.integer(id::PORT) == 80 {
            Err(ParameterFailure::new(id::PORT, "Unable to listen on this port."))
        } else {
            Ok(())
        }
    });
    let text = "CONFIG SET failed (possibly related to argument 'port') - Unable to listen on this port.";
    assert_eq!(answer, Err(SetError::Refused(text.into())));
    let both = vec![id::TIMEOUT, id::PORT];
    assert_eq!(seen, [(both.clone(), 5, 80), (both, 0, 6379)]);
    assert_eq!((config.integer(id::TIMEOUT), config.integer(id::PORT)), (0, 6379));

    let answer = config.set(&[(b"hz", b"5")], ALL_PERMISSIONS, &mut |_| {
        Err(ParameterFailure::new(id::HZ, String::new()))
    });
    assert_eq!(
        answer,
        Err(SetError::Refused(
            "CONFIG SET failed (possibly related to argument 'hz')".into()
        ))
    );
    assert_eq!(config.integer(id::HZ), 10);
}

#[test]
fn the_directory_changes_and_changes_back() {
    let _turn = working_directory();
    let home = std::env::current_dir().expect("a working directory");
    let scratch = ScratchDirectory::new("directory");
    let config = Config::defaults();
    let path = scratch.path().to_str().expect("a printable path").to_string();

    assert_eq!(
        set(&config, &[("dir", &path), ("timeout", "3")]),
        Ok(vec![id::DIR, id::TIMEOUT])
    );
    assert_eq!(config_get(&config, "dir"), path);
    let answer = config.set(&[(b"dir", b"/")], ALL_PERMISSIONS, &mut |_| {
        Err(ParameterFailure::new(id::DIR, "no"))
    });
    assert!(answer.is_err());
    assert_eq!(config_get(&config, "dir"), path);
    refusal(&config, &[("dir", "/"), ("timeout", "x")]);
    assert_eq!(config_get(&config, "dir"), path);

    std::env::set_current_dir(home).expect("the way back");
}

#[test]
fn accessors_show_what_was_set() {
    let config = Config::defaults();
    let pairs = [
        ("maxmemory", "18446744073709551615"),
        ("maxmemory-clients", "5%"),
        ("loglevel", "Warning"),
        ("requirepass", "se cret"),
        ("save", "900 1"),
        ("client-output-buffer-limit", "replica 5mb 1mb 7"),
        ("bind", "127.0.0.1 -::1"),
        ("latency-tracking-info-percentiles", "12.5"),
        ("oom-score-adj-values", "1 2 3"),
        ("notify-keyspace-events", "Kx"),
    ];
    assert_eq!(set(&config, &pairs).map(|ids| ids.len()), Ok(pairs.len()));
    assert_eq!(config.unsigned(id::MAXMEMORY), u64::MAX);
    assert_eq!(config.integer(id::MAXMEMORY_CLIENTS), -5);
    assert_eq!(
        (config.choice(id::LOGLEVEL), config.integer(id::LOGLEVEL)),
        ("warning", 3)
    );
    assert_eq!(&*config.text(id::REQUIREPASS), b"se cret");
    assert_eq!(
        config
            .save_points()
            .iter()
            .map(|p| (p.seconds, p.changes))
            .collect::<Vec<_>>(),
        [(900, 1)]
    );
    let replica = config.output_buffer_limits()[crate::ClientClass::Replica as usize];
    assert_eq!(
        (replica.hard_bytes, replica.soft_bytes, replica.soft_seconds),
        (5 << 20, 1 << 20, 7)
    );
    assert_eq!(config.addresses(id::BIND).join(","), "127.0.0.1,-::1");
    assert_eq!(*config.percentiles(), [12.5]);
    assert_eq!(config.oom_score_adjustments(), [1, 2, 3]);
    assert_eq!(config.integer(id::NOTIFY_KEYSPACE_EVENTS), 1 | 1 << 8);
    assert!(config.boolean(id::PROTECTED_MODE));
    assert_eq!(config.primary(), None);
    assert_eq!(
        loaded("replicaof example.org 7000")
            .primary()
            .map(|primary| primary.port),
        Some(7000)
    );
}

#[test]
fn io_threads_zero_means_all_cpus() {
    let config = Config::defaults();
    let automatic = config.integer(id::IO_THREADS);
    assert!((1..=256).contains(&automatic));
    assert_eq!(set(&config, &[("io-threads", "256")]), Ok(vec![id::IO_THREADS]));
    assert_eq!(set(&config, &[("io-threads", "0")]), Ok(vec![id::IO_THREADS]));
    assert_eq!(config.integer(id::IO_THREADS), automatic);
    for bad in ["257", "-1"] {
        let text = refusal(&config, &[("io-threads", bad)]);
        assert!(
            text.ends_with(" - argument must be between 1 and 256 inclusive"),
            "{text}"
        );
    }
}

#[test]
fn patterns_find_names_once_and_hidden_ones_only_by_name() {
    let config = Config::defaults();
    let names = |patterns: &[&str]| -> Vec<String> {
        let patterns: Vec<&[u8]> = patterns.iter().map(|pattern| pattern.as_bytes()).collect();
        config
            .matching_parameters(&patterns)
            .into_iter()
            .map(|(name, _)| String::from_utf8(name).expect("ASCII"))
            .collect()
    };
    let cases: [(&[&str], &[&str]); 12] = [
        (&["TimeOut", "timeout", "time*"], &["TimeOut"]),
        (&["TIME*"], &["timeout"]),
        (&["slaveo[f]"], &["slaveof"]),
        (
            &["slave-pr*", "SLAVE-PRIORITY", "replica-priority"],
            &["replica-priority", "slave-priority"],
        ),
        (&["use-exit*"], &[]),
        (&["use-exit-on-panic"], &["use-exit-on-panic"]),
        (&[""], &[]),
        (&["[]*"], &[]),
        (&["tim\\*"], &[]),
        (&["h?"], &["hz"]),
        (&["[^a-gi-z]z"], &["hz"]),
        (
            &["*listpack-entries"],
            &[
                "hash-max-listpack-entries",
                "set-max-listpack-entries",
                "zset-max-listpack-entries",
            ],
        ),
    ];
    for (patterns, expected) in cases {
        assert_eq!(names(patterns), expected, "{patterns:?}");
    }
}

#[test]
fn readers_never_see_a_value_that_was_not_set() {
    let config = Config::defaults();
    std::thread::scope(|scope| {
        for number in ["111", "222"] {
            let config = &config;
            scope.spawn(move || {
                for _ in 0..200 {
                    set(config, &[("timeout", number), ("requirepass", number)]).expect("good values");
                }
            });
        }
        let mut last = 0;
        for _ in 0..2000 {
            let generation = config.generation();
            assert!(generation >= last);
            last = generation;
            assert!(matches!(config.integer(id::TIMEOUT), 0 | 111 | 222));
            assert!(matches!(&*config.text(id::REQUIREPASS), b"" | b"111" | b"222"));
        }
    });
    // The last writer has set both.
    assert_eq!(config_get(&config, "timeout"), config_get(&config, "requirepass"));
    assert!(find(b"timeout").is_some());
}
