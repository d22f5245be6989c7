//! What follows from a command for the log of writes, before its leases end.

use crate::keyspace::access::Keys;
use crate::keyspace::effects::Effects;
use crate::propagation::Target;
use crate::state::NextStep;

/// Ends a call: it is repeated if it has changed anything since the dirty count was `dirty`, as it was sent or as its
/// handler said.
#[cold]
pub(super) fn end_call(keys: &mut Keys<'_, '_>, after: &NextStep, dirty: u64) {
    end_call_for(keys, after, dirty, Target::ALL);
}

/// The same for some of those who listen.
#[cold]
pub(super) fn end_call_for(keys: &mut Keys<'_, '_>, after: &NextStep, dirty: u64, wanted: Target) {
    let effects = &mut *keys.effects;
    if matches!(after, NextStep::Defer | NextStep::Leave(_) | NextStep::AsWriter) {
        // It runs again, from its start. What has expired meanwhile has expired.
        effects.log_writer.discard_call();
        return;
    }
    let changed = effects.dirty > dirty;
    let target = effects.hooks.log_target().and(wanted);
    effects.log_writer.end_call(target, keys.db, changed, keys.args.iter());
}

/// Gives what is to be repeated its ticket, under the leases under which it happened; returns the ticket.
#[cold]
pub(super) fn commit(effects: &mut Effects) -> u64 {
    effects.log_writer.commit();
    effects.log_writer.last_sequence()
}

/// Ends what was done for a client that waited: a unit of its own, behind the command that served it.
pub(super) fn end_served(effects: &mut Effects, db: usize, dirty: u64) {
    if !effects.logs() {
        return;
    }
    let changed = effects.dirty > dirty;
    let target = effects.hooks.log_target();
    // The command is not there any more; all that wait say what is to be repeated instead.
    debug_assert!(
        !changed || effects.log_writer.is_rewritten(),
        "a served waiter is repeated as something else"
    );
    effects.log_writer.end_call(target, db, changed, [].into_iter());
    effects.log_writer.end_unit();
}
