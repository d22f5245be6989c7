//! CLUSTERSCAN: the keys of the whole cluster. The cursor carries a hash tag of the slot where it continues, so that a
//! client's own routing leads to the right node: `fingerprint-{tag}-position`.

use weft_resp::number::{parse_i64, parse_u64};

use super::{cluster_of, slot_of};
use crate::commands::context::{CommandResult, Context, NextStep};
use crate::commands::error::CommandError;
use crate::commands::generic::scan::{DEFAULT_COUNT, Filter, FilterVerdict, FoundNames, type_of_name};
use crate::keyspace::walk::WalkAccess;
use weft_base::slots::SLOTS;
use weft_base::slots::cluster_slot;
use weft_base::slots::slot_of_pattern;
use weft_cluster::slot_tags::tag_for_slot;

/// The position of a scan.
struct ScanPosition {
    slot: u16,
    position: u32,
}

/// The arguments of a scan.
struct ScanArguments<'a> {
    from: Option<ScanPosition>,
    /// The only slot to scan.
    only: Option<u16>,
    count: usize,
    filter: Filter<&'a [u8]>,
}

fn cursor(word: &[u8]) -> Result<Option<ScanPosition>, CommandError> {
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
    Ok(Some(ScanPosition {
        slot: cluster_slot(tag),
        position,
    }))
}

fn wanted<'a>(ctx: &Context<'a, '_>) -> Result<ScanArguments<'a>, CommandError> {
    let mut wanted = ScanArguments {
        from: None,
        only: None,
        count: DEFAULT_COUNT,
        filter: Filter::of_pattern(ctx, b"*"),
    };
    let mut index = 2;
    while index < ctx.argc() {
        let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
        let next = (index + 1 < ctx.argc()).then(|| ctx.arg(index + 1));
        match next {
            Some(next) if is("COUNT") => {
                let number = parse_i64(next).ok_or(CommandError::NOT_AN_INTEGER)?;
                let count = usize::try_from(number).ok().filter(|count| *count > 0);
                wanted.count = count.ok_or(CommandError::SYNTAX)?;
            }
            Some(next) if is("MATCH") => {
                wanted.filter.pattern = Filter::of_pattern(ctx, next).pattern;
            }
            Some(next) if is("TYPE") => wanted.filter.type_name = Some(type_of_name(next)?),
            Some(next) if is("SLOT") => {
                if wanted.only.is_some() {
                    return Err(CommandError::constant("ERR SLOT option can only be specified once"));
                }
                wanted.only = Some(slot_of(next)?);
            }
            _ => return Err(CommandError::SYNTAX),
        }
        index += 2;
    }
    wanted.from = cursor(ctx.arg(1))?;
    Ok(wanted)
}

pub(super) fn cluster_scan(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cluster = cluster_of(ctx)?;
    let wanted = wanted(ctx)?;
    let only = wanted.only.or_else(|| slot_of_pattern(wanted.filter.pattern?));
    let Some(from) = wanted.from else {
        // The first step only returns the start, since the client may have contacted any node.
        return reply(ctx, Some((only.unwrap_or(0), 0)), &FoundNames::new(ctx.reply.protocol));
    };
    if only.is_some_and(|only| only != from.slot) && wanted.only.is_some() {
        return Err(CommandError::constant("ERR Invalid cursor"));
    }
    let view = cluster.view();
    let mut found = FoundNames::new(ctx.reply.protocol);
    let reach = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    let (mut slot, mut position, mut visited) = (from.slot, from.position, 0);
    let db = ctx.keys.db;
    let next = loop {
        if reach.header(usize::from(slot)).may_hold(db) {
            let rest = wanted.count.saturating_sub(visited);
            let scanned = reach.read_slot(usize::from(slot), |data| {
                data.table(db)?.scan(position, rest, &mut |entry| {
                    visited += 1;
                    if wanted.filter.judge(entry) == FilterVerdict::Wanted {
                        found.add(entry.key());
                    }
                })
            });
            match scanned {
                None if visited == 0 && slot == from.slot => {
                    ctx.after = NextStep::Defer;
                    return Ok(());
                }
                None => break Some((slot, position)),
                Some(Some(position)) => break Some((slot, position)),
                Some(None) => {}
            }
        }
        position = 0;
        if only.is_some() || usize::from(slot) + 1 == SLOTS {
            break None;
        }
        slot += 1;
        if visited >= wanted.count || !view.is_of_my_shard(slot) {
            break Some((slot, 0));
        }
    };
    reply(ctx, next, &found)
}

fn reply(ctx: &mut Context<'_, '_>, next: Option<(u16, u32)>, found: &FoundNames) -> CommandResult {
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
