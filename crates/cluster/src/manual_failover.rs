//! Manual failover: a replica takes over while its primary is up, without losing writes.
//!
//! ```text
//!   replica                                      primary
//!   CLUSTER FAILOVER ──── MFSTART, PING ────────▶ pauses writes until all earlier ones have run
//!   waits until it has that offset ◀─ its offset ─ "paused", in every message; in its PONG
//!   requests votes, "although the primary is up" (election.rs) ──▶ … ──▶ follows the replica, resumes writes
//! ```
//!
//! 1. The primary sends "paused" only when all admitted writes have run and are in the backlog, and nothing more is
//!    added to the backlog. The offset that it sends then is the last one. The bus detects this and calls
//!    [`ClusterState::record_writes_stopped`]. The primary also waits until no other node may take slots over from it
//!    (`slot_takeover.rs`): the replica would be elected with the same slots.
//! 2. Each side gives up on its own, by its own clock. The primary pauses writes for twice as long as the replica
//!    tries, so the replica is never promoted after writes have resumed.
//! 3. A message with "paused" may arrive late, when the pause that it mentions is over and the replica has requested
//!    another one. So the replica counts only what the primary has sent since the request: the PONG to a PING behind it
//!    on the same link, and what follows that PONG.
//! 4. A repeated request does not resume writes in between.
//! 5. A replica without its primary's data does not take over.
//! 6. FORCE omits the coordination with the primary, TAKEOVER omits the votes, too. Both promote a replica without
//!    data.

use super::election::Election;
use super::message::{BusMessage, Header, MessageType, switch};
use super::node::{LinkId, NodeId};
use super::refusal::ClusterRefusal;
use super::state::{BusAction, ClusterState};

/// The factor by which the primary pauses writes longer than the failover may take.
const PAUSE_FACTOR: u64 = 2;

/// The request of a replica that its primary stops.
#[derive(Clone, Copy, Debug)]
pub struct StopRequest {
    /// The primary.
    primary: NodeId,
    /// The link over which it was asked.
    link: LinkId,
    /// The number of answers over that link up to the first one that the primary sends after it has read the request.
    answers: u64,
}

/// The state of a manual failover, on either side.
#[derive(Clone, Debug, Default)]
pub struct ManualFailover {
    /// The time at which it times out, in milliseconds since the Unix epoch; 0 if there is none.
    pub end_ms: u64,
    /// On the replica: set once it may request votes.
    pub can_start: bool,
    /// On the replica: the request that its primary stops.
    pub request: Option<StopRequest>,
    /// On the replica: the offset at which the primary has stopped.
    pub primary_offset: Option<u64>,
    /// On the primary: the replica that takes over.
    pub replica: Option<NodeId>,
    /// On the primary: set once its offset no longer changes.
    pub has_stopped: bool,
}

/// The mode of CLUSTER FAILOVER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverMode {
    /// Coordinated with the primary.
    Coordinated,
    /// Without the primary (FORCE).
    Force,
    /// Without the primary, because it shuts down and has chosen this replica.
    ForcedByPrimary,
    /// Without the primary and without votes (TAKEOVER).
    Takeover,
}

impl ClusterState {
    /// Executes CLUSTER FAILOVER.
    ///
    /// # Errors
    /// When this node has no primary that can be replaced.
    pub fn begin_failover(&mut self, manner: FailoverMode, client: &str, now_ms: u64) -> Result<(), ClusterRefusal> {
        if self.me().is_primary() {
            return Err(ClusterRefusal::FailoverOfPrimary);
        }
        let Some(primary) = self.me().primary.and_then(|primary| self.nodes.get(&primary)) else {
            return Err(ClusterRefusal::PrimaryUnknown);
        };
        let (failed, link, primary) = (primary.has_failed(), primary.link, primary.id);
        if manner == FailoverMode::Coordinated && (failed || link.is_none()) {
            return Err(ClusterRefusal::PrimaryDown);
        }
        self.end_manual_failover();
        self.manual.end_ms = now_ms.saturating_add(self.settings.manual_failover_ms);
        if self.election.is_recent(now_ms, self.election_retry_ms()) {
            log::info!(
                "Failover election in progress for epoch {}, but received a new manual failover. Resetting the election.",
                self.election.epoch
            );
        }
        self.election = Election::default();
        match manner {
            FailoverMode::Takeover => {
                log::info!("Taking over the primary (user request from '{client}').");
                self.bump_epoch_unannounced();
                self.promote(now_ms);
            }
            FailoverMode::Force | FailoverMode::ForcedByPrimary => {
                let origin = if manner == FailoverMode::Force {
                    "user"
                } else {
                    "primary"
                };
                log::info!("Forced failover {origin} request accepted ({origin} request from '{client}').");
                self.manual.can_start = true;
                self.advance_failover(now_ms);
            }
            FailoverMode::Coordinated => {
                log::info!("Manual failover user request accepted (user request from '{client}').");
                if let Some(link) = link {
                    self.request_stop(primary, link, now_ms);
                }
            }
        }
        Ok(())
    }

    /// Pauses writes because a replica of this node requested a manual failover.
    pub(super) fn pause_for_replica(&mut self, replica: NodeId, now_ms: u64) {
        let is_mine = self
            .nodes
            .get(&replica)
            .is_some_and(|node| node.primary == Some(self.myself));
        if !is_mine || !self.me().is_primary() {
            return;
        }
        let time_ms = self.settings.manual_failover_ms.saturating_mul(PAUSE_FACTOR);
        // A repeated request extends the pause. Writes do not resume in between: a replica that has received the offset
        // already would lose them.
        let earlier_end_ms = self.manual.replica.map_or(0, |_| self.manual.end_ms);
        self.manual = ManualFailover {
            end_ms: now_ms.saturating_add(time_ms).max(earlier_end_ms),
            replica: Some(replica),
            ..ManualFailover::default()
        };
        self.actions.push(BusAction::PauseWrites(self.manual.end_ms));
        log::info!("Manual failover requested by replica {replica}.");
    }

    /// Records that no write is under way any more and that this node's offset is final. Does nothing as long as
    /// another node may take slots over from this one. Called by the bus until [`Self::is_stopping`] returns `false`.
    pub fn record_writes_stopped(&mut self, now_ms: u64) {
        self.end_overdue_hand_over(now_ms);
        if !self.granted.is_empty() {
            return;
        }
        let Some(replica) = self.manual.replica.filter(|_| !self.manual.has_stopped) else {
            return;
        };
        self.manual.has_stopped = true;
        self.send_offset(replica, now_ms);
    }

    /// On the primary: ends the manual failover if the pause is over. Workers resume writes by their own clocks, so
    /// nothing may be sent with "paused" after that. Called before a message is made.
    pub(super) fn end_overdue_hand_over(&mut self, now_ms: u64) {
        if self.manual.replica.is_some() && now_ms >= self.manual.end_ms {
            log::warn!("Manual failover timed out.");
            self.end_manual_failover();
        }
    }

    /// Returns the time after which no message may be sent that contains "paused", in milliseconds since the Unix
    /// epoch; `None` if messages that are made now do not contain it.
    pub(super) fn pause_end_ms(&self) -> Option<u64> {
        self.manual.has_stopped.then_some(self.manual.end_ms)
    }

    /// Takes the actions for the bus, and the time after which the messages among them may not be sent, in milliseconds
    /// since the Unix epoch: one of them contains "paused". The pause may have ended since, or begun anew.
    pub fn take_actions(&mut self) -> (Vec<BusAction>, Option<u64>) {
        (std::mem::take(&mut self.actions), self.queued_pause_end_ms.take())
    }

    /// Returns `true` while a replica of this node takes over. Nothing may be deleted or taken over then that the
    /// replica would not know of, and no other node may take slots over.
    pub fn is_handing_over(&self) -> bool {
        self.manual.replica.is_some() || self.is_handing_over_on_shutdown
    }

    /// Returns `true` if this replica's manual failover may go on to an election, or may win it. Later the primary may
    /// have resumed writes.
    pub(super) fn may_win_manual_failover(&self, now_ms: u64) -> bool {
        self.manual.end_ms != 0 && self.manual.can_start && now_ms <= self.manual.end_ms
    }

    /// Returns `true` if this replica's manual failover is coordinated with its primary, which has sent its offset.
    pub(super) fn is_coordinated(&self) -> bool {
        self.manual.primary_offset.is_some()
    }

    /// Returns `true` if the bus has to check if writes have stopped.
    pub fn is_stopping(&self) -> bool {
        self.manual.replica.is_some() && !self.manual.has_stopped
    }

    /// Returns `true` if a check is due very soon: writes are about to stop, or an offset is about to be reached.
    pub fn is_urgent(&self) -> bool {
        self.is_stopping() || (self.manual.primary_offset.is_some() && !self.manual.can_start)
    }

    fn send_offset(&mut self, replica: NodeId, now_ms: u64) {
        if let Some(link) = self.nodes.get(&replica).and_then(|node| node.link) {
            self.send_ping(link, MessageType::Ping, now_ms);
        }
    }

    /// On the replica: requests that the primary stops.
    fn request_stop(&mut self, primary: NodeId, link: LinkId, now_ms: u64) {
        self.send(link, &BusMessage::ManualFailover(self.header()));
        self.ping_again(primary, link, now_ms);
        // Messages over a link are read and answered in order.
        let answers = self.links.get(&link).map(|figures| figures.pings_sent);
        self.manual.request = answers.map(|answers| StopRequest { primary, link, answers });
    }

    /// On the replica: returns the request that its primary stops, as long as the offset is not known.
    fn open_request(&self) -> Option<StopRequest> {
        // A forced failover, which has started, does not depend on an offset that an earlier request still brings.
        let is_open = self.manual.end_ms != 0 && self.manual.primary_offset.is_none() && !self.manual.can_start;
        let request = self.manual.request.filter(|_| is_open)?;
        (self.me().is_replica() && self.me().primary == Some(request.primary)).then_some(request)
    }

    /// On the replica: asks the primary for its offset again, until it has stopped. A request that may have been lost
    /// with its link is repeated.
    fn ask_for_offset(&mut self, now_ms: u64) {
        let Some(request) = self.open_request() else {
            return;
        };
        match self.nodes.get(&request.primary).and_then(|primary| primary.link) {
            Some(link) if link == request.link => self.ping_again(request.primary, link, now_ms),
            Some(link) => self.request_stop(request.primary, link, now_ms),
            None => {}
        }
    }

    /// Records the offset at which this replica's primary has stopped, if the message is one that the primary has sent
    /// since it was asked. Otherwise it is asked for such a message.
    pub(super) fn record_primary_offset(&mut self, id: NodeId, link: LinkId, header: &Header, now_ms: u64) {
        let request = self.open_request().filter(|request| request.primary == id);
        let Some(request) = request.filter(|_| header.switches & switch::PAUSED != 0) else {
            return;
        };
        let counts = self
            .links
            .get(&request.link)
            .map(|figures| (figures.pongs_received, figures.pings_sent));
        match counts {
            Some((answers, _)) if link == request.link && answers >= request.answers => {
                log::info!(
                    "Received replication offset for paused primary manual failover: {}",
                    header.offset
                );
                self.manual.primary_offset = Some(header.offset);
                self.check_primary_offset(now_ms);
            }
            // An answer that is on its way may be such a message.
            Some((answers, pings)) if answers < pings => {}
            _ => self.ask_for_offset(now_ms),
        }
    }

    /// Advances a manual failover, or ends it after its timeout.
    pub fn advance_manual_failover(&mut self, now_ms: u64) {
        if self.manual.end_ms == 0 {
            return;
        }
        if self.manual.end_ms < now_ms {
            log::warn!("Manual failover timed out.");
            self.end_manual_failover();
            return;
        }
        if let Some(replica) = self.manual.replica.filter(|_| self.manual.has_stopped) {
            self.send_offset(replica, now_ms);
        }
        self.ask_for_offset(now_ms);
        self.check_primary_offset(now_ms);
    }

    /// On the replica: starts the failover once its data has reached the primary's offset. The primary may have added
    /// what is no write of a client, such as expired keys. Data that is not the primary's does not count: without any,
    /// this node reports the offset 0, and so may its primary.
    pub fn check_primary_offset(&mut self, now_ms: u64) {
        let wanted = self.manual.primary_offset.filter(|_| !self.manual.can_start);
        let has_reached = !self.lacks_data() && wanted.is_some_and(|wanted| self.me().offset >= wanted);
        if has_reached && self.me().is_replica() && now_ms <= self.manual.end_ms {
            log::info!("All primary replication stream processed, manual failover can start.");
            self.manual.can_start = true;
            self.advance_failover(now_ms);
        }
    }

    /// Ends the manual failover.
    pub(super) fn end_manual_failover(&mut self) {
        if std::mem::take(&mut self.manual).replica.is_some() {
            self.actions.push(BusAction::ResumeWrites);
        }
    }
}

#[cfg(test)]
mod tests;
