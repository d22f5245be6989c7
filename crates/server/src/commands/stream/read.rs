//! XREAD and XREADGROUP: read entries of several streams after given IDs.
//!
//! XREADGROUP reads entries that were never delivered to its group (`>`), or the pending entries of its consumer.

use weft_resp::{Protocol, Reply};
use weft_values::stream::{DeliveryOptions, PendingEntry, Stream, StreamId};

use crate::clients_waiting::blocking::{GroupRead, Operation};
use crate::commands::blocked::{end_ms, wait};
use crate::commands::context::{Binding, CommandResult, Context, leased, leased_to_write};
use crate::commands::error::{CommandError, shown};
use crate::commands::stream::arguments::{
    StreamEdit, edit, exact_id, integer, integer_or, is_word, range_cost_ns, reply_entry, reply_id, stream_of,
};
use crate::commands::stream::log::GroupLog;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("xread", leased(xread)), ("xreadgroup", leased_to_write(xreadgroup))];

/// The BLOCK option.
#[derive(Clone, Copy)]
enum BlockOption {
    None,
    /// Wait until this time in milliseconds since the Unix epoch; `None` for no limit.
    Until(Option<u64>),
}

/// The arguments before the streams.
struct Options<'a> {
    /// The largest number of entries to read from each stream.
    count: usize,
    patience: BlockOption,
    no_ack: bool,
    /// The names of the group and the consumer.
    group: Option<(&'a [u8], &'a [u8])>,
    /// The index of the argument that is the first key.
    first_key: usize,
    streams: usize,
}

impl<'a> Options<'a> {
    fn parse(ctx: &Context<'a, '_>, as_group: bool) -> Result<Self, CommandError> {
        let mut options = Options {
            count: usize::MAX,
            patience: BlockOption::None,
            no_ack: false,
            group: None,
            first_key: 0,
            streams: 0,
        };
        let mut index = 1;
        while index < ctx.argc() && options.first_key == 0 {
            let word = ctx.arg(index);
            let more = ctx.argc() - index - 1;
            index += 1;
            if more > 0 && is_word(word, "BLOCK") {
                let not_an_integer = "ERR timeout is not an integer or out of range";
                let timeout_ms = integer_or(ctx.arg(index), not_an_integer)?;
                options.patience = BlockOption::Until(end_ms(timeout_ms, ctx.now_ms)?);
                index += 1;
            } else if more > 0 && is_word(word, "COUNT") {
                options.count = match integer(ctx.arg(index))? {
                    count @ 1.. => usize::try_from(count).unwrap_or(usize::MAX),
                    _ => usize::MAX,
                };
                index += 1;
            } else if more > 0 && is_word(word, "STREAMS") {
                options.first_key = index;
                options.streams = balanced(ctx, more, as_group)? / 2;
            } else if more > 1 && is_word(word, "GROUP") {
                only_for_groups("GROUP", as_group)?;
                options.group = Some((ctx.arg(index), ctx.arg(index + 1)));
                index += 2;
            } else if is_word(word, "NOACK") {
                only_for_groups("NOACK", as_group)?;
                options.no_ack = true;
            } else {
                return Err(CommandError::SYNTAX);
            }
        }
        options.check(ctx, as_group)
    }

    fn check(self, ctx: &Context<'_, '_>, as_group: bool) -> Result<Self, CommandError> {
        if self.first_key == 0 {
            return Err(CommandError::SYNTAX);
        }
        if as_group && self.group.is_none() {
            return Err(CommandError::constant("ERR Missing GROUP option for XREADGROUP"));
        }
        // The key walker finds other keys only if a group or consumer is named `streams` in an unusual position.
        let planned = ctx.keys.planned.iter().map(|key| key.argument as usize);
        if !planned.eq(self.first_key..self.first_key + self.streams) {
            return Err(CommandError::SYNTAX);
        }
        Ok(self)
    }

    /// Returns the argument that specifies the ID after which a stream is read.
    fn position<'w>(&self, ctx: &Context<'w, '_>, stream: usize) -> &'w [u8] {
        ctx.arg(self.first_key + self.streams + stream)
    }
}

fn balanced(ctx: &Context<'_, '_>, words: usize, as_group: bool) -> Result<usize, CommandError> {
    if words.is_multiple_of(2) {
        return Ok(words);
    }
    let (name, symbol) = (ctx.command.full_name, if as_group { '>' } else { '$' });
    Err(CommandError::text(format!(
        "ERR Unbalanced '{name}' list of streams: for each stream key an ID or '{symbol}' must be specified."
    )))
}

fn only_for_groups(option: &str, as_group: bool) -> Result<(), CommandError> {
    if as_group {
        return Ok(());
    }
    Err(CommandError::text(format!(
        "ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."
    )))
}

/// Writes the array or map of streams that have entries, each with the name of its key.
pub struct Streams {
    begun: Option<weft_resp::DeferredLength>,
    served: usize,
}

impl Streams {
    /// Returns a writer that has written nothing.
    pub fn new() -> Self {
        Streams { begun: None, served: 0 }
    }

    /// Returns `true` if no stream had entries.
    pub fn is_empty(&self) -> bool {
        self.served == 0
    }

    /// Begins a stream: writes the name of its key, and before the first stream the header of the reply.
    pub fn begin(&mut self, reply: &mut Reply<'_>, name: &[u8]) {
        if self.begun.is_none() {
            self.begun = Some(match reply.protocol {
                Protocol::Resp2 => reply.begin_array(),
                Protocol::Resp3 => reply.begin_map(),
            });
        }
        self.served += 1;
        if reply.protocol == Protocol::Resp2 {
            reply.array(2);
        }
        reply.bulk(name);
    }

    /// Ends the reply. Without any stream the reply is null.
    pub fn end(self, reply: &mut Reply<'_>) {
        match (self.begun, reply.protocol) {
            (None, _) => reply.null_array(),
            (Some(begun), Protocol::Resp2) => reply.end_array(begun, self.served),
            (Some(begun), Protocol::Resp3) => reply.end_map(begun, self.served),
        }
    }
}

fn xread(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = Options::parse(ctx, false)?;
    let mut after = Vec::with_capacity(options.streams);
    let mut cost_ns = 0;
    for index in 0..options.streams {
        let word = options.position(ctx, index);
        let stream = stream_of(ctx.keys.read(index))?;
        let id = read_position(word, stream)?;
        after.push(id);
        if let (Some(stream), Some(start)) = (stream, id.next()) {
            cost_ns += range_cost_ns(stream, start, StreamId::MAX, options.count as u64);
        }
    }
    if ctx.leaves_worker(cost_ns) {
        return Ok(());
    }
    let mut streams = Streams::new();
    for (index, after) in after.iter().copied().enumerate() {
        let name = ctx.keys.name(index);
        if let Some(stream) = stream_of(ctx.keys.read(index))?
            && has_entries_behind(stream, after)
        {
            streams.begin(&mut ctx.reply, name);
            reply_entries_behind(&mut ctx.reply, stream, after, options.count);
        }
    }
    let operation = |options: &Options<'_>| Operation::StreamRead(after.into(), options.count);
    end_or_wait(ctx, streams, &options, operation);
    Ok(())
}

/// Ends the reply. If no stream had entries and the client requested BLOCK, the client waits instead.
fn end_or_wait<'a>(
    ctx: &mut Context<'a, '_>,
    streams: Streams,
    options: &Options<'a>,
    operation: impl FnOnce(&Options<'a>) -> Operation,
) {
    match options.patience {
        BlockOption::Until(deadline_ms) if streams.is_empty() => {
            wait(ctx, operation(options), 0..options.streams, deadline_ms);
        }
        _ => streams.end(&mut ctx.reply),
    }
}

/// Returns the ID after which XREAD reads a stream.
fn read_position(word: &[u8], stream: Option<&Stream>) -> Result<StreamId, CommandError> {
    let last = stream.map(Stream::last_id);
    match shown(word) {
        b"$" => Ok(last.unwrap_or_default()),
        b"+" => Ok(last.and_then(StreamId::previous).unwrap_or_default()),
        b">" => Err(CommandError::constant(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
        )),
        _ => exact_id(word, 0),
    }
}

/// Returns `true` if a stream has an entry after an ID.
#[inline]
pub fn has_entries_behind(stream: &Stream, id: StreamId) -> bool {
    stream.length() > 0 && stream.last_entry_id() > id
}

/// Writes up to `count` of the entries after an ID.
pub fn reply_entries_behind(reply: &mut Reply<'_>, stream: &Stream, id: StreamId, count: usize) {
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
    PendingBehind(StreamId),
}

impl GroupReadStart {
    fn parse(word: &[u8]) -> Result<Self, CommandError> {
        let meaningless = |symbol: char| {
            CommandError::text(format!(
                "ERR The {symbol} ID is meaningless in the context of XREADGROUP: you want to read the history of this \
                 consumer by specifying a proper ID, or use the > ID to get new messages. The {symbol} ID would just \
                 return an empty result set."
            ))
        };
        match shown(word) {
            b"$" => Err(meaningless('$')),
            b"+" => Err(meaningless('+')),
            b">" => Ok(GroupReadStart::New),
            // No pending entry has an ID after the largest one, so this ID means the same as `>`.
            _ => exact_id(word, 0).map(|id| match id {
                StreamId::MAX => GroupReadStart::New,
                id => GroupReadStart::PendingBehind(id),
            }),
        }
    }
}

/// The parameters of reading on behalf of a group.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// The group.
    pub group: &'a [u8],
    /// The consumer.
    pub consumer: &'a [u8],
    /// The largest number of entries to read from each stream.
    pub count: usize,
    /// `true` if entries do not become pending (NOACK).
    pub no_ack: bool,
    /// The current time in milliseconds since the Unix epoch.
    pub now_ms: i64,
}

fn xreadgroup(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = Options::parse(ctx, true)?;
    let (group, consumer) = options.group.unwrap_or_default();
    let reader = Reader {
        group,
        consumer,
        count: options.count,
        no_ack: options.no_ack,
        now_ms: ctx.now_ms as i64,
    };
    let mut positions = Vec::with_capacity(options.streams);
    let mut cost_ns = 0;
    for index in 0..options.streams {
        let (name, word) = (ctx.keys.name(index), options.position(ctx, index));
        let stream = stream_of(ctx.keys.read(index))?;
        let Some(stream) = stream.filter(|stream| stream.group(group).is_some()) else {
            return Err(no_group_to_read(name, group));
        };
        let from = GroupReadStart::parse(word)?;
        cost_ns += reader.cost_ns(stream, from);
        positions.push(from);
    }
    if ctx.leaves_worker(cost_ns) {
        return Ok(());
    }
    let mut streams = Streams::new();
    for (index, from) in positions.into_iter().enumerate() {
        let name = ctx.keys.name(index);
        let mut log = GroupLog::new(ctx.keys.effects.is_logging());
        let reply = &mut ctx.reply;
        let read = |stream: &mut Stream| reader.read(stream, from, reply, &mut log, |reply| streams.begin(reply, name));
        if edit(ctx.keys.write(index), read)?.is_none() {
            return Err(no_group_to_read(name, group));
        }
        log.write(ctx.keys.effects, ctx.keys.db, name, group);
    }
    let operation = |options: &Options<'_>| {
        Operation::StreamReadGroup(Box::new(GroupRead {
            group: group.into(),
            consumer: consumer.into(),
            count: options.count,
            no_ack: options.no_ack,
        }))
    };
    end_or_wait(ctx, streams, &options, operation);
    Ok(())
}

/// Returns the error of XREADGROUP for a missing group.
pub fn no_group_to_read(key: &[u8], group: &[u8]) -> CommandError {
    let parts: [&[u8]; 5] = [
        b"NOGROUP No such key '",
        shown(key),
        b"' or consumer group '",
        shown(group),
        b"' in XREADGROUP with GROUP option",
    ];
    CommandError::bytes(parts.concat())
}

/// The time for sending a pending entry, in nanoseconds.
const PENDING_NS: u64 = 200;

impl Reader<'_> {
    /// Returns the estimated time for reading a stream, in nanoseconds.
    fn cost_ns(&self, stream: &Stream, from: GroupReadStart) -> u64 {
        let Some(group) = stream.group(self.group) else {
            return 0;
        };
        match from {
            GroupReadStart::New => group.last_id.next().map_or(0, |start| {
                // Besides being sent, entries become pending, which takes about as long.
                2 * range_cost_ns(stream, start, StreamId::MAX, self.count as u64)
            }),
            GroupReadStart::PendingBehind(_) => group.find_consumer(self.consumer).map_or(0, |number| {
                let pending = group.consumer(number).pending().len();
                pending.min(self.count) as u64 * PENDING_NS
            }),
        }
    }

    /// Reads one stream. If there are entries to send, calls `begin` and then writes the entries. Returns `true` if it
    /// did.
    ///
    /// # Errors
    /// If the group does not exist.
    pub fn read(
        &self,
        stream: &mut Stream,
        from: GroupReadStart,
        reply: &mut Reply<'_>,
        log: &mut GroupLog,
        begin: impl FnOnce(&mut Reply<'_>),
    ) -> Result<(bool, StreamEdit), CommandError> {
        let top = if stream.length() > 0 {
            stream.last_entry_id()
        } else {
            StreamId::MIN
        };
        let Some(group) = stream.group_mut(self.group) else {
            return Err(no_group_to_read(b"", self.group));
        };
        let served = match from {
            GroupReadStart::PendingBehind(_) => true,
            GroupReadStart::New => top > group.last_id,
        };
        let (number, created) = group.find_or_create_consumer(self.consumer, self.now_ms);
        group.consumer_mut(number).seen_ms = self.now_ms;
        if created && self.no_ack {
            log.created(self.consumer);
        }
        if served {
            begin(reply);
            let begun = reply.begin_array();
            let sent = match from {
                GroupReadStart::PendingBehind(id) => self.send_pending(stream, id, reply),
                GroupReadStart::New => {
                    let delivery = DeliveryOptions {
                        count: self.count,
                        no_ack: self.no_ack,
                        now_ms: self.now_ms,
                    };
                    let pending = PendingEntry {
                        delivered_ms: self.now_ms,
                        deliveries: 1,
                        consumer: number,
                    };
                    let sent = stream.deliver(self.group, number, delivery, |entry| {
                        if !self.no_ack {
                            log.claimed(self.consumer, entry.id, pending, entry.id);
                        }
                        reply_entry(reply, &entry);
                    });
                    if let Some(group) = stream.group(self.group).filter(|_| sent > 0) {
                        log.moved(group);
                    }
                    sent
                }
            };
            reply.end_array(begun, sent);
        }
        Ok((served, StreamEdit::with_consumer(created, u64::from(served))))
    }

    /// Sends the consumer's pending entries after an ID again. Returns their number.
    fn send_pending(&self, stream: &mut Stream, id: StreamId, reply: &mut Reply<'_>) -> usize {
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
