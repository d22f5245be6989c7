//! What operators do to nodes that keep running: dumps, rewrites, new certificates, and the rotation of logs. Each kind
//! has a thread, so all kinds happen at the same time.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::saves;
use super::schedule::{Recurrence, Schedule};
use super::site::{FIRST_VALUE, Site, WRITTEN_PARAMETER};
use crate::failover::router::REPLY_BOUND;
use crate::server_process::CONFIGURATION_FILE;
use crate::stress::client::StressReply;
use crate::tls::TlsConnection;

/// The time between two looks at the clock.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskOutcome {
    Done,
    /// The node is being restarted, or does something that excludes the task.
    Postponed,
}

/// A kind of maintenance.
pub struct MaintenanceTask {
    /// The name in the table.
    pub name: &'static str,
    recurrence: Recurrence,
    /// Performs it on one node. The number is different each time.
    work: fn(&Site, node: usize, number: u64) -> Result<TaskOutcome, String>,
}

/// Creates a row of the table of tasks.
const fn task(
    name: &'static str,
    every_minutes: f64,
    least_ms: u64,
    work: fn(&Site, usize, u64) -> Result<TaskOutcome, String>,
) -> MaintenanceTask {
    MaintenanceTask {
        name,
        recurrence: Recurrence {
            every_minutes,
            least: Duration::from_millis(least_ms),
        },
        work,
    }
}

/// All tasks, with the minutes between two runs of each in the whole cluster.
pub const MAINTENANCE_TASKS: &[MaintenanceTask] = &[
    task("BGSAVE", 1.0, 200, save),
    task("BGREWRITEAOF", 60.0, 2000, rewrite_log),
    task("log rotation", 120.0, 1000, rotate),
    task("certificate reload", 240.0, 1000, reload_certificate),
    task("CONFIG REWRITE", 240.0, 1000, rewrite_configuration),
];

/// The state of a task over all rounds: when it is due, and how often it has run.
pub struct ScheduledTask {
    task: &'static MaintenanceTask,
    schedule: Schedule,
    number: u64,
}

impl ScheduledTask {
    /// Prepares a task for a run of this length, which begins now.
    pub fn new(task: &'static MaintenanceTask, run: Duration, now: Instant) -> Self {
        Self {
            task,
            schedule: Schedule::new(task.recurrence, run, now),
            number: 0,
        }
    }

    /// Performs the task whenever it is due, on one node after the other, until `stop` is set.
    ///
    /// # Errors
    /// Fails if a node refuses a command.
    pub fn repeat(&mut self, site: &Site, stop: &AtomicBool) -> Result<(), String> {
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if !self.schedule.is_due(now) {
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
            self.schedule.begin_next(now);
            self.number += 1;
            let node = self.number as usize % site.nodes.len();
            let name = self.task.name;
            match (self.task.work)(site, node, self.number).map_err(|why| format!("{name}, node {node}: {why}"))? {
                TaskOutcome::Done => site.count_done(name),
                TaskOutcome::Postponed => site.count_postponed(name),
            }
        }
        Ok(())
    }
}

/// Says if a reply means that something has begun, or that it cannot begin now.
fn judge(reply: Option<StressReply>, begun: &str, busy: &[&str]) -> Result<TaskOutcome, String> {
    match reply {
        None => Ok(TaskOutcome::Postponed),
        Some(StressReply::Simple(text)) if text.starts_with(begun) => Ok(TaskOutcome::Done),
        Some(StressReply::Error(text)) if busy.iter().any(|part| text.contains(part)) => Ok(TaskOutcome::Postponed),
        Some(other) => Err(format!("answered by {other:?}")),
    }
}

/// Says if a reply is OK.
fn judge_ok(reply: Option<StressReply>) -> Result<TaskOutcome, String> {
    judge(reply, "OK", &[])
}

/// Checks, if a node has put something off, that the dump or the rewrite for which it did so is not too old.
fn check_postponed(site: &Site, node: usize, outcome: TaskOutcome) -> Result<TaskOutcome, String> {
    if outcome == TaskOutcome::Postponed
        && let Some(info) = site.call(node, &["INFO", "persistence"])?
    {
        saves::check_age(&info.text())?;
    }
    Ok(outcome)
}

fn save(site: &Site, node: usize, _: u64) -> Result<TaskOutcome, String> {
    let busy = ["Background save already in progress", "Another child process is active"];
    let outcome = judge(site.call(node, &["BGSAVE"])?, "Background saving", &busy)?;
    check_postponed(site, node, outcome)
}

fn rewrite_log(site: &Site, node: usize, _: u64) -> Result<TaskOutcome, String> {
    let busy = ["Background append only file rewriting already in progress"];
    let begun = "Background append only file rewriting";
    let outcome = judge(site.call(node, &["BGREWRITEAOF"])?, begun, &busy)?;
    check_postponed(site, node, outcome)
}

fn rotate(site: &Site, node: usize, _: u64) -> Result<TaskOutcome, String> {
    let node = &site.nodes[node];
    Ok(match node.log().rotate(&node.directory)? {
        true => TaskOutcome::Done,
        false => TaskOutcome::Postponed,
    })
}

/// Gives a node a new certificate and a new key, and looks if new connections get it.
fn reload_certificate(site: &Site, node: usize, number: u64) -> Result<TaskOutcome, String> {
    let issued = site.authority.issue(&format!("node-{node}-{number}"))?;
    let (certificate, key) = (
        issued.certificate_file.display().to_string(),
        issued.key_file.display().to_string(),
    );
    let begin = Instant::now();
    let set = ["CONFIG", "SET", "tls-cert-file", &certificate, "tls-key-file", &key];
    if judge_ok(site.call(node, &set)?)? == TaskOutcome::Postponed {
        return Ok(TaskOutcome::Postponed);
    }
    let address = site.nodes[node].address;
    let shown = TlsConnection::connect(address, REPLY_BOUND, &site.client).map(|new| new.server_certificate());
    match shown {
        Ok(Some(shown)) if shown == issued.certificate => Ok(TaskOutcome::Done),
        // A node that starts again has the certificate of its configuration file.
        _ if site.router.may_have_ended(address, begin) => Ok(TaskOutcome::Postponed),
        Ok(_) => Err("a new connection got another certificate than the new one".to_owned()),
        Err(error) => Err(format!("a new connection failed: {error}")),
    }
}

/// Changes a parameter, lets the node rewrite its configuration file, and looks for the parameter in it.
fn rewrite_configuration(site: &Site, node: usize, number: u64) -> Result<TaskOutcome, String> {
    let begin = Instant::now();
    let value = FIRST_VALUE + number;
    site.nodes[node].setting().sent = value;
    let text = value.to_string();
    let set = ["CONFIG", "SET", WRITTEN_PARAMETER, &text];
    for command in [&set[..], &["CONFIG", "REWRITE"][..]] {
        if judge_ok(site.call(node, command)?)? == TaskOutcome::Postponed {
            return Ok(TaskOutcome::Postponed);
        }
    }
    let path = site.nodes[node].directory.join(CONFIGURATION_FILE);
    let file = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let line = format!("{WRITTEN_PARAMETER} {value}");
    if file.lines().any(|found| found.trim() == line) {
        site.nodes[node].setting().written = value;
        return Ok(TaskOutcome::Done);
    }
    // A node that was restarted between the two commands has written the value of its file.
    match site.router.may_have_ended(site.nodes[node].address, begin) {
        true => Ok(TaskOutcome::Postponed),
        false => Err(format!("{} has no line {line:?}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_say_if_work_has_begun() {
        let simple = |text: &str| Some(StressReply::Simple(text.to_owned()));
        let error = |text: &str| Some(StressReply::Error(text.to_owned()));
        let judge = |reply| judge(reply, "Background saving", &["already in progress"]);
        assert_eq!(judge(None), Ok(TaskOutcome::Postponed));
        assert_eq!(judge(simple("Background saving started")), Ok(TaskOutcome::Done));
        assert_eq!(judge(simple("Background saving scheduled")), Ok(TaskOutcome::Done));
        assert_eq!(
            judge(error("ERR Background save already in progress")),
            Ok(TaskOutcome::Postponed)
        );
        for wrong in [simple("OK"), error("ERR unknown"), Some(StressReply::Integer(1))] {
            assert!(judge(wrong.clone()).is_err(), "{wrong:?}");
        }
        assert_eq!(judge_ok(simple("OK")), Ok(TaskOutcome::Done));
        assert!(judge_ok(error("ERR CONFIG SET failed")).is_err());
    }

    #[test]
    fn every_task_has_its_own_name() {
        let mut names: Vec<&str> = MAINTENANCE_TASKS.iter().map(|task| task.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), MAINTENANCE_TASKS.len());
    }
}
