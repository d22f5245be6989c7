//! Members at random: each as likely as any other, and each choice of several, too.
//!
//! Randomness comes as a function that draws a number below the one it is given, each equally likely.
//!
//! Choices of several distinct members out of a flat set, or of a good part of a table, are made in one pass: with `left`
//! members to come of which `wanted` are still to be chosen, the next one is chosen with the probability
//! `wanted / left`. So no choice is repeated, and none is more likely than another.

use std::collections::HashSet;

use super::{Form, Limits, Set, SetView, integers};
use crate::listpack::Element;

/// A choice of more than one in so many members of a table is made in one pass.
const ONE_PASS: usize = 3;
/// SPOP of so many times what it leaves makes a new set of that, as in Valkey, where it shows in the encoding.
const TAKES_MOST: usize = 5;

/// Limits that nothing reaches: a form stays as it is.
const NO_LIMITS: Limits = Limits {
    integers: usize::MAX,
    run_members: usize::MAX,
    run_member_bytes: usize::MAX,
};

/// Chooses `wanted` of `left` things, one after the other.
struct Selection {
    wanted: usize,
    left: usize,
}

impl Selection {
    /// Whether the next thing is chosen.
    fn next(&mut self, random: &mut impl FnMut(usize) -> usize) -> bool {
        let chosen = self.wanted > 0 && random(self.left) < self.wanted;
        self.wanted -= usize::from(chosen);
        self.left -= 1;
        chosen
    }
}

impl<'a> SetView<'a> {
    /// Any member; `None` if there is none.
    pub fn random(&self, random: &mut impl FnMut(usize) -> usize) -> Option<Element<'a>> {
        if self.is_empty() {
            return None;
        }
        match self {
            SetView::Integers(integers) => Some(Element::Int(integers.at(random(integers.len())))),
            SetView::Run { count, run } => run.get(random(*count), *count).map(|(_, element)| element),
            SetView::Table(table) => table.random(random).map(Element::Bytes),
        }
    }

    /// Visits `count` distinct members, or all if there are not more.
    pub fn random_distinct(
        &self,
        count: usize,
        random: &mut impl FnMut(usize) -> usize,
        mut visit: impl FnMut(Element<'a>),
    ) {
        let len = self.len();
        if matches!(self, SetView::Table(_)) && count < len / ONE_PASS {
            let mut chosen = HashSet::with_capacity(count);
            while chosen.len() < count {
                match self.random(random) {
                    Some(Element::Bytes(bytes)) if chosen.insert(bytes) => visit(Element::Bytes(bytes)),
                    _ => {}
                }
            }
            return;
        }
        let mut selection = Selection {
            wanted: count.min(len),
            left: len,
        };
        self.iter().filter(|_| selection.next(random)).for_each(visit);
    }

    /// Visits `count` members, each drawn from all.
    pub fn random_repeated(
        &self,
        count: usize,
        random: &mut impl FnMut(usize) -> usize,
        mut visit: impl FnMut(Element<'a>),
    ) {
        if let SetView::Run { run, .. } = self
            && count > 1
        {
            // A run knows no places but the nearest.
            let members: Vec<Element<'a>> = run.iter().map(|(_, element)| element).collect();
            (0..count).for_each(|_| visit(members[random(members.len())]));
            return;
        }
        (0..count).filter_map(|_| self.random(random)).for_each(visit);
    }
}

impl Set {
    /// Takes any member out; there must be one.
    pub fn pop(&mut self, random: &mut impl FnMut(usize) -> usize, take: impl FnOnce(Element<'_>)) {
        let Some(member) = self.view().random(random) else {
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

    /// Takes `count` members out; more must be there.
    ///
    /// # Panics
    /// If fewer are there.
    pub fn pop_many(
        &mut self,
        count: usize,
        limits: Limits,
        random: &mut impl FnMut(usize) -> usize,
        mut take: impl FnMut(Element<'_>),
    ) {
        let kept = self.len() - count;
        let takes_most = kept * TAKES_MOST <= count;
        let table = matches!(self.0, Form::Table(_));
        *self = match table {
            true if takes_most => self.keep_few(kept, limits, random, take),
            true => return (0..count).for_each(|_| self.pop(random, &mut take)),
            false => self.keep_of_flat(kept, takes_most.then_some(limits), random, take),
        };
    }

    /// Moves `kept` members of a table into a set of their own; the others are taken.
    fn keep_few(
        &mut self,
        kept: usize,
        limits: Limits,
        random: &mut impl FnMut(usize) -> usize,
        take: impl FnMut(Element<'_>),
    ) -> Self {
        let mut few = Set::of_run();
        for _ in 0..kept {
            self.pop(random, |member| few.add_missing(member, limits));
        }
        self.view().iter().for_each(take);
        few
    }

    /// Chooses which members of a flat set stay; the others are taken. With limits they become a set anew, without
    /// they stay in the form they had.
    fn keep_of_flat(
        &self,
        kept: usize,
        anew: Option<Limits>,
        random: &mut impl FnMut(usize) -> usize,
        mut take: impl FnMut(Element<'_>),
    ) -> Self {
        let view = self.view();
        let (mut keeps, limits) = match (view, anew) {
            (SetView::Integers(_), Some(limits)) => (Set::of_integers(), limits),
            (_, Some(limits)) => (Set::of_run(), limits),
            (SetView::Integers(integers), None) => (Set(Form::Flat(integers::empty_of(integers.width()))), NO_LIMITS),
            (_, None) => (Set::of_run(), NO_LIMITS),
        };
        let mut selection = Selection {
            wanted: kept,
            left: view.len(),
        };
        for member in view.iter() {
            if selection.next(random) {
                keeps.add_missing(member, limits);
            } else {
                take(member);
            }
        }
        keeps
    }
}
