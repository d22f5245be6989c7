//! How many workers a trial adds or removes, and which change of the throughput it must bring.

use crate::state::spare_cores::smallest_step;

/// Workers are added and removed one at a time up to this number.
pub(super) const FEW_WORKERS: usize = 4;
/// The number of idle cores that one more worker needs.
pub(super) const MIN_IDLE_CORES: f64 = 0.5;
/// The factor by which a trial must raise throughput, up to [`FEW_WORKERS`].
const MIN_TRIAL_GAIN: f64 = 1.08;
/// The fraction of the throughput that must remain with one worker fewer, up to [`FEW_WORKERS`].
const MIN_KEPT_THROUGHPUT: f64 = 0.95;
/// The share of the proportional gain that a trial with more than [`FEW_WORKERS`] workers must bring. It is low because
/// the second hardware thread of a core is worth using, although it brings much less than a core.
const MIN_GAIN_SHARE: f64 = 0.25;
/// The share of the proportional loss that the removal of workers may cost, above [`FEW_WORKERS`]. It is half of
/// [`MIN_GAIN_SHARE`], so that workers that were just worth it are not removed again.
const MAX_LOSS_SHARE: f64 = 0.125;
/// The factor between the steps of two trials.
const STEP_FACTOR: usize = 4;

/// Returns the factor by which the throughput must rise for a trial that goes from `before` workers to more to be kept.
pub(super) fn min_gain(before: usize, after: usize) -> f64 {
    if after <= FEW_WORKERS {
        return MIN_TRIAL_GAIN;
    }
    1.0 + MIN_GAIN_SHARE * (after.saturating_sub(before) as f64 / before as f64)
}

/// Returns the fraction of the throughput that must remain for a trial that goes from `before` workers to fewer to be
/// kept.
pub(super) fn min_kept(before: usize, after: usize) -> f64 {
    if before <= FEW_WORKERS {
        return MIN_KEPT_THROUGHPUT;
    }
    1.0 - MAX_LOSS_SHARE * (before.saturating_sub(after) as f64 / before as f64)
}

/// The number of workers that the next trial with further workers adds, as the last one suggests. What this means for
/// the present number of workers, see [`GrowthStep::workers_to_add`].
pub(super) struct GrowthStep(usize);

impl GrowthStep {
    /// Creates the step of a server that has tried nothing yet.
    pub(super) fn new() -> Self {
        GrowthStep(1)
    }

    /// Returns the number of workers to add to `active` ones, at most `room`, or `None` if too few cores are idle. The
    /// smallest step needs half a core for each worker, a larger step a whole one. If the number of idle cores is not
    /// known, they do not limit the step.
    pub(super) fn workers_to_add(&self, active: usize, room: usize, idle_cores: Option<f64>) -> Option<usize> {
        let smallest = smallest_step(active).min(room);
        let wanted = match active < FEW_WORKERS {
            true => smallest,
            // At most as many as there are.
            false => self.0.min(active).min(room).max(smallest),
        };
        let Some(idle_cores) = idle_cores else {
            return Some(wanted);
        };
        let is_enough = idle_cores >= MIN_IDLE_CORES * smallest as f64;
        is_enough.then(|| wanted.min((idle_cores.round() as usize).max(smallest)))
    }

    /// A trial that added `step` workers was kept, so still more may be useful.
    pub(super) fn enlarge(&mut self, step: usize) {
        self.0 = step * STEP_FACTOR;
    }

    /// A trial that added `step` workers failed, so fewer may be useful.
    pub(super) fn reduce(&mut self, step: usize) {
        self.0 = step / STEP_FACTOR;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_workers_change_by_one_with_constant_thresholds() {
        for before in 1..FEW_WORKERS {
            assert_eq!(GrowthStep(100).workers_to_add(before, 60, Some(60.0)), Some(1));
            assert!(min_gain(before, before + 1) == 1.08);
            assert!(min_kept(before + 1, before) == 0.95);
        }
    }

    /// With a constant threshold of 8%, 13 workers that scale perfectly would never become 14.
    #[test]
    fn perfect_scaling_passes_and_no_change_fails_for_each_number() {
        for before in 1..1024 {
            let after = before + smallest_step(before);
            let gain = after as f64 / before as f64;
            let required = min_gain(before, after);
            assert!(
                required > 1.03 && required < 1.0 + (gain - 1.0) * 0.5,
                "{before}: {required}"
            );
            let kept = min_kept(after, before);
            assert!(kept < 0.99 && kept > 1.0 - (1.0 - 1.0 / gain) * 0.5, "{before}: {kept}");
        }
    }

    #[test]
    fn a_step_is_at_most_the_number_of_workers_and_at_least_an_eighth() {
        let step = |wanted, active, room| GrowthStep(wanted).workers_to_add(active, room, None);
        assert_eq!(step(4, 4, 60), Some(4));
        assert_eq!(step(100, 8, 60), Some(8));
        assert_eq!(step(0, 8, 60), Some(1));
        assert_eq!(step(0, 9, 60), Some(2));
        assert_eq!(step(0, 64, 64), Some(8));
        assert_eq!(step(100, 48, 16), Some(16));
        assert_eq!(step(0, 63, 1), Some(1), "no more than there are");
    }

    #[test]
    fn idle_cores_limit_the_step() {
        let step = |active, idle_cores| GrowthStep(100).workers_to_add(active, 64, Some(idle_cores));
        assert_eq!(step(1, 0.4), None);
        assert_eq!(step(1, 0.5), Some(1));
        assert_eq!(step(8, 0.4), None);
        assert_eq!(step(8, 0.5), Some(1));
        assert_eq!(step(8, 2.4), Some(2));
        assert_eq!(step(8, 8.0), Some(8));
        assert_eq!(step(32, 1.9), None, "the smallest step is four workers");
        assert_eq!(step(32, 2.0), Some(4));
        assert_eq!(step(32, 20.0), Some(20));
    }

    #[test]
    fn the_step_grows_with_success_and_shrinks_without() {
        let mut step = GrowthStep::new();
        let next = |step: &GrowthStep| step.workers_to_add(16, 100, None);
        assert_eq!(next(&step), Some(2));
        step.enlarge(2);
        assert_eq!(next(&step), Some(8));
        step.enlarge(8);
        assert_eq!(next(&step), Some(16));
        step.reduce(16);
        assert_eq!(next(&step), Some(4));
        step.reduce(4);
        assert_eq!(next(&step), Some(2));
    }
}
