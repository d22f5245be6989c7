//! CLUSTERSCAN: the keys of the whole cluster.
//!
//! The cursor is `fingerprint-{tag}-position`. The hash tag stands for the slot where the scan continues, so that a
//! client's own routing leads to the right node. The fingerprint stands for the order of keys in that node's slots; on
//! a node with another one, the scan starts the slot from its beginning. Cursors to the first key of a slot have the
//! fingerprint `0`.
//!
//! Without SLOT, and without a pattern that stands for one slot, a call visits slots up to the end of the range that
//! the node serves.

use weft_base::slots::{cluster_slot, slot_of_pattern};
use weft_base::{DbIndex, SlotIndex};
use weft_cluster::Cluster;
use weft_cluster::slot_tags::tag_for_slot;
use weft_cluster::view::ClusterView;
use weft_resp::Reply;
use weft_resp::number::{parse_i64, parse_u64};

use super::{parse_slot, require_cluster};
use crate::commands::context::{CommandResult, Context, build_reply};
use crate::commands::error::CommandError;
use crate::commands::generic::scan::{
    BulkNameList, DEFAULT_COUNT, FilterResult, MAX_KEYS_ON_WORKER, ScanFilter, busy_error_of_walk,
    is_held_by_overdue_script, parse_type_name,
};
use crate::keyspace::walk::{Cursor, WalkAccess, WalkEnd, WalkRange, walk, walk_blocking};

/// The options of a scan.
struct ClusterScanOptions<'a> {
    /// The slot that SLOT names.
    slot: Option<SlotIndex>,
    /// The slot of all keys that match the pattern, if the pattern determines it.
    pattern_slot: Option<SlotIndex>,
    count: usize,
    filter: ScanFilter<&'a [u8]>,
}

impl ClusterScanOptions<'_> {
    /// Returns `true` if no key is in the slot and matches the pattern.
    fn excludes_all(&self) -> bool {
        matches!((self.slot, self.pattern_slot), (Some(slot), Some(other)) if slot != other)
    }
}

/// Where a scan continues.
#[derive(Clone, Copy)]
enum NextCursor {
    End,
    /// At the first key of a slot, which may be another node's.
    SlotStart(SlotIndex),
    /// Within the slots of this node.
    Within(Cursor),
}

/// A scan of a part of this node's slots.
struct RangeScan {
    range: WalkRange,
    /// `true` if the scan continues behind the range.
    continues: bool,
    /// `true` if the node serves the slots as their owner, not while they are imported.
    is_of_owner: bool,
    count: usize,
    db: DbIndex,
}

fn parse_options<'a>(ctx: &Context<'a, '_>) -> Result<ClusterScanOptions<'a>, CommandError> {
    let mut options = ClusterScanOptions {
        slot: None,
        pattern_slot: None,
        count: DEFAULT_COUNT,
        filter: ScanFilter::from_pattern(ctx, b"*"),
    };
    let mut index = 2;
    while index < ctx.argc() {
        let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
        let next = (index + 1 < ctx.argc()).then(|| ctx.arg(index + 1));
        match next {
            Some(next) if is("COUNT") => {
                let number = parse_i64(next).ok_or(CommandError::NOT_AN_INTEGER)?;
                let count = usize::try_from(number).ok().filter(|count| *count > 0);
                options.count = count.ok_or(CommandError::SYNTAX)?;
            }
            Some(next) if is("MATCH") => {
                options.filter.pattern = ScanFilter::from_pattern(ctx, next).pattern;
                options.pattern_slot = options.filter.pattern.and_then(slot_of_pattern);
            }
            Some(next) if is("TYPE") => options.filter.type_name = Some(parse_type_name(next)?),
            Some(next) if is("SLOT") => {
                if options.slot.is_some() {
                    return Err(CommandError::constant("ERR SLOT option can only be specified once"));
                }
                options.slot = Some(parse_slot(next)?);
            }
            _ => return Err(CommandError::SYNTAX),
        }
        index += 2;
    }
    Ok(options)
}

/// Parses a cursor other than `0`. Its position counts only with the fingerprint of this node.
fn parse_cursor(word: &[u8], fingerprint: &str) -> Result<Cursor, CommandError> {
    let invalid = CommandError::constant("ERR Invalid cursor");
    let mut parts = word.splitn(3, |byte| *byte == b'-');
    let (Some(seen), Some(tag), Some(position)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(invalid);
    };
    let position = parse_u64(position).ok_or(invalid)?;
    let position = u32::try_from(position).ok().filter(|_| seen == fingerprint.as_bytes());
    Ok(Cursor::in_slot(cluster_slot(tag), position.unwrap_or(0)))
}

/// The fingerprint of the order of keys: six characters of six bits each, from `0` on, which are none of a cursor's
/// other characters.
fn fingerprint_text(fingerprint: u32) -> String {
    let digit = |index: u32| char::from(b'0' + (fingerprint >> (6 * index) & 0x3f) as u8);
    (0..6).rev().map(digit).collect()
}

pub(super) fn cluster_scan(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cluster = require_cluster(ctx)?;
    let options = parse_options(ctx)?;
    if ctx.arg(1) == b"0" {
        // The first step only returns the start, since the client may have contacted any node.
        let start = options.slot.or(options.pattern_slot).unwrap_or(SlotIndex::FIRST);
        let next = match options.excludes_all() {
            true => NextCursor::End,
            false => NextCursor::SlotStart(start),
        };
        return reply_without_names(ctx, next);
    }
    let fingerprint = fingerprint_text(ctx.server.keyspace.hasher.fingerprint());
    let from = parse_cursor(ctx.arg(1), &fingerprint)?;
    if options.slot.is_some_and(|slot| slot != from.slot()) {
        return Err(CommandError::constant("ERR Cursor slot mismatch with SLOT argument"));
    }
    if let Some(slot) = options.pattern_slot.filter(|slot| *slot != from.slot()) {
        let is_ahead = !options.excludes_all() && slot > from.slot();
        let next = if is_ahead {
            NextCursor::SlotStart(slot)
        } else {
            NextCursor::End
        };
        return reply_without_names(ctx, next);
    }
    let is_one_slot = options.slot.is_some() || options.pattern_slot.is_some();
    let view = cluster.view();
    let last = match is_one_slot {
        true => from.slot(),
        false => last_of_range(&view, from.slot()),
    };
    let scan = RangeScan {
        range: WalkRange { from, last },
        continues: !is_one_slot,
        is_of_owner: view.is_of_my_shard(from.slot()),
        count: options.count,
        db: ctx.keys.db,
    };
    let is_large = ctx.server.keyspace.counts.keys(scan.db) > MAX_KEYS_ON_WORKER as u64;
    if options.count > MAX_KEYS_ON_WORKER && is_large && !ctx.keys.held.holds_all_slots() {
        scan_in_background(ctx, scan, fingerprint, options.filter.to_owned());
    } else {
        scan_in_place(ctx, cluster, &scan, &fingerprint, &options.filter);
    }
    Ok(())
}

/// Returns the last slot of those from `from` on that this node serves.
fn last_of_range(view: &ClusterView, from: SlotIndex) -> SlotIndex {
    let rest = (from.index()..=SlotIndex::LAST.index()).map(SlotIndex::from_index);
    rest.take_while(|slot| view.is_of_my_shard(*slot))
        .last()
        .unwrap_or(from)
}

impl RangeScan {
    /// Returns where to continue after a walk. Slots that the node has lost meanwhile may have been empty already when
    /// the walk came to them, so the scan goes to their new owner.
    fn next_cursor(&self, cluster: &Cluster, end: WalkEnd) -> NextCursor {
        let WalkRange { from, last } = self.range;
        let reached = match end {
            WalkEnd::End => last,
            WalkEnd::Paused(next) | WalkEnd::Contended(next) => next.slot(),
        };
        let view = cluster.view();
        let mut visited = (from.slot().index()..=reached.index()).map(SlotIndex::from_index);
        if self.is_of_owner
            && let Some(lost) = visited.find(|slot| !view.is_of_my_shard(*slot))
        {
            return NextCursor::SlotStart(lost);
        }
        match end {
            WalkEnd::Paused(next) | WalkEnd::Contended(next) => NextCursor::Within(next),
            WalkEnd::End if self.continues && last < SlotIndex::LAST => {
                NextCursor::SlotStart(SlotIndex::from_index(last.index() + 1))
            }
            WalkEnd::End => NextCursor::End,
        }
    }
}

fn scan_in_place(
    ctx: &mut Context<'_, '_>,
    cluster: &Cluster,
    scan: &RangeScan,
    fingerprint: &str,
    filter: &ScanFilter<&[u8]>,
) {
    let mut found = BulkNameList::new(ctx.reply.protocol);
    let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    let end = walk(&access, scan.db, scan.range, scan.count, &mut |_, entry| {
        if filter.evaluate(entry) == FilterResult::Included {
            found.add(entry.key());
        }
    });
    if end == WalkEnd::Contended(scan.range.from) {
        // No key was examined.
        ctx.defer_until_free(scan.range.from.slot());
    } else {
        reply_with_names(&mut ctx.reply, scan.next_cursor(cluster, end), fingerprint, &found);
    }
}

fn scan_in_background(ctx: &mut Context<'_, '_>, scan: RangeScan, fingerprint: String, filter: ScanFilter<Vec<u8>>) {
    let protocol = ctx.reply.protocol;
    ctx.reply_from_background(move |server, seat| {
        let mut found = BulkNameList::new(protocol);
        let gives_up = |slot| is_held_by_overdue_script(server, slot);
        let end = walk_blocking(seat, &gives_up, scan.db, scan.range, scan.count, &mut |_, entry| {
            if filter.evaluate(entry) == FilterResult::Included {
                found.add(entry.key());
            }
        });
        let next = server.cluster.as_ref().map(|cluster| scan.next_cursor(cluster, end));
        build_reply(protocol, |reply| match (busy_error_of_walk(server, end), next) {
            (Some(error), _) if end == WalkEnd::Contended(scan.range.from) => reply.error_bytes(&error.0),
            (_, next) => reply_with_names(reply, next.unwrap_or(NextCursor::End), &fingerprint, &found),
        })
    });
}

fn reply_without_names(ctx: &mut Context<'_, '_>, next: NextCursor) -> CommandResult {
    let none = BulkNameList::new(ctx.reply.protocol);
    reply_with_names(&mut ctx.reply, next, "", &none);
    Ok(())
}

fn reply_with_names(reply: &mut Reply<'_>, next: NextCursor, fingerprint: &str, found: &BulkNameList) {
    let cursor = match next {
        NextCursor::End => "0".to_owned(),
        NextCursor::SlotStart(slot) => format!("0-{{{}}}-0", tag_for_slot(slot)),
        NextCursor::Within(next) => {
            format!("{fingerprint}-{{{}}}-{}", tag_for_slot(next.slot()), next.position())
        }
    };
    reply.array(2);
    reply.bulk(cursor.as_bytes());
    found.reply(reply);
}
