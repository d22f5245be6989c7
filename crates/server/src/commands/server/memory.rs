//! MEMORY: reports the use of memory.

use std::fmt::Write as _;

use weft_base::DbIndex;
use weft_resp::Reply;
use weft_resp::number::parse_i64;
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;

use crate::commands::context::{Binding, CommandResult, Context, build_reply, leased};
use crate::commands::error::CommandError;
use crate::commands::generic::module_value_of;
use crate::commands::generic::scan::{busy_error_of_walk, is_held_by_overdue_script};
use crate::keyspace::Slot;
use crate::keyspace::walk::{WalkAccess, WalkEnd, for_each_slot_blocking};
use crate::observability::memory;
use crate::state::Server;
use weft_os::atomic::Ordering;

use super::sections::{MemoryFigures, format_bytes, ratio};

/// The subcommands.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("memory|doctor", leased(doctor)),
    ("memory|help", leased(help)),
    ("memory|malloc-stats", leased(allocator_statistics)),
    ("memory|purge", leased(purge)),
    ("memory|stats", leased(statistics).with_undeclared_keys()),
    ("memory|usage", leased(usage).with_module_values()),
];

/// The number of elements at which a module looks by default.
const DEFAULT_SAMPLES: usize = 5;

fn usage(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (mut index, mut samples) = (3, DEFAULT_SAMPLES);
    while index < ctx.argc() {
        if !ctx.arg(index).eq_ignore_ascii_case(b"samples") || index + 1 == ctx.argc() {
            return Err(CommandError::SYNTAX);
        }
        let number = parse_i64(ctx.arg(index + 1)).ok_or(CommandError::NOT_AN_INTEGER)?;
        samples = usize::try_from(number).map_err(|_| CommandError::SYNTAX)?;
        index += 2;
    }
    if let Some((value, bytes)) = ctx
        .keys
        .stored(0)
        .and_then(|entry| Some((module_value_of(entry)?, entry_bytes(entry))))
    {
        let (name, db) = (ctx.keys.name(0), ctx.keys.db.get() as u32);
        let of_module = ctx.call_modules(|| value.memory_usage(name, db, samples))?;
        ctx.reply.integer((bytes + of_module) as i64);
        return Ok(());
    }
    match ctx.keys.stored(0).map(entry_bytes) {
        Some(bytes) => ctx.reply.integer(bytes as i64),
        None => ctx.reply.null(),
    }
    Ok(())
}

/// Returns the number of bytes that a key and its value take from the allocator. Collections count their bytes, so
/// sampling is not necessary.
fn entry_bytes(entry: EntryRef<'_, Value>) -> usize {
    let behind = match entry.value() {
        ValueRef::Object(object) => object.allocated_bytes(),
        _ => 0,
    };
    entry.allocated_bytes() + behind
}

fn purge(ctx: &mut Context<'_, '_>) -> CommandResult {
    let protocol = ctx.client.protocol;
    ctx.run_without_keys(move |_| {
        let purged = memory::purge();
        build_reply(protocol, |reply| match purged {
            Ok(()) => reply.ok(),
            Err(reason) => reply.error(&format!("ERR Error purging dirty pages: {reason}")),
        })
    })
}

fn allocator_statistics(ctx: &mut Context<'_, '_>) -> CommandResult {
    let protocol = ctx.client.protocol;
    ctx.run_without_keys(move |_| {
        let text = memory::report();
        build_reply(protocol, |reply| reply.verbatim("txt", &text))
    })
}

/// Returns the number of bytes of the tables of each database that was ever used. `walk` must visit all slots.
fn table_bytes(server: &Server, walk: impl FnOnce(&mut dyn FnMut(&Slot))) -> Vec<(DbIndex, u64)> {
    let counts = &server.keyspace.counts;
    let mut bytes = vec![0u64; counts.databases()];
    walk(&mut |slot| {
        for (db, sum) in DbIndex::all(slot.databases()).zip(&mut bytes) {
            *sum += slot.table(db).map_or(0, |table| table.memory_bytes() as u64);
        }
    });
    DbIndex::all(counts.databases())
        .filter(|db| counts.was_used(*db))
        .map(|db| (db, bytes[db.get()]))
        .collect()
}

fn statistics(ctx: &mut Context<'_, '_>) -> CommandResult {
    let protocol = ctx.client.protocol;
    if let Some(whole) = WalkAccess::for_whole_keyspace(&ctx.keys.held) {
        // A transaction or script owns the whole keyspace, so these are its current figures.
        let tables = table_bytes(ctx.server, |visit| whole.for_each_slot(visit));
        reply_statistics(ctx.server, &tables, &mut ctx.reply);
        return Ok(());
    }
    ctx.reply_from_background(move |server, seat| {
        let gives_up = |slot| is_held_by_overdue_script(server, slot);
        let mut end = WalkEnd::End;
        let tables = table_bytes(server, |visit| end = for_each_slot_blocking(seat, &gives_up, visit));
        build_reply(protocol, |reply| match busy_error_of_walk(server, end) {
            Some(error) => reply.error_bytes(&error.0),
            None => reply_statistics(server, &tables, reply),
        })
    });
    Ok(())
}

fn reply_statistics(server: &Server, tables: &[(DbIndex, u64)], reply: &mut Reply<'_>) {
    let connections = server.clients.connections.load(Ordering::Relaxed) as u64;
    let client_bytes = connections * std::mem::size_of::<crate::net::connection::Connection>() as u64;
    let figures = MemoryFigures::from_server(server).with_clients(client_bytes);
    write_statistics(reply, &figures, tables);
}

/// A number of MEMORY STATS.
enum MemoryStatValue {
    Count(u64),
    Difference(i64),
    Share(f64),
}

fn write_statistics(reply: &mut Reply<'_>, figures: &MemoryFigures, tables: &[(DbIndex, u64)]) {
    use MemoryStatValue::{Count, Difference, Share};
    let allocator = figures.allocator;
    let resident = figures.resident_bytes;
    let difference = |one: u64, other: u64| Difference(one as i64 - other as i64);
    let before: &[(&str, MemoryStatValue)] = &[
        ("peak.allocated", Count(figures.peak_bytes)),
        ("total.allocated", Count(allocator.used)),
        ("startup.allocated", Count(figures.startup_bytes)),
        ("replication.backlog", Count(figures.backlog_bytes)),
        ("replicas.repl.buffer", Count(figures.loading_stream_bytes)),
        // The connections of replicas are among those of normal clients.
        ("clients.slaves", Count(figures.replica_stream_bytes())),
        ("clients.normal", Count(figures.client_bytes)),
        ("cluster.links", Count(figures.link_bytes)),
        ("cluster.slot_import", Count(figures.slot_import_bytes)),
        ("cluster.slot_export", Count(figures.slot_export_bytes)),
        ("aof.buffer", Count(figures.aof_bytes)),
        ("lua.caches", Count(figures.script_bytes)),
        ("functions.caches", Count(figures.library_bytes)),
    ];
    let after: &[(&str, MemoryStatValue)] = &[
        (
            "overhead.db.hashtable.lut",
            Count(tables.iter().map(|(_, bytes)| bytes).sum()),
        ),
        ("overhead.db.hashtable.rehashing", Count(0)),
        ("overhead.total", Count(figures.overhead_bytes())),
        ("db.dict.rehashing.count", Count(0)),
        ("keys.count", Count(figures.keys)),
        ("keys.bytes-per-key", Count(bytes_per_key(figures))),
        ("dataset.bytes", Count(figures.dataset_bytes())),
        ("dataset.percentage", Share(figures.dataset_percentage())),
        ("peak.percentage", Share(figures.peak_percentage())),
        ("allocator.allocated", Count(allocator.allocated)),
        ("allocator.active", Count(allocator.active)),
        ("allocator.resident", Count(allocator.resident)),
        ("allocator.muzzy", Count(0)),
        ("allocator-fragmentation.ratio", Share(allocator.fragmentation_ratio())),
        ("allocator-fragmentation.bytes", Count(allocator.fragmented)),
        (
            "allocator-rss.ratio",
            Share(ratio(allocator.resident, allocator.active)),
        ),
        ("allocator-rss.bytes", difference(allocator.resident, allocator.active)),
        ("rss-overhead.ratio", Share(ratio(resident, allocator.resident))),
        ("rss-overhead.bytes", difference(resident, allocator.resident)),
        ("fragmentation", Share(ratio(resident, allocator.used))),
        ("fragmentation.bytes", difference(resident, allocator.used)),
    ];
    reply.map(before.len() + tables.len() + after.len());
    write_figures(reply, before);
    for (db, bytes) in tables {
        reply.bulk(format!("db.{db}").as_bytes());
        reply.map(2);
        // Expiries are stored in the entries, and their index in the buckets.
        write_figures(
            reply,
            &[
                ("overhead.hashtable.main", Count(*bytes)),
                ("overhead.hashtable.expires", Count(0)),
            ],
        );
    }
    write_figures(reply, after);
}

fn write_figures(reply: &mut Reply<'_>, figures: &[(&str, MemoryStatValue)]) {
    for (name, figure) in figures {
        reply.bulk(name.as_bytes());
        match figure {
            MemoryStatValue::Count(number) => reply.integer(*number as i64),
            MemoryStatValue::Difference(number) => reply.integer(*number),
            MemoryStatValue::Share(share) => reply.double(*share),
        }
    }
}

fn bytes_per_key(figures: &MemoryFigures) -> u64 {
    let grown = figures.allocator.used.saturating_sub(figures.startup_bytes);
    grown.checked_div(figures.keys).unwrap_or(0)
}

/// The allocated memory in bytes below which ratios have no meaning.
const MIN_BYTES_FOR_DIAGNOSIS: u64 = 5 << 20;

fn doctor(ctx: &mut Context<'_, '_>) -> CommandResult {
    let text = memory_report(&MemoryFigures::from_server(ctx.server));
    ctx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn memory_report(figures: &MemoryFigures) -> String {
    let allocator = figures.allocator;
    let grown = allocator.allocated.saturating_sub(figures.startup_bytes);
    if grown < MIN_BYTES_FOR_DIAGNOSIS {
        return "There is too little data in memory to say anything about it.\n".to_owned();
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    if figures.peak_bytes > allocator.allocated * 3 / 2 {
        let _ = writeln!(
            text,
            "- Peak: {} were in use once, now it is {}. The allocator may keep pages of that time; MEMORY PURGE \
             gives them back.",
            format_bytes(figures.peak_bytes),
            format_bytes(allocator.allocated)
        );
    }
    if allocator.fragmentation_ratio() > 1.1 && allocator.fragmented > 10 << 20 {
        let _ = writeln!(
            text,
            "- Fragmentation: memory with small values is {:.2} times what is stored there, as other values were there \
             before. Active defragmentation (activedefrag yes) moves the values together.",
            allocator.fragmentation_ratio()
        );
    }
    if ratio(allocator.resident, allocator.active) > 1.1 && allocator.resident - allocator.active > 10 << 20 {
        let _ = writeln!(
            text,
            "- Kept pages: {} belong to the process without being used; the allocator returns them in time, or at \
             once with MEMORY PURGE.",
            format_bytes(allocator.resident - allocator.active)
        );
    }
    if ratio(figures.resident_bytes, allocator.resident) > 1.1 && figures.resident_bytes - allocator.resident > 10 << 20
    {
        let _ = writeln!(
            text,
            "- Overhead: {} of the process are outside the allocator.",
            format_bytes(figures.resident_bytes - allocator.resident)
        );
    }
    match text.is_empty() {
        true => "No problem with memory was found.\n".to_owned(),
        false => format!("What was found about memory:\n\n{text}"),
    }
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    super::reply_with_help(
        ctx,
        "MEMORY",
        &[
            ("DOCTOR", "Explain what is unusual about the memory in use."),
            ("MALLOC-STATS", "Show the allocator's figures."),
            (
                "PURGE",
                "Give pages that the allocator keeps back to the operating system.",
            ),
            ("STATS", "Show what memory is used for."),
            (
                "USAGE <key> [SAMPLES <count>]",
                "Tell how many bytes a key and its value take. Values are measured whole,\n\
                 whatever <count> says.",
            ),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doctor_reports_disproportionate_figures() {
        let mut figures = MemoryFigures::default();
        assert!(memory_report(&figures).contains("too little"));
        figures.allocator = memory::AllocatorFigures {
            allocated: 100 << 20,
            used: 100 << 20,
            active: 101 << 20,
            metadata: 0,
            resident: 102 << 20,
            ..memory::AllocatorFigures::default()
        };
        figures.resident_bytes = 103 << 20;
        figures.peak_bytes = 100 << 20;
        assert!(memory_report(&figures).starts_with("No problem"));
        figures.allocator.fragmented = 50 << 20;
        figures.allocator.active = 150 << 20;
        figures.allocator.resident = 200 << 20;
        figures.resident_bytes = 300 << 20;
        figures.peak_bytes = 400 << 20;
        let text = memory_report(&figures);
        for word in [
            "- Peak: 400.00M",
            "- Fragmentation: ",
            "1.50 times",
            "- Kept pages: 50.00M",
            "- Overhead: 100.00M",
        ] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
}
