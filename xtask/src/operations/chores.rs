//! What operators do to nodes that keep running: dumps, rewrites, new certificates, and the rotation of logs. Each kind
//! has a thread, so all kinds happen at the same time.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::schedule::{Recurrence, Turns};
use super::site::{FIRST_VALUE, Site, WRITTEN_PARAMETER};
use crate::failover::router::REPLY_BOUND;
use crate::server_process::CONFIGURATION_FILE;
use crate::stress::client::StressReply;
use crate::tls::TlsConnection;

/// The time between two looks at the clock.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The end of a chore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChoreEnd {
    Done,
    /// The node is being restarted, or does something that excludes the chore.
    Postponed,
}

/// A kind of work.
pub struct Chore {
    /// The name in the table.
    pub name: &'static str,
    recurrence: Recurrence,
    /// Does it to one node. The number is different each time.
    work: fn(&Site, node: usize, number: u64) -> Result<ChoreEnd, String>,
}

/// Creates a row of the table of chores.
const fn chore(
    name: &'static str,
    every_minutes: f64,
    least_ms: u64,
    work: fn(&Site, usize, u64) -> Result<ChoreEnd, String>,
) -> Chore {
    Chore {
        name,
        recurrence: Recurrence {
            every_minutes,
            least: Duration::from_millis(least_ms),
        },
        work,
    }
}

/// All chores, with the minutes between two of them in the whole cluster.
pub const CHORES: &[Chore] = &[
    chore("BGSAVE", 1.0, 200, save),
    chore("BGREWRITEAOF", 60.0, 2000, rewrite_log),
    chore("log rotation", 120.0, 1000, rotate),
    chore("certificate reload", 240.0, 1000, reload_certificate),
    chore("CONFIG REWRITE", 240.0, 1000, rewrite_configuration),
];

/// The state of a chore over all rounds.
pub struct ChoreTurns {
    chore: &'static Chore,
    turns: Turns,
    number: u64,
}

impl ChoreTurns {
    /// Prepares a chore for a run of this length, which begins now.
    pub fn new(chore: &'static Chore, run: Duration, now: Instant) -> Self {
        Self {
            chore,
            turns: Turns::new(chore.recurrence, run, now),
            number: 0,
        }
    }

    /// Does the chore whenever it is due, to one node after the other, until `stop` is set.
    ///
    /// # Errors
    /// Fails if a node does not do as it is told.
    pub fn repeat(&mut self, site: &Site, stop: &AtomicBool) -> Result<(), String> {
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if !self.turns.is_due(now) {
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
            self.turns.begin_next(now);
            self.number += 1;
            let node = self.number as usize % site.nodes.len();
            let name = self.chore.name;
            match (self.chore.work)(site, node, self.number).map_err(|why| format!("{name}, node {node}: {why}"))? {
                ChoreEnd::Done => site.count_done(name),
                ChoreEnd::Postponed => site.count_postponed(name),
            }
        }
        Ok(())
    }
}

/// Says if a reply means that something has begun, or that it cannot begin now.
fn judge(reply: Option<StressReply>, begun: &str, busy: &[&str]) -> Result<ChoreEnd, String> {
    match reply {
        None => Ok(ChoreEnd::Postponed),
        Some(StressReply::Simple(text)) if text.starts_with(begun) => Ok(ChoreEnd::Done),
        Some(StressReply::Error(text)) if busy.iter().any(|part| text.contains(part)) => Ok(ChoreEnd::Postponed),
        Some(other) => Err(format!("answered by {other:?}")),
    }
}

/// Says if a reply is OK.
fn judge_ok(reply: Option<StressReply>) -> Result<ChoreEnd, String> {
    judge(reply, "OK", &[])
}

fn save(site: &Site, node: usize, _: u64) -> Result<ChoreEnd, String> {
    let busy = ["Background save already in progress", "Another child process is active"];
    judge(site.call(node, &["BGSAVE"])?, "Background saving", &busy)
}

fn rewrite_log(site: &Site, node: usize, _: u64) -> Result<ChoreEnd, String> {
    let busy = ["Background append only file rewriting already in progress"];
    let begun = "Background append only file rewriting";
    judge(site.call(node, &["BGREWRITEAOF"])?, begun, &busy)
}

fn rotate(site: &Site, node: usize, _: u64) -> Result<ChoreEnd, String> {
    let node = &site.nodes[node];
    Ok(match node.log().rotate(&node.directory)? {
        true => ChoreEnd::Done,
        false => ChoreEnd::Postponed,
    })
}

/// Gives a node a new certificate and a new key, and looks if new connections get it.
fn reload_certificate(site: &Site, node: usize, number: u64) -> Result<ChoreEnd, String> {
    let issued = site.authority.issue(&format!("node-{node}-{number}"))?;
    let (certificate, key) = (
        issued.certificate_file.display().to_string(),
        issued.key_file.display().to_string(),
    );
    let begin = Instant::now();
    let set = ["CONFIG", "SET", "tls-cert-file", &certificate, "tls-key-file", &key];
    if judge_ok(site.call(node, &set)?)? == ChoreEnd::Postponed {
        return Ok(ChoreEnd::Postponed);
    }
    let address = site.nodes[node].address;
    let shown = TlsConnection::connect(address, REPLY_BOUND, &site.client).map(|new| new.server_certificate());
    match shown {
        Ok(Some(shown)) if shown == issued.certificate => Ok(ChoreEnd::Done),
        // A node that starts again has the certificate of its configuration file.
        _ if site.router.may_have_ended(address, begin) => Ok(ChoreEnd::Postponed),
        Ok(_) => Err("a new connection got another certificate than the new one".to_owned()),
        Err(error) => Err(format!("a new connection failed: {error}")),
    }
}

/// Changes a parameter, lets the node rewrite its configuration file, and looks for the parameter in it.
fn rewrite_configuration(site: &Site, node: usize, number: u64) -> Result<ChoreEnd, String> {
    let begin = Instant::now();
    let value = FIRST_VALUE + number;
    site.nodes[node].setting().sent = value;
    let text = value.to_string();
    let set = ["CONFIG", "SET", WRITTEN_PARAMETER, &text];
    for command in [&set[..], &["CONFIG", "REWRITE"][..]] {
        if judge_ok(site.call(node, command)?)? == ChoreEnd::Postponed {
            return Ok(ChoreEnd::Postponed);
        }
    }
    let path = site.nodes[node].directory.join(CONFIGURATION_FILE);
    let file = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let line = format!("{WRITTEN_PARAMETER} {value}");
    if file.lines().any(|found| found.trim() == line) {
        site.nodes[node].setting().written = value;
        return Ok(ChoreEnd::Done);
    }
    // A node that was restarted between the two commands has written the value of its file.
    match site.router.may_have_ended(site.nodes[node].address, begin) {
        true => Ok(ChoreEnd::Postponed),
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
        assert_eq!(judge(None), Ok(ChoreEnd::Postponed));
        assert_eq!(judge(simple("Background saving started")), Ok(ChoreEnd::Done));
        assert_eq!(judge(simple("Background saving scheduled")), Ok(ChoreEnd::Done));
        assert_eq!(
            judge(error("ERR Background save already in progress")),
            Ok(ChoreEnd::Postponed)
        );
        for wrong in [simple("OK"), error("ERR unknown"), Some(StressReply::Integer(1))] {
            assert!(judge(wrong.clone()).is_err(), "{wrong:?}");
        }
        assert_eq!(judge_ok(simple("OK")), Ok(ChoreEnd::Done));
        assert!(judge_ok(error("ERR CONFIG SET failed")).is_err());
    }

    #[test]
    fn every_chore_has_its_own_name() {
        let mut names: Vec<&str> = CHORES.iter().map(|chore| chore.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHORES.len());
    }
}
