//! Writes of a script that has no token: they can be undone until the script ends (rule 11 of [`super::super`]).

use weft_resp::Args;

use crate::commands::context::Binding;
use crate::dispatch::admit::REPLAYING_CLIENTS;
use crate::keyspace::access::AccessContext;
use crate::keyspace::before_image::is_large;
use crate::keyspace::undo::kept_bytes;
use crate::keyspace::undo_changes::{ChangeCounts, undo_changes};
use crate::net::client::ScriptRefusal;
use crate::notify::messages::NotificationSender;
use crate::observability::metrics::Counter;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;
use weft_scripting::StopReason;

use super::{MAX_HELD_DELIVERY_BYTES, MAX_PENDING_RECORDS, Runner, ScriptAccess, ScriptOutcome};

impl Runner<'_, '_, '_> {
    /// Returns `true` if the script has written, whether that can be undone or not.
    pub(super) fn has_written(&self) -> bool {
        self.is_undoable || self.run.has_written()
    }

    /// Returns `true` if the script may write under an undo log while another one has the token.
    pub(super) fn may_write_without_token(&self) -> bool {
        self.may_restart
            && matches!(self.access, ScriptAccess::Leased(_))
            && !self.client.flags.intersects(REPLAYING_CLIENTS)
            && self.program.profile().is_undoable()
    }

    /// Returns `true` if the script writes under an undo log although the token may be free: only so can it leave the
    /// worker if it does not end.
    pub(super) fn must_stay_undoable(&self) -> bool {
        !self.has_token
            && self.run.may_move_to_script_thread()
            && self.program.profile().may_run_forever()
            && self.may_write_without_token()
    }

    /// Returns `true` if the script must not make lasting changes here: it may not end, and then nobody could serve the
    /// clients, so that none of them could end the process.
    fn must_leave_only_worker(&self) -> bool {
        self.thread.server.workers.len() == 1
            && self.run.may_move_to_script_thread()
            && self.program.profile().may_run_forever()
    }

    /// Starts the undo log, before the first write.
    pub(super) fn begin_undoable_writes(&mut self) {
        debug_assert!(
            self.thread.effects.undo.is_none() && !self.has_token && self.thread.effects.is_held_back,
            "a script has one undo log, and none if it has the token"
        );
        let effects = &mut self.thread.effects;
        self.counts_before_writes = Some(ChangeCounts::of_effects(effects));
        effects.undo = Some(Box::default());
        self.is_undoable = true;
    }

    /// Records the first write of a script that cannot be stopped any more.
    pub(super) fn note_lasting_write(&mut self) -> Option<()> {
        if !self.run.has_written() {
            if self.must_leave_only_worker() {
                self.run.stop(StopReason::TooLong);
                return None;
            }
            self.begin_lasting()?;
        }
        self.flush_pending_records();
        self.release_notifications();
        Some(())
    }

    /// Holds back the notifications of the run, until it is certain that it does not restart.
    pub(in crate::dispatch::script) fn hold_notifications_back(&mut self) {
        debug_assert!(
            self.may_restart && self.thread.effects.held_notifications.is_empty(),
            "what an earlier run has held back was sent"
        );
        self.thread.effects.is_held_back = true;
    }

    /// Sends the notifications that were held back. Further ones are sent at once.
    fn release_notifications(&mut self) {
        self.thread.effects.is_held_back = false;
        if !self.thread.effects.held_notifications.is_empty() || !self.thread.effects.held_events.is_empty() {
            let thread = &mut *self.thread;
            NotificationSender::new(&thread.server, &mut thread.effects, thread.thread_index).send_held_notifications();
        }
    }

    /// Sends the notifications of a script that has not written if they are many, or if it is busy and monitors should
    /// see what it does. If it restarts later, they are sent again.
    pub(super) fn limit_held_notifications(&mut self) {
        let effects = &self.thread.effects;
        let held = effects.held_notifications.len() + effects.held_events.len();
        let are_many = held >= MAX_PENDING_RECORDS || effects.held_delivery_bytes >= MAX_HELD_DELIVERY_BYTES;
        if effects.is_held_back && held > 0 && (are_many || self.run.is_overdue()) {
            self.release_notifications();
            self.thread.effects.is_held_back = true;
        }
    }

    /// Records that the run cannot be stopped any more, unless it is to stop already or its client was killed.
    fn begin_lasting(&self) -> Option<()> {
        let mark = self.kill_mark.as_deref();
        if mark.is_some_and(|mark| !mark.try_begin_lasting()) {
            self.run.stop(StopReason::Contended);
            return None;
        }
        if self.run.try_note_write() {
            return Some(());
        }
        if let Some(mark) = mark {
            self.thread.server.end_lasting(mark);
        }
        None
    }

    /// Ends the undo log before the next command if much is held back, or if the token is free and the run may be long:
    /// what a long run has done would be lost.
    pub(super) fn limit_undoable_run(&mut self) -> Option<()> {
        let held_back = self
            .thread
            .effects
            .held_notifications
            .len()
            .max(self.buffers.pending_outcomes.len());
        if held_back + 1 >= MAX_PENDING_RECORDS || self.thread.effects.held_delivery_bytes >= MAX_HELD_DELIVERY_BYTES {
            self.program.profile().note_not_undoable();
            return self.make_writes_last();
        }
        if self.thread.for_script && self.thread.server.scripting.try_take_token() {
            self.has_token = true;
            return self.end_undo_with_token();
        }
        Some(())
    }

    /// Returns `true` if what the command does to its keys, which are leased, can be undone.
    pub(super) fn can_undo(&mut self, command: &Command<Binding>, args: Args<'_>) -> bool {
        let Some(undo) = &self.thread.effects.undo else {
            return false;
        };
        // A command that only may replicate, such as PUBLISH, does something else than changing keys.
        if !command.spec.flags.contains(CommandFlags::WRITE) || !undo.has_room_for(self.buffers.planned.len(), 0) {
            return false;
        }
        let held = self.access.as_held_leases();
        let mut bytes = 0;
        self.buffers.planned.iter().all(|key| {
            let entry = held.entry(key, self.client.db, args);
            bytes += entry.map_or(0, |entry| kept_bytes(entry));
            entry.is_none_or(|entry| !is_large(entry.value())) && undo.has_room_for(self.buffers.planned.len(), bytes)
        })
    }

    /// Takes the token, so that what was written lasts and the script may wait for slots. Stops the script if another
    /// one has the token.
    pub(super) fn make_writes_last(&mut self) -> Option<()> {
        debug_assert!(
            self.is_undoable,
            "only writes under an undo log have to be made to last"
        );
        self.has_token = self.thread.server.scripting.try_take_token();
        match self.has_token {
            true => self.end_undo_with_token(),
            false => self.restart_for(ScriptRefusal::Token),
        }
    }

    fn end_undo_with_token(&mut self) -> Option<()> {
        // Fails if another thread has stopped the run.
        self.note_lasting_write()?;
        self.end_undo_log();
        Some(())
    }

    /// Ends the undo log of changes that stay.
    fn end_undo_log(&mut self) {
        self.is_undoable = false;
        let thread = &mut *self.thread;
        thread.effects.undo = None;
        let metrics = &thread.server.stats.metrics;
        metrics.add(thread.thread_index, Counter::ScriptsWrittenInParallel, 1);
    }

    /// Undoes what was written, under the leases of the keys.
    #[cold]
    fn undo_writes(&mut self) {
        self.is_undoable = false;
        let thread = &mut *self.thread;
        let (Some(undo), Some(counts)) = (thread.effects.undo.take(), self.counts_before_writes.take()) else {
            unreachable!("a script that can be undone has an undo log");
        };
        let access = AccessContext {
            now_ms: 0,
            clock: &thread.clock,
            counts: &thread.server.keyspace.counts,
            thread_index: thread.thread_index,
            should_touch: false,
        };
        let held = &mut self.access.as_held_leases();
        undo_changes(*undo, counts, held, &access, &mut thread.effects);
        let metrics = &thread.server.stats.metrics;
        metrics.add(thread.thread_index, Counter::ScriptsUndone, 1);
    }

    /// Decides at the end of the run about what may have to be abandoned: changes under an undo log and notifications
    /// stay if the script has ended by itself.
    pub(in crate::dispatch::script) fn settle_writes(&mut self, ended: &ScriptOutcome) {
        let is_killed = matches!(ended, ScriptOutcome::Done { is_killed: true, .. });
        let is_stopped = matches!(ended, ScriptOutcome::Stopped(_));
        let is_undone = self.is_undoable && (is_killed || is_stopped);
        match self.is_undoable {
            true if is_undone => self.undo_writes(),
            true => self.end_undo_log(),
            false => {}
        }
        if is_undone || is_stopped {
            // Monitors see the commands of a killed script, and those of a restarted one once.
            self.thread.effects.discard_held_notifications(is_killed);
        }
        self.release_notifications();
        assert!(
            self.thread.effects.undo.is_none(),
            "the undo log of a script ends with it"
        );
    }
}
