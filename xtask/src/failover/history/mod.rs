//! The recorded history of one round, and the rules that connect it with the state in which the servers end.
//!
//! A *register* holds a version, which its only writer increases. A *collection* holds unique elements. What must
//! survive depends on the guarantee of the round: after a planned failover every acknowledged write, after an unplanned
//! one every write that WAIT confirmed. Such a write is *settled*.

use std::collections::{BTreeMap, HashMap};

/// The knowledge of a command's writer about its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The server refused the command, so it has no effect.
    Refused,
    /// The connection ended before the reply, so the command may have run.
    Unknown,
    /// The server replied that the command ran.
    Acknowledged,
    /// As `Acknowledged`, and WAIT reported the number of replicas that the scenario asks for.
    Confirmed,
}

/// Which writes must survive a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Every acknowledged write, because the failover was coordinated with the old primary.
    Acknowledged,
    /// Every write that WAIT confirmed.
    Confirmed,
}

impl Guarantee {
    /// Returns `true` if a write with this outcome must survive.
    pub fn covers(self, outcome: Outcome) -> bool {
        match self {
            Guarantee::Acknowledged => outcome >= Outcome::Acknowledged,
            Guarantee::Confirmed => outcome == Outcome::Confirmed,
        }
    }
}

/// One command of a writer.
#[derive(Clone, Debug)]
pub enum WriterEvent {
    /// The writer set all `registers` to `version` as one unit.
    Write {
        registers: Vec<String>,
        version: u64,
        outcome: Outcome,
    },
    /// The only writer of a register read its version from a primary.
    Read { register: String, version: u64 },
    /// The only writer of a counter increased it by one. `value` is the reply, if there was one.
    Increment {
        counter: String,
        value: Option<u64>,
        outcome: Outcome,
    },
    /// A unique element was added.
    Add {
        collection: String,
        element: String,
        outcome: Outcome,
    },
    /// A client took elements out. `received` and `settled` are positions in the order of all replies of the round: of
    /// the reply to the command and of the confirmation. With `Outcome::Unknown` up to `may_take` elements are gone.
    Take {
        collection: String,
        elements: Vec<String>,
        may_take: usize,
        outcome: Outcome,
        received: u64,
        settled: u64,
    },
    /// An element was moved to another collection, from which no client takes elements.
    Move {
        to: String,
        element: String,
        outcome: Outcome,
    },
}

impl WriterEvent {
    /// The outcome of a write; `None` for a read.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            WriterEvent::Write { outcome, .. }
            | WriterEvent::Increment { outcome, .. }
            | WriterEvent::Add { outcome, .. }
            | WriterEvent::Take { outcome, .. }
            | WriterEvent::Move { outcome, .. } => Some(*outcome),
            WriterEvent::Read { .. } => None,
        }
    }
}

/// The state of the primaries after a round, when no client writes any more.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// The version of each register and the value of each counter; 0 if the key does not exist.
    pub registers: BTreeMap<String, u64>,
    /// The elements of each collection.
    pub collections: BTreeMap<String, Vec<String>>,
    /// Values that no sequence of commands can have produced.
    pub impossible: Vec<String>,
}

/// Returns the rules that `observation` breaks after `history`. The events of one writer are in their order.
pub fn broken_rules(history: &[WriterEvent], observation: &Observation, guarantee: Guarantee) -> Vec<String> {
    let mut broken = observation.impossible.clone();
    check_registers(history, observation, guarantee, &mut broken);
    check_counters(history, observation, guarantee, &mut broken);
    Elements::collect(history, observation, guarantee).check(&mut broken);
    broken
}

/// The versions of one register.
#[derive(Default)]
struct Versions {
    settled: u64,
    possible: Vec<u64>,
}

fn check_registers(history: &[WriterEvent], observation: &Observation, guarantee: Guarantee, broken: &mut Vec<String>) {
    let mut versions: BTreeMap<&str, Versions> = BTreeMap::new();
    let observed = |register: &str| observation.registers.get(register).copied().unwrap_or(0);
    for event in history {
        match event {
            WriterEvent::Write {
                registers,
                version,
                outcome,
            } => {
                for register in registers {
                    let entry = versions.entry(register).or_default();
                    if *outcome != Outcome::Refused {
                        entry.possible.push(*version);
                    }
                    if guarantee.covers(*outcome) {
                        entry.settled = *version;
                    }
                }
            }
            WriterEvent::Read { register, version } => {
                let settled = versions.get(register.as_str()).map_or(0, |entry| entry.settled);
                if *version < settled {
                    broken.push(format!("{register}: {version} was read after {settled} was settled"));
                }
            }
            _ => {}
        }
    }
    for (register, entry) in &versions {
        let version = observed(register);
        if version < entry.settled {
            broken.push(format!(
                "{register}: lost, {version} after {} was settled",
                entry.settled
            ));
        } else if version != 0 && !entry.possible.contains(&version) {
            broken.push(format!("{register}: {version} was never written, or was refused"));
        }
    }
    let mut units: Vec<&Vec<String>> = history
        .iter()
        .filter_map(|event| match event {
            WriterEvent::Write { registers, .. } if registers.len() > 1 => Some(registers),
            _ => None,
        })
        .collect();
    units.sort();
    units.dedup();
    for unit in units {
        let values: Vec<u64> = unit.iter().map(|register| observed(register)).collect();
        if values.iter().any(|value| *value != values[0]) {
            broken.push(format!("{unit:?}: {values:?}, but they are written as one unit"));
        }
    }
}

/// The knowledge about a counter at one position of the history.
#[derive(Default)]
struct CounterState {
    /// The last value that must survive.
    settled: u64,
    /// The number of increments that ran or may have run.
    possible: u64,
    /// The same since the settled one.
    possible_since_settled: u64,
}

fn check_counters(history: &[WriterEvent], observation: &Observation, guarantee: Guarantee, broken: &mut Vec<String>) {
    let mut counters: BTreeMap<&str, CounterState> = BTreeMap::new();
    for event in history {
        let WriterEvent::Increment {
            counter,
            value,
            outcome,
        } = event
        else {
            continue;
        };
        let state = counters.entry(counter).or_default();
        if *outcome == Outcome::Refused {
            continue;
        }
        state.possible += 1;
        state.possible_since_settled += 1;
        let Some(value) = *value else { continue };
        let greatest = state.settled + state.possible_since_settled;
        if value <= state.settled || value > greatest {
            broken.push(format!(
                "{counter}: INCR returned {value} after {} was settled, and at most {greatest} is possible",
                state.settled
            ));
        }
        if guarantee.covers(*outcome) {
            state.settled = value;
            state.possible_since_settled = 0;
        }
    }
    for (counter, state) in &counters {
        let value = observation.registers.get(*counter).copied().unwrap_or(0);
        if value < state.settled {
            broken.push(format!("{counter}: lost, {value} after {} was settled", state.settled));
        } else if value > state.settled + state.possible_since_settled {
            broken.push(format!(
                "{counter}: {value}, but only {} increments may have run, and {} was settled",
                state.possible, state.settled
            ));
        }
    }
}

/// A reply that delivered an element.
struct Delivery {
    is_settled: bool,
    received: u64,
    settled: u64,
}

/// Everything that the history and the observation say about one element.
#[derive(Default)]
struct ElementState<'a> {
    pushed: Option<(&'a str, Outcome)>,
    deliveries: Vec<Delivery>,
    settled_move: Option<&'a str>,
    left_in: Vec<&'a str>,
}

/// The elements of all collections.
struct Elements<'a> {
    guarantee: Guarantee,
    elements: BTreeMap<&'a str, ElementState<'a>>,
    /// The number of elements of each collection that commands without a reply may have taken.
    unknown_takes: HashMap<&'a str, usize>,
}

impl<'a> Elements<'a> {
    fn collect(history: &'a [WriterEvent], observation: &'a Observation, guarantee: Guarantee) -> Self {
        let mut all = Self {
            guarantee,
            elements: BTreeMap::new(),
            unknown_takes: HashMap::new(),
        };
        for event in history {
            all.record(event);
        }
        for (collection, elements) in &observation.collections {
            for element in elements {
                all.elements.entry(element).or_default().left_in.push(collection);
            }
        }
        all
    }

    fn record(&mut self, event: &'a WriterEvent) {
        match event {
            WriterEvent::Add {
                collection,
                element,
                outcome,
            } => self.elements.entry(element).or_default().pushed = Some((collection, *outcome)),
            WriterEvent::Take {
                collection,
                elements,
                may_take,
                outcome,
                received,
                settled,
            } => {
                if *outcome == Outcome::Unknown {
                    *self.unknown_takes.entry(collection).or_default() += may_take;
                }
                for element in elements {
                    self.elements.entry(element).or_default().deliveries.push(Delivery {
                        is_settled: self.guarantee.covers(*outcome),
                        received: *received,
                        settled: *settled,
                    });
                }
            }
            WriterEvent::Move { to, element, outcome } if self.guarantee.covers(*outcome) => {
                self.elements.entry(element).or_default().settled_move = Some(to);
            }
            _ => {}
        }
    }

    fn check(mut self, broken: &mut Vec<String>) {
        let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (element, state) in &self.elements {
            let element = *element;
            let (collection, outcome) = state.pushed.unwrap_or(("no collection", Outcome::Refused));
            let is_somewhere = !state.deliveries.is_empty() || !state.left_in.is_empty();
            if outcome == Outcome::Refused && is_somewhere {
                broken.push(format!("{element} is there, but was never added, or was refused"));
            }
            if state.left_in.len() > 1 {
                broken.push(format!("{element} is in {:?}", state.left_in));
            }
            if self.guarantee.covers(outcome) && !is_somewhere {
                missing.entry(collection).or_default().push(element);
            }
            check_deliveries(element, state, broken);
            if let Some(to) = state.settled_move
                && !state.left_in.contains(&to)
            {
                broken.push(format!("{element} was moved to {to}, and is in {:?}", state.left_in));
            }
        }
        for (collection, elements) in missing {
            let unknown = self.unknown_takes.remove(collection).unwrap_or(0);
            if elements.len() > unknown {
                broken.push(format!(
                    "{collection}: lost {} settled elements, and at most {unknown} were taken without a reply: {:?}",
                    elements.len(),
                    &elements[..elements.len().min(10)]
                ));
            }
        }
    }
}

/// Checks that an element does not come back once its delivery is settled.
fn check_deliveries(element: &str, state: &ElementState<'_>, broken: &mut Vec<String>) {
    for (index, delivery) in state.deliveries.iter().enumerate().filter(|(_, one)| one.is_settled) {
        if !state.left_in.is_empty() {
            broken.push(format!("{element} was delivered, and is in {:?} again", state.left_in));
        }
        let is_repeated = |(other, later): (usize, &Delivery)| other != index && later.received >= delivery.settled;
        if state.deliveries.iter().enumerate().any(is_repeated) {
            broken.push(format!("{element} was delivered, and then delivered again"));
        }
    }
}

#[cfg(test)]
mod tests;
