//! The progress of a run on standard error: two bars and a message on a terminal, otherwise lines of text.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

#[cfg(test)]
mod tests;

/// The bar of the whole run: time so far, share, count, and estimated rest.
const TOTAL_TEMPLATE: &str = "[{elapsed_precise}] {bar:40} {pos}/{len} measurements, about {eta} left";

/// The bar of one comparison, with its current activity.
const PART_TEMPLATE: &str = "           {bar:40} {pos}/{len} {wide_msg}";

/// The time between two redraws while nothing else changes. A redraw costs CPU time, so it is long.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of a run.
pub struct Progress {
    /// `None` if it is shown as lines of text.
    bars: Option<ProgressBars>,
}

struct ProgressBars {
    group: MultiProgress,
    /// The measurements of the whole run.
    total: ProgressBar,
    /// The measurements of the current comparison.
    part: ProgressBar,
}

impl Progress {
    /// Shows lines of text only.
    pub fn lines() -> Progress {
        Progress { bars: None }
    }

    /// Shows bars if standard error is a terminal that can move its cursor, otherwise lines of text.
    pub fn bars() -> Progress {
        let group = MultiProgress::new();
        let bars = (!group.is_hidden()).then(|| ProgressBars::new(group));
        Progress { bars }
    }

    /// Starts the bar of the whole run, which consists of `measurements`.
    pub fn begin(&self, measurements: u64) {
        if let Some(bars) = &self.bars {
            bars.total.set_length(measurements);
            bars.total.enable_steady_tick(REDRAW_INTERVAL);
        }
    }

    /// Starts the bar of a comparison, which consists of `measurements`.
    pub fn begin_part(&self, title: &str, measurements: u64) {
        if let Some(bars) = &self.bars {
            bars.part.set_length(measurements);
            bars.part.set_position(0);
        }
        self.log(format_args!("{title}: {measurements} measurements"));
    }

    /// Shows the current activity beside the bars.
    pub fn show_activity(&self, activity: String) {
        if let Some(bars) = &self.bars {
            bars.part.set_message(activity);
        }
    }

    /// Counts a finished measurement.
    pub fn count_measurement(&self) {
        if let Some(bars) = &self.bars {
            bars.part.inc(1);
            bars.total.inc(1);
        }
    }

    /// Writes a line of text. A write error is ignored, as by [`log_line`].
    pub fn log(&self, text: fmt::Arguments<'_>) {
        match &self.bars {
            Some(bars) => drop(bars.group.println(text.to_string())),
            None => log_line(text),
        }
    }

    /// Removes the bars.
    pub fn finish(&self) {
        if let Some(bars) = &self.bars {
            bars.part.finish_and_clear();
            bars.total.finish_and_clear();
        }
    }
}

/// Writes a line of text to standard error. A write error, such as that of a terminal that was closed, is ignored: it
/// must not end the run, which would leave servers running and results unwritten.
pub fn log_line(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a result to standard output. A write error is ignored, as by [`log_line`].
pub fn print_result(text: &str) {
    let mut output = io::stdout();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

impl ProgressBars {
    fn new(group: MultiProgress) -> ProgressBars {
        let bar = |template: &str| {
            let style = ProgressStyle::with_template(template).expect("the templates are constants");
            let bar = group.add(ProgressBar::new(0));
            bar.set_style(style.progress_chars("=> "));
            bar
        };
        let (total, part) = (bar(TOTAL_TEMPLATE), bar(PART_TEMPLATE));
        ProgressBars { group, total, part }
    }
}
