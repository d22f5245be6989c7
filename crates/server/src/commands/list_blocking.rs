//! The commands on lists that wait: BLPOP, BRPOP, BLMOVE, BRPOPLPUSH, BLMPOP.

use weft_resp::Reply;

use super::blocked::Reach;
use super::context::{Binding, CommandResult};
use crate::blocking::{WaitKey, Waiter};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[];

pub fn perform(waiter: &Waiter, key: &WaitKey, reach: &mut dyn Reach, reply: &mut Reply<'_>) -> CommandResult {
    reach.write(waiter.db, key).unchanged();
    reply.null();
    Ok(())
}
