//! The module of some runs: commands with the effects of other operations, which run in each of the ways of modules.

use fastrand::Rng;

use crate::operation::{KEYS_PER_TYPE, Operation, string};

/// The library of the module.
const LIBRARY: &str = concat!(env!("OUT_DIR"), "/module.so");

/// The way in which a command of the module runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleWay {
    /// On the home worker, in exclusive mode.
    Home,
    /// On any worker, beside no other serial command.
    Serial,
    /// On any worker, under the leases of its keys.
    SlotSafe,
    /// At home the client is blocked, and a thread of the module reads under the lock.
    Thread,
}

impl ModuleWay {
    fn name(self) -> &'static str {
        match self {
            ModuleWay::Home => "home",
            ModuleWay::Serial => "serial",
            ModuleWay::SlotSafe => "slot-safe",
            ModuleWay::Thread => "thread",
        }
    }

    /// The words of the command that has the effect of an operation in this way.
    pub fn command(self, operation: &Operation) -> Vec<String> {
        let (name, arguments) = match operation {
            Operation::Append(key) => ("append", vec![string(*key)]),
            Operation::SetGet(key, value) => ("exchange", vec![string(*key), value.to_string()]),
            Operation::ScriptSwap(first, second, value) => {
                ("swap", vec![string(*first), string(*second), value.to_string()])
            }
            Operation::ScriptRead(first, second) => ("read", vec![string(*first), string(*second)]),
            _ => ("unknown", Vec::new()),
        };
        let mut words = vec![format!("simulation.{name}.{}", self.name())];
        words.extend(arguments);
        words
    }
}

/// Replaces some operations by commands of the module, also in a transaction.
pub fn replace(operation: &mut Operation, random: &mut Rng) {
    replace_in(operation, random, false);
}

fn replace_in(operation: &mut Operation, random: &mut Rng, is_in_transaction: bool) {
    if let Operation::Transaction(operations) = operation {
        let parts = operations.iter_mut();
        return parts.for_each(|part| replace_in(part, random, true));
    }
    let effect = match operation {
        Operation::Append(_) | Operation::SetGet(..) | Operation::ScriptSwap(..) | Operation::ScriptRead(..) => {
            operation.clone()
        }
        Operation::ScriptSlowSwap(first, second, value) => Operation::ScriptSwap(*first, *second, *value),
        Operation::Get(key) => Operation::ScriptRead(*key, random.usize(..KEYS_PER_TYPE)),
        _ => return,
    };
    let way = match random.u32(..8) {
        0 | 1 => ModuleWay::Home,
        2 => ModuleWay::Serial,
        3 | 4 => ModuleWay::SlotSafe,
        // Nothing blocks in a transaction.
        5 if !is_in_transaction && matches!(effect, Operation::ScriptRead(..)) => ModuleWay::Thread,
        _ => return,
    };
    *operation = Operation::OfModule(way, Box::new(effect));
}

/// Returns the arguments with which a server loads the module. Its keyspace events come in the way that the number
/// selects, or not at all.
pub fn arguments(number: usize, may_have_home_events: bool) -> [&'static str; 3] {
    let way = match ["none", "none", "home", "slot-safe"][number % 4] {
        "home" if !may_have_home_events => "slot-safe",
        way => way,
    };
    ["--loadmodule", LIBRARY, way]
}
