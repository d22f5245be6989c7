//! Tests the rules with histories of a few events.

use super::{Guarantee, Observation, Outcome, WriterEvent, broken_rules};
use Guarantee::{Acknowledged as Planned, Confirmed as Unplanned};
use Outcome::{Acknowledged, Confirmed, Refused, Unknown};

fn write(registers: &[&str], version: u64, outcome: Outcome) -> WriterEvent {
    WriterEvent::Write {
        registers: registers.iter().map(|name| (*name).to_owned()).collect(),
        version,
        outcome,
    }
}

fn increment(value: Option<u64>, outcome: Outcome) -> WriterEvent {
    WriterEvent::Increment {
        counter: "counter".to_owned(),
        value,
        outcome,
    }
}

fn add(element: &str, outcome: Outcome) -> WriterEvent {
    WriterEvent::Add {
        collection: "list".to_owned(),
        element: element.to_owned(),
        outcome,
    }
}

fn take(element: &str, outcome: Outcome, received: u64, settled: u64) -> WriterEvent {
    let elements = if element.is_empty() {
        vec![]
    } else {
        vec![element.to_owned()]
    };
    WriterEvent::Take {
        collection: "list".to_owned(),
        elements,
        may_take: 1,
        outcome,
        received,
        settled,
    }
}

fn moved(element: &str, outcome: Outcome) -> WriterEvent {
    WriterEvent::Move {
        to: "moved".to_owned(),
        element: element.to_owned(),
        outcome,
    }
}

/// The state in which registers have these versions, and the collections `list` and `moved` these elements.
fn state(registers: &[(&str, u64)], list: &[&str], moved: &[&str]) -> Observation {
    let names = |elements: &[&str]| elements.iter().map(|name| (*name).to_owned()).collect();
    Observation {
        registers: registers
            .iter()
            .map(|(name, version)| ((*name).to_owned(), *version))
            .collect(),
        collections: [("list".to_owned(), names(list)), ("moved".to_owned(), names(moved))].into(),
        impossible: Vec::new(),
    }
}

/// Checks that the rules hold, or that exactly one is broken, with a report that contains the text.
#[track_caller]
fn expect(story: &str, history: &[WriterEvent], end: &Observation, guarantee: Guarantee, report: Option<&str>) {
    let broken = broken_rules(history, end, guarantee);
    match report {
        None => assert!(broken.is_empty(), "{story}: {broken:?}"),
        Some(text) => assert!(broken.len() == 1 && broken[0].contains(text), "{story}: {broken:?}"),
    }
}

#[test]
fn registers() {
    let history = [
        write(&["a"], 1, Confirmed),
        write(&["a"], 2, Acknowledged),
        write(&["a"], 3, Refused),
        write(&["a"], 4, Unknown),
    ];
    let end = |version| state(&[("a", version)], &[], &[]);
    expect("the last acknowledged", &history, &end(2), Planned, None);
    expect("an unknown one", &history, &end(4), Planned, None);
    expect("an acknowledged one is lost", &history, &end(1), Planned, Some("lost"));
    expect("it was not confirmed", &history, &end(1), Unplanned, None);
    expect("a confirmed one is lost", &history, &end(0), Unplanned, Some("lost"));
    expect("a refused one ran", &history, &end(3), Planned, Some("never written"));
    expect("no key at all", &history, &state(&[], &[], &[]), Planned, Some("lost"));
}

#[test]
fn a_read_sees_what_was_settled() {
    let read = WriterEvent::Read {
        register: "a".to_owned(),
        version: 1,
    };
    let history = [
        write(&["a"], 1, Confirmed),
        write(&["a"], 2, Acknowledged),
        read,
        write(&["a"], 3, Confirmed),
    ];
    let end = state(&[("a", 3)], &[], &[]);
    expect("an old version", &history, &end, Planned, Some("was read after"));
    expect("an unconfirmed one was lost", &history, &end, Unplanned, None);
}

#[test]
fn units_are_whole() {
    let history = [write(&["a", "b"], 1, Acknowledged), write(&["a", "b"], 2, Unknown)];
    let end = |a, b| state(&[("a", a), ("b", b)], &[], &[]);
    expect("before", &history, &end(1, 1), Planned, None);
    expect("after", &history, &end(2, 2), Planned, None);
    expect("half", &history, &end(2, 1), Planned, Some("one unit"));
}

#[test]
fn counters() {
    let history = [
        increment(Some(1), Confirmed),
        increment(None, Unknown),
        increment(Some(3), Acknowledged),
        increment(None, Refused),
    ];
    let end = |value| state(&[("counter", value)], &[], &[]);
    expect("as acknowledged", &history, &end(3), Planned, None);
    expect("one is lost", &history, &end(2), Planned, Some("lost"));
    expect("it was not confirmed", &history, &end(2), Unplanned, None);
    expect("one ran twice", &history, &end(4), Planned, Some("only 3 increments"));
    let repeated = [increment(Some(1), Acknowledged), increment(Some(1), Acknowledged)];
    expect("a value twice", &repeated, &end(1), Planned, Some("INCR returned 1"));
}

#[test]
fn elements_are_kept() {
    let history = [add("x", Confirmed), add("y", Acknowledged), add("z", Refused)];
    let end = |list: &[&str]| state(&[], list, &[]);
    expect("all are left", &history, &end(&["x", "y"]), Planned, None);
    expect("one is lost", &history, &end(&["x"]), Planned, Some("lost 1 settled"));
    expect("it was not confirmed", &history, &end(&["x"]), Unplanned, None);
    expect(
        "a refused one",
        &history,
        &end(&["x", "y", "z"]),
        Planned,
        Some("refused"),
    );
    expect(
        "an unknown one",
        &history,
        &end(&["x", "y", "w"]),
        Planned,
        Some("never added"),
    );
    expect("one twice", &history, &end(&["x", "y", "y"]), Planned, Some("is in"));
    let taken = [add("x", Acknowledged), take("", Unknown, 1, 1)];
    expect("taken without a reply", &taken, &end(&[]), Planned, None);
}

#[test]
fn elements_do_not_come_back() {
    let end = |list: &[&str]| state(&[], list, &[]);
    let confirmed = [add("x", Confirmed), take("x", Confirmed, 1, 2)];
    expect("it is gone", &confirmed, &end(&[]), Unplanned, None);
    expect("it is back", &confirmed, &end(&["x"]), Unplanned, Some("again"));
    let unconfirmed = [add("x", Confirmed), take("x", Acknowledged, 1, 1)];
    expect("the taking was lost", &unconfirmed, &end(&["x"]), Unplanned, None);
    expect(
        "the taking was planned to last",
        &unconfirmed,
        &end(&["x"]),
        Planned,
        Some("again"),
    );
}

#[test]
fn elements_are_delivered_once() {
    let end = state(&[], &[], &[]);
    let again = [
        add("x", Confirmed),
        take("x", Confirmed, 1, 2),
        take("x", Acknowledged, 3, 3),
    ];
    expect(
        "after the confirmation",
        &again,
        &end,
        Unplanned,
        Some("delivered again"),
    );
    let before = [
        add("x", Confirmed),
        take("x", Acknowledged, 1, 1),
        take("x", Confirmed, 2, 3),
    ];
    expect("the first delivery was lost", &before, &end, Unplanned, None);
    expect(
        "it was planned to last",
        &before,
        &end,
        Planned,
        Some("delivered again"),
    );
}

#[test]
fn moved_elements_stay_moved() {
    let history = [add("x", Acknowledged), moved("x", Acknowledged)];
    expect("moved", &history, &state(&[], &[], &["x"]), Planned, None);
    expect(
        "back",
        &history,
        &state(&[], &["x"], &[]),
        Planned,
        Some("was moved to"),
    );
    expect("the move was lost", &history, &state(&[], &["x"], &[]), Unplanned, None);
}
