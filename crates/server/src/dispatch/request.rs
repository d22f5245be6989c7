//! A request about to be executed, and the outcome of its execution.

use weft_base::DbIndex;
use weft_resp::Args;

use crate::commands::context::{Binding, NextStep};
use weft_command_table::registry::Command;

use super::plan::CommandPlan;

/// The inputs of an execution.
pub struct Request<'a> {
    /// The plan.
    pub plan: &'a CommandPlan,
    /// The command.
    pub command: &'static Command<Binding>,
    /// The handler.
    pub binding: Binding,
    /// The argument ranges of the whole batch.
    pub ranges: &'a [weft_resp::ArgRange],
}

impl<'a> Request<'a> {
    /// Returns the arguments, which lie in the input of the connection.
    #[inline]
    pub fn args(&self, input: &'a [u8]) -> Args<'a> {
        self.plan.args_of(self.ranges, input)
    }

    /// Returns the command with its arguments, as a call on a database.
    #[inline]
    pub fn call(&self, input: &'a [u8], db: DbIndex) -> CommandCall<'a> {
        CommandCall {
            command: self.command,
            args: self.args(input),
            db,
        }
    }
}

/// A command with its arguments, and the database on which it runs.
#[derive(Clone, Copy)]
pub struct CommandCall<'a> {
    /// The command.
    pub command: &'static Command<Binding>,
    /// The arguments.
    pub args: Args<'a>,
    /// The database.
    pub db: DbIndex,
}

/// The outcome of an execution.
pub enum Outcome {
    /// The reply is in the output.
    Done,
    /// Another thread holds the lease of a slot. The command has had no effect.
    Contended,
    /// The connection waits for this step.
    After(NextStep),
}
