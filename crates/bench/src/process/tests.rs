//! Tests of the readings from the operating system.

use super::*;
use std::time::{Duration, Instant};

fn burn_cpu(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn work_is_measured_as_cpu_time() {
    let before = CpuSample::read(std::process::id()).expect("this process exists");
    // Other tests may use the core, so the loop burns CPU time until the reading changes, with a limit.
    let begin = Instant::now();
    let mut used_ns = 0;
    while used_ns < 5_000_000 && begin.elapsed() < Duration::from_secs(20) {
        burn_cpu(Duration::from_millis(10));
        used_ns = CpuSample::read(std::process::id())
            .expect("this process exists")
            .nanoseconds_since(&before);
    }
    assert!(used_ns >= 5_000_000, "only {used_ns} ns were counted");
}

#[test]
fn threads_that_ended_do_not_hide_their_work() {
    let sample = |threads: &[(u32, u64)], total_ns| CpuSample {
        thread_ns: threads.iter().copied().collect(),
        total_ns,
    };
    let before = sample(&[(1, 100), (2, 200)], 300);
    assert_eq!(sample(&[(1, 150), (2, 210)], 300).nanoseconds_since(&before), 60);
    assert_eq!(
        sample(&[(1, 150), (2, 200), (3, 7)], 300).nanoseconds_since(&before),
        57
    );
    assert_eq!(sample(&[(1, 150)], 1300).nanoseconds_since(&before), 1000);
    assert_eq!(sample(&[], 500).nanoseconds_since(&before), 200);
}

#[test]
fn times_are_parsed_after_any_program_name() {
    let rest = "S 1 2 3 0 -1 4194304 1 2 3 4 30 12 0 0 20 0 1 0 5 6 7";
    assert_eq!(ticks_in_stat(&format!("7 (cat) {rest}")), Some(42));
    assert_eq!(ticks_in_stat(&format!("7 (a ) b (c) {rest}")), Some(42));
    assert_eq!(ticks_in_stat("7 (cat) S 1"), None);
}

#[test]
fn memory_that_is_touched_is_resident() {
    let before = rss_bytes(std::process::id()).expect("this process exists");
    let block = std::hint::black_box(vec![1u8; 64 << 20]);
    let after = rss_bytes(std::process::id()).expect("this process exists");
    assert!(after > before + (48 << 20), "{before} bytes before, {after} after");
    drop(block);
}

#[test]
fn the_machine_has_at_least_the_allowed_cores() {
    let allowed = allowed_cores().expect("an affinity").len();
    assert!(processor_count() >= allowed, "{} of {allowed}", processor_count());
}

#[test]
fn pinning_narrows_the_allowed_cores() {
    let allowed = allowed_cores().expect("an affinity");
    let last = *allowed.last().expect("at least one core");
    std::thread::spawn(move || {
        pin_this_thread(&[last]).expect("an allowed core");
        assert_eq!(allowed_cores().expect("an affinity"), [last]);
    })
    .join()
    .expect("the pinned thread");
    assert_eq!(allowed_cores().expect("an affinity"), allowed);
    assert!(pin_this_thread(&[1_000_000]).is_err());
}
