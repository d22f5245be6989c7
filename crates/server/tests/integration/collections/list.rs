//! A model of a list: a vector.

use fastrand::Rng;

use crate::collections::model::{Expected, Model, Operation, Reply, WorkloadShape, range};

/// The list `k`.
#[derive(Default)]
pub struct ListModel {
    elements: Vec<String>,
}

impl Model for ListModel {
    fn operation(shape: &WorkloadShape, rng: &mut Rng) -> Operation {
        let element = |rng: &mut Rng| shape.element(rng);
        match rng.u32(0..22) {
            0..4 => Operation::line("RPUSH k", shape.elements(rng)),
            4..7 => Operation::line("LPUSH k", shape.elements(rng)),
            7 => Operation::line("RPUSHX k", shape.elements(rng)),
            8 => Operation::new(["LPOP", "k"]),
            9 => Operation::new(["RPOP", "k"]),
            10 => Operation::line("LPOP k", [rng.usize(0..shape.elements_per_command_max * 2).to_string()]),
            11 => Operation::line("RPOP k", [rng.usize(0..shape.elements_per_command_max * 2).to_string()]),
            12 => Operation::line("LINDEX k", [shape.index(rng)]),
            13 => Operation::line("LSET k", [shape.index(rng), element(rng)]),
            14 => Operation::line("LRANGE k", [shape.index(rng), shape.index(rng)]),
            15 => Operation::new(["LRANGE", "k", "0", "-1"]),
            16 => {
                let place = if rng.bool() { "BEFORE" } else { "AFTER" };
                Operation::line("LINSERT k", [place.into(), element(rng), element(rng)])
            }
            17 => Operation::line("LREM k", [rng.i32(-3..4).to_string(), element(rng)]),
            18 => Operation::line("LPOS k", [element(rng)]),
            19 => Operation::line("LPOS k", [element(rng), "COUNT".into(), rng.u32(0..3).to_string()]),
            20 => Operation::new(["LMOVE", "k", "k", "LEFT", "RIGHT"]),
            _ => Operation::line("LTRIM k", [rng.u32(0..3).to_string(), rng.i32(-3..0).to_string()]),
        }
    }

    fn apply(&mut self, operation: &Operation) -> Expected {
        let elements = &mut self.elements;
        let reply = match operation.parts().as_slice() {
            ["RPUSHX", ..] if elements.is_empty() => Reply::Integer(0),
            ["RPUSH" | "RPUSHX", _, new @ ..] => {
                elements.extend(new.iter().map(ToString::to_string));
                Reply::count(elements.len())
            }
            ["LPUSH", _, new @ ..] => {
                elements.splice(0..0, new.iter().rev().map(ToString::to_string));
                Reply::count(elements.len())
            }
            ["LPOP", _] if !elements.is_empty() => Reply::Text(elements.remove(0)),
            ["RPOP", _] if !elements.is_empty() => Reply::text_or_nil(elements.pop().as_ref()),
            ["LPOP" | "RPOP", _, _] | ["LPOP" | "RPOP", _] if elements.is_empty() => Reply::Nil,
            ["LPOP", _, count] => {
                let count: usize = count.parse().expect("a count");
                Reply::texts(&elements.drain(..count.min(elements.len())).collect::<Vec<_>>())
            }
            ["RPOP", _, count] => {
                let count: usize = count.parse().expect("a count");
                let first = elements.len().saturating_sub(count);
                Reply::texts(elements.split_off(first).iter().rev())
            }
            ["LINDEX", _, index] => {
                let place = range(elements.len(), index, index);
                Reply::text_or_nil(elements.get(place.start).filter(|_| !place.is_empty()))
            }
            ["LSET", _, index, element] => {
                let place = range(elements.len(), index, index);
                match elements.get_mut(place.start) {
                    Some(old) if !place.is_empty() => {
                        *old = element.to_string();
                        Reply::ok()
                    }
                    _ => Reply::Error("ERR".into()),
                }
            }
            ["LRANGE", _, start, stop] => Reply::texts(&elements[range(elements.len(), start, stop)]),
            ["LTRIM", _, start, stop] => {
                let kept = range(elements.len(), start, stop);
                *elements = elements[kept].to_vec();
                Reply::ok()
            }
            ["LINSERT", _, place, pivot, element] => match elements.iter().position(|known| known == pivot) {
                _ if elements.is_empty() => Reply::Integer(0),
                None => Reply::Integer(-1),
                Some(index) => {
                    elements.insert(index + usize::from(*place == "AFTER"), element.to_string());
                    Reply::count(elements.len())
                }
            },
            ["LREM", _, count, element] => self.remove(count.parse().expect("a count"), element),
            ["LPOS", _, element, rest @ ..] => {
                let places = elements.iter().enumerate().filter(|(_, known)| known == element);
                let mut places = places.map(|(place, _)| Reply::count(place));
                match rest {
                    [_, count] => {
                        let most = count.parse().ok().filter(|most| *most > 0);
                        Reply::Array(places.take(most.unwrap_or(usize::MAX)).collect())
                    }
                    _ => places.next().unwrap_or(Reply::Nil),
                }
            }
            ["LMOVE", ..] if elements.is_empty() => Reply::Nil,
            ["LMOVE", ..] => {
                elements.rotate_left(1);
                Reply::text_or_nil(elements.last())
            }
            other => panic!("no model of {other:?}"),
        };
        reply.into()
    }
}

impl ListModel {
    /// LREM: from the front, from the end if `count` is negative, all if it is 0.
    fn remove(&mut self, count: i64, element: &str) -> Reply {
        let most = if count == 0 {
            usize::MAX
        } else {
            count.unsigned_abs() as usize
        };
        let places = (0..self.elements.len()).filter(|place| self.elements[*place] == element);
        let mut places: Vec<usize> = if count < 0 {
            places.rev().take(most).collect()
        } else {
            places.take(most).collect()
        };
        places.sort_unstable();
        for place in places.iter().rev() {
            self.elements.remove(*place);
        }
        Reply::count(places.len())
    }
}
