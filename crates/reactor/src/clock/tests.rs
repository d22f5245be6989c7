//! Tests of the CPU times against work and sleep.

use std::time::Duration;

use super::*;

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
