//! Slows the writers of leaving slots if the target of a migration cannot keep up with them.
//!
//! A migration ends when nothing is left to send. If the writers are faster than the target, or at least never slower,
//! that moment does not come, and what is unsent grows until a limit for replicas is reached. Then the writes to the
//! slots are held back for some milliseconds at a time, with pauses in between in which they continue:
//!
//! ```text
//!   writes to the slots:   held │ free │ held │ free │ …      target:  ════════════ executes all the time ════
//! ```
//!
//! 1. Up to half of the limit, the writers are slowed only if the pause before the slots change hands has to wait for
//!    them. From there to the limit, holds become longer: [`HOLD_TIME`] to [`MAX_HOLD_TIME`]. No hold is longer, and
//!    after each one the writers have [`FREE_TIME`].
//! 2. The limit is the hard or the soft one, whichever is lower. During the snapshot nothing of the writes is sent, so
//!    the writers may still reach it, although they have a tenth of the time only. The export then ends as it would
//!    without the brake.
//! 3. A target that accepts nothing of what waits for it does not slow the writers: it has failed, and its time runs.
//! 4. A hold is that of the pause before the slots change hands, so it begins when no script runs on a script thread
//!    and every admitted write has ended. Scripts are kept from starting for a hold only once in
//!    [`ANNOUNCEMENT_INTERVAL`]: otherwise they would run one at a time for as long as the migration lasts.

use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_config::{ClientClass, OutputBufferLimit};
use weft_os::time::Instant;
use weft_scripting::Requester;

use super::state::MigrationEngine;
use crate::slot_migration::job::JobState;

/// The time that an export waits for an opportunity to pause the writes, before it slows the writers.
const PATIENCE: Duration = Duration::from_millis(if cfg!(feature = "simulated") { 0 } else { 200 });
/// The time for which writes are held back at once, far from the limit and at the limit.
const HOLD_TIME: Duration = Duration::from_millis(5);
const MAX_HOLD_TIME: Duration = Duration::from_millis(45);
/// The time for which writes continue between two holds.
const FREE_TIME: Duration = Duration::from_millis(5);
/// The time within which a target must have accepted something.
const STANDSTILL_TIME: Duration = Duration::from_millis(500);
/// The interval between two announcements of a hold to scripts.
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_millis(1000);

/// The brake of an export.
#[derive(Default)]
pub struct Brake {
    /// The time since which the export waits for an opportunity to pause.
    waits_since: Option<Instant>,
    /// The time at which the current hold, or the time between two holds, ends.
    phase_end: Option<Instant>,
    /// `true` during a hold.
    is_on: bool,
    /// The time at which scripts were last kept from starting.
    announced_at: Option<Instant>,
}

impl Brake {
    /// Returns `true` while writes are held back.
    pub fn is_on(&self) -> bool {
        self.is_on
    }
}

/// The bytes that a target has accepted.
#[derive(Default)]
pub struct TargetProgress {
    accepted: u64,
    /// The time at which they changed, or nothing waited for the target.
    since: Option<Instant>,
}

impl TargetProgress {
    /// Notes how many bytes the target has accepted, and if others wait for it.
    pub fn update(&mut self, accepted: u64, is_awaited: bool) {
        if !is_awaited || accepted != self.accepted || self.since.is_none() {
            (self.accepted, self.since) = (accepted, Some(Instant::now()));
        }
    }

    /// Returns the time for which the target has accepted nothing of what waits for it.
    pub fn standstill(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Returns the number of unsent bytes that end an export, or `None` without a limit. An excess of the soft limit ends
/// it later.
fn unsent_limit(limit: &OutputBufferLimit) -> Option<u64> {
    let hard = (limit.hard_bytes > 0).then_some(limit.hard_bytes);
    let soft = (limit.soft_bytes > 0 && limit.soft_seconds > 0).then_some(limit.soft_bytes);
    hard.into_iter().chain(soft).min()
}

/// Returns the time for which writes are held back at once, if so much is unsent that they must be.
fn hold_time(unsent: u64, limit: Option<u64>) -> Option<Duration> {
    let limit = limit.filter(|limit| unsent > limit / 2)?;
    // From 0 at the half of the limit to 1 at the limit.
    let nearness = ((unsent as f64 / limit as f64) - 0.5).clamp(0.0, 0.5) * 2.0;
    Some(HOLD_TIME + (MAX_HOLD_TIME - HOLD_TIME).mul_f64(nearness))
}

impl MigrationEngine {
    /// Holds the writes of an export's slots back, or lets them continue, as its target needs it. Call it in every turn
    /// in which the export is not paused.
    pub(super) fn adjust_brake(&mut self, index: usize, state: JobState) {
        let unsent = self.unsent_bytes(index);
        let limit = unsent_limit(&self.server.config.output_buffer_limits()[ClientClass::Replica as usize]);
        // Whatever else prevents the pause, slower writers do not help against it.
        let waits = state == JobState::WaitingToPause && self.is_too_much_to_pause(unsent);
        let export = &mut self.exports[index];
        export.brake.waits_since = waits.then(|| export.brake.waits_since.unwrap_or_else(Instant::now));
        let waits_since = export.brake.waits_since;
        let has_waited = waits_since.is_some_and(|since| since.elapsed() >= PATIENCE);
        let time = hold_time(unsent, limit).or(has_waited.then_some(HOLD_TIME));
        let has_progress = export.target_progress.standstill() < STANDSTILL_TIME;
        let Some(time) = time.filter(|_| has_progress) else {
            return self.release_brake(index);
        };
        self.is_urgent = true;
        let now = Instant::now();
        let brake = &mut self.exports[index].brake;
        if brake.phase_end.is_some_and(|end| now < end) {
            return;
        }
        if brake.is_on {
            self.release_brake(index);
            self.exports[index].brake.phase_end = Some(now + FREE_TIME);
        } else if self.hold_writes(index, time) {
            let brake = &mut self.exports[index].brake;
            (brake.is_on, brake.phase_end) = (true, Some(Instant::now() + time));
        }
    }

    /// Holds the writes to the slots of an export back. Returns `false` if a script runs, or if another hold of a slot
    /// would end together with this one.
    fn hold_writes(&mut self, index: usize, time: Duration) -> bool {
        let server = Arc::clone(&self.server);
        let slots = self.exports[index].slots.clone();
        if self.is_granted_to_earlier_target(&slots) || !self.try_exclude_runs(index) {
            return false;
        }
        let all = self.seat.exclusive();
        let until_ms = unix_ms() + time.as_millis() as u64;
        server.clients.pause.held_slots.hold(&slots, until_ms);
        drop(all);
        server.scripting.running.end_exclusion();
        true
    }

    /// Excludes runs on script threads for a hold. Returns `false` if there is one.
    fn try_exclude_runs(&mut self, index: usize) -> bool {
        let running = &self.server.scripting.running;
        if running.try_exclude_runs_unannounced(Requester::SlotExport) {
            return true;
        }
        let announced_at = &mut self.exports[index].brake.announced_at;
        if announced_at.is_some_and(|at| at.elapsed() < ANNOUNCEMENT_INTERVAL) {
            return false;
        }
        *announced_at = Some(Instant::now());
        running.try_exclude_runs_per_tick(Requester::SlotExport)
    }

    /// Lets held writes continue.
    pub(super) fn release_brake(&mut self, index: usize) {
        let export = &mut self.exports[index];
        export.brake.phase_end = None;
        if std::mem::take(&mut export.brake.is_on) {
            self.server.release_held_slots(&export.slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_stands_still_if_it_accepts_nothing_of_what_waits() {
        let mut progress = TargetProgress::default();
        assert_eq!(progress.standstill(), Duration::ZERO, "it may just have begun");
        progress.update(0, true);
        weft_os::thread::sleep(STANDSTILL_TIME);
        progress.update(0, true);
        assert!(progress.standstill() >= STANDSTILL_TIME);
        progress.update(1, true);
        assert!(progress.standstill() < STANDSTILL_TIME);
        weft_os::thread::sleep(STANDSTILL_TIME);
        progress.update(1, false);
        assert!(progress.standstill() < STANDSTILL_TIME, "nothing waits for it");
    }

    fn limits(hard_bytes: u64, soft_bytes: u64, soft_seconds: i32) -> Option<u64> {
        unsent_limit(&OutputBufferLimit {
            hard_bytes,
            soft_bytes,
            soft_seconds,
        })
    }

    #[test]
    fn the_lower_limit_counts() {
        assert_eq!(limits(0, 0, 0), None);
        assert_eq!(limits(256, 0, 60), Some(256));
        assert_eq!(limits(256, 64, 60), Some(64));
        assert_eq!(limits(0, 64, 60), Some(64));
        assert_eq!(limits(16, 64, 60), Some(16));
        assert_eq!(limits(256, 64, 0), Some(256), "the soft limit is off");
    }

    #[test]
    fn holds_are_longer_near_the_limit() {
        assert_eq!(hold_time(u64::MAX, None), None);
        assert_eq!(hold_time(500, Some(1000)), None);
        assert!(hold_time(501, Some(1000)).is_some_and(|time| time < HOLD_TIME * 2));
        assert_eq!(hold_time(750, Some(1000)), Some((HOLD_TIME + MAX_HOLD_TIME) / 2));
        for unsent in [1000, 5000, u64::MAX] {
            assert_eq!(hold_time(unsent, Some(1000)), Some(MAX_HOLD_TIME));
        }
    }
}
