//! Decides if the replies of all clients are those of one order that respects real time (strict serializability).
//!
//! The search follows Wing and Gong ("Testing and verifying concurrent objects", 1993), with Lowe's memory of places:
//! it builds the order from its beginning. An operation can be the next one if it is the first remaining one of its
//! connection, and no remaining operation was answered before it was sent. A place that was reached before (the same
//! operations done, the same state) is not searched again. An operation whose connection was killed by CLIENT KILL must
//! come before all that were sent after the reply to CLIENT KILL. If a transaction has killed it, it must come before
//! that transaction.
//!
//! Four things keep the search short. None of them decides: an order counts only once it is complete, and there is none
//! only once all places were searched that are not ruled out.
//!
//! 1. An operation whose reply shows that it changes nothing is put at the first place at which it is right, without a
//!    search for others.
//! 2. The next operation that is tried first is the one that the servers have executed first (`executions`). The true
//!    order is almost always right, and the operations without a reply that took no effect come last in it.
//! 3. A place is left at once if it rules out what a remaining reply shows (`constraints`, `list_order`).
//! 4. A search that has become long begins anew in another order: most of its places follow from one early choice.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use fastrand::Rng;
use weft_server::simulation::Execution;

use crate::constraints::ReplyConstraints;
use crate::executions::{OrderKey, execution_keys};
use crate::history::{ConnectionHistory, Event};
use crate::list_order::ListOrder;
use crate::model::{Circumstances, Effect, Model};
use crate::operation::Operation;
use crate::reply::{SeenReply, allow_all};

/// The numbers of places after which the search goes on in another order, or gives up. A run that is right usually
/// needs about as many places as it has operations.
const LIMITS: PlaceLimits = PlaceLimits {
    executed: 60_000,
    answered: 30_000,
    shuffled: 10_000,
    last: 200_000,
};
/// The number of random orders that are tried.
const SHUFFLED_ORDERS: u64 = 5;

/// The key of what most likely took no effect.
const LAST_KEY: OrderKey = (u64::MAX, u64::MAX);

/// The position of an event in an order that is tried.
#[derive(Clone, Copy)]
struct EventRank {
    key: OrderKey,
    /// `true` if a server has executed it.
    was_executed: bool,
}

impl EventRank {
    fn of_key(key: OrderKey) -> EventRank {
        let was_executed = false;
        EventRank { key, was_executed }
    }
}

/// The numbers of places that the parts of the search may reach.
#[derive(Clone, Copy)]
struct PlaceLimits {
    /// In the order of execution.
    executed: usize,
    /// In the order of the replies.
    answered: usize,
    /// In each random order.
    shuffled: usize,
    /// In the order of execution, when all others were tried.
    last: usize,
}

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
    constraints: ReplyConstraints<'h>,
    /// `None` if elements may vanish from lists.
    list_order: Option<ListOrder>,
    /// For each event of each connection, `true` if it has changed nothing.
    has_changed_nothing: Vec<Vec<bool>>,
    /// For each connection, the number of events up to the last one with a reply.
    answered: Vec<usize>,
    /// For each connection, the step at which another one had killed it; `u64::MAX` if none had. Its requests take no
    /// effect later.
    killed_steps: Vec<u64>,
    /// For each connection, the transactions of others that have killed it, as connections and indexes of events.
    killing_transactions: Vec<Vec<(usize, usize)>>,
    /// `true` if SCRIPT KILL may have stopped scripts.
    has_killed_scripts: bool,
    /// `true` if a node may have refused what is unanswered, because the slot was on the other one.
    may_redirect: bool,
}

/// One place of the search.
struct Place {
    done: Vec<usize>,
    model: Model,
    /// The latest step at which one of the done operations was sent.
    latest_sent: u64,
}

/// A search in one order.
struct Attempt<'s, 'h> {
    search: &'s Search<'h>,
    /// For each event of each connection, its position in the order.
    ranks: Vec<Vec<EventRank>>,
    /// The places that were found and not searched yet. The last one is searched next.
    places: Vec<Place>,
    /// The fingerprints of all places that were found.
    seen: HashSet<u64>,
    /// The operations that were done in the place that was farthest.
    farthest: Vec<usize>,
}

/// The result of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttemptEnd {
    /// There is an order.
    Found,
    /// There is none.
    Exhausted,
    /// It has reached too many places.
    Suspended,
}

/// Checks the histories of all connections. `executions` are what the servers have recorded.
pub fn check(histories: &[ConnectionHistory], circumstances: Circumstances, executions: &[Execution]) -> Verdict {
    check_within(LIMITS, histories, circumstances, executions)
}

fn check_within(
    limits: PlaceLimits,
    histories: &[ConnectionHistory],
    circumstances: Circumstances,
    executions: &[Execution],
) -> Verdict {
    // Keys that come back to a node count as changed.
    let may_reload = circumstances.may_reload || circumstances.may_redirect || circumstances.may_evict;
    let circumstances = Circumstances {
        may_reload,
        ..circumstances
    };
    let has_killed_scripts = histories.iter().any(may_have_killed_script);
    let histories = &*without_lost_reads(histories);
    let search = Search::new(histories, circumstances, has_killed_scripts);
    let model = Model::new(histories.len(), circumstances);
    let mut first = search.attempt(execution_order(histories, executions), &model);
    let mut end = first.run(limits.executed);
    if end == AttemptEnd::Suspended {
        end = search.attempt(reply_order(histories), &model).run(limits.answered);
    }
    for seed in 0..SHUFFLED_ORDERS {
        if end == AttemptEnd::Suspended {
            end = search
                .attempt(random_order(histories, seed), &model)
                .run(limits.shuffled);
        }
    }
    if end == AttemptEnd::Suspended {
        end = first.run(limits.last);
    }
    match end {
        AttemptEnd::Found => Verdict::Serializable,
        AttemptEnd::Exhausted => Verdict::NotSerializable(describe(histories, &first.farthest)),
        AttemptEnd::Suspended => Verdict::TooLong,
    }
}

/// Returns the order in which the operations were executed, as far as that is known. Others come when they were
/// answered. What was neither executed nor answered holds up nothing that was.
fn execution_order(histories: &[ConnectionHistory], executions: &[Execution]) -> Vec<Vec<EventRank>> {
    let mut order = reply_order(histories);
    for (ranks, keys) in order.iter_mut().zip(execution_keys(histories, executions)) {
        let mut next_key = LAST_KEY;
        for (rank, key) in ranks.iter_mut().zip(keys).rev() {
            rank.was_executed = key.is_some();
            if rank.was_executed || rank.key == LAST_KEY {
                rank.key = key.unwrap_or(next_key);
            }
            next_key = rank.key;
        }
    }
    order
}

/// Returns the order of the replies: what was answered first most likely came first.
fn reply_order(histories: &[ConnectionHistory]) -> Vec<Vec<EventRank>> {
    order_by(histories, |event| match event.answer_step() {
        u64::MAX => LAST_KEY,
        step => (step, u64::MAX),
    })
}

/// Returns an order in which each operation comes at a random step between its request and its reply.
fn random_order(histories: &[ConnectionHistory], seed: u64) -> Vec<Vec<EventRank>> {
    let mut random = Rng::with_seed(seed);
    order_by(histories, |event| match event.answer_step() {
        u64::MAX => LAST_KEY,
        step => (random.u64(event.sent_step.min(step)..=step), 0),
    })
}

fn order_by(histories: &[ConnectionHistory], mut key_of: impl FnMut(&Event) -> OrderKey) -> Vec<Vec<EventRank>> {
    let mut rank_of = |event: &Event| EventRank::of_key(key_of(event));
    let ranks = |history: &ConnectionHistory| history.events.iter().map(&mut rank_of).collect::<Vec<_>>();
    histories.iter().map(ranks).collect()
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

/// Returns `true` if the connection has stopped a script by SCRIPT KILL, or may have done so.
fn may_have_killed_script(history: &ConnectionHistory) -> bool {
    let script_kill = Operation::Ignored(vec!["SCRIPT", "KILL"]);
    history.events.iter().any(|event| {
        let answer = event.answer.as_ref();
        event.operation == script_kill && answer.is_none_or(|(replies, _)| **replies == [SeenReply::ok()])
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

impl<'h> Search<'h> {
    fn new(histories: &'h [ConnectionHistory], circumstances: Circumstances, has_killed_scripts: bool) -> Search<'h> {
        let indexes = 0..histories.len();
        let has_changed_nothing = |history: &ConnectionHistory| {
            let events = history.events.iter();
            events.map(Event::has_changed_nothing).collect::<Vec<_>>()
        };
        let answered = |history: &ConnectionHistory| {
            let last = history.events.iter().rposition(|event| event.answer.is_some());
            last.map_or(0, |last| last + 1)
        };
        Search {
            histories,
            constraints: ReplyConstraints::new(histories, circumstances.may_evict),
            list_order: (!circumstances.may_evict).then(|| ListOrder::new(histories)),
            has_changed_nothing: histories.iter().map(has_changed_nothing).collect(),
            answered: histories.iter().map(answered).collect(),
            killed_steps: indexes.clone().map(|index| killed_step(histories, index)).collect(),
            killing_transactions: indexes.map(|index| killing_transactions(histories, index)).collect(),
            has_killed_scripts,
            may_redirect: circumstances.may_redirect,
        }
    }

    fn attempt<'s>(&'s self, ranks: Vec<Vec<EventRank>>, model: &Model) -> Attempt<'s, 'h> {
        let done = vec![0; self.histories.len()];
        let first = Place {
            done: done.clone(),
            model: model.clone(),
            latest_sent: 0,
        };
        Attempt {
            search: self,
            ranks,
            places: vec![first],
            seen: HashSet::new(),
            farthest: done,
        }
    }

    /// Returns `true` if every answered operation is done.
    fn is_complete(&self, done: &[usize]) -> bool {
        self.answered.iter().zip(done).all(|(answered, done)| done >= answered)
    }

    /// Returns `true` if an event without an answer may have had no effect, for a reason that the model does not know.
    fn may_have_failed_unseen(&self, connection: usize, event: &Event, model: &Model) -> bool {
        let may_fail = match event.operation {
            _ if self.may_redirect => true,
            Operation::Transaction(_) => model.may_fail_unseen(connection),
            Operation::ScriptEndless { .. } => true,
            _ => self.has_killed_scripts && event.operation.is_script(),
        };
        may_fail && event.answer.is_none()
    }

    /// Returns the first remaining event of a connection.
    fn next_event(&self, place: &Place, connection: usize) -> Option<&'h Event> {
        self.histories[connection].events.get(place.done[connection])
    }

    /// Returns the events that may be the next one, with their connections.
    fn possible_events(&self, place: &Place) -> Vec<(usize, &'h Event)> {
        let remaining = || (0..self.histories.len()).filter_map(move |connection| self.next_event(place, connection));
        // Answers of one connection come in order, so the first remaining one is the earliest.
        let earliest_answer = remaining().map(Event::answer_step).min().unwrap_or(u64::MAX);
        let earliest_answer_ns = remaining().map(|event| event.answer_ns).min().unwrap_or(u64::MAX);
        let is_possible = |connection: usize, event: &Event| {
            // Who waits for a list gives up at the end of its time, not before what was answered earlier.
            earliest_give_up_ns(event).is_none_or(|at_ns| at_ns <= earliest_answer_ns)
                && event.sent_step <= earliest_answer
                && place.latest_sent <= self.killed_steps[connection]
                && self.killing_transactions[connection]
                    .iter()
                    .all(|(killer, at)| place.done[*killer] <= *at)
        };
        (0..self.histories.len())
            .filter_map(|connection| Some((connection, self.next_event(place, connection)?)))
            .filter(|&(connection, event)| is_possible(connection, event))
            .collect()
    }

    /// Returns the place after an event of a connection, with this model.
    fn place_after(&self, place: &Place, connection: usize, event: &Event, model: Model) -> Place {
        let mut done = place.done.clone();
        done[connection] += 1;
        Place {
            done,
            model,
            latest_sent: place.latest_sent.max(event.sent_step),
        }
    }

    /// Returns the place after an event that changes nothing, if one of these is right here. It may come here in any
    /// order: it holds up no other.
    fn place_after_unchanged(&self, place: &Place, events: &[(usize, &Event)]) -> Option<Place> {
        // Connections of which a request may still take effect, but not after what was sent later than this step.
        let unkilled_step = (0..self.histories.len())
            .filter(|&connection| self.next_event(place, connection).is_some())
            .map(|connection| self.killed_steps[connection])
            .filter(|killed_step| *killed_step >= place.latest_sent)
            .min()
            .unwrap_or(u64::MAX);
        events.iter().find_map(|&(connection, event)| {
            if event.sent_step > unkilled_step || !self.has_changed_nothing[connection][place.done[connection]] {
                return None;
            }
            let mut model = place.model.clone();
            let is_right = is_possible(&mut model, connection, event);
            let is_unchanged = is_right && model.is_same_for_others(&place.model, connection);
            is_unchanged.then(|| self.place_after(place, connection, event, model))
        })
    }

    /// Returns `false` if a place has no way to the end.
    fn is_promising(&self, before: &Place, event: &Event, after: &Place) -> bool {
        let (old, new, done) = (&before.model, &after.model, &*after.done);
        let list_order = self.list_order.as_ref();
        self.constraints.can_be_met(event, old, new, done)
            && list_order.is_none_or(|order| order.can_be_met(event, old, new, done))
    }
}

impl Attempt<'_, '_> {
    /// Searches until there is a result, or `limit` places were found, in all calls together.
    fn run(&mut self, limit: usize) -> AttemptEnd {
        while self.seen.len() <= limit {
            let Some(place) = self.places.pop() else {
                return AttemptEnd::Exhausted;
            };
            if self.search.is_complete(&place.done) {
                return AttemptEnd::Found;
            }
            if place.done.iter().sum::<usize>() > self.farthest.iter().sum::<usize>() {
                self.farthest.clone_from(&place.done);
            }
            for next in self.next_places(&place) {
                if self.seen.insert(fingerprint(&next)) {
                    self.places.push(next);
                }
            }
        }
        AttemptEnd::Suspended
    }

    /// Returns the places after the next operation. The last one is searched first.
    fn next_places(&self, place: &Place) -> Vec<Place> {
        let search = self.search;
        let events = search.possible_events(place);
        if let Some(next) = search.place_after_unchanged(place, &events) {
            return vec![next];
        }
        let mut found = Vec::new();
        for (connection, event) in events {
            let rank = self.ranks[connection][place.done[connection]];
            let mut model = place.model.clone();
            if is_possible(&mut model, connection, event) {
                found.push((rank.key, event, search.place_after(place, connection, event, model)));
            }
            if search.may_have_failed_unseen(connection, event, &place.model) {
                // Its connection ended before the error came.
                let mut model = place.model.clone();
                model.fail_unseen(connection, &event.operation);
                let key = if rank.was_executed { LAST_KEY } else { rank.key };
                found.push((key, event, search.place_after(place, connection, event, model)));
            }
        }
        found.retain(|(_, event, next)| search.is_promising(place, event, next));
        found.sort_by_key(|(key, ..)| Reverse(*key));
        found.into_iter().map(|(.., next)| next).collect()
    }
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

#[cfg(test)]
mod tests;
