//! Planted faults: changes to the record of a round that obeyed all rules, each of which the checker must report.

use std::collections::BTreeMap;

use super::history::{Guarantee, Observation, Outcome, WriterEvent, broken_rules};

/// The record of a round.
#[derive(Clone)]
pub struct Record {
    pub history: Vec<WriterEvent>,
    pub observation: Observation,
    pub guarantee: Guarantee,
}

impl Record {
    /// Returns the rules that the record breaks.
    pub fn broken_rules(&self) -> Vec<String> {
        broken_rules(&self.history, &self.observation, self.guarantee)
    }

    fn is_settled(&self, event: &WriterEvent) -> bool {
        event.outcome().is_some_and(|outcome| self.guarantee.covers(outcome))
    }

    fn settled(&self) -> impl Iterator<Item = &WriterEvent> {
        self.history.iter().filter(|event| self.is_settled(event))
    }

    fn elements_of(&mut self, collection: &str) -> &mut Vec<String> {
        self.observation.collections.entry(collection.to_owned()).or_default()
    }
}

/// Changes a record, and returns `false` if the record has nothing to which this fault could happen.
type Plant = fn(&mut Record) -> bool;

/// The faults.
pub const FAULTS: &[(&str, Plant)] = &[
    ("lost write", lose_write),
    ("refused write that ran", run_refused_write),
    ("half a transaction", halve_unit),
    ("lost increment", lose_increment),
    ("repeated increment", repeat_increment),
    ("lost element", lose_element),
    ("element that nobody added", invent_element),
    ("element that came back", return_element),
    ("element delivered twice", deliver_twice),
    ("element in two lists", duplicate_element),
];

/// Plants every fault that fits into `record`, and adds to the number of times that each was reported.
///
/// # Errors
/// Fails if the checker does not report a planted fault.
pub fn plant_all(record: &Record, reported: &mut BTreeMap<&'static str, u64>) -> Result<(), String> {
    for (name, plant) in FAULTS {
        let mut changed = record.clone();
        if !plant(&mut changed) {
            continue;
        }
        if changed.broken_rules().is_empty() {
            return Err(format!("the checker does not report a planted fault: {name}"));
        }
        *reported.entry(name).or_default() += 1;
    }
    Ok(())
}

fn last_settled_write(record: &Record, is_unit: bool) -> Option<(Vec<String>, u64)> {
    let mut found = None;
    for event in record.settled() {
        if let WriterEvent::Write { registers, version, .. } = event
            && (registers.len() > 1) == is_unit
        {
            found = Some((registers.clone(), *version));
        }
    }
    found
}

fn lose_write(record: &mut Record) -> bool {
    let Some((registers, version)) = last_settled_write(record, false) else {
        return false;
    };
    for register in registers {
        record.observation.registers.insert(register, version - 1);
    }
    true
}

fn run_refused_write(record: &mut Record) -> bool {
    let refused = record.history.iter().find_map(|event| match event {
        WriterEvent::Write {
            registers,
            version,
            outcome: Outcome::Refused,
        } => Some((registers.clone(), *version)),
        _ => None,
    });
    let Some((registers, version)) = refused else {
        return false;
    };
    for register in registers {
        record.observation.registers.insert(register, version);
    }
    true
}

fn halve_unit(record: &mut Record) -> bool {
    let Some((registers, _)) = last_settled_write(record, true) else {
        return false;
    };
    match record.observation.registers.get_mut(&registers[0]) {
        Some(version) => {
            *version += 1;
            true
        }
        None => false,
    }
}

fn last_settled_increment(record: &Record) -> Option<(String, u64)> {
    let mut found = None;
    for event in record.settled() {
        if let WriterEvent::Increment {
            counter,
            value: Some(value),
            ..
        } = event
        {
            found = Some((counter.clone(), *value));
        }
    }
    found
}

fn lose_increment(record: &mut Record) -> bool {
    let Some((counter, value)) = last_settled_increment(record) else {
        return false;
    };
    record.observation.registers.insert(counter, value - 1);
    true
}

fn repeat_increment(record: &mut Record) -> bool {
    let Some((counter, value)) = last_settled_increment(record) else {
        return false;
    };
    let possible = record
        .history
        .iter()
        .filter(|event| matches!(event, WriterEvent::Increment { counter: name, .. } if *name == counter))
        .count() as u64;
    record.observation.registers.insert(counter, value + possible + 1);
    true
}

/// Removes a settled element that is still there and was never delivered. Elements of lists from which a command
/// without a reply may have taken some are left alone.
fn lose_element(record: &mut Record) -> bool {
    let candidates: Vec<(String, String)> = record
        .settled()
        .filter_map(|event| match event {
            WriterEvent::Add {
                collection, element, ..
            } => Some((collection.clone(), element.clone())),
            _ => None,
        })
        .collect();
    let has_unknown = |collection: &str| {
        record.history.iter().any(|event| {
            matches!(event, WriterEvent::Take { collection: name, outcome: Outcome::Unknown, .. } if name == collection)
        })
    };
    let was_delivered = |element: &String| {
        record
            .history
            .iter()
            .any(|event| matches!(event, WriterEvent::Take { elements, .. } if elements.contains(element)))
    };
    let found = candidates.into_iter().find(|(collection, element)| {
        let left = record.observation.collections.get(collection);
        left.is_some_and(|left| left.contains(element)) && !has_unknown(collection) && !was_delivered(element)
    });
    let Some((collection, element)) = found else {
        return false;
    };
    record.elements_of(&collection).retain(|left| *left != element);
    true
}

fn invent_element(record: &mut Record) -> bool {
    let Some(elements) = record.observation.collections.values_mut().next() else {
        return false;
    };
    elements.push("phantom".to_owned());
    true
}

/// A collection and an element that a client took out of it for good.
fn settled_delivery(record: &Record) -> Option<(String, String)> {
    record.settled().find_map(|event| match event {
        WriterEvent::Take {
            collection, elements, ..
        } => Some((collection.clone(), elements.first()?.clone())),
        _ => None,
    })
}

fn return_element(record: &mut Record) -> bool {
    let Some((collection, element)) = settled_delivery(record) else {
        return false;
    };
    record.elements_of(&collection).push(element);
    true
}

fn deliver_twice(record: &mut Record) -> bool {
    let Some((collection, element)) = settled_delivery(record) else {
        return false;
    };
    record.history.push(WriterEvent::Take {
        collection,
        elements: vec![element],
        may_take: 1,
        outcome: Outcome::Acknowledged,
        received: u64::MAX,
        settled: u64::MAX,
    });
    true
}

fn duplicate_element(record: &mut Record) -> bool {
    let found = record
        .observation
        .collections
        .iter()
        .find_map(|(collection, elements)| {
            let element = elements.first()?;
            Some((collection.clone(), element.clone()))
        });
    let Some((collection, element)) = found else {
        return false;
    };
    record.elements_of(&collection).push(element);
    true
}
