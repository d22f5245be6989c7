//! A request about to be executed, and the outcome of its execution.

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
        let (first, last) = self.plan.args;
        Args::new(
            &input[self.plan.start..self.plan.end],
            &self.ranges[first as usize..last as usize],
        )
    }
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
