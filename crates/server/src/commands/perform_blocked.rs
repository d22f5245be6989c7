//! Performs the operations of blocked clients, once a key that they wait for is ready.

use weft_resp::Reply;

use super::blocked::WaiterKeyAccess;
use super::context::CommandResult;
use crate::clients_waiting::blocking::{BlockingOperation, WaitKey, Waiter};

/// Performs a waiting client's operation on one of its keys. The key exists and has the type that the client waits for.
///
/// # Errors
/// The error that the command would reply with now. The wait ends nevertheless.
pub fn perform(
    waiter: &Waiter,
    key: &WaitKey,
    reach: &mut dyn WaiterKeyAccess,
    reply: &mut Reply<'_>,
) -> CommandResult {
    match &waiter.operation {
        BlockingOperation::ListPop(_) | BlockingOperation::ListPopMany(..) | BlockingOperation::ListMove { .. } => {
            crate::commands::list::blocking::perform(waiter, key, reach, reply)
        }
        BlockingOperation::SortedSetPop(_) | BlockingOperation::SortedSetPopMany(..) => {
            crate::commands::sorted_set::blocking::perform(waiter, key, reach, reply)
        }
        BlockingOperation::StreamRead(after, count) => {
            crate::commands::stream::blocking::perform_read(waiter, after, *count, reach, reply)
        }
        BlockingOperation::StreamReadGroup(read) => {
            crate::commands::stream::blocking::perform_group_read(waiter, read, reach, reply)
        }
        BlockingOperation::Module { .. } => unreachable!("modules serve the clients that they have blocked"),
    }
}

/// Returns `true` if a waiting client can be served from one of its keys, which exists and has the type that the client
/// waits for. Changes nothing.
pub fn can_perform(waiter: &Waiter, _key: &WaitKey, reach: &mut dyn WaiterKeyAccess) -> bool {
    match &waiter.operation {
        // A list or sorted set that exists has elements.
        BlockingOperation::ListPop(_)
        | BlockingOperation::ListPopMany(..)
        | BlockingOperation::ListMove { .. }
        | BlockingOperation::SortedSetPop(_)
        | BlockingOperation::SortedSetPopMany(..) => true,
        BlockingOperation::StreamRead(after, _) => crate::commands::stream::blocking::can_read(waiter, after, reach),
        BlockingOperation::StreamReadGroup(read) => {
            crate::commands::stream::blocking::can_read_group(waiter, read, reach)
        }
        BlockingOperation::Module { .. } => false,
    }
}
