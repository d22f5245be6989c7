//! The slots that a script holds, and how it leases more of them (rules 1 to 5, 8 and 10 of [`super::super`]).

use std::time::Duration;

use weft_base::SlotIndex;
use weft_resp::Args;

use crate::commands::context::{Binding, HandlerMode};
use crate::dispatch::admit::{REPLAYING_CLIENTS, WRITE_FLAGS};
use crate::dispatch::pins;
use crate::dispatch::plan::plan_write_keys;
use crate::dispatch::request::CommandCall;
use crate::keyspace::access::Lease;
use crate::net::client::ScriptRefusal;
use weft_command_table::registry::Command;
use weft_scripting::StopReason;

use super::{Runner, ScriptAccess};

/// The number of failed attempts for a slot after which a script on a worker no longer waits for its holder: batches of
/// other workers have ended by then.
const MAX_WORKER_ATTEMPTS: u32 = 5;
/// The pause between two attempts to lease a slot.
const RETRY_PAUSE: Duration = Duration::from_micros(20);

impl<'p> Runner<'_, '_, 'p> {
    // ---- leases ----------------------------------------------------------------------------------------------------

    /// Leases all slots that a command needs. Returns `None` if the script must stop.
    pub(super) fn lease_command(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        args: &Args<'_>,
    ) -> Option<()> {
        match self.is_undoable {
            true => self.limit_undoable_run()?,
            false => self.limit_held_notifications(),
        }
        self.buffers.planned.clear();
        plan_write_keys(&self.thread.server.keyspace, command, args, &mut self.buffers.planned);
        let writes = command.spec.flags.intersects(WRITE_FLAGS);
        let is_first_write = writes && !self.has_written();
        let mut may_write = || self.must_stay_undoable() || self.try_acquire_token() || self.may_write_without_token();
        if is_first_write && !may_write() {
            return self.restart_for(ScriptRefusal::Token);
        }
        self.lease_command_slots(command, binding, args)?;
        // Not earlier: until here the script can restart without further ado.
        if is_first_write {
            self.await_migrated_keys(command, *args)?;
            self.program.profile().note_write();
            match self.needs_token_to_write() && !self.has_token {
                true => self.begin_undoable_writes(),
                false => self.note_lasting_write()?,
            }
        }
        if writes && self.is_undoable && (needs_all_slots(command, binding, args) || !self.can_undo(command, *args)) {
            self.program.profile().note_not_undoable();
            self.make_writes_last()?;
        }
        Some(())
    }

    /// Lets the script restart if its first write is to a key that MIGRATE is sending (rule 10).
    fn await_migrated_keys(&mut self, command: &'static Command<Binding>, args: Args<'_>) -> Option<()> {
        if !self.may_restart || self.client.flags.intersects(REPLAYING_CLIENTS) {
            return Some(());
        }
        let call = CommandCall {
            command,
            args,
            db: self.client.db,
        };
        self.awaited_thaw = pins::awaited_thaw(&self.thread.server.keyspace, call, &self.buffers.planned);
        if self.awaited_thaw.is_some() {
            self.run.stop(StopReason::Contended);
            return None;
        }
        Some(())
    }

    fn lease_command_slots(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        args: &Args<'_>,
    ) -> Option<()> {
        if let ScriptAccess::Scratch(all, key_copier) = &mut self.access {
            let server = &self.thread.server;
            let are_copied = match needs_all_slots(command, binding, args) {
                true => key_copier.copy_all_keys(server, all),
                false => key_copier.copy_keys(&self.buffers.planned, *args, server, all),
            };
            return are_copied.then_some(());
        }
        if needs_all_slots(command, binding, args) {
            self.lease_all_slots()?;
        }
        for index in 0..self.buffers.planned.len() {
            let slot = self.buffers.planned[index].slot;
            self.buffers.planned[index].lease = self.lease_slot(slot)?;
        }
        Some(())
    }

    /// Returns `true` if other scripts may run meanwhile, so that this one needs the token, or an undo log, to write.
    fn needs_token_to_write(&self) -> bool {
        matches!(self.access, ScriptAccess::Leased(_))
    }

    /// Takes the token if it is free and needed. Returns `false` if another script has it.
    pub(super) fn try_acquire_token(&mut self) -> bool {
        if !self.has_token && self.needs_token_to_write() {
            self.has_token = self.thread.server.scripting.try_take_token();
            return self.has_token;
        }
        true
    }

    /// Takes the token for a command that needs it even if nothing was written before. A script that has written under
    /// an undo log cannot be stopped any more from here on.
    fn acquire_token(&mut self) -> Option<()> {
        if self.is_undoable {
            return self.make_writes_last();
        }
        match self.try_acquire_token() {
            true => Some(()),
            false => self.restart_for(ScriptRefusal::Token),
        }
    }

    /// Stops the run because of what it was refused.
    pub(super) fn restart_for(&mut self, refusal: ScriptRefusal) -> Option<()> {
        self.refusal = Some(refusal);
        self.run.stop(StopReason::Contended);
        None
    }

    /// Returns the index of a slot's lease, which is taken if it is not held yet.
    #[inline]
    fn lease_slot(&mut self, slot: SlotIndex) -> Option<u32> {
        let ScriptAccess::Leased(leases) = &self.access else {
            return Some(0);
        };
        match leases.index_of(slot) {
            Some(index) => Some(index),
            None => self.lease_further_slot(slot),
        }
    }

    /// Takes the lease of a slot that is not held yet, and returns its index.
    #[inline(never)]
    fn lease_further_slot(&mut self, slot: SlotIndex) -> Option<u32> {
        let lease = self.acquire_lease(slot)?;
        let ScriptAccess::Leased(leases) = &mut self.access else {
            return None;
        };
        assert_eq!(lease.cell(), slot.index(), "the lease is that of the slot");
        self.run.note_held_slot(slot.get());
        let index = leases.add(lease);
        self.stop_if_killed()?;
        Some(index)
    }

    /// Stops a script whose client was killed before it had leased a slot. It can still restart, and is not run again.
    fn stop_if_killed(&self) -> Option<()> {
        let is_killed = self.kill_mark.as_ref().is_some_and(|mark| mark.is_killed());
        if is_killed && !self.is_read_only && !self.run.has_written() {
            self.run.stop(StopReason::Contended);
            return None;
        }
        Some(())
    }

    /// Leases one more slot. Waits only with the token, which a script that has written under an undo log takes first.
    fn acquire_lease(&mut self, slot: SlotIndex) -> Option<Lease<'p>> {
        let pass = self.pass?;
        let mut tries = 0;
        loop {
            let number = slot.index();
            let attempt = match self.is_read_only {
                true => pass.read_spinning(number).map(Lease::Read),
                false => pass.write_spinning(number).map(Lease::Write),
            };
            if attempt.is_some() {
                return attempt;
            }
            if self.is_undoable && self.make_writes_last().is_none() {
                self.refusal = Some(ScriptRefusal::Slot(slot));
                return None;
            }
            let may_wait = self.has_token || (self.takes_token_to_wait && self.try_acquire_token());
            if !may_wait {
                self.restart_for(ScriptRefusal::Slot(slot))?;
            }
            let running = &self.thread.server.scripting.running;
            if running.is_shutting_down() {
                self.run.stop(StopReason::Shutdown);
            } else if !self.thread.for_script && tries >= MAX_WORKER_ATTEMPTS {
                if self.run.may_move_to_script_thread() && !self.run.has_written() {
                    self.run.stop(StopReason::TooLong);
                } else {
                    running.preempt(slot.get(), &self.run);
                }
            }
            tries += 1;
            if self.run.stop_reason().is_some() {
                return None;
            }
            assert!(
                self.has_token,
                "only the script with the token waits for a slot while it holds others"
            );
            if !self.is_read_only {
                pass.announce_writer(number);
            }
            weft_os::thread::sleep(RETRY_PAUSE);
        }
    }

    pub(super) fn lease_all_slots(&mut self) -> Option<()> {
        if let ScriptAccess::Leased(leases) = &self.access
            && leases.holds_all_slots()
        {
            return Some(());
        }
        self.acquire_token()?;
        for slot in SlotIndex::all() {
            self.lease_slot(slot)?;
        }
        debug_assert!(
            !matches!(&self.access, ScriptAccess::Leased(leases) if !leases.holds_all_slots()),
            "a script that needs all slots holds them"
        );
        Some(())
    }
}

/// Returns `true` if a command accesses keys that are not known beforehand, or counts keys.
#[inline]
fn needs_all_slots(command: &Command<Binding>, binding: Binding, args: &Args<'_>) -> bool {
    match command.full_name {
        // The patterns of SORT name further keys.
        "sort" | "sort_ro" => args
            .iter()
            .skip(2)
            .any(|word| word.eq_ignore_ascii_case(b"by") || word.eq_ignore_ascii_case(b"get")),
        _ => binding.mode == HandlerMode::Exclusive || binding.has_undeclared_keys,
    }
}
