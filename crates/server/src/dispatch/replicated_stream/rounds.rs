//! The rounds of a stream: which commands run in one, and where the stream stands after them.

use weft_base::DbIndex;

use super::super::apply_threads::{StreamPart, may_run_in_round, selected_db};
use super::super::plan::{CommandPlan, InputRest, Plans, RequestKind};
use super::{PrimaryConnection, plan_input};
use crate::net::connection::Connection;
use crate::state::Server;

/// The number of bytes after which a round is full.
pub(super) const ROUND_BYTES: usize = if cfg!(feature = "simulated") { 512 } else { 128 * 1024 };

/// Commands that may run on several threads, and the position of the stream after them.
#[derive(Default)]
pub(super) struct Round {
    pub(super) parts: Vec<StreamPart>,
    pub(super) commands: usize,
    pub(super) bytes: usize,
    /// The start of its first request in the input, and the database that was selected there.
    pub(super) start: (usize, DbIndex),
    /// The number of bytes of the stream up to its end, and the database that is selected there.
    pub(super) end: (u64, DbIndex),
    pub(super) last_command: &'static str,
}

/// The state of the plans after a round was taken from them.
#[derive(Clone, Copy)]
pub(super) struct RoundPlanned {
    /// The index of the first plan that is not part of the round.
    pub(super) next: usize,
    pub(super) rest: InputRest,
    /// `true` if the round is full, and another one may follow.
    pub(super) is_full: bool,
}

/// Takes a round from the plans. Plans further commands while it is not full and no other command comes.
pub(super) fn take_round(
    server: &Server,
    prefetches: bool,
    connection: &mut PrimaryConnection,
    plans: &mut Plans,
    round: &mut Round,
    mut rest: InputRest,
) -> RoundPlanned {
    (round.commands, round.bytes) = (0, 0);
    round.start = (connection.connection.consumed, connection.connection.client.db);
    let planned = loop {
        let next = round.take_plans(server, &mut connection.connection, plans);
        if next < plans.plans.len() || rest != InputRest::More {
            let is_full = false;
            break RoundPlanned { next, rest, is_full };
        }
        plans.clear();
        if round.bytes >= ROUND_BYTES {
            let is_full = true;
            break RoundPlanned { next: 0, rest, is_full };
        }
        rest = plan_input(server, prefetches, connection, plans);
    };
    let reached = connection.discarded_bytes + connection.connection.consumed as u64;
    round.end = (reached, connection.connection.client.db);
    planned
}

impl Plans {
    /// Returns `true` if a command may run in a round.
    pub(super) fn runs_in_round(&self, plan: &CommandPlan) -> bool {
        match plan.kind {
            RequestKind::Command(command, binding) => {
                may_run_in_round(plan, command, binding, &self.keys[plan.key_range()])
            }
            _ => false,
        }
    }
}

impl Round {
    /// Takes the first plans that may run in a round. Returns their number.
    fn take_plans(&mut self, server: &Server, connection: &mut Connection, plans: &Plans) -> usize {
        for (index, plan) in plans.plans.iter().enumerate() {
            let Connection { client, input, .. } = &mut *connection;
            let part = if plans.runs_in_round(plan) {
                plans.keys[plan.keys.start as usize].slot.index() % self.parts.len()
            } else if let Some(selected) = selected_db(server, plan, plans, input) {
                // It changes the database of the commands that follow. It runs like them, because it is counted.
                client.db = selected;
                0
            } else {
                return index;
            };
            self.parts[part].push(client.db, input, plans, index);
            self.commands += 1;
            self.bytes += plan.end - plan.start;
            if let RequestKind::Command(command, _) = plan.kind {
                self.last_command = command.full_name;
            }
            connection.consumed = plan.end;
        }
        plans.plans.len()
    }
}
