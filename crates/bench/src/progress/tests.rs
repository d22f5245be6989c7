//! Tests of the bars, which are drawn nowhere.

use indicatif::ProgressDrawTarget;

use super::*;

#[test]
fn both_bars_count_measurements_and_each_comparison_starts_anew() {
    let group = MultiProgress::with_draw_target(ProgressDrawTarget::hidden());
    let progress = Progress {
        bars: Some(ProgressBars::new(group)),
    };
    progress.begin(5);
    progress.begin_part("Strings", 2);
    progress.show_activity("Weft: get".to_string());
    progress.count_measurement();
    progress.count_measurement();
    progress.begin_part("Scripts", 3);
    progress.count_measurement();
    let bars = progress.bars.as_ref().expect("bars");
    assert_eq!((bars.total.position(), bars.total.length()), (3, Some(5)));
    assert_eq!((bars.part.position(), bars.part.length()), (1, Some(3)));
    assert_eq!(bars.part.message(), "Weft: get");
    progress.finish();
    assert!(bars.total.is_finished() && bars.part.is_finished());
}

#[test]
fn lines_have_no_bars() {
    let progress = Progress::lines();
    progress.begin(5);
    progress.begin_part("Strings", 2);
    progress.count_measurement();
    progress.finish();
    assert!(progress.bars.is_none());
}
