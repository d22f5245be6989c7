//! Tests of the command line.

use super::*;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_string).collect()
}

#[test]
fn flags_are_unique_and_their_defaults_can_be_read() {
    for table in [RUN_TABLE, FILL_TABLE, COMPARE_TABLE] {
        let flags: Vec<&Flag> = table.iter().copied().flatten().collect();
        for (position, flag) in flags.iter().enumerate() {
            let twice = flags[..position].iter().any(|other| other.name == flag.name);
            assert!(!twice, "{} is in the table twice", flag.name);
            assert!(flag.name.starts_with("--") && !flag.help.is_empty());
        }
    }
    let given = GivenFlags::parse(RUN_TABLE, &words("--load mixed --zipf 0.99")).expect("valid");
    workload(&given).expect("a workload");
    let given = GivenFlags::parse(COMPARE_TABLE, &words("--weft x --set all")).expect("valid");
    let options = compare_options(&given).expect("valid options");
    assert!(options.sets.len() == sets::SETS.len() - 1 && options.rounds.is_none());
}

#[test]
fn help_names_every_flag_and_set() {
    for (name, table) in [("run", RUN_TABLE), ("fill", FILL_TABLE), ("compare", COMPARE_TABLE)] {
        let text = help_for(name);
        assert!(
            table.iter().copied().flatten().all(|flag| text.contains(flag.name)),
            "{name}"
        );
    }
    assert!(sets::SETS.iter().all(|set| help_for("compare").contains(set.name)));
    assert!(LOADS.iter().all(|load| loads_text().contains(load.command)));
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
    let options = |line: &str| compare_options(&GivenFlags::parse(COMPARE_TABLE, &words(line)).expect("known flags"));
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
        let given = GivenFlags::parse(RUN_TABLE, &words(line)).expect("known flags");
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
