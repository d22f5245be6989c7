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

/// Calls `look` like [`with_stream`], and counts a lookup, as the command that runs again does.
fn read_stream<R>(
    waiter: &Waiter,
    key: &WaitKey,
    keys: &mut dyn WaiterKeyAccess,
    look: impl FnOnce(Result<Option<&Stream>, CommandError>) -> R,
) -> R {
    look(entry_as_stream(keys.open_for_write(waiter.db, key).counted().entry()))
}

/// Calls `look` with the stream that a key holds. The key may be missing or hold another type.
fn with_stream<R>(
    waiter: &Waiter,
    key: &WaitKey,
    keys: &mut dyn WaiterKeyAccess,
    look: impl FnOnce(Result<Option<&Stream>, CommandError>) -> R,
) -> R {
    look(entry_as_stream(keys.open_for_write(waiter.db, key).entry()))
}

/// Returns `true` if XREAD has entries to read. `after` has an ID for each key.
pub fn can_read(waiter: &Waiter, after: &[StreamId], keys: &mut dyn WaiterKeyAccess) -> bool {
    waiter.keys.iter().zip(after).any(|(key, after)| {
        keys.is_leased(key)
            && with_stream(
                waiter,
                key,
                keys,
                |stream| matches!(stream, Ok(Some(stream)) if has_entries_after(stream, *after)),
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
            read_stream(waiter, key, keys, |stream| stream.map(|_| ()))?;
        }
    }
    let mut streams = StreamsReply::new();
    for (key, after) in waiter.keys.iter().zip(after) {
        if !keys.is_leased(key) {
            continue;
        }
        read_stream(waiter, key, keys, |stream| {
            if let Some(stream) = stream?
                && has_entries_after(stream, *after)
            {
                streams.begin_stream(reply, &key.name);
                reply_entries_after(reply, stream, *after, count);
            }
            Ok::<(), CommandError>(())
        })?;
    }
    streams.finish(reply);
    Ok(())
}

/// Returns `true` if XREADGROUP has entries to read, or if its group or stream no longer exists.
pub fn can_read_group(waiter: &Waiter, read: &GroupRead, keys: &mut dyn WaiterKeyAccess) -> bool {
    waiter.keys.iter().any(|key| {
        keys.is_leased(key)
            && with_stream(waiter, key, keys, |stream| match stream {
                Ok(Some(stream)) => stream
                    .group(&read.group)
                    .is_none_or(|group| has_entries_after(stream, group.last_id)),
                Ok(None) | Err(_) => true,
            })
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
    let lost = |stream: Result<Option<&Stream>, CommandError>| {
        stream.map(|stream| stream.is_none_or(|stream| stream.group(reader.group).is_none()))
    };
    for key in &waiter.keys {
        if keys.is_leased(key) && read_stream(waiter, key, keys, lost)? {
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
