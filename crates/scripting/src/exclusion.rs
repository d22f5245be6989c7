//! The threads that wait for exclusive use of the keyspace, and the order in which they and scripts have their turns.
//!
//! A thread that waits tries again and again, because it must not sleep while scripts of unknown duration run. Without
//! an order, which of many such threads succeeds next would be up to chance, and scripts would start after each of
//! them. So turns alternate, as in a phase-fair lock (Brandenburg and Anderson, "Reader-writer synchronization for
//! shared-memory multiprocessor real-time systems", 2009): everything that waits when the first one of them succeeds is
//! a *member* of that turn, and delayed scripts start once every member has succeeded, or has given up. So a script
//! waits for the sections of all members, and a member for the scripts that run when it comes and those of one turn.
//!
//! A failed attempt takes constant time, because thousands of clients may wait, and each one tries about once per
//! millisecond. A success, or the end of a wait, may take time in proportion to the number of requesters, and so may
//! an attempt that would succeed but for those that come first.

use std::collections::HashMap;

/// A thread, or a client on whichever thread, that wants exclusive use of the keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    /// The client with this id.
    Client(u64),
    /// A thread, as named by [`super::RunRegistry::new_requester`].
    Thread(u64),
    /// The thread of the cluster bus.
    ClusterBus,
    /// The thread of the slot migrations, for its exports.
    SlotExport,
    /// The thread of the slot migrations, for the takeover of slots.
    SlotTakeover,
}

/// How soon a requester tries again after a failed attempt, and its place in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptKind {
    /// It tries again within milliseconds.
    Usual,
    /// It tries again within milliseconds, and comes after the others of its turn, as long as it has not waited for
    /// [`MAX_LAST_WAIT_US`]. For a requester after which they could not have theirs for long, such as a pause of
    /// clients.
    Last,
    /// It tries again at the next tick of the cluster bus, after 100 ms.
    Tick,
}

/// The time for which a failed attempt keeps scripts from starting, and pauses of clients from beginning. It is longer
/// than the time after which workers and other threads usually try again, also on a busy machine, and short because the
/// requester may have given up.
const SHORT_NOTICE_US: u64 = 20_000;
/// The same for a requester that tries at every tick of the cluster bus.
const TICK_NOTICE_US: u64 = 150_000;
/// The limit of the notice of a requester that was late. A worker tries once per turn, and its turns may take seconds
/// on a busy machine. If scripts could start in between, the requester would find one at each attempt.
const MAX_NOTICE_US: u64 = 5_000_000;
/// The time for which a failed attempt keeps others from having their sections first, at least if the notice is as
/// long. It is shorter than the notice of a requester that is late: others may have to meet a time limit.
const SHORT_HOLD_UP_US: u64 = 100_000;
/// The same for a requester that has waited for long itself.
const MAX_HOLD_UP_US: u64 = 1_000_000;
/// The time after which a requester that has not tried again is forgotten. If it was only late, its next attempt must
/// show how late.
const MAX_SILENCE_US: u64 = 10_000_000;
/// The time after which turns wait for a requester that tries at ticks.
const MAX_TICK_WAIT_US: u64 = 1_000_000;
/// The time after which a requester that comes last yields to no others.
const MAX_LAST_WAIT_US: u64 = 1_000_000;
/// The time after which delayed scripts have their turn although a member has not succeeded yet.
const MAX_TURN_US: u64 = 5_000_000;
/// The time for which a member may be overtaken by requesters that came later.
const MAX_OVERTAKING_US: u64 = 10_000;

#[derive(Debug)]
struct Waiter {
    /// The time of its first attempt.
    since_us: u64,
    /// The time of its latest attempt.
    attempted_us: u64,
    /// The time until which it keeps scripts from starting.
    until_us: u64,
    /// The time until which it keeps others from having their sections first.
    holds_until_us: u64,
    kind: AttemptKind,
    is_member: bool,
}

impl Waiter {
    /// Returns `true` if a turn may wait for it. Requesters that try at ticks are in no hurry, but must not starve.
    fn is_expected(&self, now_us: u64) -> bool {
        let is_urgent = self.kind != AttemptKind::Tick || now_us.saturating_sub(self.since_us) > MAX_TICK_WAIT_US;
        is_urgent && now_us < self.until_us
    }
}

/// The members of the present turn for which it lasts.
#[derive(Debug, Default)]
struct Turn {
    /// The number of members that have neither succeeded nor withdrawn.
    members: usize,
    /// The time of the first attempt of the one that waits longest.
    since_us: u64,
    /// The time since which no script could start because of it.
    began_us: u64,
    /// The time until which one of them must have tried again.
    until_us: u64,
    /// The time until which they keep other requesters from their sections.
    holds_until_us: u64,
}

/// The requesters whose attempts have failed. All times are in microseconds, on one clock.
#[derive(Debug, Default)]
pub struct ExclusionQueue {
    waiters: HashMap<Requester, Waiter>,
    turn: Turn,
    announced_until_us: u64,
    last_cleanup_us: u64,
}

impl ExclusionQueue {
    /// Returns the number of requesters that are remembered.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Returns `true` if the requester is a member of the present turn.
    pub fn is_member(&self, requester: Requester) -> bool {
        self.waiters.get(&requester).is_some_and(|waiter| waiter.is_member)
    }

    /// Returns the time until which no script may start.
    pub fn announced_until_us(&self) -> u64 {
        self.announced_until_us
    }

    /// Records a failed attempt.
    pub fn note_failure(&mut self, requester: Requester, kind: AttemptKind, now_us: u64) {
        self.forget_silent(now_us);
        let waiter = self.waiters.entry(requester).or_insert(Waiter {
            since_us: now_us,
            attempted_us: now_us,
            until_us: 0,
            holds_until_us: 0,
            kind,
            is_member: false,
        });
        let lateness_us = now_us.saturating_sub(waiter.attempted_us);
        let notice_us = match kind {
            AttemptKind::Usual | AttemptKind::Last => (2 * lateness_us).clamp(SHORT_NOTICE_US, MAX_NOTICE_US),
            AttemptKind::Tick => TICK_NOTICE_US,
        };
        waiter.kind = kind;
        waiter.attempted_us = now_us;
        waiter.until_us = waiter.until_us.max(now_us + notice_us);
        self.announced_until_us = self.announced_until_us.max(waiter.until_us);
        let waited_us = now_us.saturating_sub(waiter.since_us);
        let hold_up_us = notice_us.min((waited_us / 2).clamp(SHORT_HOLD_UP_US, MAX_HOLD_UP_US));
        waiter.holds_until_us = waiter.holds_until_us.max(now_us + hold_up_us);
        if waiter.is_member {
            self.turn.until_us = self.turn.until_us.max(waiter.until_us);
            self.turn.holds_until_us = self.turn.holds_until_us.max(waiter.holds_until_us);
        }
    }

    /// Records that a requester has succeeded.
    pub fn begin_section(&mut self, requester: Requester, now_us: u64) {
        let is_continued = self.is_awaited(now_us);
        self.withdraw(requester);
        if !is_continued {
            self.begin_turn(now_us);
        }
    }

    /// Records the end of an exclusive section. Returns `true` if delayed scripts have their turn: no member is left,
    /// or one is so late that others have had theirs for long.
    pub fn end_section(&mut self, now_us: u64) -> bool {
        let is_too_long = now_us.saturating_sub(self.turn.began_us) > MAX_TURN_US;
        if is_too_long {
            self.turn.began_us = now_us;
        }
        is_too_long || !self.is_awaited(now_us)
    }

    /// Removes a requester that waits no longer.
    pub fn withdraw(&mut self, requester: Requester) {
        let Some(waiter) = self.waiters.remove(&requester) else {
            return;
        };
        if waiter.is_member {
            self.turn.members -= 1;
        }
        if waiter.is_member
            && (waiter.until_us == self.turn.until_us || waiter.holds_until_us == self.turn.holds_until_us)
        {
            let members = || self.waiters.values().filter(|other| other.is_member);
            self.turn.until_us = members().map(|other| other.until_us).max().unwrap_or(0);
            self.turn.holds_until_us = members().map(|other| other.holds_until_us).max().unwrap_or(0);
        }
        if waiter.until_us == self.announced_until_us {
            self.announced_until_us = self.waiters.values().map(|waiter| waiter.until_us).max().unwrap_or(0);
        }
    }

    /// Returns `true` if the requester must not succeed: because it is no member and a member has waited for long, or
    /// because it comes last and others wait. A requester that is late holds others up for no longer than it has waited
    /// itself; only scripts wait for it until its notice ends.
    pub fn must_yield(&self, requester: Requester, kind: AttemptKind, now_us: u64) -> bool {
        let own = self.waiters.get(&requester);
        let is_member = own.is_some_and(|waiter| waiter.is_member);
        let is_held_up = self.turn.members > 0 && now_us < self.turn.holds_until_us;
        if !is_member && is_held_up && now_us.saturating_sub(self.turn.since_us) > MAX_OVERTAKING_US {
            return true;
        }
        let waited_us = own.map_or(0, |waiter| now_us.saturating_sub(waiter.since_us));
        // A member yields to the other members only: the rest may have to yield to it.
        let precedes = |other: &Waiter| {
            other.kind != AttemptKind::Last
                && (other.is_member || !is_member)
                && other.is_expected(now_us)
                && now_us < other.holds_until_us
        };
        kind == AttemptKind::Last && waited_us < MAX_LAST_WAIT_US && self.waiters.values().any(precedes)
    }

    /// Returns `true` if the turn lasts for a member that has not succeeded yet.
    fn is_awaited(&self, now_us: u64) -> bool {
        self.turn.members > 0 && now_us < self.turn.until_us
    }

    /// Begins a turn with everything that waits.
    fn begin_turn(&mut self, now_us: u64) {
        self.turn = Turn {
            since_us: now_us,
            began_us: now_us,
            ..Turn::default()
        };
        for waiter in self.waiters.values_mut() {
            waiter.is_member = waiter.is_expected(now_us);
            if waiter.is_member {
                self.turn.members += 1;
                self.turn.since_us = self.turn.since_us.min(waiter.since_us);
                self.turn.until_us = self.turn.until_us.max(waiter.until_us);
                self.turn.holds_until_us = self.turn.holds_until_us.max(waiter.holds_until_us);
            }
        }
    }

    /// Forgets requesters that have given up, from time to time.
    fn forget_silent(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.last_cleanup_us) < MAX_SILENCE_US {
            return;
        }
        self.last_cleanup_us = now_us;
        let is_silent = |waiter: &Waiter| now_us >= waiter.until_us.max(waiter.attempted_us + MAX_SILENCE_US);
        for (_, waiter) in self.waiters.extract_if(|_, waiter| is_silent(waiter)) {
            self.turn.members -= usize::from(waiter.is_member);
        }
    }
}

#[cfg(test)]
mod tests;
