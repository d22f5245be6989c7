//! Rates per second of increasing counters, for the fields `instantaneous_` of INFO.

use weft_os::sync::Mutex;
use weft_os::time::Instant;

/// The number of windows over which a rate is averaged.
const WINDOWS: usize = 16;

/// A rate that INFO shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Commands.
    Commands,
    /// Bytes received.
    Input,
    /// Bytes sent.
    Output,
    /// Turns of event loops.
    Turns,
    /// Nanoseconds of these turns.
    BusyNs,
}

const RATES: usize = Rate::BusyNs as usize + 1;

#[derive(Default)]
struct RateState {
    last: Option<(Instant, [u64; RATES])>,
    windows: [[f64; RATES]; WINDOWS],
    next: usize,
}

/// The mean rates of the latest windows.
#[derive(Default)]
pub struct Rates {
    state: Mutex<RateState>,
}

impl Rates {
    /// Closes a window. `totals` are the current values of the counters, indexed by [`Rate`].
    pub fn sample(&self, now: Instant, totals: [u64; RATES]) {
        let mut state = self.state.lock();
        if let Some((then, before)) = state.last {
            let seconds = now.duration_since(then).as_secs_f64();
            if seconds > 0.0 {
                let next = state.next;
                // A counter that was reset starts over: its window shows the growth since the reset.
                state.windows[next] = std::array::from_fn(|rate| {
                    let grown = totals[rate].checked_sub(before[rate]).unwrap_or(totals[rate]);
                    grown as f64 / seconds
                });
                state.next = (next + 1) % WINDOWS;
            }
        }
        state.last = Some((now, totals));
    }

    /// Returns the rate per second.
    pub fn per_second(&self, rate: Rate) -> f64 {
        let state = self.state.lock();
        state.windows.iter().map(|window| window[rate as usize]).sum::<f64>() / WINDOWS as f64
    }

    /// Drops all windows.
    pub fn reset(&self) {
        *self.state.lock() = RateState::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_steady_rate_is_seen_after_all_windows_and_forgotten_by_a_reset() {
        let rates = Rates::default();
        let start = Instant::now();
        for window in 0..=WINDOWS as u64 {
            let now = start + Duration::from_millis(100 * window);
            rates.sample(now, [10 * window, 0, 5 * window, 0, 0]);
        }
        assert!((rates.per_second(Rate::Commands) - 100.0).abs() < 1e-6);
        assert!((rates.per_second(Rate::Output) - 50.0).abs() < 1e-6);
        rates.reset();
        assert_eq!(rates.per_second(Rate::Commands), 0.0);
    }

    #[test]
    fn a_counter_that_was_reset_yields_no_negative_rate() {
        let rates = Rates::default();
        let start = Instant::now();
        rates.sample(start, [1000; RATES]);
        rates.sample(start + Duration::from_secs(1), [16; RATES]);
        assert_eq!(rates.per_second(Rate::Input), 1.0);
    }
}
