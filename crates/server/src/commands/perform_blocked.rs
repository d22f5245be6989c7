//! Performs the operations of blocked clients, once a key that they wait for is ready.

use weft_resp::Reply;

use super::blocked::KeyAccess;
use super::context::CommandResult;
use crate::clients_waiting::blocking::{Operation, WaitKey, Waiter};

/// Performs a waiting client's operation on one of its keys. The key exists and has the type that the client waits for.
///
/// # Errors
/// The error that the command would reply with now. The wait ends nevertheless.
pub fn perform(waiter: &Waiter, key: &WaitKey, reach: &mut dyn KeyAccess, reply: &mut Reply<'_>) -> CommandResult {
    match &waiter.operation {
        Operation::ListPop(_) | Operation::ListPopMany(..) | Operation::ListMove { .. } => {
            crate::commands::list::blocking::perform(waiter, key, reach, reply)
        }
        Operation::SortedSetPop(_) | Operation::SortedSetPopMany(..) => {
            crate::commands::sorted_set::blocking::perform(waiter, key, reach, reply)
        }
        Operation::StreamRead(after, count) => {
            crate::commands::stream::blocking::perform_read(waiter, after, *count, reach, reply)
        }
        Operation::StreamReadGroup(read) => {
            crate::commands::stream::blocking::perform_group_read(waiter, read, reach, reply)
        }
    }
}

/// Returns `true` if a waiting client can be served from one of its keys, which exists and has the type that the client
/// waits for. Changes nothing.
pub fn can_perform(waiter: &Waiter, _key: &WaitKey, reach: &mut dyn KeyAccess) -> bool {
    match &waiter.operation {
        // A list or sorted set that exists has elements.
        Operation::ListPop(_)
        | Operation::ListPopMany(..)
        | Operation::ListMove { .. }
        | Operation::SortedSetPop(_)
        | Operation::SortedSetPopMany(..) => true,
        Operation::StreamRead(after, _) => crate::commands::stream::blocking::can_read(waiter, after, reach),
        Operation::StreamReadGroup(read) => crate::commands::stream::blocking::can_read_group(waiter, read, reach),
    }
}
