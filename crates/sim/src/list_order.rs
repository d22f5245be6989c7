//! The order of the elements of lists. The search for an order leaves a place at once if a remaining reply shows
//! another order.
//!
//! 1. Elements leave a list from the left in their order. Each connection's next operation that pops from the left
//!    shows which element it gets, so one of these operations must get the first element, then one the second element,
//!    and so on, up to an operation of which that is not known.
//! 2. An element that no remaining operation can take out stays in its list. All further reads of the whole list must
//!    show it, and two of these elements in their order.
//!
//! An operation without a reply may take out one element, or none. To reach an element from the left, such operations
//! must first take out all elements before it that no reply shows to be taken out.

use std::collections::{HashMap, VecDeque};

use crate::constraints::{leading_number, popped_element, shown_list};
use crate::history::{ConnectionHistory, Event, EventId, any_remains, count_remaining};
use crate::model::Model;
use crate::operation::{KEYS_PER_TYPE, Operation};
use crate::reply::SeenReply;

/// The number of neighbours of a new element of which one is looked for that stays, and the number of new elements that
/// are looked at.
const MAX_NEIGHBOURS: usize = 8;

/// An operation that changes the left end of a list.
struct LeftChange {
    /// The index of its event.
    index: usize,
    sent_step: u64,
    answer_step: u64,
    /// The element that it pops; `None` if that is not known, or if it does something else.
    popped: Option<u32>,
}

/// What the operations do with one list.
#[derive(Default)]
struct ListUses {
    /// For each connection, the changes of the left end, in order.
    left_changes: Vec<Vec<LeftChange>>,
    /// For each element, the operations that pop it from the right.
    right_pops: HashMap<u32, Vec<EventId>>,
    /// For each element, all operations that pop it, or move it away.
    removals: HashMap<u32, Vec<EventId>>,
    /// The operations without a reply that may pop an element from the left.
    lost_left_pops: Vec<EventId>,
    /// The operations without a reply that may pop an element from the right.
    lost_right_pops: Vec<EventId>,
    /// The reads of the whole list: for each element, its place.
    reads: Vec<(EventId, HashMap<u32, usize>)>,
}

/// What the operations do with all lists.
pub struct ListOrder {
    lists: [ListUses; KEYS_PER_TYPE],
    /// The operations that empty all lists, or may do so.
    flushes: Vec<EventId>,
}

impl ListOrder {
    /// Collects what the operations do with lists.
    pub fn new(histories: &[ConnectionHistory]) -> ListOrder {
        let mut order = ListOrder {
            lists: Default::default(),
            flushes: Vec::new(),
        };
        for (connection, history) in histories.iter().enumerate() {
            for uses in &mut order.lists {
                uses.left_changes.push(Vec::new());
            }
            for (index, event) in history.events.iter().enumerate() {
                let id = EventId { connection, index };
                for (operation, reply) in event.parts() {
                    match reply {
                        Some(SeenReply::Error(_)) => {}
                        Some(reply) => order.add_answered(id, event, operation, reply),
                        None => order.add_lost(id, event, operation),
                    }
                }
            }
        }
        order
    }

    fn add_left_change(&mut self, id: EventId, event: &Event, list: usize, popped: Option<u32>) {
        // Between two parts of a transaction, no other operation takes place.
        let popped = popped.filter(|_| !matches!(event.operation, Operation::Transaction(_)));
        self.lists[list].left_changes[id.connection].push(LeftChange {
            index: id.index,
            sent_step: event.sent_step,
            answer_step: event.answer_step(),
            popped,
        });
    }

    fn add_answered(&mut self, id: EventId, event: &Event, operation: &Operation, reply: &SeenReply) {
        if let Some((list, element)) = popped_element(operation, reply) {
            let popped = leading_number(element);
            if let Some(number) = popped {
                self.lists[list].removals.entry(number).or_default().push(id);
            }
            match (operation, popped) {
                (Operation::Pop { is_left: false, .. }, Some(number)) => {
                    self.lists[list].right_pops.entry(number).or_default().push(id);
                }
                (_, popped) => self.add_left_change(id, event, list, popped),
            }
        }
        match operation {
            Operation::Push {
                list, is_left: true, ..
            } => self.add_left_change(id, event, *list, None),
            Operation::FlushAll => self.add_flush(id, event),
            _ => {}
        }
        if matches!(event.operation, Operation::Transaction(_)) {
            return;
        }
        for list in 0..KEYS_PER_TYPE {
            if let Some(elements) = shown_list(operation, reply, list) {
                self.add_read(id, list, &elements);
            }
        }
    }

    /// Adds an operation without a reply.
    fn add_lost(&mut self, id: EventId, event: &Event, operation: &Operation) {
        let popped_lists = match operation {
            Operation::Pop { list, is_left: true } => vec![*list],
            Operation::Move(from, _) | Operation::BlockingMove { from, .. } => vec![*from],
            Operation::BlockingPop { lists, .. } => lists.clone(),
            _ => Vec::new(),
        };
        for list in popped_lists {
            self.lists[list].lost_left_pops.push(id);
            self.add_left_change(id, event, list, None);
        }
        match operation {
            Operation::Pop { list, is_left: false } => self.lists[*list].lost_right_pops.push(id),
            Operation::Push {
                list, is_left: true, ..
            } => self.add_left_change(id, event, *list, None),
            Operation::FlushAll => self.add_flush(id, event),
            _ => {}
        }
    }

    fn add_flush(&mut self, id: EventId, event: &Event) {
        self.flushes.push(id);
        for list in 0..KEYS_PER_TYPE {
            self.add_left_change(id, event, list, None);
        }
    }

    fn add_read(&mut self, id: EventId, list: usize, elements: &[&[u8]]) {
        let numbers = elements.iter().enumerate();
        let places: HashMap<u32, usize> = numbers
            .filter_map(|(place, element)| leading_number(element).map(|number| (number, place)))
            .collect();
        // Two elements may be the same number by chance.
        if places.len() == elements.len() {
            self.lists[list].reads.push((id, places));
        }
    }

    /// Returns `false` if a remaining reply is ruled out now that `event` is done and has turned `before` into `after`.
    pub fn can_be_met(&self, event: &Event, before: &Model, after: &Model, done: &[usize]) -> bool {
        (0..KEYS_PER_TYPE).all(|list| {
            let has_changed = !after.has_same_list(before, list);
            let is_concerned = has_changed || event.operation.uses_list(list);
            (!is_concerned || self.can_be_popped(list, after.list(list), done))
                && (!has_changed || self.can_be_read(list, before.list(list), after.list(list), done))
        })
    }

    /// Applies rule 1 to a list.
    fn can_be_popped(&self, list: usize, elements: &VecDeque<Vec<u8>>, done: &[usize]) -> bool {
        let uses = &self.lists[list];
        let changes_and_done = uses.left_changes.iter().zip(done);
        let mut next: Vec<usize> = changes_and_done
            .map(|(changes, done)| changes.partition_point(|change| change.index < *done))
            .collect();
        for element in elements.iter().take(uses.count_left_only(elements, done)) {
            let Some(number) = leading_number(element) else {
                return true;
            };
            if uses.is_popped_from_right(number, done) {
                return true;
            }
            match uses.next_pop_of(number, &next) {
                NextPop::Unknown => return true,
                NextPop::By(connection) => next[connection] += 1,
                NextPop::Impossible => return false,
            }
        }
        true
    }

    /// Applies rule 2 to the elements that a list has gained.
    fn can_be_read(&self, list: usize, before: &VecDeque<Vec<u8>>, after: &VecDeque<Vec<u8>>, done: &[usize]) -> bool {
        let uses = &self.lists[list];
        let has_reads = uses.reads.iter().any(|(id, _)| id.remains(done));
        if !has_reads || any_remains(&self.flushes, done) {
            return true;
        }
        new_places(before, after).all(|place| {
            let Some(number) = uses.staying_number(after, place, done) else {
                return true;
            };
            let neighbours = (place.saturating_sub(MAX_NEIGHBOURS)..place).rev();
            let mut neighbours = neighbours.chain(place + 1..after.len().min(place + 1 + MAX_NEIGHBOURS));
            let staying = |other: usize| Some((other, uses.staying_number(after, other, done)?));
            let neighbour = neighbours.find_map(staying);
            let mut reads = uses.reads.iter().filter(|(id, _)| id.remains(done));
            reads.all(|(_, places)| match (places.get(&number), neighbour) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(shown), Some((other, other_number))) => places
                    .get(&other_number)
                    .is_some_and(|other_shown| (other_shown < shown) == (other < place)),
            })
        })
    }
}

/// The next operation that pops a certain element from the left of a list.
enum NextPop {
    /// It is not known which one it is, or there may be none.
    Unknown,
    /// It is the next change by this connection.
    By(usize),
    /// There is none, but something else must be popped that is behind the element.
    Impossible,
}

impl ListUses {
    fn is_popped_from_right(&self, number: u32, done: &[usize]) -> bool {
        let pops = self.right_pops.get(&number);
        pops.is_some_and(|pops| any_remains(pops, done))
    }

    /// Returns the number of elements at the left end that no operation without a reply can reach from the right. Such
    /// an operation reaches an element once all elements behind it are popped: by replies that show it, or by others
    /// without a reply.
    fn count_left_only(&self, elements: &VecDeque<Vec<u8>>, done: &[usize]) -> usize {
        let mut lost = count_remaining(&self.lost_right_pops, done);
        let mut count = elements.len();
        while lost > 0 && count > 0 {
            count -= 1;
            let number = leading_number(&elements[count]);
            let is_shown = number.is_some_and(|number| self.is_popped_from_right(number, done));
            lost -= usize::from(!is_shown);
        }
        count
    }

    /// Returns the operation that pops the first element of the list, `number`. `next` has the index of the next change
    /// by each connection.
    fn next_pop_of(&self, number: u32, next: &[usize]) -> NextPop {
        let changes = || {
            let connections = self.left_changes.iter().zip(next).enumerate();
            connections.filter_map(|(connection, (changes, next))| Some((connection, changes.get(*next)?)))
        };
        let pops = changes().filter(|(_, change)| change.popped.is_some());
        let Some(earliest_answer) = pops.map(|(_, change)| change.answer_step).min() else {
            return NextPop::Unknown;
        };
        let mut found = None;
        // What was sent later comes after the pop that was answered first.
        for (connection, change) in changes().filter(|(_, change)| change.sent_step <= earliest_answer) {
            match change.popped {
                None => return NextPop::Unknown,
                Some(popped) if popped == number && found.is_some() => return NextPop::Unknown,
                Some(popped) if popped == number => found = Some(connection),
                Some(_) => {}
            }
        }
        found.map_or(NextPop::Impossible, NextPop::By)
    }

    /// Returns the element at a place of the list if no remaining operation can take it out. None of them empties all
    /// lists.
    fn staying_number(&self, elements: &VecDeque<Vec<u8>>, place: usize, done: &[usize]) -> Option<u32> {
        let is_removed = |number: u32| self.removals.get(&number).is_some_and(|ids| any_remains(ids, done));
        let number = leading_number(&elements[place]).filter(|number| !is_removed(*number))?;
        let is_kept = |element: &&Vec<u8>| leading_number(element).is_some_and(|number| !is_removed(number));
        let from_left = count_remaining(&self.lost_left_pops, done);
        let from_right = count_remaining(&self.lost_right_pops, done);
        let kept_before = elements.range(..place).filter(is_kept).take(from_left).count();
        let kept_behind = elements.range(place + 1..).filter(is_kept).take(from_right).count();
        (kept_before == from_left && kept_behind == from_right).then_some(number)
    }
}

/// Returns the places of the elements that a list has gained: those between what is the same as before at its left end
/// and at its right end. Of many, the last ones.
fn new_places(before: &VecDeque<Vec<u8>>, after: &VecDeque<Vec<u8>>) -> std::ops::Range<usize> {
    let is_same = |(one, other): &(&Vec<u8>, &Vec<u8>)| one == other;
    let start = before.iter().zip(after).take_while(is_same).count();
    let kept = before.iter().rev().zip(after.iter().rev()).take_while(is_same).count();
    let end = after.len().saturating_sub(kept).max(start);
    end.saturating_sub(MAX_NEIGHBOURS).max(start)..end
}
