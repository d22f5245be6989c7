//! Decides if the replies of all clients are those of one order that respects real time (strict serializability).
//!
//! The search follows Wing and Gong ("Testing and verifying concurrent objects", 1993), with Lowe's memory of places:
//! it builds the order from its beginning. An operation can be the next one if it is the first remaining one of its
//! connection, and no remaining operation was answered before it was sent. A place that was reached before (the same
//! operations done, the same state) is not searched again.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::history::{ConnectionHistory, Event};
use crate::model::{Effect, Model};

/// The number of places after which the search gives up. A run that is right needs a few thousand.
const MAX_PLACES: usize = 3_000_000;

/// The result of the check.
#[derive(Debug)]
pub enum Verdict {
    /// There is such an order.
    Serializable,
    /// There is none. Contains the longest beginning that was found, and what each connection would do next.
    NotSerializable(String),
    /// The search gave up.
    TooLong,
}

/// One place of the search.
struct Place {
    done: Vec<usize>,
    model: Model,
}

/// Checks the histories of all connections. `may_reload` is `true` if the server has reloaded its data meanwhile.
pub fn check(histories: &[ConnectionHistory], may_reload: bool) -> Verdict {
    let mut seen: HashSet<u64> = HashSet::new();
    let mut places = vec![Place {
        done: vec![0; histories.len()],
        model: Model::new(histories.len(), may_reload),
    }];
    let mut farthest = places[0].done.clone();
    while let Some(place) = places.pop() {
        if is_complete(histories, &place.done) {
            return Verdict::Serializable;
        }
        if place.done.iter().sum::<usize>() > farthest.iter().sum::<usize>() {
            farthest.clone_from(&place.done);
        }
        for next in next_places(histories, &place) {
            if seen.insert(fingerprint(&next)) {
                places.push(next);
            }
        }
        if seen.len() > MAX_PLACES {
            return Verdict::TooLong;
        }
    }
    Verdict::NotSerializable(describe(histories, &farthest))
}

/// Returns `true` if every answered operation is done.
fn is_complete(histories: &[ConnectionHistory], done: &[usize]) -> bool {
    histories
        .iter()
        .zip(done)
        .all(|(history, &done)| history.events[done..].iter().all(|event| event.answer.is_none()))
}

fn next_places(histories: &[ConnectionHistory], place: &Place) -> Vec<Place> {
    let remaining = || {
        histories
            .iter()
            .zip(&place.done)
            .filter_map(|(history, &done)| history.events.get(done))
    };
    // Answers of one connection come in order, so the first remaining one is the earliest.
    let earliest_answer = remaining()
        .filter_map(|event| event.answer.as_ref().map(|(_, step)| *step))
        .min()
        .unwrap_or(u64::MAX);
    let mut found = Vec::new();
    for (connection, history) in histories.iter().enumerate() {
        let Some(event) = history.events.get(place.done[connection]) else {
            continue;
        };
        if event.sent_step > earliest_answer {
            continue;
        }
        let mut model = place.model.clone();
        if is_possible(&mut model, connection, event) {
            let mut done = place.done.clone();
            done[connection] += 1;
            found.push(Place { done, model });
        }
    }
    found
}

/// Applies an event. Returns `true` if the client saw what the model replies.
fn is_possible(model: &mut Model, connection: usize, event: &Event) -> bool {
    let observed = event.answer.as_ref().map(|(replies, _)| &**replies);
    match model.apply(connection, &event.operation, observed) {
        Effect::Impossible => false,
        Effect::AnyReply => true,
        Effect::Replies(expected) => observed.is_none_or(|observed| observed == expected),
    }
}

fn fingerprint(place: &Place) -> u64 {
    let mut hasher = DefaultHasher::new();
    place.done.hash(&mut hasher);
    place.model.hash(&mut hasher);
    hasher.finish()
}

fn describe(histories: &[ConnectionHistory], farthest: &[usize]) -> String {
    let mut text =
        String::from("no order explains the replies; after the longest beginning, the connections go on with\n");
    for (connection, history) in histories.iter().enumerate() {
        let from = farthest[connection].saturating_sub(3);
        for (index, event) in history.events.iter().enumerate().skip(from).take(5) {
            let mark = if index == farthest[connection] { "->" } else { "  " };
            text.push_str(&format!("{mark} {connection}.{index} {event:?}\n"));
        }
    }
    text
}
