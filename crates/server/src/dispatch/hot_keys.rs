//! Samples the keys of commands that have ended, while hot keys are sampled (`observability/hot_keys.rs`).
//!
//! A command that waits for its keys counts when it begins to wait. A script does not count itself, its commands do.
//! Keys of slots that are being imported do not count: no list of keys shows them.

use weft_base::DbIndex;

use crate::commands::context::HandlerMode;
use crate::commands::registry;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::transaction::{QueuedCommand, Transaction};
use crate::observability::hot_keys::KeySample;
use crate::observability::metrics::Counter;

use super::request::CommandCall;
use super::thread::ThreadState;
use weft_command_table::spec::CommandFlags;

#[cfg(test)]
mod tests;

/// Samples the keys of a command of a transaction that has begun at `ticks_before` and has ended.
#[cold]
pub fn sample_queued_keys(
    thread: &mut ThreadState,
    transaction: &Transaction,
    queued: &QueuedCommand,
    db: DbIndex,
    ticks_before: u64,
) {
    let Some(command) = registry().commands().get(queued.command).copied() else {
        return;
    };
    if command
        .handler
        .is_some_and(|binding| binding.mode == HandlerMode::Script)
    {
        return;
    }
    let nanoseconds = thread.timer.delta_as_nanos(ticks_before, thread.ticks);
    let args = transaction.args(queued);
    let call = CommandCall { command, args, db };
    sample_keys(thread, call, transaction.keys_of(queued), nanoseconds);
}

/// Samples the keys of a command that has taken this time.
#[cold]
pub fn sample_keys(thread: &mut ThreadState, call: CommandCall<'_>, keys: &[PlannedKey], nanoseconds: u64) {
    let CommandCall { command, args, db } = call;
    // A reading command may have taken leases for writing.
    let may_write = command.spec.flags.contains(CommandFlags::WRITE);
    let ThreadState {
        server,
        thread_index,
        hot_key_sampler,
        ..
    } = thread;
    let nanoseconds = nanoseconds / keys.len().max(1) as u64;
    hot_key_sampler.sample(keys.len(), |session, index| {
        let Some(key) = keys.get(index).filter(|key| (key.argument as usize) < args.len()) else {
            return;
        };
        if server.keyspace.slots.header(key.slot.index()).is_importing() {
            return;
        }
        let sample = KeySample {
            db,
            hash: key.hash,
            name: args.argument(key.argument as usize),
            is_write: may_write && key.is_write,
            nanoseconds,
        };
        server.stats.hot_keys.add(*thread_index, session, &sample);
        server.stats.metrics.add(*thread_index, Counter::HotKeySamples, 1);
    });
}
