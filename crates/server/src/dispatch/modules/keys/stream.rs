//! Access of modules to streams.

use weft_config::id;
use weft_modules::session::keys::{SessionKey, StreamAddError, StreamSession};
use weft_table::NewValue;
use weft_values::Value;
use weft_values::listpack::DECIMAL_MAX_BYTES;
use weft_values::stream::{AppendError, BlockLimits, Stream, StreamId, TrimOptions, TrimTarget};

use super::ModuleSession;
use crate::commands::stream::arguments::entry_as_stream;
use crate::commands::stream::block_limits;
use crate::keyspace::access::ExpiryUpdate;

/// The number of blocks whose entries approximate trimming removes at most.
const MAX_TRIMMED_BLOCKS: u64 = 100;

/// Adds an entry to a stream.
fn append(
    stream: &mut Stream,
    id: Option<StreamId>,
    fields: &[(&[u8], &[u8])],
    limits: BlockLimits,
    now_ms: u64,
) -> Result<StreamId, StreamAddError> {
    let last = stream.last_id();
    let next = match id {
        Some(id) if last != StreamId::MAX => Some(id),
        None if now_ms > last.ms => Some(StreamId::new(now_ms, 0)),
        None => last.next(),
        Some(_) => None,
    };
    let id = next.ok_or(StreamAddError::NoFurtherId)?;
    match stream.append(id, fields.iter().copied(), limits) {
        Ok(()) => Ok(id),
        Err(AppendError::IdTooSmall) => Err(StreamAddError::IdTooSmall),
        Err(AppendError::TooLarge) => Err(StreamAddError::TooLarge),
    }
}

impl ModuleSession<'_, '_> {
    /// Changes the stream that a key holds. Returns `None` if it holds none.
    fn edit_stream<R>(&mut self, key: SessionKey<'_>, edit: impl FnOnce(&mut Stream) -> R) -> Option<R> {
        self.edit_key(key, |write, _| match write.entry_mut()?.object_mut() {
            Some(Value::Stream(stream)) => Some(edit(stream)),
            _ => None,
        })?
    }
}

impl StreamSession for ModuleSession<'_, '_> {
    fn add_entry(
        &mut self,
        key: SessionKey<'_>,
        id: Option<StreamId>,
        fields: &[(&[u8], &[u8])],
    ) -> Result<StreamId, StreamAddError> {
        let added = self.edit_key(key, |write, context| {
            let limits = block_limits(&context.server.config);
            match write.entry_mut() {
                Some(mut entry) => match entry.object_mut() {
                    Some(Value::Stream(stream)) => append(stream, id, fields, limits, context.now_ms),
                    _ => Err(StreamAddError::WrongType),
                },
                None => {
                    let mut stream = Stream::new();
                    let added = append(&mut stream, id, fields, limits, context.now_ms)?;
                    write.set(NewValue::Object(Value::Stream(stream)), ExpiryUpdate::Remove);
                    Ok(added)
                }
            }
        });
        added.unwrap_or(Err(StreamAddError::WrongType))
    }

    fn remove_entry(&mut self, key: SessionKey<'_>, id: StreamId) -> bool {
        let removed = self.edit_stream(key, |stream| {
            let removed = stream.delete(id);
            if removed {
                stream.update_first_id();
            }
            removed
        });
        removed.unwrap_or(false)
    }

    fn read_entry(
        &mut self,
        key: SessionKey<'_>,
        (start, end): (StreamId, StreamId),
        is_last: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Option<StreamId> {
        self.with_stored(key, |entry| {
            let stream = entry_as_stream(Some(entry)).ok().flatten()?;
            let entry = match is_last {
                true => stream.entries_backwards(start, end).next(),
                false => stream.entries(start, end).next(),
            }?;
            for (name, value) in entry.pairs() {
                let (mut digits, mut more_digits) = ([0; DECIMAL_MAX_BYTES], [0; DECIMAL_MAX_BYTES]);
                visit(name.text(&mut digits), value.text(&mut more_digits));
            }
            Some(entry.id)
        })?
    }

    fn trim_stream(&mut self, key: SessionKey<'_>, target: TrimTarget, is_approximate: bool) -> u64 {
        let block_entries = u64::try_from(self.thread.server.config.integer(id::STREAM_NODE_MAX_ENTRIES)).unwrap_or(0);
        let limit = match is_approximate {
            true => block_entries.saturating_mul(MAX_TRIMMED_BLOCKS),
            false => 0,
        };
        let trimmed = self.edit_stream(key, |stream| {
            stream.trim(TrimOptions {
                strategy: target,
                is_approximate,
                limit,
            })
        });
        trimmed.unwrap_or(0)
    }
}
