//! XREAD and XREADGROUP for blocked clients: when they are served, and from which streams.
//!
//! They are served as if the command ran again, from all of their streams that the serving thread holds, because a
//! transaction may have added entries to several of them. The other streams have no new entries, since the client would
//! not have blocked otherwise.

use weft_resp::Reply;
use weft_values::stream::{Stream, StreamId};

use crate::clients_waiting::blocking::{GroupRead, WaitKey, Waiter};
use crate::commands::blocked::WaiterKeyAccess;
use crate::commands::context::CommandResult;
use crate::commands::error::CommandError;
use crate::commands::stream::arguments::{edit_stream, entry_as_stream};
use crate::commands::stream::log::GroupPropagation;
use crate::commands::stream::read::{
    GroupReadStart, GroupReader, StreamsReply, has_entries_after, no_group_for_read_error, reply_entries_after,
};

/// Returns the stream that a key holds, and counts a lookup, as the command that runs again does. `None` if the key is
/// missing or has expired.
fn read_stream<'k>(
    waiter: &Waiter,
    key: &WaitKey,
    keys: &'k mut dyn WaiterKeyAccess,
) -> Result<Option<&'k Stream>, CommandError> {
    entry_as_stream(keys.read(waiter.db, key))
}

/// Returns the stream that a key holds, without any effect. `None` if the key is missing or has expired.
fn peek_stream<'k>(
    waiter: &Waiter,
    key: &WaitKey,
    keys: &'k mut dyn WaiterKeyAccess,
) -> Result<Option<&'k Stream>, CommandError> {
    entry_as_stream(keys.peek(waiter.db, key))
}

/// Returns `true` if XREAD has entries to read. `after` has an ID for each key.
pub fn can_read(waiter: &Waiter, after: &[StreamId], keys: &mut dyn WaiterKeyAccess) -> bool {
    waiter.keys.iter().zip(after).any(|(key, after)| {
        keys.is_leased(key)
            && matches!(
                peek_stream(waiter, key, keys),
                Ok(Some(stream)) if has_entries_after(stream, *after)
            )
    })
}

/// Reads entries for XREAD.
///
/// # Errors
/// If another of the keys is not a stream.
pub fn perform_read(
    waiter: &Waiter,
    after: &[StreamId],
    count: usize,
    keys: &mut dyn WaiterKeyAccess,
    reply: &mut Reply<'_>,
) -> CommandResult {
    // The command looks up each key twice: to check the IDs, and to read.
    for key in &waiter.keys {
        if keys.is_leased(key) {
            read_stream(waiter, key, keys)?;
        }
    }
    let mut streams = StreamsReply::new();
    for (key, after) in waiter.keys.iter().zip(after) {
        if keys.is_leased(key)
            && let Some(stream) = read_stream(waiter, key, keys)?
            && has_entries_after(stream, *after)
        {
            streams.begin_stream(reply, &key.name);
            reply_entries_after(reply, stream, *after, count);
        }
    }
    streams.finish(reply);
    Ok(())
}

/// Returns `true` if XREADGROUP has entries to read, or if its group or stream no longer exists.
pub fn can_read_group(waiter: &Waiter, read: &GroupRead, keys: &mut dyn WaiterKeyAccess) -> bool {
    waiter.keys.iter().any(|key| {
        keys.is_leased(key)
            && match peek_stream(waiter, key, keys) {
                Ok(Some(stream)) => stream
                    .group(&read.group)
                    .is_none_or(|group| has_entries_after(stream, group.last_id)),
                Ok(None) | Err(_) => true,
            }
    })
}

/// Reads entries for XREADGROUP.
///
/// # Errors
/// If a group or a stream no longer exists.
pub fn perform_group_read(
    waiter: &Waiter,
    read: &GroupRead,
    keys: &mut dyn WaiterKeyAccess,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let reader = GroupReader {
        group: &read.group,
        consumer: &read.consumer,
        count: read.count,
        is_no_ack: read.no_ack,
        now_ms: keys.now_ms() as i64,
    };
    let is_lost = |stream: Option<&Stream>| stream.is_none_or(|stream| stream.group(reader.group).is_none());
    for key in &waiter.keys {
        if keys.is_leased(key) && is_lost(read_stream(waiter, key, keys)?) {
            return Err(no_group_for_read_error(&key.name, reader.group));
        }
    }
    let mut streams = StreamsReply::new();
    for key in &waiter.keys {
        if keys.is_leased(key) {
            let begin = |reply: &mut Reply<'_>| streams.begin_stream(reply, &key.name);
            let mut log = GroupPropagation::new(keys.effects().is_logging());
            edit_stream(keys.open_for_write(waiter.db, key).counted(), |stream| {
                reader.read_stream(stream, GroupReadStart::New, reply, &mut log, begin)
            })?;
            log.propagate(keys.effects(), waiter.db, &key.name, reader.group);
        }
    }
    streams.finish(reply);
    Ok(())
}
