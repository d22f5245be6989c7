//! Log lines of runs that end, are restarted, or do not end.

use std::cell::Cell;

use super::*;

thread_local! {
    /// The number of lines that this thread has written.
    static WRITTEN: Cell<usize> = const { Cell::new(0) };
}

/// Counts the lines of each thread, from level INFO on.
struct CountingLog;

impl log::Log for CountingLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            WRITTEN.set(WRITTEN.get() + 1);
        }
    }

    fn flush(&self) {}
}

fn install_log() {
    // Another test may have done so.
    let _ = log::set_logger(&CountingLog);
    log::set_max_level(log::LevelFilter::Trace);
}

#[test]
fn lines_are_written_at_the_end_unless_the_run_is_restarted() {
    install_log();
    let lines = LogLines::default();
    lines.push(3, b"a".to_vec());
    lines.end_run(true);
    assert_eq!(WRITTEN.get(), 0);
    lines.push(2, b"a".to_vec());
    lines.push(3, b"b".to_vec());
    assert_eq!(WRITTEN.get(), 0, "the run may be restarted");
    lines.end_run(false);
    assert_eq!(WRITTEN.get(), 2);
}

#[test]
fn a_run_that_does_not_end_holds_few_lines_back() {
    install_log();
    let lines = LogLines::default();
    for _ in 0..100_000 {
        lines.push(3, b"a line".to_vec());
        lines.push(0, b"a line of a level that is not written".to_vec());
    }
    assert!(lines.lines.borrow().len() < 4096);
    lines.push(3, vec![b'x'; MAX_HELD_BYTES]);
    assert!(
        lines.lines.borrow().is_empty(),
        "one long line is as much as many short ones"
    );
    assert_eq!(WRITTEN.get(), 100_001);
}
