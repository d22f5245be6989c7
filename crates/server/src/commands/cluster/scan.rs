//! CLUSTERSCAN: the keys of the whole cluster. The cursor carries a hash tag of the slot where it continues, so that a
//! client's own routing leads to the right node: `fingerprint-{tag}-position`.

use weft_base::SlotIndex;
use weft_resp::number::{parse_i64, parse_u64};

use super::{parse_slot, require_cluster};
use crate::commands::context::{CommandResult, Context, NextStep};
use crate::commands::error::CommandError;
use crate::commands::generic::scan::{BulkNameList, DEFAULT_COUNT, FilterResult, ScanFilter, parse_type_name};
use crate::keyspace::walk::WalkAccess;
use weft_base::slots::cluster_slot;
use weft_base::slots::slot_of_pattern;
use weft_cluster::slot_tags::tag_for_slot;

/// The position of a scan.
struct ClusterScanPosition {
    slot: SlotIndex,
    position: u32,
}

/// The arguments of a scan.
struct ClusterScanArguments<'a> {
    start: Option<ClusterScanPosition>,
    /// The only slot to scan.
    only_slot: Option<SlotIndex>,
    count: usize,
    filter: ScanFilter<&'a [u8]>,
}

fn parse_cursor(word: &[u8]) -> Result<Option<ClusterScanPosition>, CommandError> {
    let invalid = CommandError::constant("ERR Invalid cursor");
    if word == b"0" {
        return Ok(None);
    }
    let mut parts = word.splitn(3, |byte| *byte == b'-');
    let (Some(_fingerprint), Some(tag), Some(position)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(invalid);
    };
    let position = parse_u64(position)
        .and_then(|position| u32::try_from(position).ok())
        .ok_or(invalid)?;
    Ok(Some(ClusterScanPosition {
        slot: cluster_slot(tag),
        position,
    }))
}

fn parse_arguments<'a>(ctx: &Context<'a, '_>) -> Result<ClusterScanArguments<'a>, CommandError> {
    let mut arguments = ClusterScanArguments {
        start: None,
        only_slot: None,
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
                arguments.count = count.ok_or(CommandError::SYNTAX)?;
            }
            Some(next) if is("MATCH") => {
                arguments.filter.pattern = ScanFilter::from_pattern(ctx, next).pattern;
            }
            Some(next) if is("TYPE") => arguments.filter.type_name = Some(parse_type_name(next)?),
            Some(next) if is("SLOT") => {
                if arguments.only_slot.is_some() {
                    return Err(CommandError::constant("ERR SLOT option can only be specified once"));
                }
                arguments.only_slot = Some(parse_slot(next)?);
            }
            _ => return Err(CommandError::SYNTAX),
        }
        index += 2;
    }
    arguments.start = parse_cursor(ctx.arg(1))?;
    Ok(arguments)
}

pub(super) fn cluster_scan(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cluster = require_cluster(ctx)?;
    let arguments = parse_arguments(ctx)?;
    let only = arguments
        .only_slot
        .or_else(|| slot_of_pattern(arguments.filter.pattern?));
    let Some(from) = arguments.start else {
        // The first step only returns the start, since the client may have contacted any node.
        return reply_with_names(
            ctx,
            Some((only.unwrap_or(SlotIndex::FIRST), 0)),
            &BulkNameList::new(ctx.reply.protocol),
        );
    };
    if only.is_some_and(|only| only != from.slot) && arguments.only_slot.is_some() {
        return Err(CommandError::constant("ERR Invalid cursor"));
    }
    let view = cluster.view();
    let mut found = BulkNameList::new(ctx.reply.protocol);
    let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    let (mut slot, mut position, mut visited) = (from.slot, from.position, 0);
    let db = ctx.keys.db;
    let next = loop {
        if access.header(slot.index()).may_show(db) {
            let rest = arguments.count.saturating_sub(visited);
            let scanned = access.read_slot(slot.index(), |data| {
                data.table(db)?.scan(position, rest, &mut |entry| {
                    visited += 1;
                    if arguments.filter.evaluate(entry) == FilterResult::Included {
                        found.add(entry.key());
                    }
                })
            });
            match scanned {
                None if visited == 0 && slot == from.slot => {
                    ctx.next_step = NextStep::Defer;
                    return Ok(());
                }
                None => break Some((slot, position)),
                Some(Some(position)) => break Some((slot, position)),
                Some(None) => {}
            }
        }
        position = 0;
        if only.is_some() || slot == SlotIndex::LAST {
            break None;
        }
        slot = SlotIndex::from_index(slot.index() + 1);
        if visited >= arguments.count || !view.is_of_my_shard(slot) {
            break Some((slot, 0));
        }
    };
    reply_with_names(ctx, next, &found)
}

fn reply_with_names(ctx: &mut Context<'_, '_>, next: Option<(SlotIndex, u32)>, found: &BulkNameList) -> CommandResult {
    ctx.reply.array(2);
    match next {
        None => ctx.reply.bulk(b"0"),
        Some((slot, position)) => ctx
            .reply
            .bulk(format!("0-{{{}}}-{position}", tag_for_slot(slot)).as_bytes()),
    }
    found.reply(&mut ctx.reply);
    Ok(())
}
