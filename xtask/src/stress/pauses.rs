//! The scenario of CLIENT PAUSE: what a pause holds back takes no effect before its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;

use super::client::StressReply;
use super::run::StressRun;

/// The number of threads; the first one pauses the clients.
pub const THREADS: usize = 8;

/// The longest latency of CLIENT PAUSE for which pauses make up, in milliseconds.
const MAX_LATENCY_MS: u64 = 4000;

/// The earliest end of the pause that has certainly begun, in nanoseconds after the start of the run. The pause holds
/// all commands if the number is odd.
static END: AtomicU64 = AtomicU64::new(0);

fn now(run: &StressRun) -> u64 {
    run.begin().elapsed().as_nanos() as u64
}

/// Pauses the clients, or sends requests that a pause holds back.
pub fn pauses(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    if thread == 0 {
        return pause_clients(run, &mut rng);
    }
    let mut client = run.connect_lasting()?;
    while run.is_running() {
        let end = END.load(Ordering::SeqCst);
        let is_read = rng.u8(..4) == 0;
        let begin = now(run);
        let command = match is_read {
            true => format!("GET paused:{thread}"),
            false => [
                format!("INCR paused:{thread}"),
                format!("EVAL return{{redis.call('incr',KEYS[1])}} 1 paused:{thread}"),
                format!("PUBLISH paused:{thread} x"),
            ][rng.usize(..3)]
            .clone(),
        };
        client.call(&command)?;
        run.count_commands(1);
        let is_held = begin < end && (!is_read || end % 2 == 1);
        if is_held && now(run) < end {
            return Err(format!(
                "{command} was executed {} µs before the end of a pause",
                (end - now(run)) / 1000
            ));
        }
        if is_held {
            run.succeed();
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..3000)));
    }
    Ok(())
}

fn pause_clients(run: &StressRun, rng: &mut Rng) -> Result<(), String> {
    let mut client = run.connect_lasting()?;
    let mut latency_ms = 0;
    while run.is_running() {
        let is_for_all = rng.bool();
        // It takes a while until the pause begins, the more so the slower the machine is.
        let pause_ms = rng.u64(100..400) + 2 * latency_ms;
        let sent = now(run);
        let mode = if is_for_all { "ALL" } else { "WRITE" };
        let reply = client.call(&format!("CLIENT PAUSE {pause_ms} {mode}"))?;
        if !matches!(reply, StressReply::Simple(_)) {
            return Err(format!("CLIENT PAUSE was answered by {reply:?}"));
        }
        latency_ms = ((now(run) - sent) / 1_000_000).min(MAX_LATENCY_MS);
        let end = sent + pause_ms * 1_000_000;
        END.store(end & !1 | u64::from(is_for_all), Ordering::SeqCst);
        if !is_for_all {
            check_nothing_changes(run, end)?;
        }
        let left = end.saturating_sub(now(run));
        std::thread::sleep(Duration::from_nanos(left) + Duration::from_millis(rng.u64(300..900)));
    }
    Ok(())
}

/// Checks that the digest of the data stays the same until a time.
fn check_nothing_changes(run: &StressRun, end: u64) -> Result<(), String> {
    let mut client = run.connect_lasting()?;
    let mut first = None;
    while now(run) < end {
        let digest = client.call("DEBUG DIGEST")?.text();
        if now(run) >= end {
            return Ok(());
        }
        match &first {
            None => first = Some(digest),
            Some(first) if *first != digest => return Err("the data changed while writes were paused".to_owned()),
            Some(_) => run.succeed(),
        }
    }
    Ok(())
}

/// Forgets the pauses of this run.
pub fn forget(_: &StressRun) -> Result<(), String> {
    END.store(0, Ordering::SeqCst);
    Ok(())
}
