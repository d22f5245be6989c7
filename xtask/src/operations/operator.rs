//! The operator who fails over shards and restarts nodes, one after the other, as planned work is done.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::schedule::{Recurrence, Schedule};
use super::site::{NODES, Site, WRITTEN_PARAMETER};
use crate::failover::cluster::{choose_shard, promote, wait_until_whole};
use crate::failover::group::{Group, NodeRole};
use crate::failover::scenario::RoundProgress;
use crate::stress::client::StressReply;

/// The names of the operator's work in the table.
pub const FAILOVER: &str = "planned failover";
/// A node that is a replica when it is restarted.
pub const REPLICA_RESTART: &str = "restart of a replica";
/// A primary that is restarted without a failover: its clients wait until it is there again.
pub const PRIMARY_RESTART: &str = "restart of a primary";

/// The time between two failovers: three a day.
const FAILOVERS: Recurrence = Recurrence {
    every_minutes: 480.0,
    least: Duration::from_secs(3),
};
/// The time between the restarts of two nodes: all nodes once a day.
const RESTARTS: Recurrence = Recurrence {
    every_minutes: 240.0,
    least: Duration::from_secs(2),
};
/// The time between two looks at the clock.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlannedWork {
    /// A failover of a random shard.
    Failover,
    /// A restart of the next node.
    Restart,
}

/// The state of the operator over all rounds.
pub struct Operator {
    failovers: Schedule,
    restarts: Schedule,
    next_node: usize,
    /// `true` if the last piece of work was a failover.
    has_failed_over: bool,
    /// `true` if the next primary is restarted without a failover.
    restarts_in_place: bool,
    /// How often each node was restarted.
    restarted: [u64; NODES],
}

impl Operator {
    /// Prepares the work of a run of this length, which begins now.
    pub fn new(run: Duration, now: Instant) -> Self {
        Self {
            failovers: Schedule::new(FAILOVERS, run, now),
            restarts: Schedule::new(RESTARTS, run, now),
            next_node: 0,
            has_failed_over: false,
            restarts_in_place: false,
            restarted: [0; NODES],
        }
    }

    /// Returns `true` if each node was restarted.
    pub fn has_restarted_all(&self) -> bool {
        self.restarted.iter().all(|count| *count > 0)
    }

    /// Works until `until`, and lets every writer be served after each piece of work. Returns the number of failovers.
    ///
    /// # Errors
    /// Fails if a node refuses a command, if the cluster does not become whole, or if a writer is not served.
    pub fn work(
        &mut self,
        group: &mut Group,
        site: &Site,
        progress: &RoundProgress<'_>,
        until: Instant,
        rng: &mut Rng,
    ) -> Result<u64, String> {
        let mut failovers = 0;
        progress.wait()?;
        while Instant::now() < until && progress.run.is_running() {
            match self.next_work(Instant::now()) {
                None => {
                    std::thread::sleep(LOOK_INTERVAL);
                    continue;
                }
                Some(PlannedWork::Failover) => {
                    let (_, replica) = choose_shard(group, rng)?;
                    fail_over(group, site, replica)?;
                    failovers += 1;
                }
                Some(PlannedWork::Restart) => failovers += self.restart_next(group, site)?,
            }
            progress.wait()?;
        }
        progress.wait()?;
        Ok(failovers)
    }

    /// Returns the work that is due. In a short run both kinds are always due, and come by turns.
    fn next_work(&mut self, now: Instant) -> Option<PlannedWork> {
        let (failover, restart) = (self.failovers.is_due(now), self.restarts.is_due(now));
        if restart && (self.has_failed_over || !failover) {
            self.restarts.begin_next(now);
            self.has_failed_over = false;
            return Some(PlannedWork::Restart);
        }
        failover.then(|| {
            self.failovers.begin_next(now);
            self.has_failed_over = true;
            PlannedWork::Failover
        })
    }

    /// Restarts the next node. A primary hands over to its replica first, or not, by turns. Returns the number of
    /// failovers.
    fn restart_next(&mut self, group: &mut Group, site: &Site) -> Result<u64, String> {
        let node = self.next_node;
        self.next_node = (node + 1) % NODES;
        let mut failovers = 0;
        let mut what = REPLICA_RESTART;
        if group.role(node)? == NodeRole::Primary {
            if self.restarts_in_place {
                what = PRIMARY_RESTART;
            } else {
                fail_over(group, site, replica_of(group, node)?)?;
                failovers = 1;
            }
            self.restarts_in_place = !self.restarts_in_place;
        }
        restart(group, site, node)?;
        self.restarted[node] += 1;
        site.count_done(what);
        Ok(failovers)
    }
}

/// Lets a replica take the place of its primary, and waits until the cluster is whole.
fn fail_over(group: &Group, site: &Site, replica: usize) -> Result<(), String> {
    promote(group, replica, "CLUSTER FAILOVER")?;
    wait_until_whole(group)?;
    site.count_done(FAILOVER);
    Ok(())
}

/// Returns the replica of a primary.
fn replica_of(group: &Group, primary: usize) -> Result<usize, String> {
    let mut found = None;
    group.wait_until("the primary has a replica", |group| {
        found = group
            .shards()?
            .get(&primary)
            .and_then(|replicas| replicas.first().copied());
        Ok(found.is_some())
    })?;
    found.ok_or_else(|| format!("node {primary} has no replica"))
}

/// Ends a node with SIGTERM and starts it again. Clients may lose their connections to it meanwhile. The node must have
/// the configuration that was written last.
fn restart(group: &mut Group, site: &Site, node: usize) -> Result<(), String> {
    let address = group.address(node);
    let written = site.nodes[node].setting().written;
    group.router.begin_restart(address);
    group.shut_down(node)?;
    group.restart(node)?;
    group.router.end_restart(address);
    let reply = group.call_words(node, &["CONFIG", "GET", WRITTEN_PARAMETER])?;
    let value = reply.items().get(1).map(StressReply::text).unwrap_or_default();
    let sent = site.nodes[node].setting().sent;
    if !value.parse().is_ok_and(|value: u64| (written..=sent).contains(&value)) {
        return Err(format!(
            "node {node} has {WRITTEN_PARAMETER} {value:?} after its restart; {written} was written, and up to {sent} \
             may have been"
        ));
    }
    wait_until_whole(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_work_come_by_turns_if_both_are_due() {
        let now = Instant::now();
        let mut operator = Operator::new(Duration::from_secs(60), now);
        assert_eq!(operator.next_work(now), None);
        // Restarts are due after two seconds, failovers after three, and later both always.
        assert_eq!(
            operator.next_work(now + Duration::from_millis(2500)),
            Some(PlannedWork::Restart)
        );
        let kinds: Vec<Option<PlannedWork>> = (1..5)
            .map(|turn| operator.next_work(now + turn * Duration::from_secs(100)))
            .collect();
        let (failover, restart) = (Some(PlannedWork::Failover), Some(PlannedWork::Restart));
        assert_eq!(kinds, [failover, restart, failover, restart]);
    }
}
