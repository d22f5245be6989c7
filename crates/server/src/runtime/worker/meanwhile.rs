//! The home worker while code of a module runs on it: it can serve its other connections.
//!
//! A module that runs for long calls `Yield`. Then the gate is opened for a moment, and clients get an error, or run
//! one of the few commands that are allowed. The other workers do that by themselves. The clients of the home worker
//! are served in a nested turn, with a state and a seat of its own:
//!
//! ```text
//!   run_turn ─▶ run_batch ─▶ command of a module ─▶ Yield ─▶ gate opens ─▶ nested turn ─▶ gate closes ─▶ command goes
//!   on
//!               plans, thread, seat: of the outer turn        │             plans, thread, seat: the spare ones
//! ```
//!
//! 1. The connection of the running command is not in the table meanwhile. Connections that have run nothing of the
//!    outer batch yet are taken out of it: their requests are planned again in the nested turn. To the outer batch they
//!    look as if they were put off. Connections that have run a part of their requests are neither read nor planned;
//!    their events are handled afterwards.
//! 2. No token is used again before the outer turn ends.
//! 3. A nested turn does not nest: a module that gives way within one has no effect on this worker.

use std::time::Duration;

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;
use weft_reactor::Event;

use super::{Spare, Worker};
use crate::commands::context::NextStep;
use crate::dispatch::batch::{self, BatchConnections};
use crate::dispatch::thread::{IdleTurns, ThreadState};
use crate::net::connection::{Connection, ConnectionState};
use crate::state::HOME_WORKER;
use weft_modules::module::loading;
use weft_modules::session::idle::with_idle_turns;

impl Worker {
    /// Prepares for nested turns. Returns `false` if there are none: on other workers, and without modules.
    pub(super) fn begin_meanwhile(&mut self) -> bool {
        if self.id != HOME_WORKER || loading::generation() == 0 || cfg!(feature = "simulated") {
            return false;
        }
        if self.spare.is_none()
            && !self.is_in_meanwhile
            && let Some(seat) = self.server().keyspace.slots.join()
        {
            let thread = ThreadState::new(self.server().clone(), ThreadIndex::new(self.id.get()));
            self.spare = Some(Box::new(Spare { thread, seat }));
        }
        self.spare.is_some()
    }

    /// Runs the plans, with the state and the seat of this turn outside of the worker.
    pub(super) fn run_plans_with_meanwhile(&mut self) {
        let Some(mut outer) = self.spare.take() else {
            return;
        };
        self.is_in_meanwhile = true;
        let mut plans = std::mem::take(&mut self.plans);
        self.suspended_tokens = std::mem::take(&mut plans.tokens);
        std::mem::swap(&mut self.thread, &mut outer.thread);
        std::mem::swap(&mut self.seat, &mut outer.seat);
        batch::run_plans(&mut outer.thread, &mut outer.seat, &mut plans, self);
        std::mem::swap(&mut self.thread, &mut outer.thread);
        std::mem::swap(&mut self.seat, &mut outer.seat);
        plans.tokens = std::mem::take(&mut self.suspended_tokens);
        self.plans = plans;
        self.is_in_meanwhile = false;
        self.spare = Some(outer);
    }
}

impl Worker {
    /// Runs the jobs of threads that wait for them. The connections of this worker are served when the code of modules
    /// in them gives way.
    pub(super) fn run_lent_jobs(&mut self) {
        for job in std::mem::take(&mut self.lent_jobs) {
            // The connections with requests in these plans are not served.
            let mut plans = std::mem::take(&mut self.plans);
            let outer_tokens = std::mem::replace(&mut self.suspended_tokens, std::mem::take(&mut plans.tokens));
            let spare = self.spare.take();
            let was_in_meanwhile = std::mem::replace(&mut self.is_in_meanwhile, true);
            with_idle_turns(self, job);
            self.is_in_meanwhile = was_in_meanwhile;
            self.spare = spare;
            plans.tokens = std::mem::replace(&mut self.suspended_tokens, outer_tokens);
            self.plans = plans;
        }
    }
}

impl IdleTurns for Worker {
    fn serve_meanwhile(&mut self) {
        self.release_suspended();
        self.thread.begin_batch(unix_ms());
        self.read_mail();
        self.wait_for_events(Some(Duration::ZERO));
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::Readable(token) if self.may_serve(token) => {
                    self.receive(token);
                    self.run_if_full();
                }
                Event::Writable(token) if self.may_serve(token) => self.handle_write_completion(token),
                other => self.postponed_events.push(other),
            }
        }
        let put_off = std::mem::take(&mut self.ready_tokens);
        for token in put_off {
            match self.may_serve(token) {
                true => self.plan_requests(token),
                false => self.ready_tokens.push(token),
            }
        }
        self.run_batch();
        self.send_pending();
        self.suspend_again();
    }
}

impl Worker {
    /// Takes the requests of connections that have run nothing of the outer batch out of it.
    fn release_suspended(&mut self) {
        for index in 0..self.suspended_tokens.len() {
            let token = self.suspended_tokens[index];
            if let Some(connection) = self.clients.connection(token)
                && connection.is_in_batch
                && connection.consumed == connection.consumed_before_batch
                && matches!(connection.state, ConnectionState::Ready | ConnectionState::Deferred)
            {
                connection.restore_quoted_line();
                connection.state = ConnectionState::Deferred;
                connection.is_in_batch = false;
                self.ready_tokens.push(token);
            }
        }
    }

    /// Keeps the outer batch from running the requests of connections that were released: they are there with the
    /// places in the input that they had before.
    fn suspend_again(&mut self) {
        for index in 0..self.suspended_tokens.len() {
            let token = self.suspended_tokens[index];
            if let Some(connection) = self.clients.connection(token)
                && !connection.is_in_batch
            {
                connection.is_in_batch = true;
                if connection.state == ConnectionState::Ready {
                    connection.state = ConnectionState::Deferred;
                }
            }
        }
    }

    /// Returns `true` if a connection has no requests in the outer batch.
    fn may_serve(&mut self, token: usize) -> bool {
        self.clients
            .connection(token)
            .is_some_and(|connection| !connection.is_in_batch)
    }
}

impl BatchConnections for Worker {
    #[inline]
    fn connection(&mut self, token: usize) -> Option<&mut Connection> {
        self.clients.connection(token)
    }

    fn start_next_step(&mut self, token: usize, after: NextStep) {
        self.clients.start_next_step(token, after);
    }

    fn notify(&mut self, thread: &mut ThreadState) {
        BatchConnections::notify(&mut self.clients, thread);
    }

    fn lend(&mut self, token: usize) -> Option<Box<Connection>> {
        self.clients.slots.get_mut(token)?.take()
    }

    fn give_back(&mut self, token: usize, connection: Box<Connection>) {
        self.clients.slots[token] = Some(connection);
    }

    fn idle_turns(&mut self) -> Option<&mut dyn IdleTurns> {
        Some(self)
    }
}
