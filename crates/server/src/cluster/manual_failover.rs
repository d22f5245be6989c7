//! Manual failover: a replica takes over while its primary is up, and nothing is lost.
//!
//! ```text
//!   replica                                      primary
//!   CLUSTER FAILOVER ──── MFSTART ──────────────▶ holds writes back, until nothing is written any more
//!   waits until its data is there ◀─ its offset ─ "paused", in every message
//!   asks for votes, "although the primary is up" (election.rs) ──▶ … ──▶ follows the replica, lets writes go on
//! ```
//!
//! 1. The primary says "paused" only when all that was admitted has run and is in the backlog, and nothing is added to the
//!    backlog any more: the offset that it tells then is the last one. The bus finds out, and says so by [`State::stand_still`].
//! 2. Whoever gives up gives up by itself, by its own clock. The primary holds writes for twice as long as the replica
//!    tries, so the replica is never promoted after they went on.
//! 3. FORCE leaves out the primary, TAKEOVER the votes too.

use super::election::Election;
use super::message::{Header, Kind, Message, switch};
use super::node::NodeId;
use super::state::{Action, State};
use crate::observability::log;

/// How much longer than the failover may take the primary holds writes back.
const HOLD_FACTOR: u64 = 2;

/// A manual failover, on either side.
#[derive(Clone, Debug, Default)]
pub struct Manual {
    /// When it is given up, ms; 0 while there is none.
    pub end_ms: u64,
    /// On the replica: whether it may ask for votes.
    pub can_start: bool,
    /// On the replica: the offset that the primary has stopped at.
    pub primary_offset: Option<u64>,
    /// On the primary: the replica that is about to take over.
    pub replica: Option<NodeId>,
    /// On the primary: whether its offset stays what it is.
    pub still: bool,
}

/// How CLUSTER FAILOVER was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverMode {
    /// With the primary's help.
    Agreed,
    /// Without it.
    Force,
    /// Without votes, too.
    Takeover,
}

impl State {
    /// CLUSTER FAILOVER.
    ///
    /// # Errors
    /// When this node has no primary that could be replaced.
    pub fn begin_failover(&mut self, manner: FailoverMode, client: &str, now_ms: u64) -> Result<(), String> {
        if self.me().is_primary() {
            return Err("You should send CLUSTER FAILOVER to a replica".into());
        }
        let Some(primary) = self.me().primary.and_then(|primary| self.nodes.get(&primary)) else {
            return Err("I'm a replica but my master is unknown to me".into());
        };
        let (failed, link) = (primary.has_failed(), primary.link);
        if manner == FailoverMode::Agreed && (failed || link.is_none()) {
            return Err("Master is down or failed, please use CLUSTER FAILOVER FORCE".into());
        }
        self.reset_manual();
        self.manual.end_ms = now_ms.saturating_add(self.settings.manual_failover_ms);
        if self.election.is_due_after(now_ms, self.election_retry_ms()) {
            log::notice!(
                "Failover election in progress for epoch {}, but received a new manual failover. Resetting the election.",
                self.election.epoch
            );
        }
        self.election = Election::default();
        match manner {
            FailoverMode::Takeover => {
                log::notice!("Taking over the primary (user request from '{client}').");
                self.bump_epoch();
                self.promote(now_ms);
            }
            FailoverMode::Force => {
                log::notice!("Forced failover user request accepted (user request from '{client}').");
                self.manual.can_start = true;
                self.advance_failover(now_ms);
            }
            FailoverMode::Agreed => {
                log::notice!("Manual failover user request accepted (user request from '{client}').");
                if let Some(link) = link {
                    self.send(link, &Message::ManualFailover(self.header()));
                }
            }
        }
        Ok(())
    }

    /// A replica of this node asks it to stand still.
    pub(super) fn prepare_for(&mut self, replica: NodeId, now_ms: u64) {
        let is_mine = self
            .nodes
            .get(&replica)
            .is_some_and(|node| node.primary == Some(self.myself));
        if !is_mine || !self.me().is_primary() {
            return;
        }
        self.reset_manual();
        let time_ms = self.settings.manual_failover_ms;
        self.manual.end_ms = now_ms.saturating_add(time_ms);
        self.manual.replica = Some(replica);
        let until_ms = now_ms.saturating_add(time_ms.saturating_mul(HOLD_FACTOR));
        self.actions.push(Action::HoldWrites(until_ms));
        log::notice!("Manual failover requested by replica {replica}.");
    }

    /// The bus has found that nothing is written any more, and that this node's offset is the last one.
    pub fn stand_still(&mut self, now_ms: u64) {
        let Some(replica) = self.manual.replica.filter(|_| !self.manual.still) else {
            return;
        };
        self.manual.still = true;
        self.tell_offset(replica, now_ms);
    }

    /// Whether the bus is to find out whether this node stands still.
    pub fn is_stopping(&self) -> bool {
        self.manual.replica.is_some() && !self.manual.still
    }

    /// Whether there is something to be looked at very soon: an offset that is about to be reached.
    pub fn is_pressed(&self) -> bool {
        self.is_stopping() || (self.manual.primary_offset.is_some() && !self.manual.can_start)
    }

    fn tell_offset(&mut self, replica: NodeId, now_ms: u64) {
        if let Some(link) = self.nodes.get(&replica).and_then(|node| node.link) {
            self.greet(link, Kind::Ping, now_ms);
        }
    }

    /// The replica hears where its primary has stopped.
    pub(super) fn note_standstill(&mut self, id: NodeId, header: &Header, now_ms: u64) {
        let is_primary = self.me().is_replica() && self.me().primary == Some(id);
        let wanted = self.manual.end_ms != 0 && self.manual.primary_offset.is_none();
        if is_primary && wanted && header.switches & switch::PAUSED != 0 {
            log::notice!(
                "Received replication offset for paused primary manual failover: {}",
                header.offset
            );
            self.manual.primary_offset = Some(header.offset);
            self.look_at_offset(now_ms);
        }
    }

    /// Looks how far a manual failover is.
    pub fn advance_manual(&mut self, now_ms: u64) {
        if self.manual.end_ms == 0 {
            return;
        }
        if self.manual.end_ms < now_ms {
            log::warning!("Manual failover timed out.");
            self.reset_manual();
            return;
        }
        if let Some(replica) = self.manual.replica.filter(|_| self.manual.still) {
            self.tell_offset(replica, now_ms);
        }
        self.look_at_offset(now_ms);
    }

    /// On the replica: whether its data is there.
    pub fn look_at_offset(&mut self, now_ms: u64) {
        if self.me().is_replica() && !self.manual.can_start && self.manual.primary_offset == Some(self.me().offset) {
            log::notice!("All primary replication stream processed, manual failover can start.");
            self.manual.can_start = true;
            self.advance_failover(now_ms);
        }
    }

    /// There is no manual failover any more.
    pub(super) fn reset_manual(&mut self) {
        if std::mem::take(&mut self.manual).replica.is_some() {
            self.actions.push(Action::LetWrites);
        }
    }
}

#[cfg(test)]
mod tests;
