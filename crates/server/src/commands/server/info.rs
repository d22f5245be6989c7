//! INFO: the choice of sections, and the worker query that some of them need.

use crate::commands::context::{Binding, CommandResult, Context, NextStep, build_reply, leased};
use crate::keyspace::GatePassage;
use crate::keyspace::walk::{WalkAccess, count_hidden_keys};
use crate::net::client::ClientFlags;
use crate::state::{ClientVisitor, QueryRequester, Server, WorkerAnswer, WorkerQuery};
use weft_base::DbIndex;
use weft_base::slots::SLOTS;
use weft_modules::module::info as modules;
use weft_modules::session::Session;
use weft_os::sync::mpsc::sync_channel;

use super::sections::{self, ClientFigures, InfoSection, KeyspaceSamples, MemoryFigures};

#[cfg(test)]
mod tests;

/// INFO.
pub const BINDINGS: &[(&str, Binding)] = &[("info", leased(info).with_exact_offset().with_worker_query())];

fn info(ctx: &mut Context<'_, '_>) -> CommandResult {
    let wanted = parse_sections(ctx.args.iter().skip(1));
    let from_modules = match modules::has_sections() {
        true => wanted_from_modules(ctx.args.iter().skip(1)),
        false => None,
    };
    // The metrics of earlier commands of the same batch or transaction are included. What a script does that may have
    // to restart is counted at its end.
    if !ctx.keys.effects.is_held_back {
        let (server, row) = (ctx.server, ctx.keys.context.thread_index);
        ctx.keys
            .effects
            .add_to_metrics(&server.keyspace, &server.stats.metrics, row);
    }
    // The replies that are built here are not part of the reported memory.
    let memory = match wanted.contains(&InfoSection::Memory) {
        true => MemoryFigures::from_server(ctx.server),
        false => MemoryFigures::default(),
    };
    let samples = match wanted.contains(&InfoSection::Keyspace) {
        true => KeyspaceSamples {
            mean_ttls_ms: mean_ttls_ms(ctx),
            visible_keys: visible_keys(ctx),
        },
        false => KeyspaceSamples::default(),
    };
    // The sections are rendered before the query, not when the answers have arrived, so that they do not include the
    // metrics of this command.
    let texts: Vec<SectionText> = wanted
        .iter()
        .map(|section| match section {
            InfoSection::Clients | InfoSection::Memory => SectionText::NeedsClientFigures(*section),
            _ => SectionText::Ready(sections::render_section(ctx.server, *section, &samples)),
        })
        .collect();
    if let Some(wanted) = from_modules {
        return add_sections_of_modules(ctx, wanted, texts, memory);
    }
    if texts.iter().all(|text| matches!(text, SectionText::Ready(_))) {
        let text = join_sections(ctx.server, &texts, &memory, &ClientFigures::default());
        ctx.reply.verbatim("txt", &text);
        return Ok(());
    }
    let server = ctx.server.clone();
    let protocol = ctx.client.protocol;
    ctx.next_step = NextStep::QueryWorkers(Box::new(WorkerQuery {
        task: Box::new(|clients| encode_client_figures(clients)),
        combine: Box::new(move |parts| {
            let text = join_sections(&server, &texts, &memory, &sum_client_figures(&parts));
            build_reply(protocol, |reply| reply.verbatim("txt", &text))
        }),
        awaits_killed_commands: false,
    }));
    Ok(())
}

/// Returns the names of the sections of modules that the words name, or a `None` within for all of them; `None` if the
/// words name sections of the server only.
pub fn wanted_from_modules<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<Option<Vec<Vec<u8>>>> {
    let mut names = Vec::new();
    for word in words {
        let word = word.to_ascii_lowercase();
        match word.as_slice() {
            b"everything" | b"modules" => return Some(None),
            b"default" | b"all" => {}
            name if InfoSection::from_name(name).is_some() => {}
            _ => names.push(word),
        }
    }
    (!names.is_empty()).then_some(Some(names))
}

/// Replies with the sections of the server and of modules. The code of modules runs on the home worker: a transaction
/// or script that runs elsewhere cannot wait for it, and shows the sections of the server only.
fn add_sections_of_modules(
    ctx: &mut Context<'_, '_>,
    wanted: Option<Vec<Vec<u8>>>,
    texts: Vec<SectionText>,
    memory: MemoryFigures,
) -> CommandResult {
    let from_session = weft_modules::session::current(|session| modules::collect(session, wanted.as_deref()));
    if from_session.is_some() || !ctx.may_block {
        let text = join_sections(ctx.server, &texts, &memory, &ClientFigures::default());
        let text = append_sections(text, &from_session.unwrap_or_default());
        ctx.reply.verbatim("txt", &text);
        return Ok(());
    }
    let protocol = ctx.client.protocol;
    ctx.reply_from_background(move |server, _| {
        let collect = move |session: &mut dyn Session| modules::collect(session, wanted.as_deref());
        let added = server.run_session_at_home_and_wait(collect).unwrap_or_default();
        let (sender, answer) = sync_channel(1);
        let combined = server.clone();
        let query = WorkerQuery {
            task: Box::new(|clients| encode_client_figures(clients)),
            combine: Box::new(move |parts| {
                let text = join_sections(&combined, &texts, &memory, &sum_client_figures(&parts));
                let text = append_sections(text, &added);
                build_reply(protocol, |reply| reply.verbatim("txt", &text))
            }),
            awaits_killed_commands: false,
        };
        server.query_all_workers(query, QueryRequester::Thread(sender));
        // The workers answer until the server ends, and then nothing waits for the reply.
        answer.recv().unwrap_or_default()
    });
    Ok(())
}

/// Appends the sections of modules to those of the server.
fn append_sections(mut text: Vec<u8>, added: &[u8]) -> Vec<u8> {
    if !text.is_empty() && !added.is_empty() {
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(added);
    text
}

/// The text of a section, or a section that needs the answers of the workers first.
enum SectionText {
    Ready(Vec<u8>),
    NeedsClientFigures(InfoSection),
}

fn join_sections(server: &Server, texts: &[SectionText], memory: &MemoryFigures, clients: &ClientFigures) -> Vec<u8> {
    let texts: Vec<Vec<u8>> = texts
        .iter()
        .map(|text| match text {
            SectionText::Ready(text) => text.clone(),
            SectionText::NeedsClientFigures(section) => {
                sections::render_client_section(server, *section, memory, clients)
            }
        })
        .collect();
    texts.join(&b"\r\n"[..])
}

/// Returns the sections that the words name, in the order in which they are shown.
fn parse_sections<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<InfoSection> {
    let mut named = Vec::new();
    let mut any = false;
    for word in words {
        any = true;
        let word = word.to_ascii_lowercase();
        match word.as_slice() {
            b"default" => named.extend(InfoSection::DEFAULT),
            b"all" | b"everything" => named.extend(InfoSection::ALL),
            name => named.extend(InfoSection::from_name(name)),
        }
    }
    if !any {
        named.extend(InfoSection::DEFAULT);
    }
    named.sort_unstable();
    named.dedup();
    named
}

/// Clients whose buffers the figures of slot migrations contain.
const SLOT_MIGRATIONS: ClientFlags = ClientFlags::SLOT_IMPORT.union(ClientFlags::SLOT_EXPORT);

/// Returns the figures of one worker's clients, eight bytes each.
fn encode_client_figures(clients: &mut dyn ClientVisitor) -> WorkerAnswer {
    let mut figures = ClientFigures {
        closing: clients.closing_count(),
        ..ClientFigures::default()
    };
    clients.visit_clients(&mut |client, buffers| {
        figures.blocked += u64::from(client.flags.contains(ClientFlags::BLOCKED));
        figures.watching += u64::from(client.watched_keys() > 0);
        if client.flags.contains(ClientFlags::REPLICA) {
            figures.replica_bytes += buffers.allocated as u64;
        } else if !client.flags.intersects(SLOT_MIGRATIONS) {
            figures.memory_bytes += buffers.total as u64;
            figures.allocated_bytes += buffers.allocated as u64;
        }
        figures.max_input_bytes = figures.max_input_bytes.max((buffers.input + buffers.input_free) as u64);
        figures.max_output_bytes = figures.max_output_bytes.max(buffers.output as u64);
    });
    [
        figures.blocked,
        figures.watching,
        figures.memory_bytes,
        figures.allocated_bytes,
        figures.replica_bytes,
        figures.max_input_bytes,
        figures.max_output_bytes,
        figures.closing,
    ]
    .into_iter()
    .flat_map(u64::to_le_bytes)
    .collect()
}

fn sum_client_figures(parts: &[WorkerAnswer]) -> ClientFigures {
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
        total.allocated_bytes += next();
        total.replica_bytes += next();
        total.max_input_bytes = total.max_input_bytes.max(next());
        total.max_output_bytes = total.max_output_bytes.max(next());
        total.closing += next();
    }
    total
}

/// The number of slots to sample for estimating a mean, and the number of keys of each.
const SAMPLE_SIZE: (usize, usize) = (16, 32);

/// The number of attempts to count the keys of slots that another thread writes.
const MAX_COUNT_ATTEMPTS: usize = 100;

/// Returns the numbers of keys, and of keys with an expiry, that clients may see, by database. Returns nothing if no
/// slot is being imported: then clients may see all keys.
fn visible_keys(ctx: &Context<'_, '_>) -> Vec<(u64, u64)> {
    let can_walk = ctx.pass.is_some() || ctx.keys.held.holds_all_slots();
    if !can_walk || !ctx.server.slot_migrations.has_imports() {
        return Vec::new();
    }
    let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    let counts = &ctx.server.keyspace.counts;
    DbIndex::all(counts.databases())
        .map(|db| {
            // Read first: a key that arrives meanwhile is not shown.
            let (keys, with_expiry) = (counts.keys(db), counts.with_expiry(db));
            let hidden = (0..MAX_COUNT_ATTEMPTS).find_map(|_| count_hidden_keys(&access, db).ok());
            hidden.map_or((keys, with_expiry), |hidden| {
                let visible = keys.saturating_sub(hidden.keys as u64);
                (visible, with_expiry.saturating_sub(hidden.with_expiry as u64))
            })
        })
        .collect()
}

/// Returns the estimated mean time to live of the keys with an expiry, in milliseconds by database.
fn mean_ttls_ms(ctx: &Context<'_, '_>) -> Vec<u64> {
    let counts = &ctx.server.keyspace.counts;
    DbIndex::all(counts.databases())
        .map(|db| match ctx.pass {
            Some(pass) if counts.with_expiry(db) > 0 => mean_ttl_ms(pass, db, ctx.now_ms),
            _ => 0,
        })
        .collect()
}

/// Returns the mean time to live of some keys, in milliseconds. It samples keys of a few slots that begin at a random
/// one, and skips slots that are leased by a writer.
fn mean_ttl_ms(pass: &GatePassage<'_>, db: DbIndex, now_ms: u64) -> u64 {
    let first = fastrand::usize(..SLOTS);
    let (mut slots, mut keys, mut sum_ms) = (0, 0, 0);
    for slot in (first..SLOTS).chain(0..first) {
        if !pass.domain().header(slot).may_show(db) {
            continue;
        }
        let Some(lease) = pass.try_read(slot) else {
            continue;
        };
        let Some(table) = lease.table(db).filter(|table| table.with_expiry() > 0) else {
            continue;
        };
        for at_ms in table
            .iter()
            .take(SAMPLE_SIZE.1)
            .filter_map(|entry| entry.expire_at_ms())
        {
            keys += 1;
            sum_ms += at_ms.saturating_sub(now_ms);
        }
        slots += 1;
        if slots == SAMPLE_SIZE.0 {
            break;
        }
    }
    sum_ms / u64::max(keys, 1)
}
