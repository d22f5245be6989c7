//! A model of sets: ordered sets of the standard library.

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::collections::model::{Expected, Model, Operation, Reply, WorkloadShape};

/// The sets `a` and `b`, and `c` for results.
#[derive(Default)]
pub struct SetModel {
    sets: [BTreeSet<String>; 3],
}

impl Model for SetModel {
    fn operation(shape: &WorkloadShape, rng: &mut Rng) -> Operation {
        let key = if rng.u32(0..3) == 0 { "b" } else { "a" };
        match rng.u32(0..19) {
            0..6 => Operation::line(&format!("SADD {key}"), shape.elements(rng)),
            6 | 7 => Operation::line(&format!("SREM {key}"), shape.elements(rng)),
            8 => Operation::line(&format!("SISMEMBER {key}"), [shape.element(rng)]),
            9 => Operation::line(&format!("SMISMEMBER {key}"), shape.elements(rng)),
            10 => Operation::new(["SCARD", key]),
            11 => Operation::line("SMOVE a b", [shape.element(rng)]),
            12 => Operation::new([*rng.choice(&["SUNION", "SINTER", "SDIFF"]).expect("some"), "a", "b"]),
            13 | 14 => {
                let name = *rng.choice(&["SUNIONSTORE", "SINTERSTORE", "SDIFFSTORE"]).expect("some");
                Operation::new([name, "c", "a", "b"])
            }
            15 => Operation::new(["SINTERCARD", "2", "a", "b"]),
            16 => Operation::new(["SRANDMEMBER", key, "1000000"]),
            17 => Operation::new(["SMEMBERS", "c"]),
            _ => Operation::new(["SMEMBERS", key]),
        }
    }

    fn apply(&mut self, operation: &Operation) -> Expected {
        let parts = operation.parts();
        let [a, b, _] = &self.sets;
        let combined = || -> BTreeSet<String> {
            match parts[0] {
                name if name.starts_with("SUNION") => a.union(b).cloned().collect(),
                name if name.starts_with("SINTER") => a.intersection(b).cloned().collect(),
                _ => a.difference(b).cloned().collect(),
            }
        };
        let reply = match parts.as_slice() {
            ["SUNION" | "SINTER" | "SDIFF", ..] => return any_order(&combined()),
            ["SINTERCARD", ..] => Reply::count(combined().len()),
            ["SUNIONSTORE" | "SINTERSTORE" | "SDIFFSTORE", ..] => {
                self.sets[2] = combined();
                Reply::count(self.sets[2].len())
            }
            ["SMOVE", _, _, member] => {
                let was_there = self.sets[0].remove(*member);
                if was_there {
                    self.sets[1].insert(member.to_string());
                }
                Reply::flag(was_there)
            }
            [name, key, members @ ..] => {
                let set = &mut self.sets[usize::from(key.as_bytes()[0] - b'a')];
                match *name {
                    "SADD" => Reply::count(members.iter().filter(|member| set.insert(member.to_string())).count()),
                    "SREM" => Reply::count(members.iter().filter(|member| set.remove(**member)).count()),
                    "SISMEMBER" => Reply::flag(set.contains(members[0])),
                    "SMISMEMBER" => Reply::Array(
                        members
                            .iter()
                            .map(|member| Reply::flag(set.contains(*member)))
                            .collect(),
                    ),
                    "SCARD" => Reply::count(set.len()),
                    "SMEMBERS" | "SRANDMEMBER" => return any_order(set),
                    other => panic!("no model of {other}"),
                }
            }
            other => panic!("no model of {other:?}"),
        };
        reply.into()
    }
}

fn any_order(set: &BTreeSet<String>) -> Expected {
    Expected::AnyOrder(1, set.iter().map(|member| Reply::Text(member.clone())).collect())
}
