//! Stalls: turns, leases, exclusive sections and messages that take longer than a threshold.
//!
//! The watchdog thread looks at the other threads several times per threshold and passes what it sees to a
//! [`StallDetector`]. The threads do nothing for it: they store the start of each turn and count their passages of the
//! gate anyway, and a detector compares two observations.
//!
//! | kind | what is the same at two observations |
//! |---|---|
//! | turn | the start of a worker's turn |
//! | lease | the passage of the gate of a thread that is no worker; it holds its leases within it |
//! | exclusive | the closing of the gate, while no other thread is inside |
//! | message | the end of a sleeping worker's last turn, while it has unread messages |
//!
//! 1. Only the cause is reported. While the gate is closed, a worker outside it waits for it, which does not count as
//!    time of its turn. A closer waits while another thread is inside, which does not count as time of exclusive mode.
//! 2. A stall is reported when it reaches the threshold, again whenever it has lasted twice as long, and when it ends.
//! 3. If the watchdog itself was late, the process or the machine stood still. The time before that does not count.

use std::collections::BTreeMap;

use weft_os::atomic::Ordering;
use weft_os::statistics::AtomicU64;
use weft_sync::{ClosingObservation, SeatObservation};

#[cfg(test)]
mod tests;

/// The kinds of stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum StallKind {
    /// A worker's turn.
    Turn,
    /// The leases of a thread that is no worker.
    Lease,
    /// Exclusive mode.
    Exclusive,
    /// An unread message of a worker that sleeps.
    Message,
}

impl StallKind {
    /// All kinds.
    pub const ALL: [StallKind; 4] = [
        StallKind::Turn,
        StallKind::Lease,
        StallKind::Exclusive,
        StallKind::Message,
    ];

    /// Returns the name of the event in LATENCY.
    pub const fn event(self) -> &'static str {
        match self {
            StallKind::Turn => "watchdog-turn",
            StallKind::Lease => "watchdog-lease",
            StallKind::Exclusive => "watchdog-exclusive",
            StallKind::Message => "watchdog-message",
        }
    }

    /// Returns the label of the metrics.
    pub const fn label(self) -> &'static str {
        match self {
            StallKind::Turn => "turn",
            StallKind::Lease => "lease",
            StallKind::Exclusive => "exclusive",
            StallKind::Message => "message",
        }
    }
}

/// The counts of stalls, for the metrics.
#[derive(Default)]
pub struct StallCounts {
    begun: [AtomicU64; StallKind::ALL.len()],
    current: [AtomicU64; StallKind::ALL.len()],
    /// 1 once the watchdog must end.
    stopped: AtomicU64,
}

impl StallCounts {
    /// Counts the reports of one observation.
    fn count(&self, reports: &[StallReport], current: impl Iterator<Item = StallKind>) {
        for report in reports.iter().filter(|report| report.phase == StallPhase::Begun) {
            self.begun[report.kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        let mut numbers = [0; StallKind::ALL.len()];
        current.for_each(|kind| numbers[kind as usize] += 1);
        for (count, number) in self.current.iter().zip(numbers) {
            count.store(number, Ordering::Relaxed);
        }
    }

    /// Returns the number of stalls of this kind since the server started.
    pub fn begun(&self, kind: StallKind) -> u64 {
        self.begun[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of stalls of this kind that have not ended.
    pub fn current(&self, kind: StallKind) -> u64 {
        self.current[kind as usize].load(Ordering::Relaxed)
    }

    /// Ends the watchdog, because the server ends its threads.
    pub fn stop(&self) {
        self.stopped.store(1, Ordering::Relaxed);
    }

    /// Returns `true` once the watchdog must end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) != 0
    }
}

/// What is seen of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerObservation {
    /// The start of its turn, in nanoseconds since the server started; 0 while it sleeps.
    pub turn_started_ns: u64,
    /// The duration of its turns that have ended, in nanoseconds.
    pub finished_turns_ns: u64,
    /// The number of messages that it has not read.
    pub unread_messages: usize,
}

/// What is seen of all threads at one time.
#[derive(Clone, Debug, Default)]
pub struct ThreadObservations {
    /// The time, in nanoseconds since the server started.
    pub now_ns: u64,
    /// The workers. They have the first seats.
    pub workers: Vec<WorkerObservation>,
    /// The seats at the gate.
    pub seats: Vec<SeatObservation>,
    /// The closer of the gate.
    pub closing: Option<ClosingObservation>,
}

/// The phase of a stall that a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallPhase {
    /// It has reached the threshold.
    Begun,
    /// It has lasted twice as long as at its last report.
    Continues,
    /// It has ended.
    Ended,
}

/// A report about a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallReport {
    /// The kind.
    pub kind: StallKind,
    /// The seat of the thread that causes it.
    pub thread: usize,
    /// Its duration so far, in nanoseconds.
    pub age_ns: u64,
    /// The phase.
    pub phase: StallPhase,
    /// `true` if a thread waits for exclusive mode, and all other threads with it.
    pub keeps_closer_waiting: bool,
}

/// The identity of a stall: its kind, its thread and a number that no other stall of these two has.
type StallId = (StallKind, usize, u64);

/// A stall that exists.
struct CurrentStall {
    id: StallId,
    age_ns: u64,
}

/// What was reported about a stall.
struct ReportedStall {
    /// The age at which it is reported again.
    next_ns: u64,
    /// The age at the last observation.
    age_ns: u64,
}

/// A number that changes when something ends, and the time at which the current number was seen first.
#[derive(Clone, Copy, Debug, Default)]
struct Unchanged {
    number: u64,
    since_ns: u64,
}

impl Unchanged {
    /// Returns for how long the number has been the same, in nanoseconds. `earliest_ns` is the time before which
    /// nothing counts.
    fn age_ns(seen: &mut Option<Unchanged>, number: u64, now_ns: u64, earliest_ns: u64) -> u64 {
        let unchanged = match seen {
            Some(unchanged) if unchanged.number == number => *unchanged,
            _ => Unchanged {
                number,
                since_ns: now_ns,
            },
        };
        *seen = Some(unchanged);
        now_ns.saturating_sub(unchanged.since_ns.max(earliest_ns))
    }
}

/// Finds stalls in a series of observations.
#[derive(Default)]
pub struct StallDetector {
    passages: Vec<Option<Unchanged>>,
    sleeps: Vec<Option<Unchanged>>,
    /// For each worker, its turn and the last time at which it waited for the gate.
    waits: Vec<Option<Unchanged>>,
    closing: Option<Unchanged>,
    reported: BTreeMap<StallId, ReportedStall>,
    /// The time of the last observation, in nanoseconds since the server started.
    last_ns: Option<u64>,
    /// The time before which nothing counts.
    earliest_ns: u64,
}

impl StallDetector {
    /// Takes an observation. Returns what is to be reported about stalls of at least `threshold_ns`. Observations that
    /// follow each other by more than this time begin anew.
    pub fn observe(&mut self, seen: &ThreadObservations, threshold_ns: u64, counts: &StallCounts) -> Vec<StallReport> {
        let last_ns = self.last_ns.replace(seen.now_ns);
        if last_ns.is_none_or(|last_ns| seen.now_ns.saturating_sub(last_ns) >= threshold_ns) {
            self.earliest_ns = seen.now_ns;
        }
        let current = self.current_stalls(seen);
        let closer_waits = seen
            .closing
            .is_some_and(|closing| is_another_inside(seen, closing.seat));
        let mut reports = self.reports_about(&current, threshold_ns, closer_waits);
        self.report_ends(&current, &mut reports);
        counts.count(&reports, self.reported.keys().map(|(kind, ..)| *kind));
        reports
    }

    /// Forgets everything, because stalls are not reported any more.
    pub fn clear(&mut self, counts: &StallCounts) {
        *self = StallDetector::default();
        counts.count(&[], std::iter::empty());
    }

    /// Returns everything that may be a stall, with its age.
    fn current_stalls(&mut self, seen: &ThreadObservations) -> Vec<CurrentStall> {
        let (now_ns, earliest_ns) = (seen.now_ns, self.earliest_ns);
        let mut current = Vec::new();
        let closer = seen.closing.map(|closing| closing.seat);
        match seen.closing {
            None => self.closing = None,
            Some(closing) => {
                if is_another_inside(seen, closing.seat) {
                    self.closing = Some(Unchanged {
                        number: closing.closing,
                        since_ns: now_ns,
                    });
                }
                let age_ns = Unchanged::age_ns(&mut self.closing, closing.closing, now_ns, earliest_ns);
                current.push(CurrentStall {
                    id: (StallKind::Exclusive, closing.seat, closing.closing),
                    age_ns,
                });
            }
        }
        self.passages.resize(seen.seats.len(), None);
        for (seat, (observed, passage)) in seen.seats.iter().zip(&mut self.passages).enumerate() {
            if !observed.is_inside {
                *passage = None;
                continue;
            }
            let age_ns = Unchanged::age_ns(passage, observed.passages, now_ns, earliest_ns);
            if seat >= seen.workers.len() {
                current.push(CurrentStall {
                    id: (StallKind::Lease, seat, observed.passages),
                    age_ns,
                });
            }
        }
        self.add_workers(seen, closer.is_some(), &mut current);
        current
    }

    /// Adds what may be stalls of workers.
    fn add_workers(&mut self, seen: &ThreadObservations, is_closed: bool, current: &mut Vec<CurrentStall>) {
        let (now_ns, earliest_ns) = (seen.now_ns, self.earliest_ns);
        self.sleeps.resize(seen.workers.len(), None);
        self.waits.resize(seen.workers.len(), None);
        for (index, worker) in seen.workers.iter().enumerate() {
            let (sleep, wait) = (&mut self.sleeps[index], &mut self.waits[index]);
            let turn = worker.turn_started_ns;
            if turn != 0 {
                *sleep = None;
                let is_inside = seen.seats.get(index).is_some_and(|seat| seat.is_inside);
                if is_closed && !is_inside {
                    *wait = Some(Unchanged {
                        number: turn,
                        since_ns: now_ns,
                    });
                }
                let waited_until_ns = wait.filter(|wait| wait.number == turn).map_or(0, |wait| wait.since_ns);
                current.push(CurrentStall {
                    id: (StallKind::Turn, index, turn),
                    age_ns: now_ns.saturating_sub(turn.max(earliest_ns).max(waited_until_ns)),
                });
            } else if worker.unread_messages == 0 {
                *sleep = None;
            } else {
                current.push(CurrentStall {
                    id: (StallKind::Message, index, worker.finished_turns_ns),
                    age_ns: Unchanged::age_ns(sleep, worker.finished_turns_ns, now_ns, earliest_ns),
                });
            }
        }
    }

    fn reports_about(&mut self, current: &[CurrentStall], threshold_ns: u64, closer_waits: bool) -> Vec<StallReport> {
        let mut reports = Vec::new();
        for stall in current.iter().filter(|stall| stall.age_ns >= threshold_ns) {
            let known = self.reported.get(&stall.id);
            let phase = match known {
                Some(reported) if stall.age_ns >= reported.next_ns => Some(StallPhase::Continues),
                Some(_) => None,
                None => Some(StallPhase::Begun),
            };
            let mut next_ns = known.map_or(threshold_ns, |reported| reported.next_ns);
            if let Some(phase) = phase {
                next_ns = stall.age_ns.saturating_mul(2);
                let (kind, thread, _) = stall.id;
                reports.push(StallReport {
                    kind,
                    thread,
                    age_ns: stall.age_ns,
                    phase,
                    keeps_closer_waiting: closer_waits && matches!(kind, StallKind::Turn | StallKind::Lease),
                });
            }
            let age_ns = stall.age_ns;
            self.reported.insert(stall.id, ReportedStall { next_ns, age_ns });
        }
        reports
    }

    /// Reports the ends of stalls that do not exist any more.
    fn report_ends(&mut self, current: &[CurrentStall], reports: &mut Vec<StallReport>) {
        let ended = |id: &StallId| current.iter().all(|stall| stall.id != *id);
        self.reported.retain(|id, reported| {
            let (kind, thread, _) = *id;
            let has_ended = ended(id);
            if has_ended {
                reports.push(StallReport {
                    kind,
                    thread,
                    age_ns: reported.age_ns,
                    phase: StallPhase::Ended,
                    keeps_closer_waiting: false,
                });
            }
            !has_ended
        });
    }
}

/// Returns `true` if another seat than `seat` is inside the gate.
fn is_another_inside(seen: &ThreadObservations, seat: usize) -> bool {
    let mut seats = seen.seats.iter().enumerate();
    seats.any(|(index, observed)| index != seat && observed.is_inside)
}

/// Limits the number of lines per period.
#[derive(Debug, Default)]
pub struct LineLimit {
    period_start_ns: u64,
    lines: u32,
    suppressed: u64,
}

impl LineLimit {
    /// The length of a period, in nanoseconds.
    pub const PERIOD_NS: u64 = 10_000_000_000;
    /// The number of lines in a period.
    pub const MAX_LINES: u32 = 10;

    /// Returns `true` if one more line may be written.
    pub fn permits(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.period_start_ns) >= Self::PERIOD_NS {
            self.period_start_ns = now_ns;
            self.lines = 0;
        }
        let permitted = self.lines < Self::MAX_LINES;
        self.lines += u32::from(permitted);
        self.suppressed += u64::from(!permitted);
        permitted
    }

    /// Returns the number of lines that were not written since the last call, if a line about them may be written.
    pub fn take_suppressed(&mut self, now_ns: u64) -> Option<u64> {
        let is_over = now_ns.saturating_sub(self.period_start_ns) >= Self::PERIOD_NS;
        (is_over && self.suppressed > 0).then(|| std::mem::take(&mut self.suppressed))
    }
}
