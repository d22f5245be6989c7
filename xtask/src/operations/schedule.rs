//! When things happen in a week that lasts an hour.

use std::time::{Duration, Instant};

/// The minutes of a week.
const WEEK_MINUTES: f64 = 7.0 * 24.0 * 60.0;

/// How often an event recurs during the week.
#[derive(Clone, Copy, Debug)]
pub struct Recurrence {
    /// The time between two of them, in minutes of the week.
    pub every_minutes: f64,
    /// The shortest time between two of them, in real time, however short the run is.
    pub least: Duration,
}

impl Recurrence {
    /// Returns the real time between two of them in a run of this length.
    pub fn interval(&self, run: Duration) -> Duration {
        run.mul_f64(self.every_minutes / WEEK_MINUTES).max(self.least)
    }
}

/// The time at which a recurring event is due next.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    due: Instant,
    interval: Duration,
}

impl Schedule {
    /// Creates the schedule for a run of this length, which begins now. The event is due after one interval.
    pub fn new(recurrence: Recurrence, run: Duration, now: Instant) -> Self {
        let interval = recurrence.interval(run);
        Self {
            due: now + interval,
            interval,
        }
    }

    /// Returns `true` if the event is due.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Begins the next interval. Events that were missed, between two rounds for instance, are not made up for.
    pub fn begin_next(&mut self, now: Instant) {
        self.due = (self.due + self.interval).max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_is_scaled_to_the_run() {
        let hourly = Recurrence {
            every_minutes: 60.0,
            least: Duration::from_secs(1),
        };
        let interval = |seconds: u64| hourly.interval(Duration::from_secs(seconds)).as_secs_f64();
        assert!((interval(168 * 3600) - 3600.0).abs() < 0.001);
        assert!((interval(3600) - 3600.0 / 168.0).abs() < 0.001);
        assert!((interval(60) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn missed_turns_are_not_made_up_for() {
        let recurrence = Recurrence {
            every_minutes: 60.0,
            least: Duration::from_secs(10),
        };
        let now = Instant::now();
        let mut schedule = Schedule::new(recurrence, Duration::from_secs(60), now);
        let begin = now + Duration::from_secs(10);
        assert!(!schedule.is_due(begin - Duration::from_secs(10)) && schedule.is_due(begin));
        schedule.begin_next(begin + Duration::from_secs(1));
        assert_eq!(schedule.due, begin + Duration::from_secs(10));
        schedule.begin_next(begin + Duration::from_secs(100));
        assert_eq!(schedule.due, begin + Duration::from_secs(100));
    }
}
