//! The slots that a script holds, and how it gets more of them (rules 1 to 5 and 8 of [`super::super`]).

use std::time::Duration;

use weft_resp::Args;

use crate::commands::context::{Binding, Mode};
use crate::dispatch::admit::CHANGES;
use crate::dispatch::plan::plan_to_write;
use crate::keyspace::access::Lease;
use weft_base::slots::SLOTS;
use weft_command_table::registry::Command;
use weft_scripting::StopReason;

use super::{Runner, Slots};

/// Failed tries for a slot after which a script on a worker no longer waits for its holder's end: batches of other
/// workers have ended by then.
const TRIES_OF_WORKER: u32 = 5;
/// Pause between two tries for a slot.
const WAIT: Duration = Duration::from_micros(20);

impl<'p> Runner<'_, '_, 'p> {
    // ---- leases ----------------------------------------------------------------------------------------------------

    /// Leases everything that a command needs. Returns `None` if the script must stop.
    pub(super) fn hold(&mut self, command: &'static Command<Binding>, binding: Binding, args: Args<'_>) -> Option<()> {
        self.planned.clear();
        plan_to_write(&self.thread.server.keyspace, command, args, &mut self.planned);
        let is_first_write = command.spec.flags.intersects(CHANGES) && !self.run.has_written();
        if is_first_write {
            self.take_token()?;
        }
        self.hold_slots(command, binding, args)?;
        // Only now: until here the script can restart.
        if is_first_write {
            if !self.run.try_note_write() {
                return None;
            }
            self.program.profile().note_write();
            self.settle_tally();
        }
        Some(())
    }

    fn hold_slots(&mut self, command: &'static Command<Binding>, binding: Binding, args: Args<'_>) -> Option<()> {
        if let Slots::Beside(all, key_copier) = &mut self.held {
            let beside = &self.thread.server;
            match needs_everything(command, binding, args) {
                true => key_copier.bring_everything(beside, all),
                false => key_copier.bring(&self.planned, args, beside, all),
            }
            return Some(());
        }
        if needs_everything(command, binding, args) {
            self.hold_everything()?;
        }
        let mut planned = std::mem::take(&mut self.planned);
        let held = planned.iter_mut().try_for_each(|key| {
            key.lease = self.hold_slot(key.slot)?;
            Some(())
        });
        self.planned = planned;
        held
    }

    fn take_token(&mut self) -> Option<()> {
        if !self.has_token && matches!(self.held, Slots::Leased(_)) {
            self.has_token = self.thread.server.scripting.try_take_token();
            if !self.has_token {
                self.run.stop(StopReason::Contended);
                return None;
            }
        }
        Some(())
    }

    /// The index of a slot's lease, which is taken if it is not held yet.
    fn hold_slot(&mut self, slot: u16) -> Option<u32> {
        let Slots::Leased(leases) = &mut self.held else {
            return Some(0);
        };
        if let Some(index) = leases.index_of(slot) {
            return Some(index);
        }
        let taken = self.wait_for(slot)?;
        let Slots::Leased(leases) = &mut self.held else {
            return None;
        };
        self.run.note_held_slot(slot);
        Some(leases.add(taken))
    }

    /// Leases one more slot. Waits only with the token.
    fn wait_for(&mut self, slot: u16) -> Option<Lease<'p>> {
        let pass = self.pass?;
        let mut tries = 0;
        loop {
            let number = usize::from(slot);
            let taken = match self.read_only {
                true => pass.read_spinning(number).map(Lease::Read),
                false => pass.write_spinning(number).map(Lease::Write),
            };
            if taken.is_some() {
                return taken;
            }
            let running = &self.thread.server.scripting.running;
            if !self.has_token {
                self.run.stop(StopReason::Contended);
            } else if running.is_shutting_down() {
                self.run.stop(StopReason::Shutdown);
            } else if !self.thread.for_script && tries >= TRIES_OF_WORKER {
                if self.run.may_move_to_script_thread() && !self.run.has_written() {
                    self.run.stop(StopReason::TooLong);
                } else {
                    running.preempt(slot, &self.run);
                }
            }
            tries += 1;
            if self.run.stop_reason().is_some() {
                return None;
            }
            if !self.read_only {
                pass.announce_writer(number);
            }
            std::thread::sleep(WAIT);
        }
    }

    pub(super) fn hold_everything(&mut self) -> Option<()> {
        if let Slots::Leased(leases) = &self.held
            && leases.holds_all_slots()
        {
            return Some(());
        }
        self.take_token()?;
        for slot in 0..SLOTS as u16 {
            self.hold_slot(slot)?;
        }
        Some(())
    }
}

/// Returns `true` if a command reaches keys that cannot be named beforehand, or counts keys.
fn needs_everything(command: &Command<Binding>, binding: Binding, args: Args<'_>) -> bool {
    match command.full_name {
        // The patterns of SORT name further keys.
        "sort" | "sort_ro" => args
            .iter()
            .skip(2)
            .any(|word| word.eq_ignore_ascii_case(b"by") || word.eq_ignore_ascii_case(b"get")),
        "dbsize" => true,
        _ => binding.mode == Mode::Exclusive || binding.reaches_further,
    }
}
