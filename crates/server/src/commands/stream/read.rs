//! XREAD and XREADGROUP: read entries of several streams after given IDs.
//!
//! XREADGROUP reads entries that were never delivered to its group (`>`), or the pending entries of its consumer.

use weft_resp::{Protocol, Reply};
use weft_values::stream::{DeliveryOptions, PendingEntry, Stream, StreamId};

use crate::clients_waiting::blocking::{BlockingOperation, GroupRead};
use crate::commands::blocked::{parse_end_ms, wait_for_keys};
use crate::commands::context::{Binding, CommandResult, Context, leased, leased_for_writing};
use crate::commands::error::{CommandError, c_string_prefix};
use crate::commands::stream::arguments::{
    StreamEdit, edit_stream, entry_as_stream, is_word, parse_exact_id, parse_integer, parse_integer_or, range_cost_ns,
    reply_entry, reply_id,
};
use crate::commands::stream::log::GroupPropagation;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("xread", leased(xread)), ("xreadgroup", leased_for_writing(xreadgroup))];

/// The BLOCK option.
#[derive(Clone, Copy)]
enum BlockTimeout {
    None,
    /// Wait until this time in milliseconds since the Unix epoch; `None` for no limit.
    Until(Option<u64>),
}

/// The arguments before the streams.
struct StreamReadOptions<'a> {
    /// The largest number of entries to read from each stream.
    count: usize,
    block_timeout: BlockTimeout,
    is_no_ack: bool,
    /// The names of the group and the consumer.
    group: Option<(&'a [u8], &'a [u8])>,
    /// The index of the argument that is the first key.
    first_key: usize,
    stream_count: usize,
}

impl<'a> StreamReadOptions<'a> {
    fn parse(ctx: &Context<'a, '_>, is_group_read: bool) -> Result<Self, CommandError> {
        let mut options = StreamReadOptions {
            count: usize::MAX,
            block_timeout: BlockTimeout::None,
            is_no_ack: false,
            group: None,
            first_key: 0,
            stream_count: 0,
        };
        let mut index = 1;
        while index < ctx.argc() && options.first_key == 0 {
            let word = ctx.arg(index);
            let more = ctx.argc() - index - 1;
            index += 1;
            if more > 0 && is_word(word, "BLOCK") {
                let not_an_integer = "ERR timeout is not an integer or out of range";
                let timeout_ms = parse_integer_or(ctx.arg(index), not_an_integer)?;
                options.block_timeout = BlockTimeout::Until(parse_end_ms(timeout_ms, ctx.now_ms)?);
                index += 1;
            } else if more > 0 && is_word(word, "COUNT") {
                options.count = match parse_integer(ctx.arg(index))? {
                    count @ 1.. => usize::try_from(count).unwrap_or(usize::MAX),
                    _ => usize::MAX,
                };
                index += 1;
            } else if more > 0 && is_word(word, "STREAMS") {
                options.first_key = index;
                options.stream_count = parse_stream_count(ctx, more, is_group_read)? / 2;
            } else if more > 1 && is_word(word, "GROUP") {
                require_group_read("GROUP", is_group_read)?;
                options.group = Some((ctx.arg(index), ctx.arg(index + 1)));
                index += 2;
            } else if is_word(word, "NOACK") {
                require_group_read("NOACK", is_group_read)?;
                options.is_no_ack = true;
            } else {
                return Err(CommandError::SYNTAX);
            }
        }
        options.check_options(ctx, is_group_read)
    }

    fn check_options(self, ctx: &Context<'_, '_>, is_group_read: bool) -> Result<Self, CommandError> {
        if self.first_key == 0 {
            return Err(CommandError::SYNTAX);
        }
        if is_group_read && self.group.is_none() {
            return Err(CommandError::constant("ERR Missing GROUP option for XREADGROUP"));
        }
        // The key walker finds other keys only if a group or consumer is named `streams` in an unusual position.
        let planned = ctx.keys.planned.iter().map(|key| key.argument as usize);
        if !planned.eq(self.first_key..self.first_key + self.stream_count) {
            return Err(CommandError::SYNTAX);
        }
        Ok(self)
    }

    /// Returns the argument that specifies the ID after which a stream is read.
    fn start_argument<'w>(&self, ctx: &Context<'w, '_>, stream: usize) -> &'w [u8] {
        ctx.arg(self.first_key + self.stream_count + stream)
    }
}

fn parse_stream_count(ctx: &Context<'_, '_>, words: usize, is_group_read: bool) -> Result<usize, CommandError> {
    if words.is_multiple_of(2) {
        return Ok(words);
    }
    let (name, symbol) = (ctx.command.full_name, if is_group_read { '>' } else { '$' });
    Err(CommandError::from_text(format!(
        "ERR Unbalanced '{name}' list of streams: for each stream key an ID or '{symbol}' must be specified."
    )))
}

fn require_group_read(option: &str, is_group_read: bool) -> Result<(), CommandError> {
    if is_group_read {
        return Ok(());
    }
    Err(CommandError::from_text(format!(
        "ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."
    )))
}

/// Writes the array or map of streams that have entries, each with the name of its key.
pub struct StreamsReply {
    deferred: Option<weft_resp::DeferredLength>,
    stream_count: usize,
}

impl StreamsReply {
    /// Returns a writer that has written nothing.
    pub fn new() -> Self {
        StreamsReply {
            deferred: None,
            stream_count: 0,
        }
    }

    /// Returns `true` if no stream had entries.
    pub fn is_empty(&self) -> bool {
        self.stream_count == 0
    }

    /// Begins a stream: writes the name of its key, and before the first stream the header of the reply.
    pub fn begin_stream(&mut self, reply: &mut Reply<'_>, name: &[u8]) {
        if self.deferred.is_none() {
            self.deferred = Some(match reply.protocol {
                Protocol::Resp2 => reply.begin_array(),
                Protocol::Resp3 => reply.begin_map(),
            });
        }
        self.stream_count += 1;
        if reply.protocol == Protocol::Resp2 {
            reply.array(2);
        }
        reply.bulk(name);
    }

    /// Ends the reply. Without any stream the reply is null.
    pub fn finish(self, reply: &mut Reply<'_>) {
        match (self.deferred, reply.protocol) {
            (None, _) => reply.null_array(),
            (Some(begun), Protocol::Resp2) => reply.end_array(begun, self.stream_count),
            (Some(begun), Protocol::Resp3) => reply.end_map(begun, self.stream_count),
        }
    }
}

fn xread(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = StreamReadOptions::parse(ctx, false)?;
    let mut after = Vec::with_capacity(options.stream_count);
    let mut cost_ns = 0;
    for index in 0..options.stream_count {
        let word = options.start_argument(ctx, index);
        let stream = entry_as_stream(ctx.keys.read(index))?;
        let id = parse_read_position(word, stream)?;
        after.push(id);
        if let (Some(stream), Some(start)) = (stream, id.next()) {
            cost_ns += range_cost_ns(stream, start, StreamId::MAX, options.count as u64, false);
        }
    }
    if ctx.detach_if_long(cost_ns) {
        return Ok(());
    }
    let mut streams = StreamsReply::new();
    for (index, after) in after.iter().copied().enumerate() {
        let name = ctx.keys.name(index);
        if let Some(stream) = entry_as_stream(ctx.keys.read(index))?
            && has_entries_after(stream, after)
        {
            streams.begin_stream(&mut ctx.reply, name);
            reply_entries_after(&mut ctx.reply, stream, after, options.count);
        }
    }
    let operation = |options: &StreamReadOptions<'_>| BlockingOperation::StreamRead(after.into(), options.count);
    finish_or_wait(ctx, streams, &options, operation);
    Ok(())
}

/// Ends the reply. If no stream had entries and the client requested BLOCK, the client waits instead.
fn finish_or_wait<'a>(
    ctx: &mut Context<'a, '_>,
    streams: StreamsReply,
    options: &StreamReadOptions<'a>,
    operation: impl FnOnce(&StreamReadOptions<'a>) -> BlockingOperation,
) {
    match options.block_timeout {
        BlockTimeout::Until(deadline_ms) if streams.is_empty() => {
            wait_for_keys(ctx, operation(options), 0..options.stream_count, deadline_ms);
        }
        _ => streams.finish(&mut ctx.reply),
    }
}

/// Returns the ID after which XREAD reads a stream.
fn parse_read_position(word: &[u8], stream: Option<&Stream>) -> Result<StreamId, CommandError> {
    let last = stream.map(Stream::last_id);
    match c_string_prefix(word) {
        b"$" => Ok(last.unwrap_or_default()),
        b"+" => Ok(last.and_then(StreamId::previous).unwrap_or_default()),
        b">" => Err(CommandError::constant(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
        )),
        _ => parse_exact_id(word, 0),
    }
}

/// Returns `true` if a stream has an entry after an ID.
#[inline]
pub fn has_entries_after(stream: &Stream, id: StreamId) -> bool {
    stream.length() > 0 && stream.last_entry_id() > id
}

/// Writes up to `count` of the entries after an ID.
pub fn reply_entries_after(reply: &mut Reply<'_>, stream: &Stream, id: StreamId, count: usize) {
    let begun = reply.begin_array();
    let mut sent = 0;
    if let Some(start) = id.next() {
        for entry in stream.entries(start, StreamId::MAX).take(count) {
            reply_entry(reply, &entry);
            sent += 1;
        }
    }
    reply.end_array(begun, sent);
}

/// The entries that XREADGROUP reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupReadStart {
    /// The entries that were never delivered to the group.
    New,
    /// The consumer's pending entries after this ID.
    PendingAfter(StreamId),
}

impl GroupReadStart {
    fn parse(word: &[u8]) -> Result<Self, CommandError> {
        let meaningless = |symbol: char| {
            CommandError::from_text(format!(
                "ERR The {symbol} ID is meaningless in the context of XREADGROUP: you want to read the history of this \
                 consumer by specifying a proper ID, or use the > ID to get new messages. The {symbol} ID would just \
                 return an empty result set."
            ))
        };
        match c_string_prefix(word) {
            b"$" => Err(meaningless('$')),
            b"+" => Err(meaningless('+')),
            b">" => Ok(GroupReadStart::New),
            // No pending entry has an ID after the largest one, so this ID means the same as `>`.
            _ => parse_exact_id(word, 0).map(|id| match id {
                StreamId::MAX => GroupReadStart::New,
                id => GroupReadStart::PendingAfter(id),
            }),
        }
    }
}

/// The parameters of reading on behalf of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupReader<'a> {
    /// The group.
    pub group: &'a [u8],
    /// The consumer.
    pub consumer: &'a [u8],
    /// The largest number of entries to read from each stream.
    pub count: usize,
    /// `true` if entries do not become pending (NOACK).
    pub is_no_ack: bool,
    /// The current time in milliseconds since the Unix epoch.
    pub now_ms: i64,
}

fn xreadgroup(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = StreamReadOptions::parse(ctx, true)?;
    let (group, consumer) = options.group.unwrap_or_default();
    let reader = GroupReader {
        group,
        consumer,
        count: options.count,
        is_no_ack: options.is_no_ack,
        now_ms: ctx.now_ms as i64,
    };
    let mut positions = Vec::with_capacity(options.stream_count);
    let mut cost_ns = 0;
    for index in 0..options.stream_count {
        let (name, word) = (ctx.keys.name(index), options.start_argument(ctx, index));
        let stream = entry_as_stream(ctx.keys.read(index))?;
        let Some(stream) = stream.filter(|stream| stream.group(group).is_some()) else {
            return Err(no_group_for_read_error(name, group));
        };
        let from = GroupReadStart::parse(word)?;
        cost_ns += reader.cost_ns(stream, from);
        positions.push(from);
    }
    if ctx.detach_if_long(cost_ns) {
        return Ok(());
    }
    let mut streams = StreamsReply::new();
    for (index, from) in positions.into_iter().enumerate() {
        let name = ctx.keys.name(index);
        let mut log = GroupPropagation::new(ctx.keys.effects.is_logging());
        let reply = &mut ctx.reply;
        let read = |stream: &mut Stream| {
            reader.read_stream(stream, from, reply, &mut log, |reply| streams.begin_stream(reply, name))
        };
        if edit_stream(ctx.keys.write(index).counted(), read)?.is_none() {
            return Err(no_group_for_read_error(name, group));
        }
        log.propagate(ctx.keys.effects, ctx.keys.db, name, group);
    }
    let operation = |options: &StreamReadOptions<'_>| {
        BlockingOperation::StreamReadGroup(Box::new(GroupRead {
            group: group.into(),
            consumer: consumer.into(),
            count: options.count,
            no_ack: options.is_no_ack,
        }))
    };
    finish_or_wait(ctx, streams, &options, operation);
    Ok(())
}

/// Returns the error of XREADGROUP for a missing group.
pub fn no_group_for_read_error(key: &[u8], group: &[u8]) -> CommandError {
    let parts: [&[u8]; 5] = [
        b"NOGROUP No such key '",
        c_string_prefix(key),
        b"' or consumer group '",
        c_string_prefix(group),
        b"' in XREADGROUP with GROUP option",
    ];
    CommandError::from_bytes(parts.concat())
}

/// The time for sending a pending entry, in nanoseconds.
const SEND_PENDING_NS: u64 = 200;

impl GroupReader<'_> {
    /// Returns the estimated time for reading a stream, in nanoseconds.
    fn cost_ns(&self, stream: &Stream, from: GroupReadStart) -> u64 {
        let Some(group) = stream.group(self.group) else {
            return 0;
        };
        match from {
            GroupReadStart::New => group.last_id.next().map_or(0, |start| {
                // Besides being sent, entries become pending, which takes about as long.
                2 * range_cost_ns(stream, start, StreamId::MAX, self.count as u64, false)
            }),
            GroupReadStart::PendingAfter(_) => group.find_consumer(self.consumer).map_or(0, |number| {
                let pending = group.consumer(number).pending().len();
                pending.min(self.count) as u64 * SEND_PENDING_NS
            }),
        }
    }

    /// Reads one stream. If there are entries to send, calls `begin` and then writes the entries. Returns `true` if it
    /// did.
    ///
    /// # Errors
    /// If the group does not exist.
    pub fn read_stream(
        &self,
        stream: &mut Stream,
        start: GroupReadStart,
        reply: &mut Reply<'_>,
        log: &mut GroupPropagation,
        begin: impl FnOnce(&mut Reply<'_>),
    ) -> Result<(bool, StreamEdit), CommandError> {
        let top = if stream.length() > 0 {
            stream.last_entry_id()
        } else {
            StreamId::MIN
        };
        let Some(group) = stream.group_mut(self.group) else {
            return Err(no_group_for_read_error(b"", self.group));
        };
        let served = match start {
            GroupReadStart::PendingAfter(_) => true,
            GroupReadStart::New => top > group.last_id,
        };
        let (number, created) = group.find_or_create_consumer(self.consumer, self.now_ms);
        group.consumer_mut(number).seen_ms = self.now_ms;
        if created && self.is_no_ack {
            log.add_created_consumer(self.consumer);
        }
        if served {
            begin(reply);
            let begun = reply.begin_array();
            let sent = match start {
                GroupReadStart::PendingAfter(id) => self.reply_pending(stream, id, reply),
                GroupReadStart::New => {
                    let delivery = DeliveryOptions {
                        count: self.count,
                        no_ack: self.is_no_ack,
                        now_ms: self.now_ms,
                    };
                    let pending = PendingEntry {
                        delivered_ms: self.now_ms,
                        deliveries: 1,
                        consumer: number,
                    };
                    let sent = stream.deliver(self.group, number, delivery, |entry| {
                        if !self.is_no_ack {
                            log.add_claim(self.consumer, entry.id, pending, entry.id);
                        }
                        reply_entry(reply, &entry);
                    });
                    if let Some(group) = stream.group(self.group).filter(|_| sent > 0) {
                        log.set_last_delivered(group);
                    }
                    sent
                }
            };
            reply.end_array(begun, sent);
        }
        Ok((served, StreamEdit::with_consumer(created, u64::from(served))))
    }

    /// Sends the consumer's pending entries after an ID again. Returns their number.
    fn reply_pending(&self, stream: &mut Stream, id: StreamId, reply: &mut Reply<'_>) -> usize {
        let Some((group, mut entries)) = stream.group_and_entries(self.group) else {
            return 0;
        };
        let (Some(number), Some(start)) = (group.find_consumer(self.consumer), id.next()) else {
            return 0;
        };
        let pending = group.consumer(number).pending();
        let ids: Vec<StreamId> = pending.range(start..).take(self.count).copied().collect();
        for id in &ids {
            match entries.find(*id) {
                Some(entry) => {
                    reply_entry(reply, &entry);
                    group.record_redelivery(*id, self.now_ms);
                }
                None => {
                    reply.array(2);
                    reply_id(reply, *id);
                    reply.null_array();
                }
            }
        }
        ids.len()
    }
}
