//! Slows the writers of leaving slots if the target of a migration cannot keep up with them.
//!
//! A migration ends when nothing is left to send. If the writers are faster than the target, or at least never slower,
//! that moment does not come, and what is unsent grows until the limit for replicas is reached. Then the writes to the
//! slots are held back for some milliseconds at a time, with pauses in between in which they continue:
//!
//! ```text
//!   writes to the slots:   held │ free │ held │ free │ …      target:  ════════════ executes all the time ════
//! ```
//!
//! A hold is that of the pause before the slots change hands, so it begins when no script runs and every admitted write
//! has ended. A target that accepts nothing does not slow the writers: it has failed, and its time runs.

use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_config::ClientClass;
use weft_os::time::Instant;

use super::state::MigrationEngine;
use crate::slot_migration::job::JobState;

/// The time that an export waits for an opportunity to pause the writes, before it slows the writers.
const PATIENCE: Duration = Duration::from_millis(if cfg!(feature = "simulated") { 0 } else { 200 });
/// The time for which writes are held back at once.
const HOLD_TIME: Duration = Duration::from_millis(5);
/// The time for which writes continue between two holds, and the same if little room is left.
const FREE_TIME: Duration = Duration::from_millis(5);
const SHORT_FREE_TIME: Duration = Duration::from_millis(1);
/// The time within which a target must have accepted something.
const STANDSTILL_TIME: Duration = Duration::from_millis(500);

/// The brake of an export.
#[derive(Default)]
pub struct Brake {
    /// The time since which the export waits for an opportunity to pause.
    waits_since: Option<Instant>,
    /// The time at which the current hold, or the time between two holds, ends.
    phase_end: Option<Instant>,
    /// `true` during a hold.
    is_on: bool,
    /// The number of bytes that the target has accepted, and the time at which it had changed last.
    accepted: Option<(u64, Instant)>,
}

impl Brake {
    /// Returns `true` while writes are held back.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Notes how many bytes the target has accepted. Returns `true` if that has changed lately.
    fn has_progress(&mut self, accepted: u64) -> bool {
        let now = Instant::now();
        match self.accepted {
            Some((before, since)) if before == accepted => since.elapsed() < STANDSTILL_TIME,
            _ => {
                self.accepted = Some((accepted, now));
                true
            }
        }
    }
}

impl MigrationEngine {
    /// Holds the writes of an export's slots back, or lets them continue, as its target needs it. Call it in every turn
    /// in which the export is not paused.
    pub(super) fn adjust_brake(&mut self, index: usize, state: JobState) {
        let unsent = self.unsent_bytes(index);
        let limit = self.server.config.output_buffer_limits()[ClientClass::Replica as usize].hard_bytes;
        // Whatever else prevents the pause, slower writers do not help against it.
        let waits = state == JobState::WaitingToPause && self.is_too_much_to_pause(unsent);
        let export = &mut self.exports[index];
        export.brake.waits_since = waits.then(|| export.brake.waits_since.unwrap_or_else(Instant::now));
        let has_waited = export
            .brake
            .waits_since
            .is_some_and(|since| since.elapsed() >= PATIENCE);
        let is_much = limit > 0 && unsent > limit / 2;
        let accepted = export.feed.taken_bytes();
        let has_progress = export.brake.has_progress(accepted);
        if !has_progress || !(has_waited || is_much) {
            return self.release_brake(index);
        }
        self.is_urgent = true;
        let now = Instant::now();
        let brake = &mut self.exports[index].brake;
        if brake.phase_end.is_some_and(|end| now < end) {
            return;
        }
        if brake.is_on {
            self.release_brake(index);
            let is_short = limit > 0 && unsent > limit / 4 * 3;
            let time = if is_short { SHORT_FREE_TIME } else { FREE_TIME };
            self.exports[index].brake.phase_end = Some(now + time);
        } else if self.hold_writes(index) {
            let brake = &mut self.exports[index].brake;
            (brake.is_on, brake.phase_end) = (true, Some(Instant::now() + HOLD_TIME));
        }
    }

    /// Holds the writes to the slots of an export back. Returns `false` if a script runs, or if another hold of a slot
    /// would end together with this one.
    fn hold_writes(&mut self, index: usize) -> bool {
        let server = Arc::clone(&self.server);
        let slots = self.exports[index].slots.clone();
        if self.is_granted_to_earlier_target(&slots) || !server.scripting.running.try_exclude_runs_per_tick() {
            return false;
        }
        let all = self.seat.exclusive();
        let until_ms = unix_ms() + HOLD_TIME.as_millis() as u64;
        server.clients.pause.held_slots.hold(&slots, until_ms);
        drop(all);
        server.scripting.running.end_exclusion();
        true
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
    fn a_target_that_accepts_nothing_for_long_has_no_progress() {
        let mut brake = Brake::default();
        assert!(brake.has_progress(0) && brake.has_progress(0), "it may just have begun");
        weft_os::thread::sleep(STANDSTILL_TIME);
        assert!(!brake.has_progress(0));
        assert!(brake.has_progress(1) && brake.has_progress(1));
    }
}
