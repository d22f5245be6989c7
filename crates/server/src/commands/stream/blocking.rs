//! XREAD and XREADGROUP for blocked clients: when they are served, and from which streams.
//!
//! They are served as if the command ran again, from all of their streams that the serving thread holds, because a
//! transaction may have added entries to several of them. The other streams have no new entries, since the client would
//! not have blocked otherwise.

use weft_resp::Reply;
use weft_values::stream::{Stream, StreamId};

use crate::clients_waiting::blocking::{GroupRead, WaitKey, Waiter};
use crate::commands::blocked::KeyAccess;
use crate::commands::context::CommandResult;
use crate::commands::error::CommandError;
use crate::commands::stream::arguments::{edit, stream_of};
use crate::commands::stream::log::GroupLog;
use crate::commands::stream::read::{
    GroupReadStart, Reader, Streams, has_entries_behind, no_group_to_read, reply_entries_behind,
};

/// Calls `look` with the stream that a key holds. The key may be missing or hold another type.
fn look<R>(
    waiter: &Waiter,
    key: &WaitKey,
    reach: &mut dyn KeyAccess,
    look: impl FnOnce(Result<Option<&Stream>, CommandError>) -> R,
) -> R {
    look(stream_of(reach.write(waiter.db, key).entry()))
}

/// Returns `true` if XREAD has entries to read. `after` has an ID for each key.
pub fn can_read(waiter: &Waiter, after: &[StreamId], reach: &mut dyn KeyAccess) -> bool {
    waiter.keys.iter().zip(after).any(|(key, after)| {
        reach.holds(key)
            && look(
                waiter,
                key,
                reach,
                |stream| matches!(stream, Ok(Some(stream)) if has_entries_behind(stream, *after)),
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
    reach: &mut dyn KeyAccess,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let mut streams = Streams::new();
    for (key, after) in waiter.keys.iter().zip(after) {
        if !reach.holds(key) {
            continue;
        }
        look(waiter, key, reach, |stream| {
            if let Some(stream) = stream?
                && has_entries_behind(stream, *after)
            {
                streams.begin(reply, &key.name);
                reply_entries_behind(reply, stream, *after, count);
            }
            Ok::<(), CommandError>(())
        })?;
    }
    streams.end(reply);
    Ok(())
}

/// Returns `true` if XREADGROUP has entries to read, or if its group or stream no longer exists.
pub fn can_read_group(waiter: &Waiter, read: &GroupRead, reach: &mut dyn KeyAccess) -> bool {
    waiter.keys.iter().any(|key| {
        reach.holds(key)
            && look(waiter, key, reach, |stream| match stream {
                Ok(Some(stream)) => stream
                    .group(&read.group)
                    .is_none_or(|group| has_entries_behind(stream, group.last_id)),
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
    reach: &mut dyn KeyAccess,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let reader = Reader {
        group: &read.group,
        consumer: &read.consumer,
        count: read.count,
        no_ack: read.no_ack,
        now_ms: reach.now_ms() as i64,
    };
    let lost = |stream: Result<Option<&Stream>, CommandError>| {
        stream.map(|stream| stream.is_none_or(|stream| stream.group(reader.group).is_none()))
    };
    for key in &waiter.keys {
        if reach.holds(key) && look(waiter, key, reach, lost)? {
            return Err(no_group_to_read(&key.name, reader.group));
        }
    }
    let mut streams = Streams::new();
    for key in &waiter.keys {
        if reach.holds(key) {
            let begin = |reply: &mut Reply<'_>| streams.begin(reply, &key.name);
            let mut log = GroupLog::new(reach.effects().is_logging());
            edit(reach.write(waiter.db, key), |stream| {
                reader.read(stream, GroupReadStart::New, reply, &mut log, begin)
            })?;
            log.write(reach.effects(), waiter.db, &key.name, reader.group);
        }
    }
    streams.end(reply);
    Ok(())
}
