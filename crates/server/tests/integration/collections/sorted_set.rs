//! A model of a sorted set: a vector that is sorted again for every operation.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::collections::model::{Expected, Model, Operation, Reply, WorkloadShape, range};

/// The sorted set `k`. Scores are integers, so their text form is unambiguous.
#[derive(Default)]
pub struct SortedSetModel {
    scores: BTreeMap<String, i64>,
}

impl Model for SortedSetModel {
    fn operation(shape: &WorkloadShape, rng: &mut Rng) -> Operation {
        let one = |rng: &mut Rng| shape.element(rng);
        let score = |rng: &mut Rng| rng.i32(-20..60).to_string();
        let (low, high) = (score(rng), score(rng));
        match rng.u32(0..24) {
            0..6 => {
                let members = shape.elements(rng);
                let pairs: Vec<String> = members.into_iter().flat_map(|member| [score(rng), member]).collect();
                let options = ["", "", "", "NX", "XX", "CH", "GT", "LT CH", "XX GT CH"];
                let options = rng.choice(options).expect("some");
                Operation::line(&format!("ZADD k {options}"), pairs)
            }
            6 => Operation::line("ZADD k INCR", [score(rng), one(rng)]),
            7 => Operation::line("ZINCRBY k", [score(rng), one(rng)]),
            8 | 9 => Operation::line("ZREM k", shape.elements(rng)),
            10 => Operation::line("ZSCORE k", [one(rng)]),
            11 => Operation::line("ZMSCORE k", shape.elements(rng)),
            12 => Operation::line("ZRANK k", [one(rng)]),
            13 => Operation::line("ZREVRANK k", [one(rng)]),
            14 => Operation::new(["ZCARD", "k"]),
            15 => Operation::new(["ZCOUNT", "k", &low, &high]),
            16 => Operation::line("ZRANGE k", [shape.index(rng), shape.index(rng), "WITHSCORES".into()]),
            17 => Operation::line("ZREVRANGE k", [shape.index(rng), shape.index(rng), "WITHSCORES".into()]),
            18 => Operation::new(["ZRANGEBYSCORE", "k", &low, &high, "WITHSCORES"]),
            19 => Operation::line("ZPOPMIN k", [rng.usize(0..shape.elements_per_command_max).to_string()]),
            20 => Operation::line("ZPOPMAX k", [rng.usize(0..shape.elements_per_command_max).to_string()]),
            21 => Operation::line(
                "ZREMRANGEBYRANK k",
                [rng.i32(-9..3).to_string(), rng.i32(-9..3).to_string()],
            ),
            22 => Operation::new(["ZREMRANGEBYSCORE", "k", &low, &low]),
            _ => Operation::new(["ZRANGE", "k", "0", "-1", "WITHSCORES"]),
        }
    }

    fn apply(&mut self, operation: &Operation) -> Expected {
        let parts = operation.parts();
        let number = |text: &str| text.parse::<i64>().expect("an integer");
        let between = |low: &str, high: &str| {
            let scores = number(low)..=number(high);
            self.sorted()
                .into_iter()
                .filter(move |(score, _)| scores.contains(score))
        };
        let reply = match parts.as_slice() {
            ["ZADD", _, "INCR", by, member] | ["ZINCRBY", _, by, member] => {
                let score = self.scores.entry(member.to_string()).or_default();
                *score += number(by);
                Reply::Text(score.to_string())
            }
            ["ZADD", _, rest @ ..] => self.add(rest),
            ["ZREM", _, members @ ..] => Reply::count(
                members
                    .iter()
                    .filter(|member| self.scores.remove(**member).is_some())
                    .count(),
            ),
            ["ZSCORE", _, member] => self.score(member),
            ["ZMSCORE", _, members @ ..] => Reply::Array(members.iter().map(|member| self.score(member)).collect()),
            ["ZRANK" | "ZREVRANK", _, member] => {
                let mut sorted = self.sorted();
                if parts[0] == "ZREVRANK" {
                    sorted.reverse();
                }
                let rank = sorted.iter().position(|(_, known)| known == member);
                rank.map_or(Reply::Nil, Reply::count)
            }
            ["ZCARD", _] => Reply::count(self.scores.len()),
            ["ZCOUNT", _, low, high] => Reply::count(between(low, high).count()),
            ["ZRANGEBYSCORE", _, low, high, _] => pairs(between(low, high)),
            ["ZRANGE", _, start, stop, _] => {
                let sorted = self.sorted();
                pairs(sorted[range(sorted.len(), start, stop)].iter().cloned())
            }
            ["ZREVRANGE", _, start, stop, _] => {
                let mut sorted = self.sorted();
                sorted.reverse();
                pairs(sorted[range(sorted.len(), start, stop)].iter().cloned())
            }
            ["ZPOPMIN", _, count] => {
                let gone: Vec<_> = self.sorted().into_iter().take(number(count) as usize).collect();
                self.remove(gone)
            }
            ["ZPOPMAX", _, count] => {
                let gone: Vec<_> = self.sorted().into_iter().rev().take(number(count) as usize).collect();
                self.remove(gone)
            }
            ["ZREMRANGEBYRANK", _, start, stop] => {
                let sorted = self.sorted();
                let gone = sorted[range(sorted.len(), start, stop)].to_vec();
                let count = gone.len();
                self.remove(gone);
                Reply::count(count)
            }
            ["ZREMRANGEBYSCORE", _, low, high] => {
                let gone: Vec<_> = between(low, high).collect();
                let count = gone.len();
                self.remove(gone);
                Reply::count(count)
            }
            other => panic!("no model of {other:?}"),
        };
        reply.into()
    }
}

impl SortedSetModel {
    fn sorted(&self) -> Vec<(i64, String)> {
        let mut sorted: Vec<_> = self
            .scores
            .iter()
            .map(|(member, score)| (*score, member.clone()))
            .collect();
        sorted.sort();
        sorted
    }

    fn score(&self, member: &str) -> Reply {
        let score = self.scores.get(member);
        score.map_or(Reply::Nil, |score| Reply::Text(score.to_string()))
    }

    fn remove(&mut self, gone: Vec<(i64, String)>) -> Reply {
        for (_, member) in &gone {
            self.scores.remove(member);
        }
        pairs(gone.into_iter())
    }

    /// ZADD: options, then scores and members.
    fn add(&mut self, rest: &[&str]) -> Reply {
        let first = rest
            .iter()
            .position(|word| word.parse::<i64>().is_ok())
            .expect("a score");
        let (options, scored) = rest.split_at(first);
        let has = |option: &str| options.contains(&option);
        let (mut added, mut changed) = (0, 0);
        for pair in scored.chunks(2) {
            let new: i64 = pair[0].parse().expect("a score");
            match self.scores.get(pair[1]).copied() {
                None if has("XX") => continue,
                None => added += 1,
                Some(_) if has("NX") => continue,
                Some(old) if has("GT") && new <= old || has("LT") && new >= old => continue,
                Some(old) => changed += i64::from(new != old),
            }
            self.scores.insert(pair[1].to_string(), new);
        }
        Reply::Integer(if has("CH") { added + changed } else { added })
    }
}

/// Formats members, each followed by its score.
fn pairs(sorted: impl Iterator<Item = (i64, String)>) -> Reply {
    let pair = |(score, member): (i64, String)| [Reply::Text(member), Reply::Text(score.to_string())];
    Reply::Array(sorted.flat_map(pair).collect())
}
