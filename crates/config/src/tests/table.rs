//! Tests of the table against the names and defaults that Valkey 9.1.2 shows.

use std::collections::BTreeSet;

use super::config_get;
use crate::Config;
use crate::parameters::{self, COUNT, PARAMETERS, ParameterFlags, ParameterId, ParameterKind, id};
use crate::value::ParameterValue;

const RECORDED: &str = include_str!("config_get.tsv");

type Accepts = fn(&str) -> bool;

/// The defaults that differ on purpose, with the accepted values.
const INTENDED_DIFFERENCES: [(&str, Accepts); 3] = [
    // All available CPUs are used, instead of one.
    ("io-threads", |value| {
        value.parse::<u16>().is_ok_and(|threads| (1..=256).contains(&threads))
    }),
    // This server does not fork, so huge pages cause no copies, and lookups are a fifth cheaper with them.
    ("disable-thp", |value| value == "no"),
    // The directory in which the test runs.
    ("dir", |value| value.starts_with('/')),
];

fn recorded() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    RECORDED.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, value, visibility] = fields[..] else {
            panic!("{line}")
        };
        (name, value, visibility == "shown")
    })
}

#[test]
fn every_default_is_the_one_of_valkey() {
    let _turn = super::working_directory();
    let config = Config::defaults();
    for (name, value, _) in recorded() {
        let ours = config_get(&config, name);
        match INTENDED_DIFFERENCES.iter().find(|(different, _)| *different == name) {
            Some((_, accepts)) => assert!(accepts(&ours), "{name} is {ours}"),
            None => assert_eq!(ours, value, "{name}"),
        }
    }
}

/// The parameters that Valkey does not have. They are hidden.
const WEFT_ONLY: [&str; 7] = [
    "busy-reply-scope",
    "connection-move-interval",
    "metrics-bind",
    "metrics-port",
    "module-concurrency",
    "replica-apply-threads",
    "stall-report-threshold",
];

#[test]
fn all_names_are_those_of_valkey_and_the_same_ones_are_hidden() {
    let _turn = super::working_directory();
    let names = parameters::names().filter(|named| !named.id.is_retired());
    let ours: BTreeSet<&str> = names
        .map(|named| named.name)
        .filter(|name| !WEFT_ONLY.contains(name))
        .collect();
    assert_eq!(ours, recorded().map(|(name, _, _)| name).collect());

    let config = Config::defaults();
    let star: BTreeSet<Vec<u8>> = config
        .matching_parameters(&[b"*"])
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let visible: BTreeSet<Vec<u8>> = recorded()
        .filter(|(_, _, shown)| *shown)
        .map(|(name, _, _)| name.as_bytes().to_vec())
        .collect();
    assert_eq!(star, visible);
}

/// The names and defaults of the last versions that had these parameters.
const RETIRED: [(&str, &str); 7] = [
    ("dynamic-hz", "yes"),
    ("events-per-io-thread", "2"),
    ("io-threads-do-reads", "no"),
    ("lua-replicate-commands", "yes"),
    ("sanitize-dump-payload", "no"),
    ("list-max-ziplist-entries", "512"),
    ("list-max-ziplist-value", "64"),
];

#[test]
fn retired_parameters_are_shown_only_under_their_exact_names() {
    let config = Config::defaults();
    let retired: Vec<ParameterId> = ParameterId::all().filter(|id| id.is_retired()).collect();
    assert_eq!(retired.len(), RETIRED.len());
    for (name, default) in RETIRED {
        let named = parameters::find(name.as_bytes()).expect(name);
        assert!(named.id.is_retired(), "{name}");
        assert_eq!(config_get(&config, name), default, "{name}");
        let pattern = format!("{name}*");
        assert_eq!(config.matching_parameters(&[pattern.as_bytes()]), [], "{name}");
    }
}

#[test]
fn ids_lead_to_their_parameters() {
    assert_eq!(id::TIMEOUT.parameter().name, "timeout");
    assert_eq!(
        id::TLS_AUTO_RELOAD_INTERVAL.parameter().name,
        "tls-auto-reload-interval"
    );
    assert_eq!(ParameterId::all().count(), COUNT);
    for (place, parameter) in PARAMETERS.iter().enumerate() {
        assert_eq!(
            parameters::find(parameter.name.as_bytes())
                .expect(parameter.name)
                .id
                .index(),
            place
        );
    }
}

#[test]
fn names_are_found_in_any_case_and_only_once() {
    let upper = parameters::find(b"TimeOut").expect("timeout");
    assert_eq!((upper.id, upper.name), (id::TIMEOUT, "timeout"));
    let alias = parameters::find(b"SLAVE-priority").expect("an alias");
    assert_eq!((alias.id, alias.name), (id::REPLICA_PRIORITY, "slave-priority"));
    assert_eq!(parameters::find(b""), None);

    let names: Vec<&str> = parameters::names().map(|named| named.name).collect();
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), distinct.len());
    assert!(names.iter().all(|name| *name == name.to_lowercase()));
}

#[test]
fn declarations_are_consistent() {
    for parameter in &PARAMETERS {
        let name = parameter.name;
        assert!(
            parameter.summary.ends_with('.') && parameter.summary.len() <= 110,
            "{name}: {}",
            parameter.summary
        );
        match parameter.kind {
            ParameterKind::Integer {
                min,
                max,
                unsigned: true,
                ..
            } => assert!(min as u64 <= max as u64, "{name}"),
            ParameterKind::Integer { min, max, .. } => assert!(min <= max, "{name}"),
            ParameterKind::Text { check, default, .. } => {
                assert_eq!(check.validation_error(name, default.as_bytes()), None, "{name}")
            }
            ParameterKind::Enum { choices, .. } => assert!(!choices.is_empty(), "{name}"),
            ParameterKind::Bool { .. } | ParameterKind::Special(_) => {}
        }
        if parameter.flags.contains(ParameterFlags::SENSITIVE) {
            assert!(
                matches!(parameter.kind, ParameterKind::Text { .. }),
                "{name} is a secret and no text"
            );
        }
    }
}

#[test]
fn defaults_survive_being_printed_and_read() {
    let _turn = super::working_directory();
    for id in ParameterId::all() {
        let parameter = id.parameter();
        let default = parameter.default_value();
        if matches!(default, ParameterValue::Primary(_)) {
            continue;
        }
        let text = parameter.print(&default);
        let arguments: Vec<&[u8]> = if parameter.flags.contains(ParameterFlags::MULTI_ARG) {
            text.split(|&byte| byte == b' ').collect()
        } else {
            vec![&text]
        };
        assert_eq!(
            parameter.read(&arguments, &default).as_ref(),
            Ok(&default),
            "{}",
            parameter.name
        );
    }
}
