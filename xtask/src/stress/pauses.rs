//! The scenario of CLIENT PAUSE: what a pause holds back takes no effect before its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;

use super::client::StressReply;
use super::run::StressRun;

/// The number of threads; the first one pauses the clients.
pub const THREADS: usize = 8;

/// The longest latency of CLIENT PAUSE for which pauses make up, in milliseconds.
const MAX_LATENCY_MS: u64 = 2000;

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
        // A pause holds the requests that are under way when it begins. These threads have none, and send one then.
        if thread % 2 == 1 && now(run) >= end {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
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

/// Returns the command that reads the digests of keys of other scenarios, which write them in all ways. None of these
/// keys expires: expired keys are not in a digest.
fn digest_command() -> String {
    let kinds: [(&str, usize); 10] = [
        ("counter", 50),
        ("account", 40),
        ("register", 6),
        ("watched", 3),
        ("script", 6),
        ("moved", 24),
        ("queue", 12),
        ("place", 600),
        ("united", 12),
        ("stream", 4),
    ];
    let names = kinds
        .iter()
        .flat_map(|(kind, count)| (0..*count).map(move |number| format!("{kind}:{number}")));
    let groups = (0..20).flat_map(|group| (0..8).map(move |key| format!("group:{group}:{key}")));
    let unions = (0..3).flat_map(|group| (0..2).map(move |set| format!("union:{group}:{set}")));
    let twins = (0..6).map(|key| format!("script:{key}:twin"));
    let all: Vec<String> = names.chain(groups).chain(unions).chain(twins).collect();
    format!("DEBUG DIGEST-VALUE {}", all.join(" "))
}

/// Checks that the data stays the same until a time.
fn check_nothing_changes(run: &StressRun, end: u64) -> Result<(), String> {
    let mut client = run.connect_lasting()?;
    let command = digest_command();
    let mut first: Option<StressReply> = None;
    while now(run) < end {
        let digests = client.call(&command)?;
        if now(run) >= end {
            return Ok(());
        }
        let Some(first) = &first else {
            first = Some(digests);
            continue;
        };
        let pairs = first.items().iter().zip(digests.items()).enumerate();
        let changed: Vec<&str> = pairs
            .filter(|(_, (before, after))| before != after)
            .filter_map(|(index, _)| command.split(' ').nth(index + 2))
            .collect();
        if digests.items().is_empty() || !changed.is_empty() {
            return Err(format!("{changed:?} changed while writes were paused"));
        }
        run.succeed();
    }
    Ok(())
}

/// Forgets the pauses of this run.
pub fn forget(_: &StressRun) -> Result<(), String> {
    END.store(0, Ordering::SeqCst);
    Ok(())
}
