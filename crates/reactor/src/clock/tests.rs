//! Tests of the clocks against std's clock and against CPU work.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::*;

#[test]
fn clocks_count_in_the_units_of_their_names() {
    let (monotonic, before) = (monotonic_us(), SystemTime::now());
    std::thread::sleep(Duration::from_millis(20));
    let passed = monotonic_us() - monotonic;
    assert!(
        (20_000..10_000_000).contains(&passed),
        "20 ms of sleep took {passed} us"
    );
    let wall = before.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!((wall..wall + 10_000).contains(&unix_ms()));
    assert!((wall..wall + 10_000).contains(&(unix_us() / 1000)));
}

#[test]
fn cpu_time_grows_with_work_and_not_with_sleep() {
    let begun = thread_cpu_us();
    std::thread::sleep(Duration::from_millis(50));
    let slept = thread_cpu_us() - begun;
    assert!(slept < 25_000, "sleeping used {slept} us");
    while thread_cpu_us() - begun < 30_000 {
        std::hint::black_box([0u8; 4096]);
    }
    let thread = CpuUsage::of_this_thread();
    let process = ProcessCpuTimes::now().own;
    assert!(thread.user_us + thread.system_us >= 20_000, "{thread:?}");
    assert!(process.user_us + process.system_us >= thread.user_us + thread.system_us - 20_000);
}
