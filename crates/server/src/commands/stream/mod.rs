//! The commands on entries of streams.

pub mod arguments;
pub mod blocking;
pub mod claim;
pub mod groups;
pub mod info;
pub mod log;
pub mod pending;
pub mod read;
use weft_resp::Args;
use weft_values::list::ListEnd;
use weft_values::stream::{AppendError, BlockLimits, Stream, StreamId, TrimOptions, TrimTarget};

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use crate::commands::stream::arguments::{
    PartialStreamId, READ_ELEMENT_NS, StreamEdit, edit_or_create_stream, edit_stream, entry_as_stream, is_word,
    parse_exact_id, parse_ids, parse_integer, parse_partial_id, parse_range_end, parse_range_start, range_cost_ns,
    reply_entry, reply_id,
};
use crate::commands::stream::log::{exact_trim_argument, id_to_bytes};
use crate::net::client::ClientFlags;
use crate::notify::keyspace_event::KeyspaceEvent;
use weft_config::{Config, id};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("xadd", leased(xadd).with_list_end(ListEnd::Tail)),
    ("xdel", leased(xdel)),
    ("xlen", leased(xlen)),
    ("xrange", leased(xrange)),
    ("xrevrange", leased(xrevrange)),
    ("xsetid", leased(xsetid)),
    ("xtrim", leased(xtrim)),
];

/// The options of XADD and XTRIM.
struct XaddOptions {
    creates_stream: bool,
    trim: Option<TrimTarget>,
    is_approximate: bool,
    /// The index of the argument that is the trimming threshold.
    trim_argument: usize,
    /// The largest number of entries to remove (LIMIT).
    limit: Option<u64>,
    /// The ID of the new entry; `None` for `*`.
    id: Option<PartialStreamId>,
    /// The index of the first argument after the options.
    end_index: usize,
}

/// The command whose options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TrimGrammar {
    Xadd,
    Xtrim,
}

/// The number of blocks whose entries approximate trimming removes at most without a LIMIT.
const MAX_TRIMMED_BLOCKS: i64 = 100;
/// The number of entries that approximate trimming removes at most if blocks may have any number of entries.
const DEFAULT_TRIM_LIMIT: u64 = 10_000;
/// The upper limit for the number of entries that approximate trimming removes without a LIMIT.
const MAX_TRIM_LIMIT: u64 = 1_000_000;

impl XaddOptions {
    fn parse(ctx: &Context<'_, '_>, grammar: TrimGrammar) -> Result<Self, CommandError> {
        let xadd = grammar == TrimGrammar::Xadd;
        let mut options = XaddOptions {
            creates_stream: true,
            trim: None,
            is_approximate: false,
            trim_argument: 0,
            limit: None,
            id: None,
            end_index: 2,
        };
        while options.end_index < ctx.argc() {
            let word = ctx.arg(options.end_index);
            let more = options.end_index + 1 < ctx.argc();
            if xadd && is_word(word, "*") {
                break;
            } else if more && is_word(word, "MAXLEN") {
                options.parse_trim(ctx, |word| match parse_integer(word)? {
                    length @ 0.. => Ok(TrimTarget::MaxLength(length as u64)),
                    _ => Err(CommandError::constant("ERR The MAXLEN argument must be >= 0.")),
                })?;
            } else if more && is_word(word, "MINID") {
                options.parse_trim(ctx, |word| parse_exact_id(word, 0).map(TrimTarget::MinId))?;
            } else if more && is_word(word, "LIMIT") {
                options.end_index += 1;
                let limit = u64::try_from(parse_integer(ctx.arg(options.end_index))?)
                    .map_err(|_| CommandError::constant("ERR The LIMIT argument must be >= 0."))?;
                options.limit = Some(limit);
            } else if xadd && is_word(word, "NOMKSTREAM") {
                options.creates_stream = false;
            } else if xadd {
                options.id = Some(parse_partial_id(word)?);
                break;
            } else {
                return Err(CommandError::SYNTAX);
            }
            options.end_index += 1;
        }
        if ctx.client.flags.contains(ClientFlags::REPLAY) {
            // The log states the exact threshold to which the stream was trimmed, so the replay trims without a limit.
            options.limit = options.trim.map(|_| 0);
            return Ok(options);
        }
        options.check_options(grammar)
    }

    /// Parses the arguments after MAXLEN or MINID. `end` is then the index of the last of them.
    fn parse_trim(
        &mut self,
        ctx: &Context<'_, '_>,
        read: impl FnOnce(&[u8]) -> Result<TrimTarget, CommandError>,
    ) -> Result<(), CommandError> {
        if self.trim.is_some() {
            return Err(CommandError::constant(
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ));
        }
        self.end_index += 1;
        if self.end_index + 1 < ctx.argc() {
            self.is_approximate = is_word(ctx.arg(self.end_index), "~");
            if self.is_approximate || is_word(ctx.arg(self.end_index), "=") {
                self.end_index += 1;
            }
        }
        self.trim = Some(read(ctx.arg(self.end_index))?);
        self.trim_argument = self.end_index;
        Ok(())
    }

    fn check_options(self, grammar: TrimGrammar) -> Result<Self, CommandError> {
        let refusal = if self.trim.is_none() && self.limit.is_some_and(|limit| limit > 0) {
            "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
        } else if self.trim.is_none() && grammar == TrimGrammar::Xtrim {
            "ERR syntax error, XTRIM must be called with a trimming strategy"
        } else if self.limit.is_some() && !self.is_approximate {
            "ERR syntax error, LIMIT cannot be used without the special ~ option"
        } else {
            return Ok(self);
        };
        Err(CommandError::constant(refusal))
    }

    fn trim_options(&self, config: &Config) -> Option<TrimOptions> {
        let limit = match self.limit {
            Some(limit) => limit,
            None if self.is_approximate => {
                match config
                    .integer(id::STREAM_NODE_MAX_ENTRIES)
                    .saturating_mul(MAX_TRIMMED_BLOCKS)
                {
                    limit @ 1.. => (limit as u64).min(MAX_TRIM_LIMIT),
                    _ => DEFAULT_TRIM_LIMIT,
                }
            }
            None => 0,
        };
        self.trim.map(|keep| TrimOptions {
            strategy: keep,
            is_approximate: self.is_approximate,
            limit,
        })
    }
}

/// Propagates XADD or XTRIM with the generated ID and the exact trimming threshold.
#[cold]
fn propagate_exactly(ctx: &mut Context<'_, '_>, options: &XaddOptions, id: Option<&[u8]>, kept: Option<&[u8]>) {
    let mut words: Vec<&[u8]> = ctx.args.iter().collect();
    if let Some(kept) = kept {
        words[options.trim_argument - 1] = b"=";
        words[options.trim_argument] = kept;
    }
    if let Some(id) = id {
        words[options.end_index] = id;
    }
    ctx.keys.effects.log_instead(&words);
}

/// Returns the limits of a stream's blocks.
pub(crate) fn block_limits(config: &Config) -> BlockLimits {
    BlockLimits {
        bytes: usize::try_from(config.unsigned(id::STREAM_NODE_MAX_BYTES)).unwrap_or(usize::MAX),
        entries: config.integer(id::STREAM_NODE_MAX_ENTRIES),
    }
}

/// Returns the ID of a new entry; `None` if the IDs are exhausted.
fn generate_id(last: StreamId, requested: Option<PartialStreamId>, now_ms: u64) -> Option<StreamId> {
    match requested {
        Some(PartialStreamId { id, is_open: false }) => Some(id),
        Some(PartialStreamId { id, .. }) if id.ms == last.ms => {
            let seq = last.seq.checked_add(1)?;
            Some(StreamId::new(id.ms, seq))
        }
        Some(PartialStreamId { id, .. }) => Some(id),
        None if now_ms > last.ms => Some(StreamId::new(now_ms, 0)),
        None => last.next(),
    }
}

const ID_NOT_LARGER: CommandError =
    CommandError::constant("ERR The ID specified in XADD is equal or smaller than the target stream top item");

/// The entry that XADD adds.
struct XaddEntry<'a> {
    args: Args<'a>,
    first_field: usize,
    id: Option<PartialStreamId>,
    now_ms: u64,
    limits: BlockLimits,
}

impl XaddEntry<'_> {
    #[inline]
    fn append_to(&self, stream: &mut Stream) -> Result<StreamId, CommandError> {
        let (args, first) = (self.args, self.first_field);
        let last = stream.last_id();
        if last == StreamId::MAX {
            return Err(CommandError::constant(
                "ERR The stream has exhausted the last possible ID, unable to add more items",
            ));
        }
        let id = generate_id(last, self.id, self.now_ms).ok_or(ID_NOT_LARGER)?;
        let pairs = (0..(args.len() - first) / 2).map(|pair| {
            let name = first + 2 * pair;
            (args.argument(name), args.argument(name + 1))
        });
        match stream.append(id, pairs, self.limits) {
            Ok(()) => Ok(id),
            Err(AppendError::IdTooSmall) => Err(ID_NOT_LARGER),
            Err(AppendError::TooLarge) => Err(CommandError::constant("ERR Elements are too large to be stored")),
        }
    }
}

fn xadd(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = XaddOptions::parse(ctx, TrimGrammar::Xadd)?;
    let first_field = options.end_index + 1;
    let fields = ctx.argc().saturating_sub(first_field);
    if fields < 2 || !fields.is_multiple_of(2) {
        return Err(CommandError::constant(
            "ERR wrong number of arguments for 'xadd' command",
        ));
    }
    if options.id.is_some_and(|id| !id.is_open && id.id == StreamId::MIN) {
        return Err(CommandError::constant(
            "ERR The ID specified in XADD must be greater than 0-0",
        ));
    }
    let trim = options.trim_options(&ctx.server.config);
    let entry = XaddEntry {
        args: ctx.args,
        first_field,
        id: options.id,
        now_ms: ctx.now_ms,
        limits: block_limits(&ctx.server.config),
    };
    let in_place_ns = ctx.max_worker_ns();
    let rounds = (ctx.keys.effects.is_logging() && options.is_approximate)
        .then_some(options.trim)
        .flatten();
    let mut kept = None;
    let added = edit_or_create_stream(ctx.keys.write(0), options.creates_stream, |stream| {
        if trim.is_some_and(|trim| trim_cost_ns(stream, trim) > in_place_ns) {
            return Ok((None, StreamEdit::UNCHANGED));
        }
        let id = entry.append_to(stream)?;
        let mut edited = StreamEdit::with_event("xadd");
        if trim.is_some_and(|trim| stream.trim(trim) > 0) {
            edited.second_event = Some(TRIM_EVENT);
        }
        kept = rounds.map(|keep| exact_trim_argument(stream, keep));
        Ok((Some(id), edited))
    })?;
    match added {
        None => ctx.reply.null(),
        Some(Some(id)) => {
            reply_id(&mut ctx.reply, id);
            let made = options.id.is_none_or(|id| id.is_open);
            if ctx.keys.effects.is_logging() && (made || kept.is_some()) {
                let id = made.then(|| id_to_bytes(id));
                propagate_exactly(ctx, &options, id.as_deref(), kept.as_deref());
            }
        }
        Some(None) => ctx.detach(),
    }
    Ok(())
}

fn xlen(ctx: &mut Context<'_, '_>) -> CommandResult {
    let length = entry_as_stream(ctx.keys.read(0))?.map_or(0, Stream::length);
    ctx.reply.integer(length as i64);
    Ok(())
}

fn xrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_range(ctx, 2, 3, false)
}

fn xrevrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_range(ctx, 3, 2, true)
}

fn reply_range(ctx: &mut Context<'_, '_>, start: usize, end: usize, is_reverse: bool) -> CommandResult {
    let start = parse_range_start(ctx.arg(start))?;
    let end = parse_range_end(ctx.arg(end))?;
    let count = parse_range_count(ctx)?;
    let in_place_ns = ctx.max_worker_ns();
    let Some(stream) = entry_as_stream(ctx.keys.read(0))? else {
        ctx.reply.array(0);
        return Ok(());
    };
    if count == 0 {
        ctx.reply.null_array();
        return Ok(());
    }
    if range_cost_ns(stream, start, end, count, is_reverse) > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let reply = &mut ctx.reply;
    let begun = reply.begin_array();
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut sent = 0;
    let mut send = |entry| {
        reply_entry(reply, &entry);
        sent += 1;
    };
    if is_reverse {
        stream.entries_backwards(start, end).take(count).for_each(&mut send);
    } else {
        stream.entries(start, end).take(count).for_each(&mut send);
    }
    reply.end_array(begun, sent);
    Ok(())
}

/// Parses the COUNT option of XRANGE and XREVRANGE.
fn parse_range_count(ctx: &Context<'_, '_>) -> Result<u64, CommandError> {
    let mut count = u64::MAX;
    let mut index = 4;
    while index < ctx.argc() {
        if index + 1 == ctx.argc() || !is_word(ctx.arg(index), "COUNT") {
            return Err(CommandError::SYNTAX);
        }
        count = parse_integer(ctx.arg(index + 1))?.max(0) as u64;
        index += 2;
    }
    Ok(count)
}

/// The number of entries up to which no time for deleting them is estimated.
const MIN_ESTIMATED_DELETIONS: usize = 16;

/// Returns the estimated time for deleting entries, in nanoseconds.
fn deletion_cost_ns(stream: &Stream, ids: &[StreamId]) -> u64 {
    if ids.len() <= MIN_ESTIMATED_DELETIONS {
        return 0;
    }
    // An entry is found on average after half of the elements.
    let elements: u64 = ids.iter().map(|id| stream.elements_to_find(*id) / 2).sum();
    elements * READ_ELEMENT_NS
}

fn xdel(ctx: &mut Context<'_, '_>) -> CommandResult {
    let words = ctx.args.iter();
    let in_place_ns = ctx.max_worker_ns();
    let deleted = edit_stream(ctx.keys.write(0), |stream| {
        let ids = parse_ids(words.skip(2))?;
        if deletion_cost_ns(stream, &ids) > in_place_ns {
            return Ok((None, StreamEdit::UNCHANGED));
        }
        let deleted = ids.into_iter().filter(|id| stream.delete(*id)).count() as u64;
        if deleted == 0 {
            return Ok((Some(0), StreamEdit::UNCHANGED));
        }
        stream.update_first_id();
        let edited = StreamEdit {
            dirty_count: deleted,
            ..StreamEdit::with_event("xdel")
        };
        Ok((Some(deleted), edited))
    })?;
    match deleted {
        None => ctx.reply.integer(0),
        Some(Some(deleted)) => ctx.reply.integer(deleted as i64),
        Some(None) => ctx.detach(),
    }
    Ok(())
}

const TRIM_EVENT: KeyspaceEvent = KeyspaceEvent::stream("xtrim");
/// The time for removing a block, in nanoseconds.
const BLOCK_REMOVAL_NS: u64 = 100;
/// The time for marking an entry as deleted, for each of its elements, in nanoseconds.
const MARK_ELEMENT_NS: u64 = 10;
/// The number of blocks at which counting stops, because the estimate is high in any case.
const MAX_BLOCKS_ON_WORKER: usize = 1 << 14;

/// Returns the estimated time for trimming, in nanoseconds.
fn trim_cost_ns(stream: &Stream, trim: TrimOptions) -> u64 {
    let work = stream.trim_work(trim, MAX_BLOCKS_ON_WORKER);
    work.blocks * BLOCK_REMOVAL_NS + work.elements * MARK_ELEMENT_NS
}

fn xtrim(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = XaddOptions::parse(ctx, TrimGrammar::Xtrim)?;
    let Some(trim) = options.trim_options(&ctx.server.config) else {
        return Err(CommandError::SYNTAX);
    };
    let in_place_ns = ctx.max_worker_ns();
    let rounds = (ctx.keys.effects.is_logging() && options.is_approximate)
        .then_some(options.trim)
        .flatten();
    let mut kept = None;
    let trimmed = edit_stream(ctx.keys.write(0), |stream| {
        if trim_cost_ns(stream, trim) > in_place_ns {
            return Ok((None, StreamEdit::UNCHANGED));
        }
        let trimmed = stream.trim(trim);
        kept = rounds.map(|keep| exact_trim_argument(stream, keep));
        let edited = StreamEdit {
            dirty_count: trimmed,
            event: (trimmed > 0).then_some(TRIM_EVENT),
            ..StreamEdit::UNCHANGED
        };
        Ok((Some(trimmed), edited))
    })?;
    match trimmed {
        None => ctx.reply.integer(0),
        Some(Some(trimmed)) => {
            ctx.reply.integer(trimmed as i64);
            if kept.is_some() {
                propagate_exactly(ctx, &options, None, kept.as_deref());
            }
        }
        Some(None) => ctx.detach(),
    }
    Ok(())
}

/// The options of XSETID.
#[derive(Default)]
struct SetIdOptions {
    entries_added: Option<u64>,
    max_deleted_id: Option<StreamId>,
}

fn parse_setid_options(ctx: &Context<'_, '_>, last_id: StreamId) -> Result<SetIdOptions, CommandError> {
    let mut options = SetIdOptions::default();
    for index in (3..ctx.argc()).step_by(2) {
        let (word, more) = (ctx.arg(index), index + 1 < ctx.argc());
        let value = ctx.arg(index + 1);
        if more && is_word(word, "ENTRIESADDED") {
            let added = u64::try_from(parse_integer(value)?)
                .map_err(|_| CommandError::constant("ERR entries_added must be positive"))?;
            options.entries_added = Some(added);
        } else if more && is_word(word, "MAXDELETEDID") {
            let max_deleted_id = parse_exact_id(value, 0)?;
            if last_id < max_deleted_id {
                return Err(CommandError::constant(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                ));
            }
            options.max_deleted_id = Some(max_deleted_id).filter(|id| *id != StreamId::MIN);
        } else {
            return Err(CommandError::SYNTAX);
        }
    }
    Ok(options)
}

fn xsetid(ctx: &mut Context<'_, '_>) -> CommandResult {
    let id = parse_exact_id(ctx.arg(2), 0)?;
    let options = parse_setid_options(ctx, id)?;
    let set = edit_stream(ctx.keys.write(0), |stream| {
        let refusal = if id < stream.metadata().max_deleted_id {
            "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
        } else if stream.length() > 0 && id < stream.last_entry_id() {
            "ERR The ID specified in XSETID is smaller than the target stream top item"
        } else if stream.length() > 0 && options.entries_added.is_some_and(|added| stream.length() > added) {
            "ERR The entries_added specified in XSETID is smaller than the target stream length"
        } else {
            stream.set_last_id(id, options.entries_added, options.max_deleted_id);
            return Ok(((), StreamEdit::with_event("xsetid").without_watches()));
        };
        Err(CommandError::constant(refusal))
    })?;
    match set {
        Some(()) => ctx.reply.ok(),
        None => return Err(CommandError::NO_SUCH_KEY),
    }
    Ok(())
}
