//! Elections: a replica whose primary has failed requests votes, primaries grant them, and the replica with a majority
//! takes over.
//!
//! ```text
//!                    a delay, unless it is the best replica                        majority
//!   primary is FAIL ──────────────── scheduled ─────────────────▶ epoch + 1, requested ────▶ promoted
//!        ▲                                                              │ no majority for two node timeouts
//!        └──────────────────── two more node timeouts ◀─────────────────┘
//! ```
//!
//! The delay's unit is a thirtieth of the node timeout, at most 500 ms. A replica waits for one to two units, for two
//! units per replica with precedence, and for one unit per failed primary with precedence. If all replicas of the
//! primary consider it failed, then each knows the final offsets of the others, and the best one does not wait. Its
//! request may arrive before the message that the primary has failed, so voters grant it nevertheless.
//!
//! 1. A primary with slots has one vote per epoch. The epoch of its last vote is in the cluster configuration file, on
//!    disk, before the vote is sent (`cluster_node/bus`). So each epoch has at most one majority and one winner.
//! 2. The winner's slots get the epoch of its election as their configuration epoch. A node ignores a claim of slots
//!    with an older epoch.
//! 3. A primary grants no vote to a replica whose configuration epoch of the slots is older than the one it knows.
//! 4. Each vote is counted once, even if it is sent twice.
//! 5. A node that imports slots takes them over only while it knows of no election that a replica of their owner, or
//!    of the node itself, may win: writes that this replica accepts before it hears of the takeover would be lost. An
//!    election of which the node has not heard yet is no hindrance. A primary of Weft gives no slots away while it
//!    hands over to a replica, one of Valkey does.
//! 6. A replica without the data of its primary, because a full synchronisation has begun and not ended, is no
//!    candidate unless an operator forces it (FORCE, TAKEOVER).

use weft_base::SlotIndex;

use super::message::{BusMessage, Header, switch};
use super::node::{Node, NodeFlags, NodeId};
use super::state::ClusterState;

/// The minimum duration of an election, in milliseconds.
const MIN_ELECTION_TIMEOUT_MS: u64 = 2000;
/// The maximum unit of the delays before an election, in milliseconds.
const MAX_DELAY_UNIT_MS: u64 = 500;
/// The fraction of the node timeout that is the unit of the delays.
const DELAY_UNITS_PER_TIMEOUT: u64 = 30;
/// The delay of a replica without an offset, in milliseconds: it may be new and not know its siblings yet.
const NEW_REPLICA_DELAY_MS: u64 = 500;
/// The interval after which a reason is logged again, in milliseconds.
const REASON_LOG_INTERVAL_MS: u64 = 10_000;
/// The interval after which old data is logged again as the reason, in milliseconds.
const DATA_AGE_LOG_INTERVAL_MS: u64 = 100_000;

/// The reason for which there is no failover yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailoverObstacle {
    NoData,
    DataAge,
    Delay,
    Expired,
    Votes,
}

impl FailoverObstacle {
    fn as_str(self) -> &'static str {
        match self {
            FailoverObstacle::NoData => "The data of the primary has not been received completely.",
            FailoverObstacle::DataAge => {
                "Disconnected from primary for longer than allowed. Please check the 'cluster-replica-validity-factor' \
                 configuration option."
            }
            FailoverObstacle::Delay => "Waiting the delay before I can start a new failover.",
            FailoverObstacle::Expired => "Failover attempt expired.",
            FailoverObstacle::Votes => "Waiting for votes, but majority still not reached.",
        }
    }
}

/// The reason for which a replica gets no vote.
struct VoteRefusal {
    reason: String,
    /// The owner of a slot whose configuration epoch the replica does not know yet.
    newer_owner: Option<NodeId>,
}

impl VoteRefusal {
    fn new(reason: impl Into<String>) -> VoteRefusal {
        VoteRefusal {
            reason: reason.into(),
            newer_owner: None,
        }
    }
}

/// The election of a replica.
#[derive(Clone, Debug, Default)]
pub struct Election {
    /// The time at which votes are requested, in milliseconds since the Unix epoch; 0 if no election is scheduled.
    starts_at_ms: u64,
    /// Set after votes have been requested.
    votes_requested: bool,
    /// The nodes that have voted for this node.
    voters: Vec<NodeId>,
    /// The number of replicas of the same primary with precedence.
    rank: usize,
    /// The number of failed primaries whose replicas have precedence.
    primary_rank: usize,
    /// The epoch of the election.
    pub epoch: u64,
    last_logged: Option<(FailoverObstacle, u64)>,
}

/// An election of a replica of another node, in which votes were requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct WitnessedElection {
    /// Its epoch.
    epoch: u64,
    /// The time at which it has certainly ended, in milliseconds since the Unix epoch.
    ends_ms: u64,
}

impl Election {
    /// Returns `true` if an election is scheduled, or began at most `retry_ms` ago.
    pub(super) fn is_recent(&self, now_ms: u64, retry_ms: u64) -> bool {
        self.starts_at_ms.saturating_add(retry_ms) >= now_ms && self.starts_at_ms != 0
    }
}

impl ClusterState {
    /// Returns the maximum duration of an election, in milliseconds.
    fn election_timeout_ms(&self) -> u64 {
        self.settings
            .node_timeout_ms
            .saturating_mul(2)
            .max(MIN_ELECTION_TIMEOUT_MS)
    }

    /// Returns the time after which a new election starts, in milliseconds.
    pub(super) fn election_retry_ms(&self) -> u64 {
        self.election_timeout_ms().saturating_mul(2)
    }

    // ---- the candidate ----------------------------------------------------------------------------------------------
    /// Advances the failover of this replica: schedules an election, requests votes, or takes over.
    pub fn advance_failover(&mut self, now_ms: u64) {
        let manual = self.may_win_manual_failover(now_ms);
        let primary = self.me().primary.filter(|_| self.me().is_replica());
        let Some(primary) = primary.and_then(|primary| self.nodes.get(&primary)) else {
            return;
        };
        let wanted = primary.has_failed() && !self.settings.replica_no_failover && !self.is_failover_off;
        if !manual && !wanted {
            self.election.last_logged = None;
            return;
        }
        // A full synchronization may begin even after this replica has reached the offset of a coordinated failover.
        let is_forced = manual && !self.is_coordinated();
        if self.lacks_data() && !is_forced {
            return self.log_failover_delay(FailoverObstacle::NoData, now_ms);
        }
        if !manual && self.data_is_too_old() {
            return self.log_failover_delay(FailoverObstacle::DataAge, now_ms);
        }
        if !self.election.is_recent(now_ms, self.election_retry_ms()) {
            self.schedule_election(now_ms);
            if now_ms < self.election.starts_at_ms {
                return;
            }
        }
        let starts_now = self.election.starts_at_ms == now_ms;
        if !self.election.votes_requested && self.manual.end_ms == 0 && !starts_now {
            self.adjust_election(now_ms);
        }
        if now_ms < self.election.starts_at_ms {
            return self.log_failover_delay(FailoverObstacle::Delay, now_ms);
        }
        if now_ms - self.election.starts_at_ms > self.election_timeout_ms() {
            return self.log_failover_delay(FailoverObstacle::Expired, now_ms);
        }
        if !self.election.votes_requested {
            return self.request_votes();
        }
        if self.election.voters.len() < self.quorum() {
            return self.log_failover_delay(FailoverObstacle::Votes, now_ms);
        }
        log::info!("Failover election won: I'm the new primary.");
        let epoch = self.election.epoch;
        if self.me().config_epoch < epoch {
            self.me_mut().config_epoch = epoch;
            log::info!("configEpoch set to {epoch} after successful failover");
        }
        self.promote(now_ms);
    }

    /// Returns `true` if the data of this replica is none that its primary ever had.
    pub(super) fn lacks_data(&self) -> bool {
        self.data.awaits_full_sync || self.needs_full_sync
    }

    fn data_is_too_old(&self) -> bool {
        let settings = &self.settings;
        let (age_ms, timeout_ms) = (self.data.age_ms, settings.node_timeout_ms);
        // Detecting the failure took that long.
        let age_ms = if age_ms > timeout_ms {
            age_ms - timeout_ms
        } else {
            age_ms
        };
        let limit_ms = timeout_ms.saturating_mul(settings.validity_factor);
        settings.validity_factor != 0 && age_ms > limit_ms.saturating_add(settings.replica_ping_interval_ms)
    }

    /// Returns the unit of the delays before an election, in milliseconds.
    fn delay_unit_ms(&self) -> u64 {
        let unit_ms = self.settings.node_timeout_ms / DELAY_UNITS_PER_TIMEOUT;
        unit_ms.clamp(1, MAX_DELAY_UNIT_MS)
    }

    fn schedule_election(&mut self, now_ms: u64) {
        self.election = Election {
            starts_at_ms: now_ms,
            ..Election::default()
        };
        if self.manual.end_ms == 0 {
            self.delay_election(now_ms);
        }
        let election = &self.election;
        log::info!(
            "Start of election delayed for {} milliseconds (rank #{}, primary rank #{}, offset {}).",
            election.starts_at_ms - now_ms,
            election.rank,
            election.primary_rank,
            self.me().offset
        );
        // The other replicas learn this node's offset, and that it considers the primary failed.
        self.send_pong_to_siblings(now_ms);
    }

    /// Delays the election, which is about to be scheduled, by the ranks of this replica and its primary.
    fn delay_election(&mut self, now_ms: u64) {
        let (rank, primary_rank) = (self.rank(), self.primary_rank(now_ms));
        (self.election.rank, self.election.primary_rank) = (rank, primary_rank);
        if self.is_best_replica() {
            log::info!("This is the best ranked replica and can initiate the election immediately.");
            return;
        }
        let unit_ms = self.delay_unit_ms();
        let is_new = self.me().offset == 0;
        let units = 1 + 2 * rank as u64 + primary_rank as u64;
        self.election.starts_at_ms +=
            units * unit_ms + fastrand::u64(..unit_ms) + if is_new { NEW_REPLICA_DELAY_MS } else { 0 };
    }

    /// Returns `true` if no other replica has precedence, and none will: all consider the primary failed, so their
    /// offsets are final.
    fn is_best_replica(&self) -> bool {
        let election = &self.election;
        let agree = || {
            self.siblings()
                .all(|node| node.flags.intersects(NodeFlags::PRIMARY_FAILED))
        };
        election.rank == 0 && election.primary_rank == 0 && self.me().offset != 0 && agree()
    }

    /// Adjusts the delay to what other nodes have announced since: greater offsets, other failures and recoveries, or
    /// agreement that the primary has failed.
    fn adjust_election(&mut self, now_ms: u64) {
        let unit_ms = self.delay_unit_ms() as i64;
        let (rank, primary_rank) = (self.rank(), self.primary_rank(now_ms));
        let election = &mut self.election;
        if rank != election.rank {
            let added = (rank as i64 - election.rank as i64) * 2 * unit_ms;
            election.starts_at_ms = election.starts_at_ms.saturating_add_signed(added);
            election.rank = rank;
            log::info!("Replica rank updated to #{rank}, added {added} milliseconds of delay.");
        }
        if primary_rank != election.primary_rank {
            let added = (primary_rank as i64 - election.primary_rank as i64) * unit_ms;
            election.starts_at_ms = election.starts_at_ms.saturating_add_signed(added);
            election.primary_rank = primary_rank;
            log::info!("Failed primary rank updated to #{primary_rank}, added {added} milliseconds of delay.");
        }
        if self.is_best_replica() {
            self.election.starts_at_ms = now_ms;
            log::info!("Myself become the best ranked replica, initiate the election immediately.");
        }
    }

    fn request_votes(&mut self) {
        self.current_epoch += 1;
        self.election.epoch = self.current_epoch;
        self.election.votes_requested = true;
        log::info!(
            "Starting a failover election for epoch {}, node config epoch is {}",
            self.current_epoch,
            self.epoch_of(self.me())
        );
        let mut header = self.header();
        // The best replica starts at once, so a voter may receive its request before it hears of the failure.
        if self.manual.end_ms != 0 || self.is_best_replica() {
            header.switches |= switch::FORCED;
        }
        (self.todo.save, self.todo.sync, self.health_may_have_changed) = (true, true, true);
        self.broadcast(&BusMessage::VoteRequest(header));
    }

    /// Counts a received vote.
    pub(super) fn count_vote(&mut self, id: NodeId, header: &Header, now_ms: u64) {
        let votes = self.nodes.get(&id).is_some_and(Node::has_vote);
        let election = &mut self.election;
        if election.votes_requested && votes && header.current_epoch >= election.epoch && !election.voters.contains(&id)
        {
            election.voters.push(id);
            self.advance_failover(now_ms);
        }
    }

    /// Resets the election if another node claims slots with an epoch that the election can no longer exceed.
    pub(super) fn reset_election_if_outdated(&mut self, id: NodeId, epoch: u64) {
        if self.election.votes_requested && self.me().is_replica() && epoch >= self.election.epoch && id != self.myself
        {
            log::info!(
                "Failover election in progress for epoch {}, but received a claim from node {id} with an equal or higher \
                 epoch {epoch}. Resetting the election since we cannot win an election in the past.",
                self.election.epoch
            );
            self.election = Election::default();
        }
    }

    /// Makes this node the primary in place of its own primary, with all its slots.
    pub(super) fn promote(&mut self, now_ms: u64) {
        let Some(old) = self.me().primary.filter(|_| self.me().is_replica()) else {
            return;
        };
        let myself = self.myself;
        log::info!("Setting myself to primary after failover; my old primary is {old}");
        self.make_primary(myself);
        let slots: Vec<SlotIndex> = match self.nodes.get(&old) {
            Some(node) => node.slots.iter().collect(),
            None => Vec::new(),
        };
        for slot in slots {
            self.delete_slot(slot);
            self.add_slot(myself, slot);
        }
        self.needs_full_sync = false;
        self.election = Election::default();
        self.update_health(now_ms);
        (self.todo.save, self.todo.sync, self.todo.publish) = (true, true, true);
        self.end_manual_failover();
        self.broadcast_pong(now_ms);
    }

    // ---- ranks ------------------------------------------------------------------------------------------------------
    /// Returns the other replicas of this node's primary.
    fn siblings(&self) -> impl Iterator<Item = &Node> {
        let primary = self.me().primary;
        let others = self.nodes.values().filter(|node| node.id != self.myself);
        others.filter(move |node| primary.is_some() && node.is_replica() && node.primary == primary)
    }

    /// Returns the number of replicas of the same primary with precedence: those with a greater offset, then those with
    /// a smaller ID.
    fn rank(&self) -> usize {
        let me = self.me();
        self.siblings()
            .filter(|node| !node.flags.intersects(NodeFlags::NO_FAILOVER))
            .filter(|node| (node.offset, std::cmp::Reverse(node.id)) > (me.offset, std::cmp::Reverse(me.id)))
            .count()
    }

    /// Returns the number of failed primaries whose replicas have precedence: those of shards with smaller IDs, unless
    /// they failed so long ago that their replicas are no candidates any more.
    fn primary_rank(&self, now_ms: u64) -> usize {
        let (primary, shard) = (self.me().primary, self.me().shard);
        let settings = &self.settings;
        let limit_ms = settings.node_timeout_ms.saturating_mul(settings.validity_factor);
        let is_recent =
            |node: &&Node| settings.validity_factor == 0 || now_ms.saturating_sub(node.failed_ms) <= limit_ms;
        self.nodes
            .values()
            .filter(|node| node.has_failed() && node.has_vote() && Some(node.id) != primary && node.shard < shard)
            .filter(|node| self.replicas(node.id).next().is_some())
            .filter(is_recent)
            .count()
    }

    fn send_pong_to_siblings(&mut self, now_ms: u64) {
        let links: Vec<_> = self.siblings().filter_map(|node| node.link).collect();
        for link in links {
            self.send_ping(link, super::message::MessageType::Pong, now_ms);
        }
    }

    fn log_failover_delay(&mut self, hindrance: FailoverObstacle, now_ms: u64) {
        let again_ms = match hindrance {
            FailoverObstacle::DataAge => DATA_AGE_LOG_INTERVAL_MS,
            _ => REASON_LOG_INTERVAL_MS,
        };
        let told = self.election.last_logged;
        if told.is_some_and(|(last, at_ms)| last == hindrance && now_ms.saturating_sub(at_ms) < again_ms) {
            return;
        }
        self.election.last_logged = Some((hindrance, now_ms));
        log::info!("Currently unable to failover: {}", hindrance.as_str());
        if matches!(hindrance, FailoverObstacle::Votes | FailoverObstacle::Expired) {
            log::info!(
                "Needed quorum: {}. Number of votes received so far: {}",
                self.quorum(),
                self.election.voters.len()
            );
        }
    }

    // ---- the voter --------------------------------------------------------------------------------------------------
    /// Votes for a replica that wants to take over from its primary, if it is entitled to the vote.
    pub(super) fn consider_vote(&mut self, id: NodeId, request: &Header, now_ms: u64) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        if let Some(primary) = node.primary {
            let ends_ms = now_ms.saturating_add(self.election_timeout_ms());
            self.elections.retain(|_, election| election.ends_ms > now_ms);
            let epoch = request.current_epoch;
            self.elections.insert(primary, WitnessedElection { epoch, ends_ms });
        }
        if !self.me().has_vote() {
            return;
        }
        let (named, link) = (node.log_name(), node.link);
        if !self.is_safe_to_vote {
            log::warn!("Failover auth denied to {named}: it is not safe to vote in this moment)");
            return;
        }
        if let Some(VoteRefusal { reason, newer_owner }) = self.vote_refusal(node, request) {
            log::warn!("Failover auth denied to {named}: {reason}");
            if let (Some(owner), Some(link)) = (newer_owner, link) {
                // Without its primary, the replica learns the owner's epoch from no other message.
                let owner_name = self.nodes.get(&owner).map(Node::log_name).unwrap_or_default();
                log::debug!("Node {named} has old slots configuration, sending an UPDATE message about {owner_name}");
                self.send_update(link, owner);
            }
            return;
        }
        self.last_vote_epoch = self.current_epoch;
        (self.todo.save, self.todo.sync) = (true, true);
        if let Some(link) = link {
            self.send(link, &BusMessage::Vote(self.header()));
        }
        log::info!("Failover auth granted to {named} for epoch {}", self.current_epoch);
    }

    /// Returns `true` if a replica of the primary has requested votes so recently that it may still win. This node's
    /// own vote does not matter: others may have voted for it.
    pub fn may_lose_election(&self, primary: NodeId, now_ms: u64) -> bool {
        let Some(election) = self.elections.get(&primary) else {
            return false;
        };
        // A primary with a newer configuration epoch has its slots after that election, or by one of its own.
        let config_epoch = self.nodes.get(&primary).map_or(0, |node| node.config_epoch);
        config_epoch < election.epoch && now_ms < election.ends_ms
    }

    /// Returns the reason for which a replica gets no vote, or `None` if it gets one.
    fn vote_refusal(&self, node: &Node, request: &Header) -> Option<VoteRefusal> {
        if request.current_epoch < self.current_epoch {
            let (asked, current) = (request.current_epoch, self.current_epoch);
            return Some(VoteRefusal::new(format!("reqEpoch ({asked}) < curEpoch({current})")));
        }
        if self.last_vote_epoch >= self.current_epoch {
            let epoch = self.current_epoch;
            return Some(VoteRefusal::new(format!("already voted for epoch {epoch}")));
        }
        if node.is_primary() {
            return Some(VoteRefusal::new("it is a primary node"));
        }
        let Some(primary) = node.primary.and_then(|primary| self.nodes.get(&primary)) else {
            return Some(VoteRefusal::new("I don't know its primary"));
        };
        if !primary.has_failed() && request.switches & switch::FORCED == 0 {
            return Some(VoteRefusal::new("its primary is up"));
        }
        request.slots.iter().find_map(|slot| {
            let owner = self.owner(slot).filter(|_| !self.unclaimed.contains(slot))?;
            let epoch = self.nodes.get(&owner)?.config_epoch;
            let asked = request.config_epoch;
            (epoch > asked).then(|| VoteRefusal {
                newer_owner: Some(owner),
                ..VoteRefusal::new(format!("slot {slot} epoch ({epoch}) > reqConfigEpoch ({asked})"))
            })
        })
    }
}

#[cfg(test)]
mod tests;
