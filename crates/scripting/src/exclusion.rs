//! The threads that wait for exclusive use of the keyspace, and the order in which they and scripts have their turns.
//!
//! A thread that waits tries again and again, because it must not sleep while scripts of unknown duration run. Without
//! an order, which of many such threads succeeds next would be up to chance, and scripts would start after each of
//! them. So turns alternate, as in a phase-fair lock (Brandenburg and Anderson, "Reader-writer synchronization for
//! shared-memory multiprocessor real-time systems", 2009): everything that waits when the first one of them succeeds is
//! a *member* of that turn, and delayed scripts start once every member has succeeded.

/// A thread, or a client on whichever thread, that wants exclusive use of the keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The client with this id.
    Client(u64),
    /// A thread, with a number from [`super::RunRegistry::next_thread`].
    Thread(u64),
    /// The thread of the cluster bus.
    ClusterBus,
    /// The thread of the slot migrations.
    SlotMigration,
}

/// How soon a requester tries again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryInterval {
    /// Within milliseconds.
    Short,
    /// At the next tick of the cluster bus, after 100 ms.
    Tick,
}

/// The time for which a failed attempt keeps scripts from starting. It is longer than the time after which workers and
/// other threads usually try again, and short because the requester may be gone: its client may have closed the
/// connection.
const SHORT_NOTICE_US: u64 = 8_000;
/// The same for a requester that tries at every tick of the cluster bus.
const TICK_NOTICE_US: u64 = 150_000;
/// The limit of the notice of a requester that was late: on a busy machine, a worker takes its time.
const MAX_NOTICE_US: u64 = 100_000;
/// The time after which a requester that has not tried again is forgotten.
const MAX_SILENCE_US: u64 = 500_000;
/// The time for which a member may be overtaken by requesters that came later.
const MAX_OVERTAKING_US: u64 = 10_000;

#[derive(Debug)]
struct Waiter {
    requester: Requester,
    interval: RetryInterval,
    /// The time of its first attempt.
    since_us: u64,
    /// The time of its latest attempt.
    attempted_us: u64,
    /// The time until which it keeps scripts from starting.
    until_us: u64,
    /// `true` if it waited already when the present turn began.
    is_member: bool,
}

/// The requesters whose attempts have failed. All times are in microseconds, on one clock.
#[derive(Debug, Default)]
pub struct ExclusionQueue {
    waiters: Vec<Waiter>,
    /// `true` from the first success of a turn until its last member has succeeded.
    is_turn: bool,
}

impl ExclusionQueue {
    /// Returns the number of requesters that are remembered.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Records a failed attempt.
    pub fn note_failure(&mut self, requester: Requester, interval: RetryInterval, now_us: u64) {
        self.forget_silent(now_us);
        let known = self.waiters.iter_mut().find(|waiter| waiter.requester == requester);
        let lateness_us = known
            .as_ref()
            .map_or(0, |waiter| now_us.saturating_sub(waiter.attempted_us));
        let notice_us = match interval {
            RetryInterval::Short => (2 * lateness_us).clamp(SHORT_NOTICE_US, MAX_NOTICE_US),
            RetryInterval::Tick => TICK_NOTICE_US,
        };
        let until_us = now_us + notice_us;
        match known {
            Some(waiter) => {
                waiter.attempted_us = now_us;
                waiter.until_us = waiter.until_us.max(until_us);
            }
            None => self.waiters.push(Waiter {
                requester,
                interval,
                since_us: now_us,
                attempted_us: now_us,
                until_us,
                is_member: false,
            }),
        }
    }

    /// Records that a requester has succeeded; `None` for one that was not announced.
    pub fn begin_section(&mut self, requester: Option<Requester>) {
        self.waiters.retain(|waiter| Some(waiter.requester) != requester);
        if !std::mem::replace(&mut self.is_turn, true) {
            for waiter in &mut self.waiters {
                waiter.is_member = true;
            }
        }
    }

    /// Records the end of an exclusive section. Returns `true` if the turn has ended: no member waits for its section.
    pub fn end_section(&mut self, now_us: u64) -> bool {
        self.forget_silent(now_us);
        let waits = |waiter: &Waiter| waiter.is_member && now_us < waiter.until_us;
        self.is_turn = self.waiters.iter().any(waits);
        !self.is_turn
    }

    /// Returns `true` if the requester must not succeed, because a member has waited for long. Members that try at
    /// ticks are rare and in no hurry.
    pub fn must_yield(&self, requester: Option<Requester>, now_us: u64) -> bool {
        let is_overtaken = |waiter: &Waiter| {
            waiter.interval == RetryInterval::Short
                && waiter.is_member
                && now_us < waiter.until_us
                && now_us.saturating_sub(waiter.since_us) > MAX_OVERTAKING_US
        };
        let is_own = |waiter: &Waiter| Some(waiter.requester) == requester;
        let is_member = || self.waiters.iter().any(|waiter| is_own(waiter) && waiter.is_member);
        self.is_turn && self.waiters.iter().any(is_overtaken) && !is_member()
    }

    /// Returns the time until which no script may start.
    pub fn announced_until_us(&self) -> u64 {
        self.waiters.iter().map(|waiter| waiter.until_us).max().unwrap_or(0)
    }

    /// Forgets requesters that have given up.
    fn forget_silent(&mut self, now_us: u64) {
        self.waiters
            .retain(|waiter| now_us < waiter.until_us.max(waiter.attempted_us + MAX_SILENCE_US));
    }
}

#[cfg(test)]
mod tests;
