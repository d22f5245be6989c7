//! Random selection of members. Every member, and every combination of several members, is equally likely.
//!
//! The source of randomness is a function that returns a uniformly distributed number below its argument.
//!
//! Several distinct members of a flat set, or of a large part of a table, are selected in one pass. If `left` members
//! remain and `wanted` of them still have to be selected, the next one is selected with the probability `wanted /
//! left`. So no member is selected twice, and all combinations are equally likely.

use std::collections::HashSet;

use super::{Set, SetForm, SetLimits, SetView, integers};
use crate::listpack::Element;

/// The threshold for selecting members of a table in one pass: more than one of this number of members is selected.
const ONE_PASS_DIVISOR: usize = 3;
/// The ratio of removed to remaining members from which SPOP creates a new set from the remaining members. Valkey does
/// the same, which is visible in the encoding.
const REBUILD_RATIO: usize = 5;

/// Limits that are never reached, so that the form of a set does not change.
const NO_LIMITS: SetLimits = SetLimits {
    integers: usize::MAX,
    run_members: usize::MAX,
    run_member_bytes: usize::MAX,
};

/// Selects `wanted` of `left` items, one after the other.
struct Selection {
    to_select: usize,
    remaining: usize,
}

impl Selection {
    /// Returns `true` if the next item is selected.
    fn next(&mut self, random: &mut impl FnMut(usize) -> usize) -> bool {
        let chosen = self.to_select > 0 && random(self.remaining) < self.to_select;
        self.to_select -= usize::from(chosen);
        self.remaining -= 1;
        chosen
    }
}

impl<'a> SetView<'a> {
    /// Returns a random member, or `None` if the set is empty.
    pub fn random_member(&self, random: &mut impl FnMut(usize) -> usize) -> Option<Element<'a>> {
        if self.is_empty() {
            return None;
        }
        match self {
            SetView::Integers(integers) => Some(Element::Int(integers.at(random(integers.len())))),
            SetView::Run { count, run } => run.get(random(*count), *count).map(|(_, element)| element),
            SetView::Table(table) => table.random_member(random).map(Element::Bytes),
        }
    }

    /// Visits `count` distinct members, or all members if there are not more.
    pub fn random_distinct(
        &self,
        count: usize,
        random: &mut impl FnMut(usize) -> usize,
        mut visit: impl FnMut(Element<'a>),
    ) {
        let len = self.len();
        if matches!(self, SetView::Table(_)) && count < len / ONE_PASS_DIVISOR {
            let mut chosen = HashSet::with_capacity(count);
            while chosen.len() < count {
                match self.random_member(random) {
                    Some(Element::Bytes(bytes)) if chosen.insert(bytes) => visit(Element::Bytes(bytes)),
                    _ => {}
                }
            }
            return;
        }
        let mut selection = Selection {
            to_select: count.min(len),
            remaining: len,
        };
        self.iter().filter(|_| selection.next(random)).for_each(visit);
    }

    /// Visits `count` members, each selected from all members.
    pub fn random_repeated(
        &self,
        count: usize,
        random: &mut impl FnMut(usize) -> usize,
        mut visit: impl FnMut(Element<'a>),
    ) {
        if let SetView::Run { run, .. } = self
            && count > 1
        {
            // Access by index is slow in a run, so the elements are collected first.
            let members: Vec<Element<'a>> = run.iter().map(|(_, element)| element).collect();
            (0..count).for_each(|_| visit(members[random(members.len())]));
            return;
        }
        (0..count).filter_map(|_| self.random_member(random)).for_each(visit);
    }
}

impl Set {
    /// Removes a random member and passes it to `take`. Does nothing if the set is empty.
    pub fn pop(&mut self, random: &mut impl FnMut(usize) -> usize, take: impl FnOnce(Element<'_>)) {
        let Some(member) = self.view().random_member(random) else {
            return;
        };
        take(member);
        match member {
            Element::Int(number) => {
                self.remove_element(Element::Int(number));
            }
            Element::Bytes(bytes) => {
                let bytes = bytes.to_vec();
                self.remove(&bytes);
            }
        }
    }

    /// Removes `count` random members and passes them to `take`. The set must have more than `count` members.
    ///
    /// # Panics
    ///
    /// Panics if the set has fewer than `count` members.
    pub fn pop_many(
        &mut self,
        count: usize,
        limits: SetLimits,
        random: &mut impl FnMut(usize) -> usize,
        mut take: impl FnMut(Element<'_>),
    ) {
        let kept = self.len() - count;
        let removes_most = kept * REBUILD_RATIO <= count;
        let table = matches!(self.0, SetForm::Table(_));
        *self = match table {
            true if removes_most => self.retain_few(kept, limits, random, take),
            true => return (0..count).for_each(|_| self.pop(random, &mut take)),
            false => self.retain_from_flat(kept, removes_most.then_some(limits), random, take),
        };
    }

    /// Moves `kept` members of a table to a new set and passes the remaining ones to `take`.
    fn retain_few(
        &mut self,
        kept: usize,
        limits: SetLimits,
        random: &mut impl FnMut(usize) -> usize,
        take: impl FnMut(Element<'_>),
    ) -> Self {
        let mut few = Set::new_run();
        for _ in 0..kept {
            self.pop(random, |member| few.add_new(member, limits));
        }
        self.view().iter().for_each(take);
        few
    }

    /// Selects the members of a flat set that are kept and passes the remaining ones to `take`. With limits, the kept
    /// members form a new set whose form depends on these limits. Without limits, they keep their form.
    fn retain_from_flat(
        &self,
        kept: usize,
        anew: Option<SetLimits>,
        random: &mut impl FnMut(usize) -> usize,
        mut take: impl FnMut(Element<'_>),
    ) -> Self {
        let view = self.view();
        let (mut keeps, limits) = match (view, anew) {
            (SetView::Integers(_), Some(limits)) => (Set::new_integers(), limits),
            (_, Some(limits)) => (Set::new_run(), limits),
            (SetView::Integers(integers), None) => (
                Set(SetForm::Flat(integers::empty_with_width(integers.width()))),
                NO_LIMITS,
            ),
            (_, None) => (Set::new_run(), NO_LIMITS),
        };
        let mut selection = Selection {
            to_select: kept,
            remaining: view.len(),
        };
        for member in view.iter() {
            if selection.next(random) {
                keeps.add_new(member, limits);
            } else {
                take(member);
            }
        }
        keeps
    }
}
