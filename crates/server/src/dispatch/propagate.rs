//! Records the changes of a command in the propagation log, before its leases end.

use crate::keyspace::access::Keys;
use crate::keyspace::effects::Effects;
use crate::propagation::LogTarget;
use crate::state::NextStep;
use weft_base::{DbIndex, LogSequence};
use weft_resp::Args;

/// Ends a call. The log repeats the call if the dirty count has grown since it was `dirty`, either verbatim or in the
/// form that the handler chose.
#[cold]
pub(super) fn propagate_call(keys: &mut Keys<'_, '_>, next_step: &NextStep, dirty: u64) {
    propagate_call_to(keys, next_step, dirty, LogTarget::all());
}

/// Like [`propagate_call`], for some of the targets.
#[cold]
pub(super) fn propagate_call_to(keys: &mut Keys<'_, '_>, after: &NextStep, dirty: u64, targets: LogTarget) {
    propagate_effects(keys.effects, (keys.db, keys.args), after, dirty, targets);
}

/// Like [`propagate_call_to`], once the access to the keys has ended.
#[cold]
pub(super) fn propagate_effects(
    effects: &mut Effects,
    (db, args): (DbIndex, Args<'_>),
    after: &NextStep,
    dirty: u64,
    targets: LogTarget,
) {
    if matches!(
        after,
        NextStep::Defer | NextStep::RunInBackground(_) | NextStep::RetryAsWriter
    ) {
        // The command runs again from its start. A key that has expired in this run stays expired.
        effects.log_writer.discard_call();
        return;
    }
    let changed = effects.dirty > dirty;
    let target = effects.hooks.log_target().intersection(targets);
    effects.log_writer.end_call(target, db, changed, args.iter());
}

/// Assigns a sequence number to the records of the unit, under the leases of the commands, and returns it.
#[cold]
pub(super) fn commit_unit(effects: &mut Effects) -> LogSequence {
    effects.log_writer.commit();
    debug_assert!(
        !effects.log_writer.has_pending_ops(),
        "all ops of a unit have one sequence number"
    );
    effects.log_writer.last_sequence()
}

/// Ends the operation of a served client. It is a separate unit, after the command that served the client.
pub(super) fn propagate_served(effects: &mut Effects, db: DbIndex, dirty: u64) {
    if !effects.is_logging() {
        return;
    }
    let changed = effects.dirty > dirty;
    let target = effects.hooks.log_target();
    // The blocked command is not available any more; every command that blocks sets what to propagate instead.
    debug_assert!(
        !changed || effects.log_writer.is_rewritten(),
        "a served waiter is repeated as something else"
    );
    effects.log_writer.end_call(target, db, changed, [].into_iter());
    effects.log_writer.end_unit();
}
