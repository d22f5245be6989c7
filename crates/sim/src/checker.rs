//! Decides if the replies of all clients are those of one order that respects real time (strict serializability).
//!
//! The search follows Wing and Gong ("Testing and verifying concurrent objects", 1993), with Lowe's memory of places:
//! it builds the order from its beginning. An operation can be the next one if it is the first remaining one of its
//! connection, and no remaining operation was answered before it was sent. A place that was reached before (the same
//! operations done, the same state) is not searched again. A read that is right in a place is put there without a
//! search for others. An operation whose connection was killed by CLIENT KILL must come before all that were sent after
//! the reply to CLIENT KILL. If a transaction has killed it, it must come before that transaction.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::history::{ConnectionHistory, Event};
use crate::model::{Effect, Model};
use crate::operation::Operation;
use crate::reply::{SeenReply, allow_all};

/// The number of places after which the search gives up. A run that is right needs a few thousand.
const MAX_PLACES: usize = 40_000;

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

/// The histories, with the limits that are the same in all places.
struct Search<'h> {
    histories: &'h [ConnectionHistory],
    /// For each connection, the step at which another one had killed it; `u64::MAX` if none had. Its requests take no
    /// effect later.
    killed_steps: Vec<u64>,
    /// For each connection, the transactions of others that have killed it, as connections and indexes of events.
    killing_transactions: Vec<Vec<(usize, usize)>>,
    /// `true` if SCRIPT KILL has stopped scripts.
    has_killed_scripts: bool,
    /// `true` if the server has reloaded its data, which fails transactions with watched keys.
    may_reload: bool,
    /// `true` if a node may have refused what is unanswered, because the slot was on the other one.
    may_redirect: bool,
}

/// One place of the search.
struct Place {
    done: Vec<usize>,
    model: Model,
}

/// What may have had an effect on requests, besides the requests themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// The server has reloaded its data.
    pub may_reload: bool,
    /// The keys have moved between the nodes of a cluster.
    pub may_redirect: bool,
    /// Keys were evicted.
    pub may_evict: bool,
    /// The servers have exchanged their roles.
    pub may_fail_over: bool,
}

/// Checks the histories of all connections.
pub fn check(histories: &[ConnectionHistory], circumstances: Circumstances) -> Verdict {
    // Keys that come back to a node count as changed.
    let may_reload = circumstances.may_reload || circumstances.may_redirect || circumstances.may_evict;
    let histories = &*without_lost_reads(histories);
    let search = Search {
        histories,
        killed_steps: (0..histories.len())
            .map(|index| killed_step(histories, index))
            .collect(),
        killing_transactions: (0..histories.len())
            .map(|index| killing_transactions(histories, index))
            .collect(),
        has_killed_scripts: histories.iter().any(has_killed_script),
        may_reload,
        may_redirect: circumstances.may_redirect,
    };
    let mut seen: HashSet<u64> = HashSet::new();
    let mut places = vec![Place {
        done: vec![0; histories.len()],
        model: Model::new(
            histories.len(),
            Circumstances {
                may_reload,
                ..circumstances
            },
        ),
    }];
    let mut farthest = places[0].done.clone();
    while let Some(place) = places.pop() {
        if is_complete(histories, &place.done) {
            return Verdict::Serializable;
        }
        if place.done.iter().sum::<usize>() > farthest.iter().sum::<usize>() {
            farthest.clone_from(&place.done);
        }
        for next in next_places(&search, &place) {
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

/// Returns the histories without the reads that were not answered. Whatever they saw, no client knows.
fn without_lost_reads(histories: &[ConnectionHistory]) -> Vec<ConnectionHistory> {
    let mut histories = histories.to_vec();
    for history in &mut histories {
        history
            .events
            .retain(|event| event.answer.is_some() || !event.operation.only_reads());
    }
    histories
}

/// Returns `true` if every answered operation is done.
fn is_complete(histories: &[ConnectionHistory], done: &[usize]) -> bool {
    histories
        .iter()
        .zip(done)
        .all(|(history, &done)| history.events[done..].iter().all(|event| event.answer.is_none()))
}

/// Returns `true` if the connection has stopped a script by SCRIPT KILL.
fn has_killed_script(history: &ConnectionHistory) -> bool {
    let script_kill = Operation::Ignored(vec!["SCRIPT", "KILL"]);
    history.events.iter().any(|event| {
        let answer = event.answer.as_ref();
        event.operation == script_kill && answer.is_some_and(|(replies, _)| **replies == [SeenReply::ok()])
    })
}

/// Returns the step at which another connection had killed this one, or `u64::MAX`.
fn killed_step(histories: &[ConnectionHistory], index: usize) -> u64 {
    let steps = kills_of(histories, index).filter_map(|(.., event)| event.answer.as_ref().map(|(_, step)| *step));
    steps.min().unwrap_or(u64::MAX)
}

/// Returns the transactions that have killed a connection.
fn killing_transactions(histories: &[ConnectionHistory], index: usize) -> Vec<(usize, usize)> {
    // A transaction that a replica refused has killed none.
    let has_run = |event: &Event| {
        let answer = event.answer.as_ref();
        matches!(event.operation, Operation::Transaction(_))
            && answer.is_some_and(|(replies, _)| matches!(replies.last(), Some(SeenReply::Array(_))))
    };
    kills_of(histories, index)
        .filter(|(.., event)| has_run(event))
        .map(|(connection, at, _)| (connection, at))
        .collect()
}

/// Returns the operations that certainly kill a connection: those sent after it has received a reply, and answered
/// before its client closed it. The server does not know it before, and cannot kill it later, when a command of it may
/// still run on another thread.
fn kills_of(histories: &[ConnectionHistory], index: usize) -> impl Iterator<Item = (usize, usize, &Event)> {
    let first_answer = histories[index].events.first().and_then(|event| event.answer.as_ref());
    let known_step = first_answer.map_or(u64::MAX, |(_, step)| *step);
    let closed_step = histories[index].closed_step;
    let others = histories.iter().enumerate().filter(move |(other, _)| *other != index);
    others.flat_map(move |(connection, history)| {
        let events = history.events.iter().enumerate();
        events
            .filter(move |(_, event)| event.operation.kills_others() && event.sent_step > known_step)
            .filter(move |(_, event)| {
                let answer_step = event.answer.as_ref().map(|(_, step)| *step);
                closed_step.is_none_or(|closed_step| answer_step.is_some_and(|step| step < closed_step))
            })
            .map(move |(at, event)| (connection, at, event))
    })
}

impl Search<'_> {
    /// Returns `true` if an event without an answer may have had no effect, for a reason that the model does not know.
    fn may_have_failed_unseen(&self, connection: usize, event: &Event, model: &Model) -> bool {
        let may_fail = match event.operation {
            _ if self.may_redirect => true,
            Operation::Transaction(_) => self.may_reload && model.is_watching(connection),
            Operation::ScriptEndless { .. } => true,
            _ => self.has_killed_scripts && event.operation.is_script(),
        };
        may_fail && event.answer.is_none()
    }
}

fn next_places(search: &Search<'_>, place: &Place) -> Vec<Place> {
    let histories = search.histories;
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
    let earliest_answer_ns = remaining().map(|event| event.answer_ns).min().unwrap_or(u64::MAX);
    let sent = |(history, &done): (&ConnectionHistory, &usize)| {
        history.events[..done].iter().map(|event| event.sent_step).max()
    };
    let latest_sent = histories.iter().zip(&place.done).filter_map(sent).max().unwrap_or(0);
    let is_possible_next = |connection: usize, event: &Event| {
        // Who waits for a list gives up at the end of its time, not before what was answered earlier.
        earliest_give_up_ns(event).is_none_or(|at_ns| at_ns <= earliest_answer_ns)
            && event.sent_step <= earliest_answer
            && latest_sent <= search.killed_steps[connection]
            && search.killing_transactions[connection]
                .iter()
                .all(|(killer, at)| place.done[*killer] <= *at)
    };
    // Connections of which a request may still take effect, but not after what was sent later than this step.
    let unkilled_step = (0..histories.len())
        .filter(|&connection| place.done[connection] < histories[connection].events.len())
        .map(|connection| search.killed_steps[connection])
        .filter(|killed_step| *killed_step >= latest_sent)
        .min()
        .unwrap_or(u64::MAX);
    let mut found = Vec::new();
    for (connection, history) in histories.iter().enumerate() {
        let Some(event) = history.events.get(place.done[connection]) else {
            continue;
        };
        if !is_possible_next(connection, event) {
            continue;
        }
        if search.may_have_failed_unseen(connection, event, &place.model) {
            // Its connection ended before the error came.
            let mut done = place.done.clone();
            done[connection] += 1;
            let mut model = place.model.clone();
            model.end_watches(connection, &event.operation);
            found.push((u64::MAX, Place { done, model }));
        }
        let mut model = place.model.clone();
        if is_possible(&mut model, connection, event) {
            let mut done = place.done.clone();
            done[connection] += 1;
            let is_read = event.operation.only_reads() && model == place.model;
            let next = Place { done, model };
            // A read that is right here may come here in any order: it changes nothing, and holds up no other.
            if is_read && event.sent_step <= unkilled_step {
                return vec![next];
            }
            found.push((event.answer.as_ref().map_or(u64::MAX, |(_, step)| *step), next));
        }
    }
    // The last one is searched first: what was answered first most likely came first.
    found.sort_by_key(|(answer_step, _)| Reverse(*answer_step));
    found.into_iter().map(|(_, next)| next).collect()
}

/// Returns the simulated time before which a client did not give up waiting, if it gave up. The server rounds times to
/// milliseconds.
fn earliest_give_up_ns(event: &Event) -> Option<u64> {
    const ROUNDING_NS: u64 = 1_000_000;
    let timeout_ms = event.operation.timeout_ms()?;
    let (replies, _) = event.answer.as_ref()?;
    let end_ns = event.sent_ns.saturating_add(u64::from(timeout_ms) * 1_000_000);
    (**replies == [SeenReply::Null]).then(|| end_ns.saturating_sub(ROUNDING_NS))
}

/// Applies an event. Returns `true` if the client saw what the model replies.
fn is_possible(model: &mut Model, connection: usize, event: &Event) -> bool {
    let observed = event.answer.as_ref().map(|(replies, _)| &**replies);
    match model.apply(connection, event) {
        Effect::Impossible => false,
        Effect::AnyReply => true,
        Effect::Replies(expected) => observed.is_none_or(|observed| allow_all(&expected, observed)),
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
