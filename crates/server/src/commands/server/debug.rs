//! DEBUG: subcommands for tests and developers, which `enable-debug-command` permits.
//!
//! Subcommands for internals that Weft does not have (the resizing of one big table, list nodes, reply buffers) are
//! accepted if their arguments are valid, but have no effect.

use std::ops::RangeInclusive;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::files::errno_text;
use weft_base::{DbIndex, SlotIndex};
use weft_resp::number::{parse_f64, parse_i64, parse_memory};
use weft_resp::{Protocol, Reply};
use weft_table::{EntryRef, ValueRef, allocator};
use weft_values::Value;

use crate::commands::context::{Binding, CommandResult, Context, NextStep, build_reply, exclusive_for_sleep};
use crate::commands::error::{CommandError, loading_error, printable_name};
use crate::commands::generic::object::encoding_name;
use crate::commands::generic::scan::{busy_error_of_walk, is_held_by_overdue_script};
use crate::commands::scripting::script::busy_reply_of_run;
use crate::keyspace::Slot;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::effects::Hooks;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::walk::{WalkAccess, WalkEnd, for_each_slot_blocking};
use crate::observability::{log, memory};
use crate::persistence::save;
use crate::persistence::save::{ReloadError, ReloadOptions};
use crate::propagation::LogTarget;
use crate::state::Server;
use weft_cluster::state::{DroppedMessages, InjectedFaults};
use weft_os::atomic::Ordering;
use weft_rdb::dump_payload;

use super::{config, digest, elements, populate, restart};

/// DEBUG.
pub const BINDINGS: &[(&str, Binding)] = &[(
    "debug",
    exclusive_for_sleep(debug)
        .with_module_values()
        .with_module_parameters()
        .with_undeclared_keys()
        .with_config_change(),
)];

/// A subcommand: its name, its numbers of words with DEBUG itself, and its handler.
type DebugSubcommand = (
    &'static str,
    RangeInclusive<usize>,
    fn(&mut Context<'_, '_>) -> CommandResult,
);

/// The subcommands of DEBUG.
const SUBCOMMANDS: &[DebugSubcommand] = &[
    ("help", 2..=2, help),
    ("sleep", 3..=3, sleep),
    ("set-active-expire", 3..=3, |ctx| {
        let on = parse_switch(ctx.arg(2));
        ctx.server.background.active_expire.store(on, Ordering::Relaxed);
        reply_ok(ctx)
    }),
    ("pause-cron", 3..=3, |ctx| {
        let paused = parse_switch(ctx.arg(2));
        ctx.server.stats.history.is_cron_paused.store(paused, Ordering::Relaxed);
        reply_ok(ctx)
    }),
    ("config-rewrite-force-all", 2..=2, config::rewrite_all),
    ("change-repl-id", 2..=2, |ctx| {
        log::notice!("Changing replication IDs after receiving DEBUG change-repl-id");
        ctx.server.replication.change_replication_id();
        reply_ok(ctx)
    }),
    ("replicate", 3..=usize::MAX, replicate),
    ("log", 3..=3, |ctx| {
        log::warning!("DEBUG LOG: {}", String::from_utf8_lossy(ctx.arg(2)));
        reply_ok(ctx)
    }),
    ("error", 3..=3, |ctx| {
        ctx.reply.error_bytes(ctx.arg(2));
        Ok(())
    }),
    ("protocol", 3..=3, protocol),
    ("object", 3..=4, object),
    ("sdslen", 3..=3, string_lengths),
    ("digest", 2..=2, digest::whole_digest),
    ("digest-value", 2..=usize::MAX, value_digests),
    ("htstats", 3..=usize::MAX, table_statistics),
    ("htstats-key", 3..=4, |ctx| {
        elements::with_live_entry(ctx, 2, |_, _| {
            Err(CommandError::constant(
                "ERR The value stored at the specified key is not represented using an hash table",
            ))
        })
    }),
    ("listpack", 3..=3, |ctx| {
        elements::with_live_entry(ctx, 2, |ctx, entry| match elements::describe(entry, "listpack") {
            Some(text) => elements::print(ctx, text, "Listpack"),
            None => Err(CommandError::constant("ERR Not a listpack encoded object.")),
        })
    }),
    ("quicklist", 3..=4, |ctx| {
        elements::with_live_entry(ctx, 2, |ctx, entry| match elements::describe(entry, "quicklist") {
            Some(text) => elements::print(ctx, text, "Quicklist"),
            None => Err(CommandError::constant("ERR Not a quicklist encoded object.")),
        })
    }),
    ("populate", 3..=5, populate::populate),
    ("leak", 3..=3, |ctx| {
        // The memory is leaked on purpose.
        std::mem::forget(ctx.arg(2).to_vec());
        reply_ok(ctx)
    }),
    ("reload", 2..=usize::MAX, reload),
    ("loadaof", 2..=2, load_aof),
    ("client-eviction", 2..=2, |_| {
        Err(CommandError::constant("ERR maxmemory-clients is disabled."))
    }),
    ("stringmatch-test", 2..=2, match_patterns),
    ("quicklist-packed-threshold", 3..=3, packed_threshold),
    ("replybuffer", 4..=4, reply_buffer),
    ("set-skip-checksum-validation", 3..=3, |ctx| {
        let skips = parse_switch(ctx.arg(2));
        dump_payload::VERIFIES_CHECKSUMS.store(!skips, Ordering::Relaxed);
        reply_ok(ctx)
    }),
    ("aof-flush-sleep", 3..=3, |ctx| {
        let pause_us = parse_i64(ctx.arg(2)).and_then(|us| u64::try_from(us).ok()).unwrap_or(0);
        ctx.server
            .persistence
            .aof
            .flush_pause_us
            .store(pause_us, Ordering::Relaxed);
        reply_ok(ctx)
    }),
    ("mallctl", 3..=4, allocator_number),
    ("mallctl-str", 3..=4, allocator_text),
    ("dict-resizing", 3..=3, reply_ok),
    ("hashtable-can-abort-shrink", 3..=3, reply_ok),
    ("client-enforce-reply-list", 3..=3, |ctx| {
        let server = ctx.server;
        let enforces = parse_switch(ctx.arg(2));
        server
            .stats
            .history
            .enforces_reply_list
            .store(enforces, Ordering::Relaxed);
        server.config.invalidate_caches();
        reply_ok(ctx)
    }),
    ("force-free-primary-async", 3..=3, |ctx| {
        let on = parse_switch(ctx.arg(2));
        ctx.server.replication.leaves_link_open.store(on, Ordering::Relaxed);
        reply_ok(ctx)
    }),
    ("pause-after-fork", 3..=3, |ctx| {
        let pauses = parse_switch(ctx.arg(2));
        ctx.server
            .replication
            .pauses_after_fork
            .store(pauses, Ordering::Relaxed);
        reply_ok(ctx)
    }),
    ("slotmigration", 4..=4, slot_migration),
    ("delay-rdb-client-free-seconds", 3..=3, |ctx| {
        let seconds = parse_i64(ctx.arg(2)).and_then(|seconds| u64::try_from(seconds).ok());
        let grace_s = &ctx.server.replication.replicas.grace_s;
        grace_s.store(seconds.unwrap_or(0), Ordering::Relaxed);
        reply_ok(ctx)
    }),
    ("set-disable-deny-scripts", 3..=3, |ctx| {
        ctx.server.scripting.permit_denied_commands(parse_switch(ctx.arg(2)));
        reply_ok(ctx)
    }),
    ("drop-cluster-packet-filter", 3..=3, |ctx| {
        let dropped = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
        change_faults(ctx, |faults| faults.dropped = DroppedMessages::from_number(dropped))
    }),
    ("close-cluster-link-on-packet-drop", 3..=3, |ctx| {
        let on = parse_switch(ctx.arg(2));
        change_faults(ctx, |faults| faults.ends_links = on)
    }),
    ("disable-cluster-random-ping", 3..=3, |ctx| {
        let on = parse_switch(ctx.arg(2));
        change_faults(ctx, |faults| faults.no_random_ping = on)
    }),
    ("disable-cluster-reconnection", 3..=3, |ctx| {
        let on = parse_switch(ctx.arg(2));
        change_faults(ctx, |faults| faults.no_reconnection = on)
    }),
    ("clusterlink", 5..=5, end_cluster_links),
    ("restart", 2..=usize::MAX, restart::restart),
    ("crash-and-recover", 2..=usize::MAX, restart::crash_and_recover),
    ("panic", 2..=2, |_| crash_process("Panic requested by DEBUG PANIC")),
    ("assert", 2..=2, |_| {
        crash_process("Assertion failed, as DEBUG ASSERT requested")
    }),
    ("oom", 2..=usize::MAX, |_| {
        crash_process("Out of memory, as DEBUG OOM requested")
    }),
    ("segfault", 2..=2, |_| {
        // If the signal is not delivered, there is no crash.
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSEGV);
        crash_process("Segmentation fault requested by DEBUG SEGFAULT")
    }),
];

fn debug(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (name, argc) = (ctx.arg(1), ctx.argc());
    let is_asked_for =
        |(known, words, _): &&DebugSubcommand| known.as_bytes().eq_ignore_ascii_case(name) && words.contains(&argc);
    match SUBCOMMANDS.iter().find(is_asked_for) {
        Some((.., handler)) => handler(ctx),
        None => Err(unknown_subcommand_error(ctx)),
    }
}

/// The double that DEBUG PROTOCOL shows, with as many digits as the tests of clients expect.
#[expect(clippy::approx_constant, reason = "the value is that of Valkey, not the circle's")]
const PROTOCOL_DOUBLE: f64 = 3.141;

/// Returns the error of a subcommand that does not exist with these arguments.
fn unknown_subcommand_error(ctx: &Context<'_, '_>) -> CommandError {
    CommandError::with_word(
        "ERR unknown subcommand or wrong number of arguments for '",
        printable_name(ctx.arg(1)),
        "'. Try DEBUG HELP.",
    )
}

/// Changes the faults that tests inject into the cluster bus.
fn change_faults(ctx: &mut Context<'_, '_>, change: impl FnOnce(&mut InjectedFaults)) -> CommandResult {
    if let Some(cluster) = &ctx.server.cluster {
        change(&mut cluster.lock(&ctx.server.config).faults);
    }
    reply_ok(ctx)
}

/// Executes CLUSTERLINK KILL TO|FROM|ALL node: closes links to or from a node.
fn end_cluster_links(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some(cluster) = &ctx.server.cluster else {
        return Err(CommandError::constant(
            "ERR Debug option only available for cluster mode enabled setup!",
        ));
    };
    let is = |index: usize, name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
    if !is(2, "kill") {
        return Err(unknown_subcommand_error(ctx));
    }
    let (to, from) = (is(3, "to") || is(3, "all"), is(3, "from") || is(3, "all"));
    if !to && !from {
        return Err(unknown_subcommand_error(ctx));
    }
    let mut state = cluster.lock(&ctx.server.config);
    let Some(node) = state.node_by_id(ctx.arg(4)) else {
        return Err(CommandError::with_word("ERR Unknown node ", ctx.arg(4), ""));
    };
    let links = [node.link.filter(|_| to), node.inbound_link.filter(|_| from)];
    for link in links.into_iter().flatten() {
        state.close_link(link);
    }
    drop(state);
    cluster.wake_bus();
    reply_ok(ctx)
}

fn reply_ok(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.ok();
    Ok(())
}

/// Parses a switch. Any number but 0 is on; a word that is not a number is off.
fn parse_switch(word: &[u8]) -> bool {
    parse_i64(word).is_some_and(|number| number != 0)
}

fn crash_process(why: &str) -> ! {
    log::warning!("{why}");
    std::process::abort();
}

/// Propagates a command to the replicas without executing it here.
fn replicate(ctx: &mut Context<'_, '_>) -> CommandResult {
    let words: Vec<&[u8]> = ctx.args.iter().skip(2).collect();
    let (db, effects) = (ctx.client.db, &mut *ctx.keys.effects);
    if effects.hooks.intersects(Hooks::LOG_REPLICAS) {
        effects.log_writer.propagate_before(LogTarget::REPLICAS, db, &words);
    }
    reply_ok(ctx)
}

/// Stops the links to replicas and to the primary for `duration`.
fn pause_replication_links(server: &Server, duration: Duration) {
    let until_ms = unix_ms().saturating_add(duration.as_millis() as u64);
    server
        .replication
        .links_sleep_until_ms
        .store(until_ms, Ordering::Relaxed);
}

/// Stops all commands of all clients, as in Valkey, which executes them on a single thread. The caller is in exclusive
/// mode, also within a transaction; a script holds all slots.
fn sleep(ctx: &mut Context<'_, '_>) -> CommandResult {
    let seconds = parse_f64(ctx.arg(2)).filter(|seconds| *seconds > 0.0).unwrap_or(0.0);
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    debug_assert!(
        ctx.pass.is_none() || ctx.keys.held.holds_all_slots(),
        "no other thread runs a command meanwhile"
    );
    pause_replication_links(ctx.server, duration);
    weft_os::thread::sleep(duration);
    reply_ok(ctx)
}

fn protocol(ctx: &mut Context<'_, '_>) -> CommandResult {
    let resp3 = ctx.client.protocol == Protocol::Resp3;
    let reply = &mut ctx.reply;
    match ctx.args.argument(2).to_ascii_lowercase().as_slice() {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.integer(12345),
        b"double" => reply.double(PROTOCOL_DOUBLE),
        b"null" => reply.null(),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|number| reply.integer(number));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|number| reply.integer(number));
        }
        b"map" => {
            reply.map(3);
            for number in 0..3 {
                reply.integer(number);
                reply.boolean(number == 1);
            }
        }
        b"attrib" => {
            if resp3 {
                reply.attribute(1);
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.integer(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" => {
            if !resp3 {
                return Err(CommandError::constant("ERR RESP2 is not supported by this command"));
            }
            // Messages follow the reply of the command that caused them.
            reply.bulk(b"Some real reply following the push reply");
            reply.push(2);
            reply.bulk(b"server-cpu-usage");
            reply.integer(42);
        }
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        b"verbatim" => reply.verbatim("txt", b"This is a verbatim\nstring"),
        b"bignum" => reply.big_number("1234567999999999999999999999999999999"),
        _ => {
            return Err(CommandError::constant(
                "ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}

/// Calls `visit` with the entry of the key that is the n-th argument. DEBUG's metadata names no keys, so the key is not
/// in the plan.
///
/// # Errors
/// If the key does not exist, or the error of `visit`.
pub(super) fn with_entry(
    ctx: &mut Context<'_, '_>,
    argument: usize,
    visit: impl FnOnce(&mut Context<'_, '_>, EntryRef<'_, Value>) -> CommandResult,
) -> CommandResult {
    let hash = ctx.server.keyspace.hasher.hash(ctx.arg(argument));
    // The leases are taken out of the context for the time of the access, because the handler needs the rest of it.
    let held = std::mem::replace(&mut ctx.keys.held, HeldLeases::Nothing);
    let shown = WalkAccess::for_command(&held, ctx.pass).read_slot(KeyHasher::slot(hash), |slot| {
        visit_entry(ctx, argument, hash, slot, visit)
    });
    ctx.keys.held = held;
    shown.unwrap_or_else(|| {
        ctx.defer_until_free(SlotIndex::from_index(KeyHasher::slot(hash)));
        Ok(())
    })
}

fn visit_entry(
    ctx: &mut Context<'_, '_>,
    argument: usize,
    hash: u64,
    slot: &Slot,
    visit: impl FnOnce(&mut Context<'_, '_>, EntryRef<'_, Value>) -> CommandResult,
) -> CommandResult {
    let key = ctx.arg(argument);
    // Expired keys that have not been deleted yet are shown, too.
    let entry = slot.table(ctx.client.db).and_then(|table| table.find(hash, key));
    match entry {
        Some(entry) => visit(ctx, entry),
        None => Err(CommandError::NO_SUCH_KEY),
    }
}

fn object(ctx: &mut Context<'_, '_>) -> CommandResult {
    let fast = ctx.argc() == 4 && ctx.arg(3).eq_ignore_ascii_case(b"fast");
    with_entry(ctx, 2, |ctx, entry| {
        /// The size of a dumped value's type, version and checksum in bytes. They are not part of its length.
        const FRAME_BYTES: usize = 11;
        let is_of_module = matches!(entry.value(), ValueRef::Object(Value::Module(_)));
        let length = match fast || is_of_module {
            true => String::new(),
            false => format!(
                " serializedlength:{}",
                dump_payload::dump(entry.value(), true).len() - FRAME_BYTES
            ),
        };
        ctx.reply.simple(&format!(
            "Value at:{:p} refcount:1 encoding:{}{length} {}{}",
            entry.key().as_ptr(),
            encoding_name(entry),
            ctx.keys.context.clock.describe(entry.clock()),
            quicklist_statistics(entry.value()),
        ));
        Ok(())
    })
}

fn string_lengths(ctx: &mut Context<'_, '_>) -> CommandResult {
    with_entry(ctx, 2, |ctx, entry| {
        let length = match entry.value() {
            ValueRef::Bytes(bytes) => bytes.len(),
            ValueRef::Blob(blob) => blob.len(),
            ValueRef::Int(_) | ValueRef::Packed(_) | ValueRef::Object(_) => {
                return Err(CommandError::constant("ERR Not an sds encoded string."));
            }
        };
        // Key and value are stored without free space, or in one allocation.
        ctx.reply.simple(&format!(
            "key_sds_len:{} key_sds_avail:0 obj_alloc:{} val_sds_len:{length} val_sds_avail:0 val_alloc:0",
            entry.key().len(),
            entry.allocated_bytes(),
        ));
        Ok(())
    })
}

fn value_digests(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.now_ms;
    let client_db = ctx.client.db;
    let names: Vec<Box<[u8]>> = (2..ctx.argc()).map(|argument| ctx.arg(argument).into()).collect();
    let is_named = |db, name: &[u8]| db == client_db && names.iter().any(|named| **named == *name);
    let modules = digest::module_digests(ctx, is_named)?;
    ctx.reply.array(ctx.argc() - 2);
    for argument in 2..ctx.argc() {
        let shown = with_entry(ctx, argument, |ctx, entry| {
            let module = modules.get(&(ctx.client.db, entry.key().into()));
            ctx.reply.simple(&digest::digest_value(entry, now_ms, module).to_hex());
            Ok(())
        });
        if matches!(ctx.next_step, NextStep::Defer) {
            return Ok(());
        }
        if shown.is_err() {
            ctx.reply.simple(&digest::DataDigest::default().to_hex());
        }
    }
    Ok(())
}

fn table_statistics(ctx: &mut Context<'_, '_>) -> CommandResult {
    let number = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let databases = ctx.server.keyspace.counts.databases();
    let Some(db) = DbIndex::parse(number, databases) else {
        return Err(CommandError::constant("ERR Out of range database"));
    };
    let protocol = ctx.client.protocol;
    if let Some(whole) = WalkAccess::for_whole_keyspace(&ctx.keys.held) {
        let text = table_statistics_text(ctx.server, db, |visit| whole.for_each_slot(visit));
        ctx.reply.verbatim("txt", text.as_bytes());
        return Ok(());
    }
    ctx.reply_from_background(move |server, seat| {
        let gives_up = |slot| is_held_by_overdue_script(server, slot);
        let mut end = WalkEnd::End;
        let text = table_statistics_text(server, db, |visit| end = for_each_slot_blocking(seat, &gives_up, visit));
        build_reply(protocol, |reply| match busy_error_of_walk(server, end) {
            Some(error) => reply.error_bytes(&error.0),
            None => reply.verbatim("txt", text.as_bytes()),
        })
    });
    Ok(())
}

/// Describes the tables of one database, one per slot. Their sums are shown in the format that Valkey has for its
/// single table.
fn table_statistics_text(server: &Server, db: DbIndex, walk: impl FnOnce(&mut dyn FnMut(&Slot))) -> String {
    /// The number of entries that fit into a bucket, and its size in bytes.
    const BUCKET: (usize, usize) = (7, 64);
    let (mut bytes, mut slots, mut longest) = (0, 0, 0);
    walk(&mut |slot| {
        if let Some(table) = slot.table(db) {
            bytes += table.memory_bytes();
            slots += usize::from(!table.is_empty());
            longest = longest.max(table.len());
        }
    });
    let mut text = "[Dictionary HT]\n".to_owned();
    if slots > 0 {
        text += &format!(
            "Hash table 0 stats (main hash table):\n table size: {}\n number of entries: {}\n \
             slots in use: {slots}\n largest slot: {longest}\n",
            bytes / BUCKET.1 * BUCKET.0,
            server.keyspace.counts.keys(db),
        );
    }
    text += "[Expires HT]\n";
    let expiring = server.keyspace.counts.with_expiry(db);
    if expiring > 0 {
        text += &format!(" number of entries: {expiring}\n");
    }
    text
}

/// Returns the reply while data is loaded, because it cannot be replaced during the load.
fn loading_reply(server: &Server) -> Vec<u8> {
    let mut reply = Vec::new();
    loading_error(&server.config).append_to(&mut reply);
    reply
}

/// Executes DEBUG LOADAOF, which replaces the data in memory by the contents of the append-only file.
fn load_aof(ctx: &mut Context<'_, '_>) -> CommandResult {
    if !ctx.may_block {
        return Err(CommandError::constant(
            "ERR DEBUG LOADAOF is not possible within a transaction or a script",
        ));
    }
    ctx.reply_from_background(|server, seat| match crate::persistence::aof::reload(server, seat) {
        Ok(()) => {
            crate::observability::log::warning!("Append Only File loaded by DEBUG LOADAOF");
            b"+OK\r\n".to_vec()
        }
        Err(ReloadError::Loading) => loading_reply(server),
        Err(ReloadError::ScriptBusy(run)) => busy_reply_of_run(&server.config, &run),
        Err(ReloadError::ProcessEnds) => b"-ERR The server is about to end\r\n".to_vec(),
        Err(ReloadError::Save | ReloadError::Load) => {
            b"-ERR Error trying to load the AOF files, check server logs.\r\n".to_vec()
        }
    });
    Ok(())
}

/// Holds slot migrations at one of their steps.
fn slot_migration(ctx: &mut Context<'_, '_>) -> CommandResult {
    let migrations = &ctx.server.slot_migrations;
    let switch = match ctx.arg(2).to_ascii_lowercase().as_slice() {
        b"prevent-pause" => &migrations.prevents_pause,
        b"prevent-failover" => &migrations.prevents_failover,
        _ => return Err(CommandError::SYNTAX),
    };
    switch.store(parse_switch(ctx.arg(3)), Ordering::Relaxed);
    ctx.server.background.wake_migration_thread();
    reply_ok(ctx)
}

/// Executes `DEBUG RELOAD [MERGE] [NOFLUSH] [NOSAVE]`, which writes all data to the dump and loads it again.
fn reload(ctx: &mut Context<'_, '_>) -> CommandResult {
    let mut options = ReloadOptions {
        should_save: true,
        should_flush: true,
        replace: false,
    };
    for word in ctx.args.iter().skip(2) {
        match word.to_ascii_lowercase().as_slice() {
            b"merge" => options.replace = true,
            b"noflush" => options.should_flush = false,
            b"nosave" => options.should_save = false,
            _ => {
                return Err(CommandError::constant(
                    "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.",
                ));
            }
        }
    }
    ctx.reply_from_background(move |server, seat| {
        let reply: &[u8] = match save::reload(server, seat, options) {
            Ok(()) => b"+OK\r\n",
            Err(ReloadError::Loading) => return loading_reply(server),
            Err(ReloadError::ScriptBusy(run)) => return busy_reply_of_run(&server.config, &run),
            Err(ReloadError::ProcessEnds) => b"-ERR The server is about to end\r\n",
            Err(ReloadError::Save) => b"-ERR\r\n",
            Err(ReloadError::Load) => b"-ERR Error trying to load the RDB dump, check server logs.\r\n",
        };
        reply.to_vec()
    });
    Ok(())
}

/// Matches random patterns against random strings. None may crash, and a pattern without wildcards must match only
/// itself.
fn match_patterns(ctx: &mut Context<'_, '_>) -> CommandResult {
    const ROUNDS: usize = 200_000;
    const LENGTH: usize = 32;
    let protocol = ctx.client.protocol;
    ctx.reply_from_background(move |_, _| {
        for _ in 0..ROUNDS {
            let random = || -> Vec<u8> {
                let length = fastrand::usize(..LENGTH);
                std::iter::repeat_with(|| fastrand::u8(..128)).take(length).collect()
            };
            let (pattern, string) = (random(), random());
            let matched = weft_resp::glob::matches(&pattern, &string, false);
            let plain = !pattern.iter().any(|byte| b"*?[\\".contains(byte));
            assert!(
                !plain || matched == (pattern == string),
                "{pattern:?} against {string:?}"
            );
        }
        build_reply(protocol, |reply: &mut Reply<'_>| {
            reply.simple("Apparently Weft did not crash: test passed");
        })
    });
    Ok(())
}

/// Describes a quicklist's nodes, for DEBUG OBJECT.
fn quicklist_statistics(value: ValueRef<'_, Value>) -> String {
    match value {
        ValueRef::Object(Value::List(list)) if list.is_quicklist() => {
            let figures = list.statistics();
            format!(
                " ql_nodes:{} ql_avg_node:{:.2} ql_listpack_max:{} ql_compressed:{} ql_uncompressed_size:{}",
                figures.nodes,
                list.len() as f64 / figures.nodes.max(1) as f64,
                figures.fill,
                u8::from(figures.depth > 0),
                figures.bytes,
            )
        }
        _ => String::new(),
    }
}

/// Returns the error for an error code of the allocator.
fn allocator_error(errno: i32) -> CommandError {
    CommandError::from_text(format!("ERR {}", errno_text(errno)))
}

/// Executes `DEBUG MALLCTL name [number]`.
fn allocator_number(ctx: &mut Context<'_, '_>) -> CommandResult {
    let new = match ctx.argc() {
        4 => Some(parse_i64(ctx.arg(3)).ok_or(CommandError::NOT_AN_INTEGER)?),
        _ => None,
    };
    let old = allocator::number(ctx.arg(2), new).map_err(allocator_error)?;
    ctx.reply.integer(old);
    Ok(())
}

/// Executes `DEBUG MALLCTL-STR name [VOID]`, where the name is that of a text or of a command. Texts cannot be changed.
fn allocator_text(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc() == 4 {
        if ctx.arg(3) != b"VOID" {
            return Err(allocator_error(allocator::NOT_PERMITTED));
        }
        allocator::command(ctx.arg(2)).map_err(allocator_error)?;
        return reply_ok(ctx);
    }
    let text = memory::allocator_text(ctx.arg(2)).ok_or_else(|| allocator_error(allocator::INVALID))?;
    ctx.reply.bulk(text);
    Ok(())
}

fn packed_threshold(ctx: &mut Context<'_, '_>) -> CommandResult {
    match parse_memory(ctx.arg(2)) {
        Some(bytes) if bytes < 4 << 30 => {
            weft_values::list::set_plain_threshold(usize::try_from(bytes).unwrap_or_default());
            reply_ok(ctx)
        }
        _ => Err(CommandError::constant(
            "ERR argument must be a memory value bigger than 1 and smaller than 4gb",
        )),
    }
}

fn reply_buffer(ctx: &mut Context<'_, '_>) -> CommandResult {
    match ctx.arg(2).to_ascii_lowercase().as_slice() {
        b"resizing" => reply_ok(ctx),
        b"peak-reset-time" => {
            let word = ctx.arg(3);
            let known = word.eq_ignore_ascii_case(b"never") || word.eq_ignore_ascii_case(b"reset");
            if !known && parse_i64(word).is_none() {
                return Err(CommandError::NOT_AN_INTEGER);
            }
            reply_ok(ctx)
        }
        _ => Err(unknown_subcommand_error(ctx)),
    }
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    super::reply_with_help(
        ctx,
        "DEBUG",
        &[
            (
                "AOF-FLUSH-SLEEP <microseconds>",
                "Sleep before each write to the append-only file.",
            ),
            ("ASSERT", "Crash by a failed assertion."),
            (
                "REPLICATE <command>",
                "Send a command to the replicas without executing it here.",
            ),
            ("CHANGE-REPL-ID", "Change the replication IDs."),
            (
                "CONFIG-REWRITE-FORCE-ALL",
                "Rewrite the configuration file with every parameter in it.",
            ),
            (
                "CRASH-AND-RECOVER [<milliseconds>]",
                "Start again without a shutdown, after <milliseconds> (default: 0).",
            ),
            ("DIGEST", "Show a fingerprint of all data."),
            (
                "DIGEST-VALUE <key> [<key> ...]",
                "Show fingerprints of the values of some keys.",
            ),
            ("ERROR <string>", "Reply with the error <string>."),
            ("HTSTATS <dbid> [full]", "Describe the tables of a database."),
            ("HTSTATS-KEY <key> [full]", "Describe the table that is a key's value."),
            ("LEAK <string>", "Leak the memory of <string>."),
            ("LOG <message>", "Write <message> to the log."),
            (
                "OBJECT <key> [fast]",
                "Show how a value is stored; with fast, without what takes time.",
            ),
            (
                "MALLCTL <name> [<number>]",
                "Get or set a number of the memory allocator.",
            ),
            (
                "MALLCTL-STR <name> [VOID]",
                "Get a text of the memory allocator, or perform an action without a value.",
            ),
            ("OOM", "Crash as if memory were exhausted."),
            ("PANIC", "Crash."),
            ("PAUSE-CRON <0|1>", "Stop the periodic tasks."),
            (
                "POPULATE <count> [<prefix>] [<size>]",
                "Create the keys <prefix>:0, <prefix>:1, ... (default: key:0) with values of <size> bytes.",
            ),
            (
                "PROTOCOL <type>",
                "Reply with a value of a type: string, integer, double, bignum, null, array, set, map,\n\
                 attrib, push, verbatim, true or false.",
            ),
            (
                "RESTART [<milliseconds>]",
                "Rewrite the configuration file, shut down, and start again after <milliseconds> (default: 0).",
            ),
            ("SDSLEN <key>", "Show the lengths of a key and its string."),
            ("SEGFAULT", "Crash by an invalid memory access."),
            (
                "SET-ACTIVE-EXPIRE <0|1>",
                "Delete expired keys in the background, or only when they are accessed.",
            ),
            (
                "SET-SKIP-CHECKSUM-VALIDATION <0|1>",
                "Skip the checksum checks of RDB files and RESTORE payloads.",
            ),
            ("SLEEP <seconds>", "Stop the server for <seconds>."),
            ("STRINGMATCH-TEST", "Match random patterns against random strings."),
        ],
    )
}
