//! Tests of the command line.

use super::*;
use crate::flags::Flag;

/// The words of a command as a shell would pass them on: double quotes keep spaces together.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            character if character.is_whitespace() && !quoted => words.extend(word.take()),
            character => word.get_or_insert_default().push(character),
        }
    }
    assert!(!quoted, "a quote of {line:?} is not closed");
    words.extend(word);
    words
}

#[test]
fn flags_are_unique_and_their_defaults_can_be_read() {
    for table in [
        flag_tables::RUN,
        flag_tables::FILL,
        flag_tables::COMPARE,
        flag_tables::REPORT,
        flag_tables::CHURN,
        flag_tables::EVICTION,
        flag_tables::INTERLEAVE,
        flag_tables::KEYSPACE,
    ] {
        let flags: Vec<&Flag> = table.iter().copied().flatten().collect();
        for (position, flag) in flags.iter().enumerate() {
            let twice = flags[..position].iter().any(|other| other.name == flag.name);
            assert!(!twice, "{} is in the table twice", flag.name);
            assert!(flag.name.starts_with("--") && !flag.help.is_empty());
        }
    }
    let given = GivenFlags::parse(flag_tables::RUN, &words("--load mixed --zipf 0.99")).expect("valid");
    workload(&given).expect("a workload");
    let given = GivenFlags::parse(flag_tables::COMPARE, &words("--weft x --set all")).expect("valid");
    let options = compare_options(&given).expect("valid options");
    assert!(options.sets.len() == sets::SETS.len() - 3 && options.rounds.is_none());
    let special = ["smoke", "published", "modules"];
    assert!(options.sets.iter().all(|set| !special.contains(&set.name)));
}

#[test]
fn help_names_every_flag_and_set() {
    for (name, table) in [
        ("run", flag_tables::RUN),
        ("fill", flag_tables::FILL),
        ("compare", flag_tables::COMPARE),
        ("report", flag_tables::REPORT),
        ("churn", flag_tables::CHURN),
        ("eviction", flag_tables::EVICTION),
        ("lab", flag_tables::INTERLEAVE),
        ("keyspace", flag_tables::KEYSPACE),
    ] {
        let text = help_for(name);
        assert!(
            table.iter().copied().flatten().all(|flag| text.contains(flag.name)),
            "{name}"
        );
    }
    assert!(sets::SETS.iter().all(|set| help_for("compare").contains(set.name)));
    assert!(LOADS.iter().all(|load| loads_text().contains(load.command)));
    assert!(sets::PART_NAMES.iter().all(|part| help_for("report").contains(part)));
    for name in [
        "run", "fill", "compare", "report", "churn", "eviction", "lab", "keyspace", "loads",
    ] {
        assert!(overview_text().contains(&format!("weft-bench {name} ")), "{name}");
    }
}

#[test]
fn a_short_report_has_less_of_everything() {
    let options =
        |line: &str| report_options(&GivenFlags::parse(flag_tables::REPORT, &words(line)).expect("known flags"));
    let full = options("--weft x").expect("valid options");
    let short = options("--weft x --keys 100000 --seconds 0.3 --rounds 1").expect("valid options");
    let sizes =
        |options: &ReportOptions| [3_000_000, 1_000_000, 100_000].map(|keys| options.compare.data_size.keys(keys));
    assert_eq!(sizes(&full), [3_000_000, 1_000_000, 100_000]);
    assert_eq!(sizes(&short), [100_000, 33_333, 3333]);
    assert_eq!(
        options("--weft x --keys 1")
            .expect("valid")
            .compare
            .data_size
            .keys(100_000),
        1
    );
    let times = |options: &ReportOptions| (options.compare.warmup, options.compare.settle_interval);
    assert_eq!(times(&full), (Some(Duration::from_millis(300)), fill::SETTLE_INTERVAL));
    assert_eq!(
        times(&short),
        (
            Some(Duration::from_millis(90)),
            fill::SETTLE_INTERVAL.mul_f64(0.3 * 0.3)
        )
    );
    assert_eq!((full.compare.rounds, short.compare.rounds), (Some(3), Some(1)));
    assert_eq!(full.parts.len(), sets::PART_NAMES.len());
    assert_eq!((full.page, full.figure), (PathBuf::from("report.html"), None));
    assert!(full.compare.client_threads >= 1);
}

#[test]
fn a_report_compares_only_numbers_of_workers_that_it_has() {
    let options =
        |line: &str| report_options(&GivenFlags::parse(flag_tables::REPORT, &words(line)).expect("known flags"));
    assert_eq!(
        options("--weft x --workers 1,4").expect("valid").compare.workers,
        [1, 4]
    );
    for line in [
        "",
        "--weft x --workers 1,3",
        "--weft x --parts nothing",
        "--weft x --rounds 0",
    ] {
        assert!(matches!(options(line), Err(Error::Usage(_))), "{line:?} was accepted");
    }
    assert_eq!(compared_workers(0), [1, 2]);
    assert_eq!(compared_workers(2), [1, 2]);
    assert_eq!(compared_workers(6), [1, 2, 4]);
    assert_eq!(compared_workers(64), [1, 2, 4, 8, 16]);
}

#[test]
fn churn_has_an_hour_and_a_gigabyte_unless_it_is_told_otherwise() {
    let options =
        |line: &str| churn_options(&GivenFlags::parse(flag_tables::CHURN, &words(line)).expect("known flags"));
    let full = options("--weft x").expect("valid options");
    assert_eq!((full.max_memory, full.duration), (1 << 30, Duration::from_secs(3600)));
    assert_eq!((full.flush_interval, full.keys), (Some(Duration::from_secs(600)), None));
    assert_eq!((full.settle, full.compare.connections), (Duration::from_secs(60), 50));
    let short = options("--weft x --maxmemory 64mb --seconds 5 --flush-every 0 --keys 1000").expect("valid options");
    assert_eq!((short.max_memory, short.flush_interval), (64 << 20, None));
    assert_eq!(short.keys, Some(1000));
    let two = options("--weft x --servers weft,activedefrag").expect("valid options");
    assert_eq!(two.servers, ["weft", "activedefrag"]);
    for line in [
        "",
        "--weft x --servers weft,redis",
        "--weft x --maxmemory 1kb",
        "--weft x --pipeline 1",
        "--weft x --maxmemory much",
    ] {
        assert!(matches!(options(line), Err(Error::Usage(_))), "{line:?} was accepted");
    }
}

#[test]
fn evictions_are_measured_with_known_policies_only() {
    let options =
        |line: &str| eviction_options(&GivenFlags::parse(flag_tables::EVICTION, &words(line)).expect("known flags"));
    let full = options("--weft x").expect("valid options");
    assert_eq!(full.policies, ["allkeys-lru", "allkeys-lfu"]);
    assert_eq!(full.exponents, [0.7, 0.9, 1.0]);
    assert_eq!((full.fit, full.samples, full.rounds), (200_000, 5, 3));
    for line in [
        "",
        "--weft x --policies noeviction",
        "--weft x --exponents 0",
        "--weft x --exponents many",
        "--weft x --fit 0",
        "--weft x --rate 0",
    ] {
        assert!(matches!(options(line), Err(Error::Usage(_))), "{line:?} was accepted");
    }
}

#[test]
fn an_experiment_runs_with_few_nodes() {
    run(&words("lab interleave --lists 4 --nodes 100 --rounds 1")).expect("equal checksums");
    for line in [
        "lab",
        "lab nothing",
        "lab interleave --nodes 0",
        "lab interleave --nodes 4000000000",
    ] {
        assert!(
            matches!(run(&words(line)), Err(Error::Usage(_))),
            "{line:?} was accepted"
        );
    }
}

#[test]
fn a_command_line_is_quoted_for_a_shell() {
    let words = ["weft-bench", "compare", "--weft-args", "--io-threads 1", "it's", ""];
    assert_eq!(
        command_line(words.into_iter().map(str::to_string)),
        r"weft-bench compare --weft-args '--io-threads 1' 'it'\''s' ''"
    );
}

#[test]
fn huge_pages_need_an_allocator_that_reads_the_variable() {
    let options =
        |line: &str| compare_options(&GivenFlags::parse(flag_tables::COMPARE, &words(line)).expect("known flags"));
    assert!(options("--weft x --valkey-huge-pages").is_err());
    let given = options("--weft x --preload y --valkey-huge-pages").expect("valid options");
    assert!(given.valkey_huge_pages);
}

#[test]
fn contradicting_flags_are_refused() {
    let lines = [
        "",
        "--load get --command PING --expect pong",
        "--command PING",
        "--load get --keys 0",
        "--load get --zipf 0",
        "--load get --value-size -1",
    ];
    for line in lines {
        let given = GivenFlags::parse(flag_tables::RUN, &words(line)).expect("known flags");
        assert!(workload(&given).is_err(), "{line:?} was accepted");
    }
    for line in ["nothing", "run --load get --protocol 4", "compare", "run --what"] {
        assert!(
            matches!(run(&words(line)), Err(Error::Usage(_))),
            "{line:?} was accepted"
        );
    }
}

#[test]
fn every_load_of_every_set_exists() {
    let order = KeyOrder::Uniform { keys: 10 };
    for set in sets::SETS {
        for dataset in set.comparisons.iter().flat_map(|comparison| comparison.datasets) {
            let value_size = dataset.value_size;
            let subject = LoadParameters {
                order: order.clone(),
                value_size,
                expire_s: dataset.ttl_s,
                verify_every: 1,
            };
            for case in dataset.cases {
                Workload::from_name(case.load, &subject).expect(case.load);
            }
            for fill in dataset.fills {
                let workload = Workload::from_command(fill, "any", &subject).expect(fill);
                assert_eq!(workload.keys_per_request(), 1, "{fill}");
            }
        }
    }
}

/// Returns the command lines in a page, without the name of the program: lines of a shell, with those that continue
/// them, and code spans.
fn documented_commands(page: &str) -> Vec<String> {
    let joined = page.replace("\\\n", " ").replace("\"$(cargo xtask oracle)\"", "PATH");
    let mut commands = Vec::new();
    for line in joined.lines() {
        let of_shell = line.strip_prefix("target/release/weft-bench ");
        // Every second part is within backquotes.
        let spans = line.split('`').skip(1).step_by(2);
        let of_text = spans.filter_map(|span| span.strip_prefix("weft-bench "));
        let without_comment = of_shell
            .into_iter()
            .chain(of_text)
            .map(|command| command.split(" #").next());
        commands.extend(without_comment.flatten().map(str::to_string));
    }
    commands
}

/// Parses a command without running it.
fn parse_command(command: &str) -> Result<()> {
    let words = words(command);
    let (name, rest) = words.split_first().expect("a name");
    let given = |table, rest| GivenFlags::parse(table, rest);
    match (name.as_str(), rest) {
        ("compare" | "report" | "churn" | "eviction" | "run" | "fill" | "lab", []) => Ok(()),
        ("compare", _) => compare_options(&given(flag_tables::COMPARE, rest)?).map(drop),
        ("report", _) => report_options(&given(flag_tables::REPORT, rest)?).map(drop),
        ("churn", _) => churn_options(&given(flag_tables::CHURN, rest)?).map(drop),
        ("eviction", _) => eviction_options(&given(flag_tables::EVICTION, rest)?).map(drop),
        ("keyspace", _) => keyspace_options(&given(flag_tables::KEYSPACE, rest)?).map(drop),
        ("lab", [experiment, rest @ ..]) if experiment == "interleave" => {
            interleave_options(&given(flag_tables::INTERLEAVE, rest)?).map(drop)
        }
        _ => Err(Error::Usage(format!("{name:?} is no command"))),
    }
}

#[test]
fn commands_in_the_documents_are_accepted() {
    let mut commands = Vec::new();
    for page in [
        "README.md",
        "docs/BENCHMARKS.md",
        "docs/design/storage.md",
        "docs/book/src/tuning.md",
    ] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
        commands.extend(documented_commands(&std::fs::read_to_string(&path).expect(page)));
    }
    assert!(commands.len() > 25, "{commands:?}");
    for name in ["compare", "report", "churn", "eviction", "keyspace", "lab"] {
        assert!(commands.iter().any(|command| command.starts_with(name)), "{name}");
    }
    for command in commands {
        parse_command(&command).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
    let page =
        "`weft-bench churn` and\n```sh\ntarget/release/weft-bench churn --weft x \\\n    --seed 2   # why\n```\n";
    let found: Vec<Vec<String>> = documented_commands(page).iter().map(|command| words(command)).collect();
    assert_eq!(found, [vec!["churn"], vec!["churn", "--weft", "x", "--seed", "2"]]);
    assert_eq!(
        words(r#"compare --args "--a b" """#),
        ["compare", "--args", "--a b", ""]
    );
    assert!(parse_command("churn --weft x --sed 2").is_err());
}
