//! INFO: the choice of sections, and the worker query that some of them need.

use crate::commands::context::{Binding, CommandResult, Context, NextStep, leased, reply_bytes};
use crate::keyspace::GatePassage;
use crate::net::client::ClientFlags;
use crate::observability::memory;
use crate::state::{ClientVisitor, Server, TransactionPart, WorkerQuery};
use weft_base::slots::SLOTS;

use super::sections::{self, ClientFigures, Section};

#[cfg(test)]
mod tests;

/// INFO.
pub const BINDINGS: &[(&str, Binding)] = &[("info", leased(info).telling_offset().asking())];

fn info(ctx: &mut Context<'_, '_>) -> CommandResult {
    let wanted = wanted(ctx.args.iter().skip(1));
    // The metrics of earlier commands of the same batch or transaction are included. A script that has changed nothing
    // may have to restart: its reads are counted then.
    if !ctx.client.flags.contains(ClientFlags::SCRIPT) || ctx.keys.effects.dirty > 0 {
        let (server, row) = (ctx.server, ctx.keys.context.thread_index);
        ctx.keys
            .effects
            .add_to_metrics(&server.keyspace, &server.stats.metrics, row);
    }
    // The replies that are built here are not part of the reported memory.
    let allocator = match wanted.contains(&Section::Memory) {
        true => sections::allocator_figures(ctx.server),
        false => memory::AllocatorFigures::default(),
    };
    let ttls_ms = match wanted.contains(&Section::Keyspace) {
        true => mean_ttls_ms(ctx),
        false => Vec::new(),
    };
    // The sections are rendered before the query, not when the answers have arrived, so that they do not include the
    // metrics of this command.
    let texts: Vec<Text> = wanted
        .iter()
        .map(|section| match section {
            Section::Clients | Section::Memory => Text::Asked(*section),
            _ => Text::Ready(sections::render(ctx.server, *section, &ttls_ms)),
        })
        .collect();
    if texts.iter().all(|text| matches!(text, Text::Ready(_))) {
        let text = join(ctx.server, &texts, &ClientFigures::default());
        ctx.reply.verbatim("txt", &text);
        return Ok(());
    }
    let server = ctx.server.clone();
    let protocol = ctx.client.protocol;
    ctx.after = NextStep::Ask(Box::new(Box::new(move |origin| WorkerQuery {
        ask: Box::new(|clients| figures(clients)),
        combine: Box::new(move |parts| {
            let clients = ClientFigures {
                allocator,
                ..total(&parts)
            };
            let text = join(&server, &texts, &clients);
            reply_bytes(protocol, |reply| reply.verbatim("txt", &text))
        }),
        parts: Default::default(),
        missing: Default::default(),
        origin,
        waits: None,
    })));
    Ok(())
}

/// The text of a section, or a section that needs the answers of the workers first.
enum Text {
    Ready(Vec<u8>),
    Asked(Section),
}

fn join(server: &Server, texts: &[Text], clients: &ClientFigures) -> Vec<u8> {
    let texts: Vec<Vec<u8>> = texts
        .iter()
        .map(|text| match text {
            Text::Ready(text) => text.clone(),
            Text::Asked(section) => sections::render_asked(server, *section, clients),
        })
        .collect();
    texts.join(&b"\r\n"[..])
}

/// Returns the sections that the words name, in the order in which they are shown.
fn wanted<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<Section> {
    let mut named = Vec::new();
    let mut any = false;
    for word in words {
        any = true;
        let word = word.to_ascii_lowercase();
        match word.as_slice() {
            b"default" => named.extend(Section::DEFAULT),
            b"all" | b"everything" => named.extend(Section::ALL),
            name => named.extend(Section::named(name)),
        }
    }
    if !any {
        named.extend(Section::DEFAULT);
    }
    named.sort_unstable();
    named.dedup();
    named
}

/// Returns the figures of one worker's clients, eight bytes each.
fn figures(clients: &mut dyn ClientVisitor) -> TransactionPart {
    let mut figures = ClientFigures {
        closing: clients.closing(),
        ..ClientFigures::default()
    };
    clients.each(&mut |client, buffers| {
        figures.blocked += u64::from(client.flags.contains(ClientFlags::BLOCKED));
        figures.watching += u64::from(client.watched_keys() > 0);
        match client.flags.contains(ClientFlags::REPLICA) {
            true => figures.replica_bytes += buffers.total as u64,
            false => figures.memory_bytes += buffers.total as u64,
        }
        figures.max_input_bytes = figures.max_input_bytes.max((buffers.input + buffers.input_free) as u64);
        figures.max_output_bytes = figures.max_output_bytes.max(buffers.output as u64);
    });
    [
        figures.blocked,
        figures.watching,
        figures.memory_bytes,
        figures.replica_bytes,
        figures.max_input_bytes,
        figures.max_output_bytes,
        figures.closing,
    ]
    .into_iter()
    .flat_map(u64::to_le_bytes)
    .collect()
}

fn total(parts: &[TransactionPart]) -> ClientFigures {
    let mut total = ClientFigures::default();
    for part in parts {
        let mut numbers = part.chunks_exact(8).map(|bytes| {
            bytes
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        });
        let mut next = || numbers.next().unwrap_or(0);
        total.blocked += next();
        total.watching += next();
        total.memory_bytes += next();
        total.replica_bytes += next();
        total.max_input_bytes = total.max_input_bytes.max(next());
        total.max_output_bytes = total.max_output_bytes.max(next());
        total.closing += next();
    }
    total
}

/// The number of slots to sample for estimating a mean, and the number of keys of each.
const SAMPLED: (usize, usize) = (16, 32);

/// Returns the estimated mean time to live of the keys with an expiry, in milliseconds by database.
fn mean_ttls_ms(ctx: &Context<'_, '_>) -> Vec<u64> {
    let counts = &ctx.server.keyspace.counts;
    (0..counts.databases())
        .map(|db| match ctx.pass {
            Some(pass) if counts.with_expiry(db) > 0 => mean_ttl_ms(pass, db, ctx.now_ms),
            _ => 0,
        })
        .collect()
}

/// Returns the mean time to live of some keys, in milliseconds. It samples keys of a few slots that begin at a random
/// one, and skips slots that are leased by a writer.
fn mean_ttl_ms(pass: &GatePassage<'_>, db: usize, now_ms: u64) -> u64 {
    let first = fastrand::usize(..SLOTS);
    let (mut slots, mut keys, mut sum_ms) = (0, 0, 0);
    for slot in (first..SLOTS).chain(0..first) {
        if !pass.domain().header(slot).may_hold(db) {
            continue;
        }
        let Some(lease) = pass.try_read(slot) else {
            continue;
        };
        let Some(table) = lease.table(db).filter(|table| table.with_expiry() > 0) else {
            continue;
        };
        for at_ms in table.iter().take(SAMPLED.1).filter_map(|entry| entry.expire_at_ms()) {
            keys += 1;
            sum_ms += at_ms.saturating_sub(now_ms);
        }
        slots += 1;
        if slots == SAMPLED.0 {
            break;
        }
    }
    sum_ms / u64::max(keys, 1)
}
