//! A worker's connections that move to another worker, and those that arrive from one.
//!
//! The self-tuning orders moves when the number of active workers changes. For tests, `connection-move-interval` makes
//! each worker hand random connections to random other workers all the time.

use std::ops::Range;
use weft_base::ThreadIndex;
use weft_os::atomic::Ordering;

use super::Worker;
use super::waits::ClientWait;
use crate::dispatch::batch::BatchConnections as _;
use crate::dispatch::home_events::HomeEvents;
use crate::net::client::ClientFlags;
use crate::net::connection::{Connection, ConnectionState};
use crate::observability::metrics::Counter;
use crate::state::{BlockedCommand, HOME_WORKER, Message};
use weft_modules::module::home_commands;

/// Clients whose messages would be out of order if the connection moved.
const NEVER_MOVED: ClientFlags = ClientFlags::PUBSUB.union(ClientFlags::MONITOR);
/// One of this number of connections leaves its worker when connections move at random. In a simulation, this happens
/// in each turn.
const RANDOM_MOVE_ODDS: usize = if cfg!(feature = "simulated") { 6 } else { 4 };

impl Worker {
    pub(crate) fn adopt_connection(&mut self, mut connection: Box<Connection>, wait: Option<Box<BlockedCommand>>) {
        let Some(registered) = connection.in_transit.take() else {
            return self.server().end_move();
        };
        connection.client.worker = self.id;
        // The previous worker may have withheld its output; this worker decides anew.
        connection.is_output_withheld = false;
        // The user may have been deleted while the connection was on its way.
        let is_welcome = connection.client.login.refresh(&self.thread.server.acl);
        let id = connection.client.id;
        let is_over_soft_limit = connection.over_soft_limit_since_ms > 0;
        self.install_connection(connection, registered);
        if let Some(token) = self.clients.by_id.get(&id).copied() {
            self.ready_tokens.push(token);
            self.has_clients_over_soft_limit |= is_over_soft_limit;
            if let Some(blocked) = wait {
                self.begin_wait(token, ClientWait::Keys(blocked));
            }
            if !is_welcome {
                self.close(token);
            }
        } else if let Some(blocked) = wait {
            self.abandon_waiter(blocked.waiter);
        }
        self.server().end_move();
    }

    /// Moves a connection whose next request runs code of a module to the home worker, once it has its replies.
    pub(crate) fn move_home(&mut self, token: usize) {
        let may_leave = self.clients.connection(token).is_some_and(|connection| {
            connection.state = ConnectionState::Ready;
            connection.output.is_empty() && !connection.is_in_batch
        });
        if may_leave && self.server().clients.moving.try_begin_move() {
            if let Some(connection) = self.clients.connection(token) {
                connection.is_moving_home = false;
            }
            self.hand_over(token, HOME_WORKER);
        } else if let Some(connection) = self.clients.connection(token) {
            connection.state = ConnectionState::Deferred;
            self.delayed_tokens.push(token);
        }
    }

    /// Gives connections that are between requests, or wait for keys, to the workers `to`.
    pub(crate) fn move_connections(&mut self, to: Range<usize>, kept_connections: usize) {
        if !self.plans.plans.is_empty() {
            // A connection with planned requests cannot leave. The order is read again when the batch has run.
            return self.server().worker(self.id).send(Message::MoveConnections {
                target_workers: to,
                kept_connections,
            });
        }
        // The order may have waited, see `MovingConnections`.
        let active = self.server().lifecycle.active_workers.load(Ordering::Relaxed);
        if to.end > active || (kept_connections == 0 && self.id.get() < active) {
            return;
        }
        let mut surplus = self.clients.len().saturating_sub(kept_connections);
        let first = first_target(self.id, surplus, to.len());
        let mut takers = to.clone().cycle().skip(first);
        for token in 0..self.clients.slots.len() {
            if surplus == 0 {
                return;
            }
            if !self.may_move(token) {
                continue;
            }
            if !self.server().clients.moving.begin_move(self.id, &to, kept_connections) {
                return;
            }
            let taker = takers.next().unwrap_or(to.start);
            if self.hand_over(token, ThreadIndex::new(taker)) {
                surplus -= 1;
            }
        }
    }

    /// Returns the time of the next random moves in milliseconds since the Unix epoch, or `None` if there are none.
    pub(crate) fn next_random_move_ms(&self) -> Option<u64> {
        let moves = self.thread.tunables.connection_move_interval_ms > 0 && self.clients.len() > 0;
        moves.then_some(self.next_random_move_ms)
    }

    /// Gives random connections to random other workers, if that is due.
    pub(crate) fn move_random_connections(&mut self) {
        let interval_ms = self.thread.tunables.connection_move_interval_ms;
        let is_due = cfg!(feature = "simulated") || self.thread.now_ms >= self.next_random_move_ms;
        if interval_ms == 0 || !is_due {
            return;
        }
        self.next_random_move_ms = self.thread.now_ms + interval_ms;
        let active = self.server().lifecycle.active_workers.load(Ordering::Relaxed);
        let others = active - usize::from(self.id.get() < active);
        if others == 0 {
            return;
        }
        for token in 0..self.clients.slots.len() {
            if fastrand::usize(..RANDOM_MOVE_ODDS) != 0 || !self.may_move(token) {
                continue;
            }
            if !self.server().clients.moving.try_begin_move() {
                return;
            }
            let other = fastrand::usize(..others);
            let taker = ThreadIndex::new(other + usize::from(other >= self.id.get()));
            self.hand_over(token, taker);
        }
    }

    /// Returns `true` if a connection is between requests or waits for keys, and may move.
    fn may_move(&mut self, token: usize) -> bool {
        // The connections of clients that cause events of modules have moved here.
        if self.thread.home_events != HomeEvents::default() && self.server().is_home(self.id) {
            return false;
        }
        let waits = &self.waits;
        let stay_at_home = home_commands::are_required();
        self.clients.connection(token).is_some_and(|connection| {
            let idle = connection.state == ConnectionState::Ready || waits.is_waiting_for_keys(connection.client.id);
            let stays = connection.client.flags.intersects(NEVER_MOVED) || connection.has_used_modules;
            idle && !stays && !stay_at_home && !connection.is_in_batch && connection.output.is_empty()
        })
    }

    /// Mails a connection, whose move has begun, to the worker `taker`. Returns `false` if it is gone.
    fn hand_over(&mut self, token: usize, taker: ThreadIndex) -> bool {
        let Some(registered) = self.reactor.deregister(token) else {
            self.server().end_move();
            return false;
        };
        let Some(mut connection) = self.clients.remove(token) else {
            self.server().end_move();
            return false;
        };
        self.ready_tokens.retain(|other| *other != token);
        self.delayed_tokens.retain(|other| *other != token);
        let usage = std::mem::take(&mut connection.usage);
        self.uncount_client(usage);
        connection.in_transit = Some(registered);
        connection.is_receive_paused = false;
        let metrics = &self.thread.server.stats.metrics;
        metrics.add(self.thread.thread_index, Counter::ConnectionsMoved, 1);
        self.send_connection(taker, connection);
        true
    }
}

/// Returns the index of the target that gets the first of the `surplus` connections of a worker. It is the one after
/// the last target of the worker before, if that gives as many. So the targets get equal numbers.
fn first_target(worker: ThreadIndex, surplus: usize, targets: usize) -> usize {
    worker.get() * surplus % targets.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the smallest and the largest number of connections that a target gets from these workers.
    fn received(workers: Range<usize>, surplus: usize, targets: usize) -> (usize, usize) {
        let mut received = vec![0; targets];
        for worker in workers {
            let first = first_target(ThreadIndex::new(worker), surplus, targets);
            for index in 0..surplus {
                received[(first + index) % targets] += 1;
            }
        }
        let bounds = received.iter().min().zip(received.iter().max());
        bounds.map(|(min, max)| (*min, *max)).expect("there are targets")
    }

    #[test]
    fn targets_get_equal_numbers_of_connections() {
        assert_eq!(received(56..64, 10, 56), (1, 2), "workers become inactive");
        assert_eq!(received(12..16, 8, 12), (2, 3));
        assert_eq!(received(1..2, 7, 1), (7, 7));
        assert_eq!(received(0..32, 5, 32), (5, 5), "workers become active");
        assert_eq!(received(0..8, 1, 8), (1, 1), "one connection each");
        assert_eq!(received(0..2, 2, 4), (1, 1));
    }
}
