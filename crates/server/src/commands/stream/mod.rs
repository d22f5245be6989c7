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
    OpenId, StreamEdit, all_ids, edit, edit_or_create, exact_id, integer, is_word, open_id, range_cost_ns, range_end,
    range_start, reply_entry, reply_id, stream_of,
};
use crate::commands::stream::log::{exact_trim, shown};
use crate::net::client::ClientFlags;
use crate::notify::keyspace_event::Event;
use weft_config::{Config, id};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("xadd", leased(xadd).of_end(ListEnd::Tail)),
    ("xdel", leased(xdel)),
    ("xlen", leased(xlen)),
    ("xrange", leased(xrange)),
    ("xrevrange", leased(xrevrange)),
    ("xsetid", leased(xsetid)),
    ("xtrim", leased(xtrim)),
];

/// The options of XADD and XTRIM.
struct Options {
    create: bool,
    trim: Option<TrimTarget>,
    whole_blocks: bool,
    /// The index of the argument that is the trimming threshold.
    trim_at: usize,
    /// The largest number of entries to remove (LIMIT).
    limit: Option<u64>,
    /// The ID of the new entry; `None` for `*`.
    id: Option<OpenId>,
    /// The index of the first argument after the options.
    end: usize,
}

/// The command whose options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grammar {
    Xadd,
    Xtrim,
}

/// The number of blocks whose entries approximate trimming removes at most without a LIMIT.
const TRIM_BLOCKS: i64 = 100;
/// The number of entries that approximate trimming removes at most if blocks may have any number of entries.
const TRIM_DEFAULT: u64 = 10_000;
/// The upper limit for the number of entries that approximate trimming removes without a LIMIT.
const TRIM_MAX: u64 = 1_000_000;

impl Options {
    fn parse(ctx: &Context<'_, '_>, grammar: Grammar) -> Result<Self, CommandError> {
        let xadd = grammar == Grammar::Xadd;
        let mut options = Options {
            create: true,
            trim: None,
            whole_blocks: false,
            trim_at: 0,
            limit: None,
            id: None,
            end: 2,
        };
        while options.end < ctx.argc() {
            let word = ctx.arg(options.end);
            let more = options.end + 1 < ctx.argc();
            if xadd && is_word(word, "*") {
                break;
            } else if more && is_word(word, "MAXLEN") {
                options.parse_trim(ctx, |word| match integer(word)? {
                    length @ 0.. => Ok(TrimTarget::MaxLength(length as u64)),
                    _ => Err(CommandError::constant("ERR The MAXLEN argument must be >= 0.")),
                })?;
            } else if more && is_word(word, "MINID") {
                options.parse_trim(ctx, |word| exact_id(word, 0).map(TrimTarget::MinId))?;
            } else if more && is_word(word, "LIMIT") {
                options.end += 1;
                let limit = u64::try_from(integer(ctx.arg(options.end))?)
                    .map_err(|_| CommandError::constant("ERR The LIMIT argument must be >= 0."))?;
                options.limit = Some(limit);
            } else if xadd && is_word(word, "NOMKSTREAM") {
                options.create = false;
            } else if xadd {
                options.id = Some(open_id(word)?);
                break;
            } else {
                return Err(CommandError::SYNTAX);
            }
            options.end += 1;
        }
        if ctx.client.flags.contains(ClientFlags::REPLAY) {
            // The log states the exact threshold to which the stream was trimmed, so the replay trims without a limit.
            options.limit = options.trim.map(|_| 0);
            return Ok(options);
        }
        options.check(grammar)
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
        self.end += 1;
        if self.end + 1 < ctx.argc() {
            self.whole_blocks = is_word(ctx.arg(self.end), "~");
            if self.whole_blocks || is_word(ctx.arg(self.end), "=") {
                self.end += 1;
            }
        }
        self.trim = Some(read(ctx.arg(self.end))?);
        self.trim_at = self.end;
        Ok(())
    }

    fn check(self, grammar: Grammar) -> Result<Self, CommandError> {
        let refusal = if self.trim.is_none() && self.limit.is_some_and(|limit| limit > 0) {
            "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
        } else if self.trim.is_none() && grammar == Grammar::Xtrim {
            "ERR syntax error, XTRIM must be called with a trimming strategy"
        } else if self.limit.is_some() && !self.whole_blocks {
            "ERR syntax error, LIMIT cannot be used without the special ~ option"
        } else {
            return Ok(self);
        };
        Err(CommandError::constant(refusal))
    }

    fn trim(&self, config: &Config) -> Option<TrimOptions> {
        let limit = match self.limit {
            Some(limit) => limit,
            None if self.whole_blocks => {
                match config.integer(id::STREAM_NODE_MAX_ENTRIES).saturating_mul(TRIM_BLOCKS) {
                    limit @ 1.. => (limit as u64).min(TRIM_MAX),
                    _ => TRIM_DEFAULT,
                }
            }
            None => 0,
        };
        self.trim.map(|keep| TrimOptions {
            strategy: keep,
            is_approximate: self.whole_blocks,
            limit,
        })
    }
}

/// Propagates XADD or XTRIM with the generated ID and the exact trimming threshold.
#[cold]
fn log_exactly(ctx: &mut Context<'_, '_>, options: &Options, id: Option<&[u8]>, kept: Option<&[u8]>) {
    let mut words: Vec<&[u8]> = ctx.args.iter().collect();
    if let Some(kept) = kept {
        words[options.trim_at - 1] = b"=";
        words[options.trim_at] = kept;
    }
    if let Some(id) = id {
        words[options.end] = id;
    }
    ctx.keys.effects.log_instead(&words);
}

fn block_limits(config: &Config) -> BlockLimits {
    BlockLimits {
        bytes: usize::try_from(config.unsigned(id::STREAM_NODE_MAX_BYTES)).unwrap_or(usize::MAX),
        entries: config.integer(id::STREAM_NODE_MAX_ENTRIES),
    }
}

/// Returns the ID of a new entry; `None` if the IDs are exhausted.
fn next_id(last: StreamId, wanted: Option<OpenId>, now_ms: u64) -> Option<StreamId> {
    match wanted {
        Some(OpenId { id, open: false }) => Some(id),
        Some(OpenId { id, .. }) if id.ms == last.ms => {
            let seq = last.seq.checked_add(1)?;
            Some(StreamId::new(id.ms, seq))
        }
        Some(OpenId { id, .. }) => Some(id),
        None if now_ms > last.ms => Some(StreamId::new(now_ms, 0)),
        None => last.next(),
    }
}

const ID_NOT_LARGER: CommandError =
    CommandError::constant("ERR The ID specified in XADD is equal or smaller than the target stream top item");

/// The entry that XADD adds.
struct NewEntry<'a> {
    args: Args<'a>,
    first_field: usize,
    id: Option<OpenId>,
    now_ms: u64,
    limits: BlockLimits,
}

impl NewEntry<'_> {
    #[inline]
    fn append_to(&self, stream: &mut Stream) -> Result<StreamId, CommandError> {
        let (args, first) = (self.args, self.first_field);
        let last = stream.last_id();
        if last == StreamId::MAX {
            return Err(CommandError::constant(
                "ERR The stream has exhausted the last possible ID, unable to add more items",
            ));
        }
        let id = next_id(last, self.id, self.now_ms).ok_or(ID_NOT_LARGER)?;
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
    let options = Options::parse(ctx, Grammar::Xadd)?;
    let first_field = options.end + 1;
    let fields = ctx.argc().saturating_sub(first_field);
    if fields < 2 || !fields.is_multiple_of(2) {
        return Err(CommandError::constant(
            "ERR wrong number of arguments for 'xadd' command",
        ));
    }
    if options.id.is_some_and(|id| !id.open && id.id == StreamId::MIN) {
        return Err(CommandError::constant(
            "ERR The ID specified in XADD must be greater than 0-0",
        ));
    }
    let trim = options.trim(&ctx.server.config);
    let entry = NewEntry {
        args: ctx.args,
        first_field,
        id: options.id,
        now_ms: ctx.now_ms,
        limits: block_limits(&ctx.server.config),
    };
    let in_place_ns = ctx.in_place_ns();
    let rounds = (ctx.keys.effects.is_logging() && options.whole_blocks)
        .then_some(options.trim)
        .flatten();
    let mut kept = None;
    let added = edit_or_create(ctx.keys.write(0), options.create, |stream| {
        if trim.is_some_and(|trim| trim_cost_ns(stream, trim) > in_place_ns) {
            return Ok((None, StreamEdit::NOTHING));
        }
        let id = entry.append_to(stream)?;
        let mut edited = StreamEdit::event("xadd");
        if trim.is_some_and(|trim| stream.trim(trim) > 0) {
            edited.second = Some(TRIMMED);
        }
        kept = rounds.map(|keep| exact_trim(stream, keep));
        Ok((Some(id), edited))
    })?;
    match added {
        None => ctx.reply.null(),
        Some(Some(id)) => {
            reply_id(&mut ctx.reply, id);
            let made = options.id.is_none_or(|id| id.open);
            if ctx.keys.effects.is_logging() && (made || kept.is_some()) {
                let id = made.then(|| shown(id));
                log_exactly(ctx, &options, id.as_deref(), kept.as_deref());
            }
        }
        Some(None) => ctx.leave(),
    }
    Ok(())
}

fn xlen(ctx: &mut Context<'_, '_>) -> CommandResult {
    let length = stream_of(ctx.keys.read(0))?.map_or(0, Stream::length);
    ctx.reply.integer(length as i64);
    Ok(())
}

fn xrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    range(ctx, 2, 3, false)
}

fn xrevrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    range(ctx, 3, 2, true)
}

fn range(ctx: &mut Context<'_, '_>, start: usize, end: usize, backwards: bool) -> CommandResult {
    let start = range_start(ctx.arg(start))?;
    let end = range_end(ctx.arg(end))?;
    let count = range_count(ctx)?;
    let in_place_ns = ctx.in_place_ns();
    let Some(stream) = stream_of(ctx.keys.read(0))? else {
        ctx.reply.array(0);
        return Ok(());
    };
    if count == 0 {
        ctx.reply.null_array();
        return Ok(());
    }
    if range_cost_ns(stream, start, end, count) > in_place_ns {
        ctx.leave();
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
    if backwards {
        stream.entries_backwards(start, end).take(count).for_each(&mut send);
    } else {
        stream.entries(start, end).take(count).for_each(&mut send);
    }
    reply.end_array(begun, sent);
    Ok(())
}

/// Parses the COUNT option of XRANGE and XREVRANGE.
fn range_count(ctx: &Context<'_, '_>) -> Result<u64, CommandError> {
    let mut count = u64::MAX;
    let mut index = 4;
    while index < ctx.argc() {
        if index + 1 == ctx.argc() || !is_word(ctx.arg(index), "COUNT") {
            return Err(CommandError::SYNTAX);
        }
        count = integer(ctx.arg(index + 1))?.max(0) as u64;
        index += 2;
    }
    Ok(count)
}

fn xdel(ctx: &mut Context<'_, '_>) -> CommandResult {
    let words = ctx.args.iter();
    let deleted = edit(ctx.keys.write(0), |stream| {
        let ids = all_ids(words.skip(2))?;
        let deleted = ids.into_iter().filter(|id| stream.delete(*id)).count() as u64;
        if deleted == 0 {
            return Ok((0, StreamEdit::NOTHING));
        }
        stream.update_first_id();
        let edited = StreamEdit {
            times: deleted,
            ..StreamEdit::event("xdel")
        };
        Ok((deleted, edited))
    })?;
    ctx.reply.integer(deleted.unwrap_or(0) as i64);
    Ok(())
}

const TRIMMED: Event = Event::stream("xtrim");
/// The time for removing a block, in nanoseconds.
const BLOCK_REMOVAL_NS: u64 = 100;
/// The number of blocks at which counting stops, because the estimate is high in any case.
const MANY_BLOCKS: usize = 1 << 14;

/// Returns the estimated time for trimming, in nanoseconds.
fn trim_cost_ns(stream: &Stream, trim: TrimOptions) -> u64 {
    let blocks = stream.blocks();
    let removed = match trim.strategy {
        TrimTarget::MaxLength(count) => {
            let entries = stream.length().saturating_sub(count);
            let most = if trim.limit > 0 {
                entries.min(trim.limit)
            } else {
                entries
            };
            let mean = (stream.length() / blocks.len().max(1) as u64).max(1);
            most / mean
        }
        TrimTarget::MinId(id) => {
            let older = blocks.iter().take_while(|(base, _)| **base < id);
            older.take(MANY_BLOCKS).count() as u64
        }
    };
    removed * BLOCK_REMOVAL_NS
}

fn xtrim(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = Options::parse(ctx, Grammar::Xtrim)?;
    let Some(trim) = options.trim(&ctx.server.config) else {
        return Err(CommandError::SYNTAX);
    };
    let in_place_ns = ctx.in_place_ns();
    let rounds = (ctx.keys.effects.is_logging() && options.whole_blocks)
        .then_some(options.trim)
        .flatten();
    let mut kept = None;
    let trimmed = edit(ctx.keys.write(0), |stream| {
        if trim_cost_ns(stream, trim) > in_place_ns {
            return Ok((None, StreamEdit::NOTHING));
        }
        let trimmed = stream.trim(trim);
        kept = rounds.map(|keep| exact_trim(stream, keep));
        let edited = StreamEdit {
            times: trimmed,
            event: (trimmed > 0).then_some(TRIMMED),
            ..StreamEdit::NOTHING
        };
        Ok((Some(trimmed), edited))
    })?;
    match trimmed {
        None => ctx.reply.integer(0),
        Some(Some(trimmed)) => {
            ctx.reply.integer(trimmed as i64);
            if kept.is_some() {
                log_exactly(ctx, &options, None, kept.as_deref());
            }
        }
        Some(None) => ctx.leave(),
    }
    Ok(())
}

/// The options of XSETID.
#[derive(Default)]
struct SetIdOptions {
    entries_added: Option<u64>,
    max_deleted_id: Option<StreamId>,
}

fn setid_options(ctx: &Context<'_, '_>, last_id: StreamId) -> Result<SetIdOptions, CommandError> {
    let mut options = SetIdOptions::default();
    for index in (3..ctx.argc()).step_by(2) {
        let (word, more) = (ctx.arg(index), index + 1 < ctx.argc());
        let value = ctx.arg(index + 1);
        if more && is_word(word, "ENTRIESADDED") {
            let added = u64::try_from(integer(value)?)
                .map_err(|_| CommandError::constant("ERR entries_added must be positive"))?;
            options.entries_added = Some(added);
        } else if more && is_word(word, "MAXDELETEDID") {
            let max_deleted_id = exact_id(value, 0)?;
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
    let id = exact_id(ctx.arg(2), 0)?;
    let options = setid_options(ctx, id)?;
    let set = edit(ctx.keys.write(0), |stream| {
        let refusal = if id < stream.metadata().max_deleted_id {
            "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
        } else if stream.length() > 0 && id < stream.last_entry_id() {
            "ERR The ID specified in XSETID is smaller than the target stream top item"
        } else if stream.length() > 0 && options.entries_added.is_some_and(|added| stream.length() > added) {
            "ERR The entries_added specified in XSETID is smaller than the target stream length"
        } else {
            stream.set_last_id(id, options.entries_added, options.max_deleted_id);
            return Ok(((), StreamEdit::event("xsetid").beside_entries()));
        };
        Err(CommandError::constant(refusal))
    })?;
    match set {
        Some(()) => ctx.reply.ok(),
        None => return Err(CommandError::NO_SUCH_KEY),
    }
    Ok(())
}
