//! Puts commands off, and counts that by reason.

use crate::commands::context::HandlerMode;
use crate::net::client::ScriptRefusal;
use crate::net::connection::{Connection, ConnectionState};
use crate::observability::metrics::DeferralReason;

use super::plan::{CommandPlan, RequestKind};
use super::thread::ThreadState;

/// Puts off the command of a connection, which has had no effect. The connection tries it again.
#[cold]
pub(super) fn put_off(thread: &mut ThreadState, connection: &mut Connection, reason: DeferralReason) {
    thread.effects.set_full_mailbox_aside();
    connection.lease_failures += 1;
    connection.state = ConnectionState::Deferred;
    count(thread, reason);
}

/// Counts a command that is put off.
pub(super) fn count(thread: &ThreadState, reason: DeferralReason) {
    let metrics = &thread.server.stats.metrics;
    metrics.add(thread.thread_index, reason.counter(), 1);
}

/// Returns the reason for which a command could not run, as far as its connection shows it.
#[cold]
pub(super) fn reason_of(thread: &ThreadState, plan: &CommandPlan, connection: &Connection) -> DeferralReason {
    let client = &connection.client;
    // The connection keeps what it waited for until the request ends, so an earlier wait may be over.
    if connection.awaited_thaw == Some(thread.server.keyspace.pinned.thaws()) {
        return DeferralReason::Migrate;
    }
    if connection.awaited_sequence.is_some() {
        return DeferralReason::Log;
    }
    let is_script = matches!(plan.kind, RequestKind::Command(_, binding) if binding.mode == HandlerMode::Script);
    let runs_script = || (client.transaction.as_deref()).is_some_and(|transaction| transaction.runs_script);
    if client.script_refusal == Some(ScriptRefusal::Token) && (is_script || runs_script()) {
        return DeferralReason::Script;
    }
    DeferralReason::Lease
}
