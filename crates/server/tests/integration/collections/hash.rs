//! A model of a hash: a map.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::collections::model::{Expected, Model, Operation, Reply, WorkloadShape};

/// The hash `k`.
#[derive(Default)]
pub struct HashModel {
    fields: BTreeMap<String, String>,
}

impl Model for HashModel {
    fn operation(shape: &WorkloadShape, rng: &mut Rng) -> Operation {
        let one = |rng: &mut Rng| shape.element(rng);
        match rng.u32(0..18) {
            0..5 => {
                let pairs = shape.elements(rng);
                Operation::line(
                    "HSET k",
                    pairs
                        .into_iter()
                        .flat_map(|field| [field, one(rng)])
                        .collect::<Vec<_>>(),
                )
            }
            5 => Operation::line("HSETNX k", [one(rng), one(rng)]),
            6 => Operation::line("HGET k", [one(rng)]),
            7 => Operation::line("HMGET k", shape.elements(rng)),
            8 => Operation::line("HDEL k", shape.elements(rng)),
            9 => Operation::new(["HLEN", "k"]),
            10 => Operation::line("HEXISTS k", [one(rng)]),
            11 => Operation::line("HSTRLEN k", [one(rng)]),
            12 => Operation::line("HINCRBY k", [one(rng), rng.i32(-100..100).to_string()]),
            13 => Operation::new(["HKEYS", "k"]),
            14 => Operation::new(["HVALS", "k"]),
            15 => {
                let fields = shape.elements(rng);
                Operation::line("HGETDEL k FIELDS", [vec![fields.len().to_string()], fields].concat())
            }
            _ => Operation::new(["HGETALL", "k"]),
        }
    }

    fn apply(&mut self, operation: &Operation) -> Expected {
        let fields = &mut self.fields;
        let reply = match operation.parts().as_slice() {
            ["HSET", _, pairs @ ..] => {
                let before = fields.len();
                fields.extend(pairs.chunks(2).map(|pair| (pair[0].to_string(), pair[1].to_string())));
                Reply::count(fields.len() - before)
            }
            ["HSETNX", _, field, value] => {
                let is_new = !fields.contains_key(*field);
                fields.entry(field.to_string()).or_insert_with(|| value.to_string());
                Reply::flag(is_new)
            }
            ["HGET", _, field] => Reply::text_or_nil(fields.get(*field)),
            ["HMGET", _, wanted @ ..] => {
                let value = |field: &&str| Reply::text_or_nil(fields.get(*field));
                Reply::Array(wanted.iter().map(value).collect())
            }
            ["HGETDEL", _, "FIELDS", _, wanted @ ..] => {
                let value = |field: &&str| Reply::text_or_nil(fields.remove(*field).as_ref());
                Reply::Array(wanted.iter().map(value).collect())
            }
            ["HDEL", _, gone @ ..] => {
                Reply::count(gone.iter().filter(|field| fields.remove(**field).is_some()).count())
            }
            ["HLEN", _] => Reply::count(fields.len()),
            ["HEXISTS", _, field] => Reply::flag(fields.contains_key(*field)),
            ["HSTRLEN", _, field] => Reply::count(fields.get(*field).map_or(0, String::len)),
            ["HINCRBY", _, field, by] => {
                let old = fields.get(*field).map_or(Some(0), |value| integer(value));
                match old {
                    Some(old) => {
                        let new = old + by.parse::<i64>().expect("an integer");
                        fields.insert(field.to_string(), new.to_string());
                        Reply::Integer(new)
                    }
                    None => Reply::Error("ERR".into()),
                }
            }
            ["HKEYS", _] => return any_order(1, fields.keys()),
            ["HVALS", _] => return any_order(1, fields.values()),
            ["HGETALL", _] => return any_order(2, fields.iter().flat_map(|(field, value)| [field, value])),
            other => panic!("no model of {other:?}"),
        };
        reply.into()
    }
}

/// Parses an integer that is written as the server writes integers.
fn integer(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn any_order<'a>(width: usize, texts: impl Iterator<Item = &'a String>) -> Expected {
    Expected::AnyOrder(width, texts.map(|text| Reply::Text(text.clone())).collect())
}
